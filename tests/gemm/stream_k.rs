//! Stream-K on sm_100a, asked for: clusters on few SMs have even runs of all tiles' K steps, and partial sums
//! meet in the workspace.

use fp4_formats::gemm::sm100::config::{WIDE_COLUMNS, flag_bytes};
use fp4_formats::gemm::sm100::{CONFIGS, Sm100Config};
use fp4_formats::gemm::{ResultType, Split};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, FloatType, ScaleLayout};
use nvfp4::device::Kernels;
use nvfp4::gemm::{GemmOverrides, plan};
use nvfp4::shape::GemmShape;
use nvfp4::tune::ResultKind;
use nvfp4_lab::generate::Generator;
use nvfp4_tests::gemm::{ActivationType, BF16, BLOCKED, Case, F16, LINEAR, refused};
use nvfp4_tests::{SCHEDULES, b200, emulated, emulated_on};
use ptx_emu::{Gpu, Schedule};

/// The kernels that take it.
fn configs() -> impl Iterator<Item = &'static Sm100Config> {
    CONFIGS.iter().filter(|config| config.takes_stream_k())
}

fn machine(sms: u32, schedule: Schedule) -> Kernels {
    emulated_on(Gpu { sms, ..b200() }, schedule)
}

/// Makes the case of a configuration, activations laid out by `index` in turn.
fn case(config: &Sm100Config, [m, n, k, l]: [usize; 4], index: usize) -> Case {
    let activations = match config.activations {
        Some(operand) => ActivationType::as_they_are(operand),
        None => [LINEAR, BLOCKED][index % 2],
    };
    let case = Case::new([m, n, k, l]).format(config.format).activations(activations);
    case.kernel(config.name, Split::StreamK)
}

/// Every kernel whose tiles no cluster splits or shares takes it, but for the widest: of 1 to 128 tokens,
/// block-scaled and 16-bit ones have one that holds them in two tiles.
#[test]
fn kernels_that_take_it() {
    for config in &CONFIGS {
        let whole = config.k_parts() * config.multicast == 1;
        assert_eq!(config.takes_stream_k(), whole && config.columns < WIDE_COLUMNS);
    }
    let machine = emulated("emu:b200", Schedule::Eager).device().properties();
    let planned = |[m, n, k]: [usize; 3], activations: ActivationType, overrides: GemmOverrides| {
        let (shape, kind) = (GemmShape::of(m, n, k), activations.kind(Format::Nvfp4));
        plan(shape, Format::Nvfp4, kind, Arch::Sm100a, machine, &overrides)
    };
    for name in ["gemm_sm100_nvfp4_128x64_split2", "gemm_sm100_nvfp4_256x256_multicast2"] {
        let overrides = GemmOverrides::new().kernel(name.to_string()).split(Split::StreamK);
        refused(name, planned([8, 256, 1024], LINEAR, overrides));
    }
    // All SMs copy. The workspace has the flags, what is laid out, and partial sums.
    for (activations, m) in [(LINEAR, 1), (LINEAR, 16), (BLOCKED, 128), (F16, 16), (BF16, 128)] {
        let plan = planned([m, 7168, 16384], activations, GemmOverrides::new()).expect("planned");
        assert_eq!((plan.split, plan.grid), (Split::StreamK, [148, 1]), "{plan}");
        let config = configs().find(|config| config.name == plan.kernel).expect("a kernel");
        let sums = 148 * config.partial_bytes() as usize;
        assert!(plan.workspace_bytes >= sums + flag_bytes(148) as usize, "{plan}");
        assert!(plan.why.iter().any(|why| why.contains("partial sums meet in the workspace")));
    }
}

/// Ragged tiles and K, batches, runs that hold parts of two tiles and whole ones between, and tiles of more
/// than two clusters; every type of result, all schedules.
#[test]
fn every_kernel() {
    let machines = SCHEDULES.map(|schedule| [3, 7, 148].map(|sms| machine(sms, schedule)));
    let mut i = 0;
    for config in configs() {
        let [rows, columns, step] =
            [config.rows(), config.columns, config.step()].map(|x| x as usize);
        for sizes in [
            [columns + 3, 2 * rows + 40, 4 * step + 32, 1],
            [columns - 1, rows - 3, 9 * step - 32, 1],
            [1, rows + 8, 2 * step + 96, 3],
        ] {
            let mut case = case(config, sizes, i);
            case.generator = Generator::ALL[i % 3];
            case.seed = i as u64;
            case.alpha = -1.5;
            case.vectors = [i % 2 == 0, i % 3 == 0, i % 5 < 2];
            let of = Format::ALL[i / 2 % 2];
            if i % 4 == 3 && config.stores(ResultType::Blocks(of), false, false) {
                case.shape.n = case.shape.n.next_multiple_of(of.block() as usize);
                case = case.result(ResultKind::Blocks(of, ScaleLayout::ALL[i % 2]));
            } else {
                case = case.result(FloatType::ALL[i % 3]);
            }
            let result = case.check(&machines[i % 5][i / 5 % 3]);
            assert_eq!(result.plan.split, Split::StreamK);
            i += 1;
        }
    }
}

/// The schedule changes no bit of a result. Nor do the runs of an exact one; whole tiles have the same bits.
#[test]
fn results_do_not_depend_on_timing() {
    let seeds = (0..24).map(|seed| Schedule::Random(700 + seed));
    let schedules: Vec<_> = SCHEDULES.into_iter().chain(seeds).collect();
    for name in ["gemm_sm100_nvfp4_128x8", "gemm_sm100_mxfp4_256x64", "gemm_sm100_nvfp4_f16_128x64"]
    {
        let config = configs().find(|config| config.name == name).expect("a kernel");
        for generator in [Generator::Exact, Generator::FullRange] {
            let sizes = [5, config.rows() as usize + 24, 5 * config.step() as usize + 64, 1];
            let mut first = None;
            let mut check = |kernels: &Kernels, split| {
                let case = Case { generator, ..case(config, sizes, 0) };
                let bytes = case.kernel(name, split).check(kernels).bytes;
                let expected = first.get_or_insert_with(|| bytes.clone());
                assert_eq!(*expected, bytes, "{name} {generator} {split}");
            };
            for &schedule in &schedules {
                check(&machine(5, schedule), Split::StreamK);
            }
            if generator == Generator::Exact {
                check(&machine(5, Schedule::Eager), Split::None);
                check(&machine(148, Schedule::Lazy), Split::StreamK);
            }
        }
    }
}
