//! Biases in f16 and bf16, which the kernels of all GEMMs take and the host library does not give: its
//! launches are repeated with a bias of the same values in the other type, and must leave the same bytes.

use fp4_formats::gemm::sm90::{self, Sm90Params};
use fp4_formats::gemm::sm100::{self, Sm100Params};
use fp4_formats::gemm::{Affine, Epilogue, Sink, Split};
use fp4_formats::{Arch, FloatType};
use nvfp4::device::{Device, DeviceRequest, Kernels};
use nvfp4::floats;
use nvfp4::gemm::GemmOverrides;
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::mixed::check_mixed;
use nvfp4_tests::gemm::{ActivationType, Case, LINEAR, POISON, RESULTS};
use nvfp4_tests::{SCHEDULES, b200, kernels_dir, module};
use ptx_emu::bundle::{Bundle, RunBundle as _};
use ptx_emu::experiment::Experiment;
use ptx_emu::{Checks, Gpu, Launch};
use std::mem::offset_of;
use std::path::{Path, PathBuf};

/// The place of a launch's parameters.
#[derive(Clone, Copy)]
enum Parameters {
    /// Parameters by value, those of a GEMM first.
    Given,
    /// Parameters in memory, at a pointer that is given first: mixed products, of which there is
    /// one.
    InMemory,
}

/// A machine whose launches are written down.
struct Captured {
    kernels: Kernels,
    folder: PathBuf,
    arch: Arch,
    /// Offset of the epilogue in a GEMM's parameters.
    epilogue: usize,
    /// Bytes of a GEMM's parameters.
    block: u64,
}

impl Captured {
    fn new(arch: Arch, gpu: Gpu, epilogue: usize, block: usize) -> Self {
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = tmp.join(format!("half-biases-{arch}"));
        let _ = std::fs::remove_dir_all(&folder);
        let device = Device::open(&DeviceRequest::Emulator(gpu)).expect("it opens anywhere");
        let device = device.with_schedule(SCHEDULES[1]).with_capture(&folder);
        let kernels = device.kernels(Some(&kernels_dir())).expect("kernels are built");
        Self { kernels, folder, arch, epilogue, block: block as u64 }
    }

    /// The last launch of the kernel `entry` that `run` makes.
    fn launch(&self, entry: &str, run: impl FnOnce(&Kernels)) -> Experiment {
        run(&self.kernels);
        let all = std::fs::read_dir(&self.folder).expect("bundles");
        let all = all.map(|bundle| bundle.expect("a folder").path());
        let named = |path: &PathBuf| path.to_string_lossy().ends_with(&format!("-{entry}"));
        let last = all.filter(named).max().unwrap_or_else(|| panic!("{entry} was not launched"));
        let bundle = Bundle::read(&last).unwrap_or_else(|e| panic!("{entry}: {e}"));
        std::fs::remove_dir_all(&self.folder).expect("removable");
        bundle.experiment(None).unwrap_or_else(|e| panic!("{entry}: {e}"))
    }

    /// Repeats a launch that `run` makes with its bias in other types.
    fn check(&self, entry: &str, parameters: Parameters, run: impl FnOnce(&Kernels)) {
        let experiment = self.launch(entry, run);
        let affine = self.epilogue + offset_of!(Epilogue, affine);
        let columns = self.epilogue + offset_of!(Epilogue, sink) + offset_of!(Sink, columns);
        for (at, half) in [FloatType::F16, FloatType::Bf16].into_iter().enumerate() {
            let mut params = experiment.params.clone();
            let mut memory = experiment.memory.duplicate().expect("room");
            let at_pointer = number(&params, 0, 8);
            let block = match parameters {
                Parameters::Given => params.clone(),
                Parameters::InMemory => memory.read(at_pointer, self.block).expect("a block"),
            };
            let bias = number(&block, affine + offset_of!(Affine, bias), 8);
            let columns = number(&block, columns, 4);
            assert!(bias != 0 && columns != 0, "{entry}: no bias");
            let wide = memory.read(bias, columns * 4).expect("the bias");
            let values = floats::decode(FloatType::F32, &wide);
            let mut narrow = floats::encode(half, values.iter().map(|&x| x.into()));
            assert_eq!(floats::decode(half, &narrow), values, "{entry}: rounded");
            narrow.resize(wide.len(), POISON);
            memory.write(bias, &narrow).expect("room");
            let of = affine + offset_of!(Affine, bias_type);
            let code = (half as u32).to_le_bytes();
            match parameters {
                Parameters::Given => params[of..][..4].copy_from_slice(&code),
                Parameters::InMemory => {
                    memory.write(at_pointer + of as u64, &code).expect("the block");
                }
            }
            let launch = Launch {
                entry,
                grid: experiment.grid,
                block: experiment.block,
                cluster: experiment.cluster,
                dynamic_shared: experiment.dynamic_shared,
                params: &params,
                schedule: SCHEDULES[1 + at],
                threads: None,
                instruction_limit: None,
                checks: Checks::default(),
            };
            let report = module(self.arch, entry).launch(&mut memory, &launch);
            report.unwrap_or_else(|e| panic!("{entry}, {half:?}: {e}"));
            assert!(!experiment.outputs.is_empty(), "{entry}: nothing was written");
            for output in &experiment.outputs {
                let got = memory.read_raw(output.addr, output.bytes).expect("there");
                let (expected, _) = output.expected.as_ref().expect("what the library's left");
                assert!(got == *expected, "{entry}, {half:?}: {} differs", output.name);
            }
        }
    }
}

/// A little-endian number of so many bytes.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..][..len].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// A product with a bias and nothing else, of few tokens, alone, with `n` columns; its sums are exact.
fn product(n: usize, activations: ActivationType) -> Case {
    let mut case = Case::new([5, n, 64, 1]).activations(activations);
    case.vectors = [false, false, true];
    case
}

/// The same of groups.
fn groups(n: usize, activations: ActivationType, name: &str) -> GroupedCase {
    let mut case = GroupedCase::new(&[3, 0, 2], [n, 64]);
    case.activations = activations;
    case.vectors = [false, false, true];
    case.overrides = GemmOverrides::new().kernel(name.to_owned()).split(None);
    case
}

/// Columns in rows that begin at multiples of 16 bytes, and in others: code of its own on sm_90a.
const COLUMNS: [usize; 2] = [72, 75];

#[test]
fn of_sm_90a() {
    let [epilogue, block] = [offset_of!(Sm90Params, epilogue), size_of::<Sm90Params>()];
    let gpu = Gpu { sms: 4, ..Gpu::h200() };
    let machine = Captured::new(Arch::Sm90a, gpu, epilogue, block);
    let whole = |n| (n, RESULTS[2], Split::None);
    let divided = |n| (n, RESULTS[2], Split::Cluster(2));
    let stores = COLUMNS.map(whole).into_iter().chain(COLUMNS.map(divided));
    for (n, result, split) in stores.chain([(64, RESULTS[4], Split::None)]) {
        for config in &sm90::CONFIGS {
            let activations = ActivationType::as_they_are(config.scheme.operand);
            let mut case = product(n, activations).format(config.scheme.format).result(result);
            case.shape.k = 288;
            let case = case.kernel(config.name, split.at_most(config.max_split()));
            machine.check(config.name, Parameters::Given, |kernels| {
                case.check(kernels);
            });
        }
    }
    for n in COLUMNS {
        for config in &sm90::GROUPED {
            let activations = ActivationType::as_they_are(config.scheme.operand);
            let mut case = groups(n, activations, config.name);
            case.format = config.scheme.format;
            machine.check(config.name, Parameters::Given, |kernels| {
                case.check(kernels);
            });
        }
        for config in &sm90::MIXED {
            let activations = ActivationType::as_they_are(config.scheme.operand);
            let case = product(n, activations).format(config.scheme.format);
            machine.check(config.name, Parameters::InMemory, |kernels| {
                check_mixed(kernels, std::slice::from_ref(&case));
            });
        }
    }
}

#[test]
fn of_sm_100a() {
    let [epilogue, block] = [offset_of!(Sm100Params, epilogue), size_of::<Sm100Params>()];
    let machine = Captured::new(Arch::Sm100a, Gpu { sms: 8, ..b200() }, epilogue, block);
    let n = COLUMNS[0];
    for config in &sm100::CONFIGS {
        let activations = config.activations.map_or(LINEAR, ActivationType::as_they_are);
        let mut case = product(n, activations);
        case.shape.k = (config.step() * config.k_parts()) as usize;
        let case = case.format(config.format).kernel(config.name, config.split);
        machine.check(config.name, Parameters::Given, |kernels| {
            case.check(kernels);
        });
    }
    for config in &sm100::GROUPED {
        let activations = config.activations.map_or(LINEAR, ActivationType::as_they_are);
        let mut case = groups(n, activations, config.name);
        case.format = config.format;
        machine.check(config.name, Parameters::Given, |kernels| {
            case.check(kernels);
        });
    }
    for config in &sm100::MIXED {
        let activations = config.activations.map_or(LINEAR, ActivationType::as_they_are);
        let case = product(n, activations).format(config.format);
        machine.check(config.name, Parameters::InMemory, |kernels| {
            check_mixed(kernels, std::slice::from_ref(&case));
        });
    }
}
