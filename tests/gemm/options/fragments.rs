//! The options with every configuration whose weights are in the order of fragments: sm_80's, which sm_120f has, too,
//! sm_120f's own and sm_90a's.

use fp4_formats::gemm::groups::STATUS_BAD_COUNTS;
use fp4_formats::gemm::table::{Kernel, kernels};
use fp4_formats::gemm::{Problems, Split, sm90};
use fp4_formats::quantize::Format;
use fp4_formats::{Operand, TensorFamily, e4m3, ue8m0};
use nvfp4::device::Kernels;
use nvfp4::floats;
use nvfp4::gemm::GemmOverrides;
use nvfp4::tune::ResultKind;
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::mixed::check_mixed;
use nvfp4_tests::gemm::{ActivationType, BLOCKED, Case, LINEAR, RESULTS};
use ptx_emu::Gpu;

use super::{Store, combinations, grouped, residuals, small, stores, sums, varied};

/// A target's machine, and the kernels for these problems, counted.
struct Target {
    gpu: Gpu,
    tensor: TensorFamily,
    kernels: Vec<(usize, &'static Kernel)>,
}

impl Target {
    fn new(gpu: Gpu, tensor: TensorFamily, problems: Problems) -> Self {
        let of_problems = kernels(tensor).iter().filter(|kernel| kernel.problems == problems);
        Self { gpu, tensor, kernels: of_problems.enumerate().collect() }
    }

    /// Machines with so few SMs that CTAs have several tiles, under all schedules.
    fn machines(&self, sms: u32) -> [Kernels; 5] {
        small(self.gpu.clone(), sms)
    }

    /// Activations that a kernel multiplies, or that become it; `index` chooses.
    fn activations(&self, kernel: &Kernel, index: usize) -> ActivationType {
        let operands = kernel.operands;
        match (operands.activations, self.tensor) {
            (None, _) => [LINEAR, BLOCKED][index / 4 % 2],
            // Other kernels multiply blocks and e4m3 as they are, without decoding them.
            (Some(Operand::Half(half)), TensorFamily::MmaSyncScaled) => {
                ActivationType::Halves(half)
            }
            (Some(operand), _) => ActivationType::of_operand(operands.weights, operand, index),
        }
    }
}

/// The most CTAs of a cluster that divide a tile's K; 1 if none do.
fn max_split(kernel: &Kernel) -> u32 {
    let of_sm90 = sm90::CONFIGS.iter().find(|config| config.name == kernel.name);
    of_sm90.map_or(1, |config| config.max_split())
}

/// All ways to store, each with and without what else becomes of values.
fn all_stores(at: usize) -> Vec<Store> {
    [stores(at), combinations(at), sums(), residuals(at)].concat()
}

/// Floats, rows that are not aligned and all that becomes of values: fewer tokens than a tile has and
/// more, K whole and divided, batches.
fn uniform(target: &Target) {
    let machines = target.machines(4);
    for &(at, kernel) in &target.kernels {
        let [rows, tokens] = kernel.tile.map(|size| size as usize);
        let divided = match max_split(kernel) {
            1 => Split::StreamK,
            most => Split::Cluster(2).at_most(most),
        };
        for (i, store) in all_stores(at).into_iter().enumerate() {
            let index = 5 * at + i;
            let m = tokens - 1 + if index % 8 == 3 { 4 } else { 0 };
            let (k, split) = [(96, Split::None), (160, Split::None), (288, divided)][index % 3];
            let n = rows + if index % 8 == 5 { 40 } else { 0 };
            let entries = if index % 8 == 6 { 2 } else { 1 };
            let mut case = varied([m, n, k, entries], store, index)
                .format(kernel.operands.weights)
                .activations(target.activations(kernel, index))
                .kernel(kernel.name, split);
            case.shared_weights = index % 16 == 6;
            case.check(&machines[(index + at) % 5]);
        }
        // Kernels that store sums of 16 bits from registers do so without a cluster, in their own way for each type,
        // with and without factors of tokens.
        if max_split(kernel) > 1 {
            for (i, factors) in [0, 0, 1, 1].into_iter().zip([false, true].into_iter().cycle()) {
                let store = stores(at)[3 * i];
                let mut case = varied([tokens - 1, rows, 160, 1], store, at)
                    .format(kernel.operands.weights)
                    .activations(target.activations(kernel, at + i))
                    .kernel(kernel.name, Split::None);
                case.vectors[0] = factors;
                case.check(&machines[(at + i) % 5]);
            }
        }
    }
}

/// K of more steps than there are stages for, in parts of every kind; several tiles per CTA; more tiles in a
/// row than are walked together.
fn long_k(target: &Target) {
    let machines = target.machines(5);
    for &(at, kernel) in &target.kernels {
        let [rows, tokens] = kernel.tile.map(|size| size as usize);
        let cluster = (max_split(kernel) > 1).then(|| Split::Cluster(3).at_most(max_split(kernel)));
        let long = [Split::None, Split::StreamK].into_iter().chain(cluster).enumerate();
        let long = long.map(|(i, split)| ([(i % 2 + 1) * tokens + 3, 2 * rows + 40, 1312], split));
        let wide = [[17 * tokens - 3, rows, 32], [tokens, 17 * rows - 8, 32]];
        let wide = wide.into_iter().map(|shape| (shape, Split::None));
        for (i, ([m, n, k], split)) in long.chain(wide).enumerate() {
            let case = Case::new([m, n, k, 1])
                .format(kernel.operands.weights)
                .activations(target.activations(kernel, at + i))
                .kernel(kernel.name, split);
            case.check(&machines[(at + i) % 5]);
        }
    }
}

/// Grouped products: tiles that are not full and of every width, K of many steps, whole and divided, many groups of
/// which few have tokens, and counts that are none.
fn groups(target: &Target) {
    let machines = target.machines(3);
    // So many SMs that the few tiles' long K is divided among CTAs.
    let divided = target.machines(7);
    for &(at, kernel) in &target.kernels {
        let [rows, tokens] = kernel.tile.map(|size| size as usize);
        let check = |mut case: GroupedCase, index: usize, machine: &Kernels| {
            case.format = kernel.operands.weights;
            case.activations = target.activations(kernel, index);
            case.overrides = GemmOverrides::new().kernel(kernel.name.to_string()).split(None);
            case.check(machine);
        };
        let stores = all_stores(at);
        for (i, &store) in stores.iter().enumerate() {
            let index = 5 * at + i;
            let counts = [[tokens - 1, 0, 1], [0, tokens / 2 + 1, 0]][index % 2];
            let case = grouped(&counts, [rows, [96, 160, 288][index % 3]], store, index);
            check(case, index, &machines[(index + at) % 5]);
        }
        let most = [tokens + 3, 0, 2 * tokens, 1];
        check(grouped(&most, [2 * rows, 1312], stores[at % 13], at), at, &machines[at % 5]);
        let widths: Vec<usize> = (1..=8).map(|width| (width * tokens / 8).max(1)).collect();
        check(grouped(&widths, [rows, 160], stores[0], at), at, &machines[(at + 1) % 5]);
        let few_tiles = [vec![tokens + 3, 0, 1], vec![5, 1, 2 * tokens, 0, 3, 1, 0, 1, 2]];
        for (i, counts) in few_tiles.iter().enumerate() {
            let index = 2 * at + i;
            let case = grouped(counts, [rows, 2048], stores[index % 13], index);
            check(case, index, &divided[(at + i) % 5]);
        }
        let few = |at: usize| if at % 37 == 5 { at % 5 + 1 } else { 0 };
        let many: Vec<usize> = (0..300).map(few).collect();
        check(GroupedCase::new(&many, [40, 32]), at + 1, &machines[(at + 1) % 5]);
        // Each lane that divides has several groups; few tiles have many contributors.
        let two: Vec<usize> = (0..250)
            .map(|at| match at {
                5 => 3,
                242 => 1,
                _ => 0,
            })
            .collect();
        check(GroupedCase::new(&two, [8, 2176]), at, &divided[at % 5]);
        for (i, result) in RESULTS.into_iter().enumerate() {
            let activations = target.activations(kernel, i);
            bad_counts(kernel, activations, result, &machines[(at + i) % 5]);
        }
    }
}

/// Checks that counts that are none make all results NaN, and say so.
fn bad_counts(kernel: &Kernel, activations: ActivationType, result: ResultKind, machine: &Kernels) {
    let [rows, n] = [5, 64];
    let mut case = GroupedCase::new(&[3, 2], [n, 64]);
    case.format = kernel.operands.weights;
    case.activations = activations;
    (case.result, case.magnitude) = (result, true);
    case.overrides = GemmOverrides::new().kernel(kernel.name.to_string()).split(None);
    let got = case.run_with(machine, &[0, 4, 2]);
    let what = format!("{} {result:?}", kernel.name);
    assert_eq!(got.status, STATUS_BAD_COUNTS, "{what}");
    assert!(got.magnitude.is_some_and(f32::is_nan), "{what}");
    match result {
        ResultKind::Floats(of) => {
            let values = floats::decode(of, &got.bytes);
            assert!(values.iter().all(|value| value.is_nan()), "{what}");
        }
        ResultKind::Blocks(format, layout) => {
            let is_nan = |&scale: &u8| match format {
                Format::Nvfp4 => e4m3::is_nan(scale),
                Format::Mxfp4 => ue8m0::decode(scale).is_nan(),
            };
            let blocks = n / format.block() as usize;
            let places = (0..rows).flat_map(|row| (0..blocks).map(move |block| (row, block)));
            let mut scales = places.map(|(row, block)| layout.offset(row, block, blocks));
            assert!(scales.all(|at| is_nan(&got.scales[at])), "{what}");
        }
    }
}

/// Mixed products: all ways to store, those of floats in one launch and those of blocks in another.
fn mixed(target: &Target) {
    let machines = target.machines(3);
    for &(at, kernel) in &target.kernels {
        let [rows, tokens] = kernel.tile.map(|size| size as usize);
        let activations = match kernel.operands.activations {
            Some(operand) => ActivationType::as_they_are(operand),
            None => [LINEAR, BLOCKED][at % 2],
        };
        let cases = all_stores(at).into_iter().enumerate().map(|(i, store)| {
            let m = [tokens - 1, 5, tokens + 3][i % 3];
            let k = if i % 10 == 7 { 1312 } else { [96, 160, 288][i % 3] };
            let case = varied([m, rows + 40, k, 1], store, at + i);
            case.format(kernel.operands.weights).activations(activations)
        });
        let machine: &Kernels = &machines[1 + at % 4];
        let is_floats = |case: &Case| matches!(case.result, ResultKind::Floats(_));
        let (floats, blocks): (Vec<Case>, Vec<Case>) = cases.partition(is_floats);
        for result in [floats, blocks].iter().flat_map(|cases| check_mixed(machine, cases)) {
            assert_eq!(result.plan.kernel, kernel.name);
        }
    }
}

macro_rules! targets {
    ($($target:ident: $gpu:ident, $tensor:ident;)+) => {
        $(
            mod $target {
                use super::*;

                fn target(problems: Problems) -> Target {
                    Target::new(Gpu::$gpu(), TensorFamily::$tensor, problems)
                }

                #[test]
                fn with_every_configuration() {
                    uniform(&target(Problems::Uniform));
                }

                #[test]
                fn long_k_with_every_configuration() {
                    long_k(&target(Problems::Uniform));
                }

                #[test]
                fn with_every_grouped_configuration() {
                    groups(&target(Problems::Grouped));
                }

                #[test]
                fn with_every_mixed_configuration() {
                    mixed(&target(Problems::Mixed));
                }
            }
        )+
    };
}

targets! {
    sm_80: rtx4090, MmaSync;
    sm_120f: rtx5090, MmaSyncScaled;
    sm_90a: h200, Wgmma;
}
