//! The costs of the contest's GEMMs on the emulated machines, by its counters, with the plans that
//! are made for them: bytes, products, and how far they copy ahead.

use fp4_formats::ScaleLayout::Blocked128x4;
use fp4_formats::arch::TensorFamily;
use fp4_formats::gemm::sm90::config::CONFIGS as HOPPER;
use fp4_formats::gemm::sm90::config::K_STEP;
use fp4_formats::gemm::sm100::config::STORE_WARPS;
use fp4_formats::gemm::{Problem, Split};
use fp4_formats::gemm::{sm80, sm90, sm100, sm120};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, FloatType};
use nvfp4::device::Kernels;
use nvfp4::gemm::{GemmOverrides, GemmPlan, GemmResult, Reads, plan};
use nvfp4::plan::sm90::schedule;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::shape::{GEMM_CONTEST, GemmShape};
use nvfp4_tests::gemm::{ActivationType, BLOCKED, Case};
use nvfp4_tests::{DEVICES, TARGETS, b200, emulated, emulated_on};
use ptx_emu::{AsyncCount, Counters, Gpu, LaunchReport, Schedule};
use std::ops::Deref;

/// Runs a contest problem: NVFP4 by NVFP4 to f16, 128x4 scales. Its results are compared elsewhere.
pub fn run(
    kernels: &Kernels,
    GemmShape { m, n, k, l }: GemmShape,
    overrides: GemmOverrides,
) -> Counted {
    let case = Case::new([m, n, k, l]).activations(BLOCKED).result(FloatType::F16);
    let (layout, generator) = (Blocked128x4, Generator::ContestGemm);
    counted(kernels, &Case { layout, generator, overrides, ..case })
}

/// A result, and what the emulator counted.
pub struct Counted {
    result: GemmResult,
    /// The launches; the last one is the product.
    pub reports: Vec<LaunchReport>,
}

impl Deref for Counted {
    type Target = GemmResult;

    fn deref(&self) -> &GemmResult {
        &self.result
    }
}

fn counted(kernels: &Kernels, case: &Case) -> Counted {
    let (kernels, reports) = kernels.observed();
    let result = case.product(&kernels);
    Counted { result, reports: reports.take() }
}

impl Counted {
    /// Returns the counters of the product.
    pub fn counters(&self) -> &Counters {
        &self.reports.last().expect("a launch").counters
    }

    /// Bytes of operands that were copied; partial sums of other CTAs may be copied as well.
    fn copied(&self, [m, n, k, l]: [usize; 4], sms: u32) -> u64 {
        let AsyncCount { copies, bulk_loads, tensor_loads, .. } = &self.counters().asynchronous;
        let all = copies.bytes + bulk_loads.bytes + tensor_loads.bytes;
        all - sums_copied(&self.plan, [m, n, k, l].map(|size| size as u32), sms)
    }
}

/// Bytes of partial sums that the producers of a plan's launch copy: those of each CTA whose run ends within
/// a tile, which another CTA owns.
fn sums_copied(plan: &GemmPlan, [m, n, k, l]: [u32; 4], sms: u32) -> u64 {
    let copying = HOPPER.iter().find(|config| config.name == plan.kernel);
    let Some(config) = copying.filter(|config| config.copies_partials()) else { return 0 };
    let problem = Problem { m, n, k, l };
    let schedule = schedule(config, plan.split, &problem, sms).expect("as planned");
    let runs = schedule.ctas(config.tiles(&problem).count()) as u32;
    let sent = (0..runs).filter(|&run| !schedule.run(run).take(&schedule).owned(&schedule));
    let sent = if schedule.is_split() { 0 } else { sent.count() };
    sent as u64 * u64::from(config.multicast * config.partial_bytes())
}

/// Bytes of rows of codes and scales in NVFP4.
pub fn blocks(rows: usize, k: usize) -> u64 {
    (rows * (k / 2 + k / 16)) as u64
}

/// Bytes of the activations as the product takes them: 16-bit products take them decoded.
fn activations(shape: GemmShape, arch: Arch) -> u64 {
    match arch.tensor() {
        TensorFamily::MmaSync | TensorFamily::Wgmma => (shape.m * shape.k * 2) as u64,
        TensorFamily::MmaSyncScaled | TensorFamily::Tcgen05 => blocks(shape.m, shape.k),
    }
}

/// Whole contest problems: no byte of the operands is missed, memory is read once; what is copied is
/// what the plan states, and at most 1.05 times the operands in the passes that it states;
/// at most 1.15 times the useful products; results are written once.
#[test]
fn contest_shapes_are_within_budget() {
    for device in DEVICES {
        let kernels = emulated(device, Schedule::Eager);
        for shape in GEMM_CONTEST {
            let result = run(&kernels, shape, GemmOverrides::default());
            let (plan, counters) = (&result.plan, result.counters());
            let reads = plan.reads;
            let [a, b] = [activations(shape, plan.arch), blocks(shape.n, shape.k)];
            let what = format!("{device} {shape}: {plan}\n{:?}", counters.asynchronous);

            // Tensor maps, biases and the like are a few sectors. Sums that CTAs give to others
            // are in the workspace, on sm_90a behind decoded activations.
            let decoded = match plan.arch.tensor() {
                TensorFamily::MmaSync | TensorFamily::Wgmma => a,
                TensorFamily::MmaSyncScaled | TensorFamily::Tcgen05 => 0,
            };
            let given = match plan.workspace_bytes {
                bytes if plan.split == Split::StreamK => bytes as u64 - decoded,
                _ => 0,
            };
            let once = counters.global_unique_bytes_read;
            let of = format!("{once} of {} and {given} of sums, {what}", a + b);
            assert!(once >= a + b && 20 * once.saturating_sub(given) <= 21 * (a + b), "{of}");
            let GemmShape { m, n, k, l } = shape;
            let copied = result.copied([m, n, k, l], kernels.device().properties().sms);
            assert_eq!(copied, reads.bytes, "{what}");
            let passes = a * reads.activation_passes + b * reads.weight_passes;
            assert!(copied >= passes && 20 * copied <= 21 * passes, "{passes} {what}");

            let useful = (shape.m * shape.n * shape.k) as u64;
            let products = counters.tensor.half + counters.tensor.nibble;
            assert!(100 * products <= 115 * useful, "{:?} {what}", counters.tensor);
            let stored = (shape.m * shape.n * 2) as u64;
            assert!(counters.global_unique_bytes_written >= stored, "{what}");
            if plan.arch.tensor() == TensorFamily::Tcgen05 {
                // In whole sectors, once. Sums go through memory, too, and flags are raised and reset, a
                // sector each.
                let flags = plan.grid[0] * STORE_WARPS;
                let most = if given > 0 { given + u64::from(2 * flags * 32) } else { 0 };
                let written = counters.global.sectors_written * 32;
                assert!((stored..=stored + most).contains(&written), "{written}: {what}");
            }
        }
    }
}

/// A kernel copies as many stages ahead as its pipeline has, at least four of them: a wave of the
/// contest problems' tiles, whose copies complete as late as they may. Counted of copies by the asynchronous
/// unit, which sm_80 does not have.
#[test]
fn four_stages_are_in_flight() {
    for device in DEVICES {
        let kernels = emulated(device, Schedule::Lazy);
        for shape in GEMM_CONTEST {
            let machine = kernels.device().properties();
            let arch = kernels.device().choice().arch;
            let kind = BLOCKED.kind(Format::Nvfp4);
            let none = GemmOverrides::default();
            let planned = plan(shape, Format::Nvfp4, kind, arch, machine, &none).expect("planned");
            let few = GemmShape { n: 2 * planned.tile[0] as usize, k: 4096.min(shape.k), ..shape };
            // Not all SMs' parts of these few tiles, which are a step or two.
            let split = match planned.split {
                Split::StreamK => Split::None,
                split => split,
            };
            let overrides = GemmOverrides::new().kernel(planned.kernel.to_string()).split(split);
            let result = run(&kernels, few, overrides);
            let stage = stage_bytes(&result.plan);
            let most = result.counters().asynchronous.most_bytes_in_flight;
            let stages = most / stage;
            let what = format!("{device} {few}: {most} bytes, {}", result.plan);
            assert!((4..=u64::from(planned.stages)).contains(&stages), "{stages} stages: {what}");
        }
    }
}

/// Bytes that a stage of a plan's kernel holds of one CTA.
fn stage_bytes(plan: &GemmPlan) -> u64 {
    let sm90 = HOPPER.iter().find(|config| config.name == plan.kernel);
    let sm80 = sm80::CONFIGS.iter().find(|config| config.name == plan.kernel);
    let sm100 = sm100::CONFIGS.iter().find(|config| config.name == plan.kernel);
    let sm120 = sm120::CONFIGS.iter().find(|config| config.name == plan.kernel);
    let bytes = sm90.map(sm90::Sm90Config::stage_bytes);
    let bytes = bytes.or(sm80.map(sm80::Sm80Config::stage_bytes));
    let bytes = bytes.or(sm100.map(sm100::Sm100Config::stage_bytes));
    let bytes = bytes.or(sm120.map(sm120::Sm120Config::stage_bytes));
    bytes.expect("a configuration").into()
}

/// Plans of every configuration state the bytes that are copied, also if tiles, steps and parts of
/// K are not full, for each batch entry. Behind an item's last step, kernels on `mma.sync` copy nothing; those of
/// sm_80 fill no more than their stages with zeros, which count as copied.
#[test]
fn plans_state_what_is_copied() {
    for device in TARGETS {
        let kernels = emulated(device, Schedule::Eager);
        let arch = kernels.device().choice().arch;
        let sm80s = sm80::CONFIGS.iter().filter(|config| config.scheme.format == Format::Nvfp4);
        let sm80s = sm80s.flat_map(|config| {
            [Split::StreamK, Split::None].map(|split| {
                let (tile, operand) = ([config.rows, config.tokens], config.scheme.operand);
                (config.name, tile, operand, true, split, 3 * config.k_step() + 16)
            })
        });
        let sm90s = HOPPER.iter().filter(|config| config.scheme.format == Format::Nvfp4);
        let sm90s = sm90s.flat_map(|config| {
            [Split::StreamK, Split::None, Split::Cluster(3)].map(|split| {
                let tile = [config.rows, config.tokens];
                let split = split.at_most(config.max_split());
                (config.name, tile, config.scheme.operand, true, split, 3 * K_STEP + 16)
            })
        });
        let sm100s = sm100::CONFIGS.iter().filter(|config| config.format == Format::Nvfp4);
        let sm100s = sm100s.map(|config| {
            let tile = [config.rows(), config.columns];
            let operand = config.activations.unwrap_or(fp4_formats::Operand::F16);
            let k = config.step() * (config.k_parts() + 1) + 16;
            (config.name, tile, operand, config.activations.is_some(), config.split, k)
        });
        let sm120s = sm120::CONFIGS.iter().filter(|config| config.format == Format::Nvfp4);
        let sm120s = sm120s.flat_map(|config| {
            [Split::StreamK, Split::None].map(|split| {
                let (tile, operand) = ([config.rows, config.tokens], fp4_formats::Operand::F16);
                (config.name, tile, operand, false, split, 3 * config.k_step() + 16)
            })
        });
        let all: Vec<_> = match arch.tensor() {
            TensorFamily::MmaSync => sm80s.collect(),
            TensorFamily::MmaSyncScaled => sm120s.collect(),
            TensorFamily::Wgmma => sm90s.collect(),
            TensorFamily::Tcgen05 => sm100s.collect(),
        };
        for (name, [rows, tokens], operand, of_halves, split, k) in all {
            let (m, n, l) = (tokens as usize + 1, rows as usize + 24, 2);
            let mut case = Case::new([m, n, k as usize, l]).result(FloatType::F16);
            case.layout = Blocked128x4;
            case.activations =
                if of_halves { ActivationType::as_they_are(operand) } else { BLOCKED };
            let result = counted(&kernels, &case.kernel(name, split));
            let copied = result.copied([m, n, k as usize, l], kernels.device().properties().sms);
            let Reads { activation_passes, weight_passes, bytes } = result.plan.reads;
            let filled = match arch.tensor() {
                TensorFamily::MmaSync => {
                    let stages = u64::from(result.plan.stages) + 1;
                    // Each CTA's run begins within a tile at most once.
                    let tiles = m.div_ceil(tokens as usize) * n.div_ceil(rows as usize) * l;
                    let items = u64::from(result.plan.grid[0]) + tiles as u64;
                    items * stages * stage_bytes(&result.plan)
                }
                TensorFamily::MmaSyncScaled | TensorFamily::Wgmma | TensorFamily::Tcgen05 => 0,
            };
            let what = format!("{copied} and at most {filled} of zeros: {}", result.plan);
            assert!((bytes..=bytes + filled).contains(&copied), "{what}");
            let [rows, tokens] = result.plan.tile.map(|size| size as usize);
            let shared = name.ends_with("share2") || name.contains("multicast2");
            let per_cluster = if shared { 2 } else { 1 };
            let down = |size: usize, tile: usize| -> [u64; 2] {
                [1, per_cluster].map(|share| size.div_ceil(tile * share) as u64)
            };
            assert!(down(n, rows).contains(&activation_passes), "{}", result.plan);
            assert!(down(m, tokens).contains(&weight_passes), "{}", result.plan);
        }
    }
}

/// The passes are in the plan's words and in its JSON.
#[test]
fn plans_state_their_passes() {
    let kind = BLOCKED.kind(Format::Nvfp4);
    let shape = GemmShape::of(300, 7168, 2048);
    for (device, kernel) in [
        ("emu:h200", "gemm_sm90_nvfp4_f16_128x128"),
        ("emu:b200", "gemm_sm100_nvfp4_256x64"),
        ("emu:rtx4090", "gemm_sm80_nvfp4_f16_128x128"),
        ("emu:rtx5090", "gemm_sm120_nvfp4_128x128"),
    ] {
        let kernels = emulated(device, Schedule::Eager);
        let (device, kernel) = (kernels.device(), Some(kernel.to_owned()));
        let overrides = GemmOverrides::new().kernel(kernel).split(Split::None);
        let (arch, machine) = (device.choice().arch, device.properties());
        let plan = plan(shape, Format::Nvfp4, kind, arch, machine, &overrides).expect("planned");
        let [rows, tokens] = plan.tile.map(|size| size as usize);
        let [activations, weights] = [shape.n.div_ceil(rows), shape.m.div_ceil(tokens)];
        let reads = [activations, weights].map(|count| count as u64);
        let Reads { activation_passes, weight_passes, bytes } = plan.reads;
        assert_eq!([activation_passes, weight_passes], reads, "{plan}");
        let text = format!(
            "activations are read {activations} times, weights {weights} times: {bytes} bytes"
        );
        assert!(plan.to_string().contains(&text), "{plan} lacks {text}");
        let json = serde_json::to_value(&plan).expect("JSON");
        assert_eq!(json["reads"]["activation_passes"], activations);
        assert_eq!(json["reads"]["weight_passes"], weights);
        assert_eq!(json["reads"]["bytes"], bytes);
    }
}

/// NVFP4 products of every sm_100a configuration, a few K steps in each CTA more than it has
/// stages, with two tiles more than the machine holds clusters, which ask for tiles while they run.
///
/// An arrival that releases for the cluster waits until all that its thread has written is where the
/// other CTAs see it. Only those have one that publish sums to the CTAs of a split: a lane of each
/// storing warp, once a tile. No K step has any.
///
/// Clusters that ask for tiles take no more than their share: a tile that one cluster holds in
/// advance is not there for one that could begin it.
#[test]
fn only_sums_are_released_for_the_cluster_and_each_takes_its_share_of_the_tiles() {
    for config in sm100::CONFIGS.iter().filter(|config| config.format == Format::Nvfp4) {
        // Plans are for eight SMs at least.
        let sms = (3 * config.cluster()).max(8);
        let resident = sms / config.cluster();
        let kernels = emulated_on(Gpu { sms, ..b200() }, Schedule::Eager);
        let k = ((config.stages() + 3) * config.step() * config.k_parts()) as usize;
        let tokens = config.columns.min(16) as usize;
        let mut case = Case::new([tokens, 64, k, resident as usize + 2]);
        case.layout = Blocked128x4;
        case.activations = config.activations.map_or(BLOCKED, ActivationType::as_they_are);
        let result = counted(&kernels, &case.kernel(config.name, config.split));
        let clusters = [result.plan.grid[0] / result.plan.cluster, result.plan.cluster];
        assert_eq!(clusters, [resident + 2, config.cluster()], "{}", result.plan);

        let counters = &result.counters().asynchronous;
        let warps = (resident + 2) * config.cluster() * STORE_WARPS;
        let released = u64::from(warps * (config.k_parts() - 1));
        assert_eq!(counters.cluster_releases, released, "{}", config.name);

        let share = (resident + 2).div_ceil(resident);
        assert_eq!(1 + counters.most_taken_over, u64::from(share), "{}", config.name);
    }
}
