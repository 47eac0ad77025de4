//! Every option of a product with every configuration, against the f64 oracle: what a configuration's
//! kernel has its own code for. The coverage of the kernels (`cargo xtask test --coverage`) rests on
//! this.
//!
//! A configuration meets each way of storing ([`Store`]) in each orientation, and each value of every
//! other option. The other options change from case to case with their own periods, and begin
//! elsewhere for each configuration, so that over all configurations they meet each other. Shapes are
//! those of one or two tiles that are not full.

mod warps;

use fp4_formats::gemm::{Split, sm90, sm100};
use fp4_formats::{FloatType, Operand, ScaleLayout};
use nvfp4::device::Kernels;
use nvfp4::gemm::{Activation, GemmOverrides};
use nvfp4::tune::ResultKind;
use nvfp4_lab::generate::Generator;
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::mixed::check_mixed;
use nvfp4_tests::gemm::tcgen05::Product;
use nvfp4_tests::gemm::{
    ActivationType, BLOCKED, Case, FLOATS, GatedForm, LINEAR, Placement, RESULTS,
};
use nvfp4_tests::{DEVICES, SCHEDULES, b200, emulated, emulated_on};
use ptx_emu::Gpu;

/// A way to store a result, and what is stored.
#[derive(Debug, Clone, Copy)]
struct Store {
    /// The type of the result.
    result: ResultKind,
    /// Columns of the result beyond a multiple of 32.
    ragged: usize,
    /// The activation function, and whether the product is gated; `None` if results are sums times
    /// factors of rows.
    combined: Option<(Activation, bool)>,
}

/// Columns of rows some of which begin at multiples of 16 bytes, and some not.
fn ragged(result: ResultKind) -> usize {
    if result == ResultKind::Floats(FloatType::F32) { 2 } else { 4 }
}

/// All ways: floats in rows that begin at multiples of 16 bytes, as sums and as more than that, and
/// in rows some of which do not; blocks. `index` chooses what becomes of values.
fn stores(index: usize) -> Vec<Store> {
    let combined = |at: usize| {
        let at = index + at;
        Some((Activation::ALL[at % 6], (at + at / 6) % 2 == 1))
    };
    let floats = FLOATS.into_iter().map(ResultKind::Floats).enumerate().flat_map(|(at, result)| {
        [
            Store { result, ragged: 16, combined: None },
            Store { result, ragged: 24, combined: combined(2 * at) },
            Store { result, ragged: ragged(result), combined: combined(2 * at + 1) },
        ]
    });
    let blocks = RESULTS[FLOATS.len()..].iter().enumerate();
    let blocks = blocks.map(|(at, &result)| Store { result, ragged: 0, combined: combined(at) });
    floats.chain(blocks).collect()
}

/// Sums times factors of rows once more, where [`stores`] has no factors or has them, and as blocks.
fn sums() -> Vec<Store> {
    let all = FLOATS.map(ResultKind::Floats).into_iter().chain([RESULTS[3], RESULTS[6]]);
    let store = |result: ResultKind| {
        let ragged = if result.block() == 1 { 16 } else { 0 };
        Store { result, ragged, combined: None }
    };
    all.map(store).collect()
}

/// Values that are gated and otherwise left alone, which [`stores`] need not have.
fn gated_alone() -> Store {
    let combined = Some((Activation::Identity, true));
    Store { result: FloatType::F16.into(), ragged: 24, combined }
}

/// Everything that becomes of values, in rows of both kinds and as blocks.
fn combinations(index: usize) -> Vec<Store> {
    let all = [false, true].into_iter().flat_map(|gated| {
        Activation::ALL.into_iter().map(move |activation| Some((activation, gated)))
    });
    let all = all.enumerate().flat_map(|(at, combined)| {
        let floats = |at: usize| ResultKind::Floats(FLOATS[(index + at) % 3]);
        let (in_rows, whole) = (floats(at), floats(at + 1));
        let blocks = RESULTS[FLOATS.len() + (index + at) % (RESULTS.len() - FLOATS.len())];
        [
            Store { result: in_rows, ragged: ragged(in_rows), combined },
            Store { result: whole, ragged: 8, combined },
            Store { result: blocks, ragged: 0, combined },
        ]
    });
    all.collect()
}

/// Row factors, column factors and a bias, in turn with and without.
fn vectors(store: Store, index: usize) -> [bool; 3] {
    match store.combined {
        Some(_) => [index % 4 < 2, index.is_multiple_of(3), index % 4 > 1],
        None => [index.is_multiple_of(2), false, false],
    }
}

/// Whether the largest magnitude is asked for.
fn magnitude(store: Store, index: usize) -> bool {
    store.combined.is_some() && index % 3 != 1
}

/// A case with everything that differs between cases, but the kernel and the types of operands, chosen
/// by `index`. About `n` columns of weights.
fn varied([m, n, k, l]: [usize; 4], store: Store, index: usize) -> Case {
    let (activation, gated) = store.combined.unwrap_or((Activation::Identity, false));
    let n = n / if gated { 64 } else { 32 } * 32 + store.ragged;
    let mut case = Case::new([m, n, k, l]).result(store.result).activation(activation);
    case.generator = Generator::FullRange;
    case.seed = index as u64;
    case.layout = ScaleLayout::ALL[index / 2 % 2];
    case.alpha = [4.0, -0.75, 16.0][index % 3];
    case.vectors = vectors(store, index);
    case.magnitude = magnitude(store, index);
    match gated {
        true => case
            .gated_as(GatedForm::ALL[index / 2 % 3])
            .up([1.0, -2.5][index / 4 % 2], [!index.is_multiple_of(3), index % 8 < 4]),
        false => case,
    }
}

/// The same of groups with these numbers of tokens.
fn grouped(counts: &[usize], [n, k]: [usize; 2], store: Store, index: usize) -> GroupedCase {
    let (activation, gated) = store.combined.unwrap_or((Activation::Identity, false));
    let n = n / if gated { 64 } else { 32 } * 32 + store.ragged;
    let mut case = GroupedCase::new(counts, [n, k]);
    case.generator = Generator::FullRange;
    case.seed = index as u64;
    case.result = store.result;
    case.alpha = [4.0, -0.75, 16.0][index % 3];
    case.factors = index / 2 % 2 == 1;
    case.vectors = vectors(store, index);
    case.own_vectors = index / 3 % 2 == 1;
    case.magnitude = magnitude(store, index);
    (case.activation, case.gated) = (activation, gated);
    (case.spare, case.slot) = match index % 4 {
        3 => (0, counts.iter().max().map(|most| most + 2)),
        spare => (spare, None),
    };
    case
}

/// Type of activations of a kernel of sm_90a.
fn activations_of(config: &sm90::Sm90Config, index: usize) -> ActivationType {
    let scheme = config.scheme;
    Case::new([1, 1, 32, 1]).decoded_to(scheme.format, scheme.operand, index).activations
}

/// Machines with so few SMs that CTAs have several tiles, under all schedules.
fn small(gpu: Gpu, sms: u32) -> [Kernels; 5] {
    SCHEDULES.map(|schedule| emulated_on(Gpu { sms, ..gpu.clone() }, schedule))
}

/// Options of sm_90a: fewer tokens than a tile has and more.
#[test]
fn with_every_configuration_of_sm_90a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[0], schedule));
    for (at, config) in sm90::CONFIGS.iter().enumerate() {
        let stores = [stores(at), combinations(at), sums()].concat();
        for (i, store) in stores.into_iter().enumerate() {
            let index = 5 * at + i;
            let m = config.tokens as usize - 1 + if index % 8 == 3 { 4 } else { 0 };
            let (k, split) =
                [(96, Split::None), (160, Split::None), (288, Split::Cluster(2))][index % 3];
            let n = config.rows as usize + if index % 8 == 5 { 40 } else { 0 };
            let case = varied([m, n, k, 1], store, index)
                .decoded_to(config.scheme.format, config.scheme.operand, index)
                .kernel(config.name, split.at_most(config.max_split()));
            case.check(&machines[(index + at) % 5]);
        }
    }
}

/// Options of sm_90a: K of more steps than there are stages for, in parts of every kind; several tiles
/// per CTA; more tiles in a row than are walked together.
#[test]
fn long_k_with_every_configuration_of_sm_90a() {
    let machines = small(Gpu::h200(), 5);
    for (at, config) in sm90::CONFIGS.iter().enumerate() {
        for (i, split) in [Split::None, Split::StreamK, Split::Cluster(3)].into_iter().enumerate() {
            let m = config.tokens as usize * [1, 2, 1][i] + 3;
            let case = Case::new([m, 2 * config.rows as usize + 40, 1312, 1])
                .decoded_to(config.scheme.format, config.scheme.operand, at + i)
                .kernel(config.name, split.at_most(config.max_split()));
            case.check(&machines[(at + i) % 5]);
        }
        let [tokens, rows] = [config.tokens, config.rows].map(|size| size as usize);
        for (i, [m, n]) in
            [[17 * tokens - 3, rows], [tokens, 17 * rows - 8]].into_iter().enumerate()
        {
            let case = Case::new([m, n, 32, 1])
                .decoded_to(config.scheme.format, config.scheme.operand, at + i)
                .kernel(config.name, Split::None);
            case.check(&machines[(at + i) % 5]);
        }
    }
}

/// Options of sm_100a: few tokens and few columns, so that the plan has both orientations; weights
/// of each batch entry and of all.
#[test]
fn with_every_configuration_of_sm_100a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[1], schedule));
    for (at, config) in sm100::CONFIGS.iter().enumerate() {
        let rows = config.rows() as usize;
        for (turn, [m, n]) in [[9, rows - 24], [rows - 23, 64]].into_iter().enumerate() {
            // Some have one orientation.
            if config.only_swapped() && turn != at % 2 {
                continue;
            }
            let all = stores(at + turn).into_iter().chain([gated_alone()]);
            for (i, store) in all.enumerate() {
                let index = 3 * at + i + 7 * turn;
                let k = (config.step() * config.k_parts()) as usize + 32;
                let mut case = varied([m, n, k, 1 + index % 2], store, index).format(config.format);
                case.activations = match config.activations {
                    Some(operand) => ActivationType::as_they_are(operand),
                    None => [LINEAR, BLOCKED][index / 4 % 2],
                };
                case.shared_weights = index % 4 == 3;
                case.kernel(config.name, config.split).check(&machines[(index + at) % 5]);
            }
        }
    }
}

/// Options of sm_100a: activations that all batch entries share, in both orientations, and more
/// tiles in a row than are walked together, asked for and not.
#[test]
fn walks_of_every_configuration_of_sm_100a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[1], schedule));
    for (at, config) in sm100::CONFIGS.iter().enumerate() {
        let rows = config.rows() as usize;
        for [m, n] in [[9, rows - 24], [rows - 23, 64]] {
            let k = (config.step() * config.k_parts()) as usize + 32;
            let mut case = Case::new([m, n, k, 2]).format(config.format);
            case.activations = match config.activations {
                Some(operand) => ActivationType::as_they_are(operand),
                None => [LINEAR, BLOCKED][at % 2],
            };
            let scales = match config.activations {
                Some(Operand::Half(_)) => Placement::Dense,
                Some(Operand::E4m3) | None => Placement::Shared,
            };
            let case = case.activations_at([Placement::Shared, scales]);
            case.kernel(config.name, config.split).check(&machines[at % 5]);
        }
        let k = config.step() * (config.k_parts() - 1) + 32;
        for (i, sizes) in [
            [config.rows() - 3, 9 * config.cluster_columns() - 8],
            [9 * config.rows() - 5, (config.cluster_columns() - 8).max(5)],
        ]
        .into_iter()
        .enumerate()
        {
            let [m, n] = if config.only_swapped() { [sizes[1], sizes[0]] } else { sizes };
            let mut product = Product::new(config, [m, n, k, 1]);
            product.schedule = SCHEDULES[(at + i) % 5];
            product.dynamic = (at + i).is_multiple_of(2);
            product.check();
        }
    }
}

/// Options of sm_90a's grouped products: tiles that are not full, and K of many steps, whole and
/// divided.
#[test]
fn with_every_grouped_configuration_of_sm_90a() {
    let machines = small(Gpu::h200(), 3);
    // So many SMs that the few tiles' long K is divided among CTAs.
    let divided = small(Gpu::h200(), 7);
    for (at, config) in sm90::GROUPED.iter().enumerate() {
        let tokens = config.tokens as usize;
        let stores = [stores(at), combinations(at), sums()].concat();
        let check = |counts: &[usize], sizes, store, index: usize, machine: &Kernels| {
            let mut case = grouped(counts, sizes, store, index);
            case.format = config.scheme.format;
            case.activations = activations_of(config, index);
            case.overrides = GemmOverrides::new().kernel(config.name.to_string()).split(None);
            case.check(machine);
        };
        for (i, &store) in stores.iter().enumerate() {
            let index = 5 * at + i;
            let counts = [[tokens - 1, 0, 1], [0, tokens / 2 + 1, 0]][index % 2];
            let sizes = [config.rows as usize, [96, 160, 288][index % 3]];
            check(&counts, sizes, store, index, &machines[(index + at) % 5]);
        }
        let most = [tokens + 3, 0, 2 * tokens, 1];
        check(&most, [2 * config.rows as usize, 1312], stores[at % 13], at, &machines[at % 5]);
        // Every width of tiles.
        let widths: Vec<usize> = (1..=8).map(|width| (width * tokens / 8).max(1)).collect();
        check(&widths, [config.rows as usize, 160], stores[0], at, &machines[(at + 1) % 5]);
        for i in 0..2 {
            let index = 2 * at + i;
            let counts = [[tokens + 3, 0, 1], [5, 1, 2 * tokens]][i];
            let sizes = [config.rows as usize, 4096];
            check(&counts, sizes, stores[index % 13], index, &divided[(at + i) % 5]);
        }
    }
}

/// Options of sm_100a's grouped products, in both orientations.
#[test]
fn with_every_grouped_configuration_of_sm_100a() {
    let machines = small(b200(), 4);
    for (at, config) in sm100::GROUPED.iter().enumerate() {
        let [rows, columns] = [config.rows(), config.columns].map(|size| size as usize);
        for (turn, [tokens, n]) in [[columns / 2, rows], [rows, 64]].into_iter().enumerate() {
            if config.activations.is_some() && turn != 0 {
                continue;
            }
            let all = stores(at + turn).into_iter().chain([gated_alone()]);
            for (i, store) in all.enumerate() {
                let index = 3 * at + i + 7 * turn;
                let counts = [[tokens - 1, 0, 1], [0, tokens, 0]][index % 2];
                let mut case = grouped(&counts, [n, [96, 160, 288][index % 3]], store, index);
                case.format = config.format;
                case.activations = match config.activations {
                    Some(operand) => ActivationType::as_they_are(operand),
                    None => [LINEAR, BLOCKED][index / 4 % 2],
                };
                case.overrides = GemmOverrides::new().kernel(config.name.to_string()).split(None);
                case.check(&machines[(index + at) % 5]);
            }
        }
    }
}

/// Many groups, few of which have tokens: a table in shared memory is made for them in several rounds.
#[test]
fn many_groups_with_every_grouped_configuration() {
    let few = |at: usize| if at % 37 == 5 { at % 5 + 1 } else { 0 };
    let counts: Vec<usize> = (0..300).map(few).collect();
    let machines = [small(Gpu::h200(), 3), small(b200(), 4)];
    let check = |machine, name: &str, format, activations| {
        let mut case = GroupedCase::new(&counts, [40, 32]);
        (case.format, case.activations) = (format, activations);
        case.overrides = GemmOverrides::new().kernel(name.to_string()).split(None);
        case.check(machine);
    };
    for (at, config) in sm90::GROUPED.iter().enumerate() {
        check(&machines[0][at % 5], config.name, config.scheme.format, activations_of(config, at));
    }
    for (at, config) in sm100::GROUPED.iter().enumerate() {
        let activations = match config.activations {
            Some(operand) => ActivationType::as_they_are(operand),
            None => [LINEAR, BLOCKED][at % 2],
        };
        check(&machines[1][at % 5], config.name, config.format, activations);
    }
}

/// Mixed products: all ways to store, those of floats in one launch and those of blocks in another, on
/// machines with so few SMs that CTAs go from product to product.
#[test]
fn with_every_mixed_configuration() {
    let check = |machine: &Kernels, cases: Vec<Case>, name: &str| {
        let is_floats = |case: &Case| matches!(case.result, ResultKind::Floats(_));
        let (floats, blocks): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(is_floats);
        for result in [floats, blocks].iter().flat_map(|cases| check_mixed(machine, cases)) {
            assert_eq!(result.plan.kernel, name);
        }
    };
    let machines = [small(Gpu::h200(), 3), small(b200(), 4)];
    for (at, config) in sm90::MIXED.iter().enumerate() {
        let stores = [stores(at), combinations(at), sums()].concat();
        let [tokens, rows] = [config.tokens, config.rows].map(|size| size as usize);
        let activations = activations_of(config, 1);
        let cases = stores.iter().enumerate().map(|(i, &store)| {
            let m = [tokens - 1, 5, tokens + 3][i % 3];
            let k = if i % 10 == 7 { 1312 } else { [96, 160, 288][i % 3] };
            let case = varied([m, rows + 40, k, 1], store, at + i);
            case.format(config.scheme.format).activations(activations)
        });
        check(&machines[0][1 + at % 4], cases.collect(), config.name);
    }
    for (at, config) in sm100::MIXED.iter().enumerate() {
        let [rows, columns] = [config.rows(), config.columns].map(|size| size as usize);
        for (turn, [m, n]) in [[columns / 2, rows], [rows, 64]].into_iter().enumerate() {
            let stores = [stores(at), combinations(at), sums()].concat();
            let cases = stores.iter().enumerate().map(|(i, &store)| {
                let case = varied([m - i % 3, n, [96, 160, 288][i % 3], 1], store, at + i);
                case.format(config.format).activations(match config.activations {
                    Some(operand) => ActivationType::as_they_are(operand),
                    None => [LINEAR, BLOCKED][at % 2],
                })
            });
            check(&machines[1][1 + (at + turn) % 4], cases.collect(), config.name);
        }
    }
}
