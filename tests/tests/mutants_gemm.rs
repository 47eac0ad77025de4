//! Mutation check of the GEMM kernels, as tests/tests/mutants.rs does for the others.
//!
//! The host library makes the launch, on a machine with few SMs so that a CTA has several tiles;
//! its result is checked against the f64 oracle first. Mutants run under few seeds; the variable
//! `NVFP4_ALL_SEEDS` makes them 64, which takes many minutes.

use fp4_formats::ScaleLayout::Blocked128x4;
use fp4_formats::{FloatType, Nvfp4};

use fp4_formats::gemm::Split;
use fp4_formats::gemm::blackwell::{BlackwellParams, CONFIGS};
use fp4_formats::gemm::hopper::Operand;
use nvfp4::device::{Device, DeviceRequest};
use nvfp4::gemm::{Activations, GemmOptions, GemmOverrides, Output, gemm, reference};
use nvfp4::generate::Generator;
use nvfp4::rng::SplitMix64;
use nvfp4::tensor::Dims;
use nvfp4_tests::mutation::{self, Effort};
use ptx_emu::Gpu;
use ptx_emu::bundle::Bundle;
use ptx_emu::experiment::Experiment;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

/// Seeds besides `eager` and `lazy`.
const SEEDS: u64 = 6;
/// Mutants that each kernel must have.
const LEAST: usize = 60;

/// A launch of a GEMM.
struct Case {
    kernel: &'static str,
    split: Split,
    /// M, N, K.
    shape: [usize; 3],
    /// Type of 16-bit activations; else they are NVFP4, as the weights.
    halves: Option<Operand>,
    output: Output,
}

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mutants-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

impl Case {
    /// The launch on a machine of `planned` SMs.
    fn experiment(&self, gpu: &Gpu) -> Experiment {
        let folder = folder(&format!("{}-{}", self.kernel, self.split.cluster()));
        let device = Device::open(&DeviceRequest::Emulator(gpu.clone())).expect("opens anywhere");
        let device = device.with_capture(&folder);
        let kernels = device.kernels(Some(&nvfp4_tests::kernels_dir())).expect("kernels are built");
        let [m, n, k] = self.shape;
        let mut rng = SplitMix64::new(1);
        let generator = Generator::Exact;
        let dims = Dims::new(1, n, k).expect("dims");
        let b = generator.blocks::<Nvfp4>("b", dims, Blocked128x4, &mut rng).expect("b");
        let dims = Dims::new(1, m, k).expect("dims");
        let (blocks, halves);
        let a = match self.halves {
            None => {
                blocks = generator.blocks("a", dims, Blocked128x4, &mut rng).expect("a");
                Activations::Blocks(&blocks)
            }
            Some(operand) => {
                halves = generator.halves("a", dims, operand, &mut rng).expect("a");
                Activations::Halves(&halves)
            }
        };
        let overrides = GemmOverrides { kernel: Some(self.kernel.into()), split: Some(self.split) };
        let options = GemmOptions { output: self.output, overrides, ..GemmOptions::default() };
        let result =
            gemm(&kernels, &a, &b, &options).unwrap_or_else(|e| panic!("{}: {e}", self.kernel));
        println!("{}", result.plan);
        let check = result.verify(&reference(&a, &b, &options).expect("the oracle"));
        assert!(check.passed(), "{}\n{}", self.kernel, check.summary());
        // Activations may have been laid out before.
        let last = device.capture().expect("it captures").launches() - 1;
        let bundle = folder.join(format!("{last:03}-{}", self.kernel));
        let bundle = Bundle::read(&bundle).expect("a bundle");
        std::fs::remove_dir_all(&folder).expect("it was there");
        let mut experiment = bundle.experiment(Some(gpu)).expect("it fits");
        let find = |name: &str| {
            let mut found = experiment.memory.allocations().filter(|(of, ..)| *of == name);
            found.next().map(|(_, addr, bytes)| (addr, bytes)).unwrap_or_else(|| {
                let all: Vec<_> = experiment.memory.allocations().collect();
                panic!("{}: no {name} in {all:?}", self.kernel)
            })
        };
        let input = match self.halves {
            _ if !result.plan.before.is_empty() => "workspace",
            Some(_) => "a",
            None => "a codes",
        };
        // The padding of scales is written first of all.
        let result = if matches!(self.output, Output::Nvfp4 { .. }) { "c scales" } else { "c" };
        let (input, result) = (find(input), find(result));
        experiment.earlier = Some(mutation::earlier(&mut experiment.memory, gpu, input, result));
        experiment
    }
}

/// Share of the faults that must be caught, percent.
const CAUGHT: u32 = 95;

/// Runs the check on launches of one kernel.
fn check(launches: &[Experiment]) {
    let seeds = if std::env::var_os("NVFP4_ALL_SEEDS").is_some() { 64 } else { SEEDS };
    mutation::check(launches, Effort { seeds, least: LEAST, caught: CAUGHT });
}

/// A launch on sm_90a with f16 activations, on `sms` SMs.
fn hopper_on(sms: u32, kernel: &'static str, split: Split, shape: [usize; 3]) -> Experiment {
    let gpu = Gpu { sms, ..Gpu::h200() };
    let (halves, output) = (Some(Operand::F16), FloatType::F32.into());
    let case = Case { kernel, split, shape, halves, output };
    case.experiment(&gpu)
}

/// Planned for an SM, where two CTAs fit, or for a cluster.
fn hopper(kernel: &'static str, split: Split, shape: [usize; 3]) -> Experiment {
    let mut experiment = hopper_on(1, kernel, split, shape);
    // Beside a cluster there is room for the kernel before.
    experiment.gpu.sms = split.cluster();
    experiment
}

/// Tiles shared by a CTA on each of `sms` SMs. What a CTA gives is more steps than it has
/// stages, so that it waits for one when it begins the next tile, which has an odd number of
/// steps: the loop is unrolled twice, and the odd step has code of its own.
fn shared(sms: u32, kernel: &'static str, shape: [usize; 3]) -> Experiment {
    hopper_on(sms, kernel, Split::StreamK, shape)
}

/// `wgmma`. Six tiles of five steps for two CTAs: the ring of six stages wraps twice, stages are
/// `free` twice. Three tiles of 15: the middle one's sums meet in the workspace. Two CTAs of 13
/// steps: sums are loaded remotely.
#[test]
fn hopper_32_tokens() {
    let kernel = "gemm_sm90_nvfp4_f16_128x32";
    check(&[
        hopper(kernel, Split::None, [20, 740, 624]),
        shared(2, kernel, [20, 332, 1904]),
        hopper(kernel, Split::Cluster(2), [20, 140, 3312]),
    ]);
}

/// `wgmma`, sums are sent; four stages.
#[test]
fn hopper_64_tokens() {
    let kernel = "gemm_sm90_nvfp4_f16_128x64";
    check(&[
        hopper(kernel, Split::None, [36, 740, 624]),
        shared(2, kernel, [36, 332, 1136]),
        hopper(kernel, Split::Cluster(2), [36, 140, 2288]),
    ]);
}

/// A launch whose CTAs share activations, planned for so many SMs.
fn sharing(kernel: &'static str, split: Split, shape: [usize; 3], sms: u32) -> Experiment {
    let gpu = Gpu { sms, ..Gpu::h200() };
    let (halves, output) = (Some(Operand::F16), FloatType::F32.into());
    let case = Case { kernel, split, shape, halves, output };
    let mut experiment = case.experiment(&gpu);
    // Beside two clusters there is room for the kernel before.
    experiment.gpu.sms = 4;
    experiment
}

/// A cluster makes three pairs of tiles, one without its second, of 13 steps in eight stages;
/// four divide three pairs of 20 steps: 10 are given, more than there are stages, 5 follow.
#[test]
fn hopper_pairs() {
    let kernel = "gemm_sm90_nvfp4_f16_128x64_multicast2";
    check(&[
        sharing(kernel, Split::None, [36, 588, 1648], 1),
        sharing(kernel, Split::StreamK, [36, 740, 2544], 16),
    ]);
}

/// Warps on their own, eight stages.
#[test]
fn hopper_8_tokens() {
    let kernel = "gemm_sm90_nvfp4_f16_128x8";
    check(&[
        shared(3, kernel, [5, 460, 2160]),
        hopper(kernel, Split::None, [5, 740, 752]),
        hopper(kernel, Split::Cluster(2), [5, 140, 4336]),
    ]);
}

/// A launch on sm_100a; a cluster makes several tiles, those that it is given or, with
/// `dynamic`, asks for.
fn blackwell(kernel: &'static str, output: Output, shape: [usize; 3], dynamic: bool) -> Experiment {
    let config = CONFIGS.iter().find(|config| config.name == kernel).expect("a configuration");
    let gpu = Gpu { sms: 8, ..nvfp4_tests::b200() };
    let case = Case { kernel, split: config.split(), shape, halves: None, output };
    let mut experiment = case.experiment(&gpu);
    // Beside a cluster there is room for the kernel before, or for another cluster.
    experiment.gpu.sms = 2 * config.cluster();
    if !dynamic {
        experiment.grid = [config.cluster(), 1, 1];
    }
    let at = offset_of!(BlackwellParams, dynamic);
    experiment.params[at..at + size_of::<u32>()].copy_from_slice(&u32::from(dynamic).to_le_bytes());
    experiment
}

const FLOATS: Output = Output::Floats(FloatType::F32);
const BLOCKS: Output = Output::Nvfp4 { scale: 0.25, layout: Blocked128x4 };

/// Both orders of tiles; the ring of eight stages wraps. Results are stored by the copy engine,
/// by threads (rows are not multiples of 16 bytes), and as blocks.
#[test]
fn blackwell_tiles() {
    let kernel = "gemm_nvfp4_128x64";
    check(&[
        blackwell(kernel, FLOATS, [240, 120, 1264], false),
        blackwell(kernel, FLOATS, [240, 178, 768], true),
        blackwell(kernel, BLOCKS, [240, 160, 768], true),
    ]);
}

/// Pairs of CTAs that share rows by multicast.
#[test]
fn blackwell_pairs_and_shares() {
    let kernel = "gemm_nvfp4_256x128_share2";
    check(&[
        blackwell(kernel, FLOATS, [500, 500, 1008], true),
        blackwell(kernel, BLOCKS, [500, 496, 512], true),
    ]);
}

/// A cluster of two that splits K.
#[test]
fn blackwell_splits() {
    let kernel = "gemm_nvfp4_128x64_split2";
    check(&[
        blackwell(kernel, FLOATS, [240, 120, 2544], true),
        blackwell(kernel, FLOATS, [240, 118, 1024], true),
        blackwell(kernel, BLOCKS, [240, 112, 1024], true),
    ]);
}
