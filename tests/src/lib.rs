//! What the tests across crates share.

pub mod checksums;
pub mod golden;
pub mod mutation;

use fp4_formats::gemm::Split;
use fp4_formats::gemm::hopper::{HopperConfig, Operand};
use fp4_formats::{Arch, Family, ScaleLayout};
use nvfp4::device::{Device, DeviceRequest, Kernels};
use nvfp4::gemv::{Gemv, GemvOptions, GemvResult};
use nvfp4::generate::Generator;
use nvfp4::kernels::KernelFiles;
use nvfp4::oracle::{self, Verification};
use nvfp4::shape::GemvShape;
use ptx_emu::{Gpu, Module, Schedule};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Schedules that a kernel must be right under.
pub const SCHEDULES: [Schedule; 5] = [
    Schedule::Eager,
    Schedule::Lazy,
    Schedule::Random(1),
    Schedule::Random(22),
    Schedule::Random(333),
];

/// The left operand of a GEMM.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Left {
    /// In the weights' format.
    Blocks(ScaleLayout),
    /// 16-bit floats.
    Halves(Operand),
}

/// `split`, in the largest cluster that `config` takes where that is smaller.
pub fn split_within(config: &HopperConfig, split: Split) -> Split {
    match (split, config.max_split()) {
        (Split::Cluster(_), 1) => Split::None,
        (Split::Cluster(ctas), most) => Split::Cluster(ctas.min(most)),
        (Split::StreamK | Split::None, _) => split,
    }
}

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of the workspace").to_path_buf()
}

/// Where `cargo xtask build-kernels` puts the PTX, or what NVFP4_KERNELS_DIR
/// names.
pub fn kernels_dir() -> PathBuf {
    std::env::var_os("NVFP4_KERNELS_DIR")
        .map_or_else(|| root().join("target/kernels"), PathBuf::from)
}

/// The PTX of the module for `arch` that has the kernel `entry`.
pub fn ptx(arch: Arch, entry: &str) -> String {
    let files = KernelFiles::find(arch, Some(&kernels_dir()));
    let ptx = files.and_then(|files| files.ptx(files.module_of(entry)?));
    ptx.unwrap_or_else(|error| panic!("{error}"))
}

/// The module for `arch` that has the kernel `entry`, on its machine.
pub fn module(arch: Arch, entry: &str) -> &'static Module {
    static LOADED: Mutex<BTreeMap<(Arch, Family), &'static Module>> = Mutex::new(BTreeMap::new());
    let family = Family::of_kernel(arch, entry).unwrap_or_else(|| panic!("no kernel {entry}"));
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.entry((arch, family)).or_insert_with(|| {
        let module = Module::load(&ptx(arch, entry), &machine(arch));
        Box::leak(Box::new(module.unwrap_or_else(|error| panic!("{entry}: {error}"))))
    })
}

/// The machine that the kernels for `arch` are emulated on.
pub const fn machine(arch: Arch) -> Gpu {
    match arch {
        Arch::Sm90a => Gpu::h200(),
        Arch::Sm100a => b200(),
    }
}

/// A B200 that orders `tcgen05` operations only as PTX promises: our kernels rely on no more.
pub const fn b200() -> Gpu {
    Gpu { strict_tcgen05_order: true, ..Gpu::b200() }
}

/// The kernels of an emulated machine, `emu:h200` or `emu:b200`, which is [`b200`].
pub fn emulated(device: &str, schedule: Schedule) -> Kernels {
    let request = match device.parse().expect("a known device") {
        DeviceRequest::Emulator(gpu) if gpu == Gpu::b200() => DeviceRequest::Emulator(b200()),
        request => request,
    };
    let device =
        Device::open(&request).expect("the emulator opens anywhere").with_schedule(schedule);
    device.kernels(Some(&kernels_dir())).expect("kernels are built")
}

/// The kernels of a GPU; `None`, and a line on standard output that says why, where there is none.
pub fn gpu() -> Option<Kernels> {
    let request: DeviceRequest = "cuda:0".parse().expect("a device");
    match Device::open(&request) {
        Ok(device) => Some(device.kernels(Some(&kernels_dir())).expect("kernels are built")),
        Err(error) => {
            println!("skipped {request}: {error}");
            None
        }
    }
}

/// Every device there is, with its name: the emulated ones, and a GPU where there is one.
pub fn devices() -> Vec<(&'static str, Kernels)> {
    let emulators = ["emu:h200", "emu:b200"].map(|name| (name, emulated(name, Schedule::Eager)));
    emulators.into_iter().chain(gpu().map(|kernels| ("cuda:0", kernels))).collect()
}

/// One GEMV, its inputs and how it is run.
#[derive(Debug, Clone)]
pub struct Case {
    /// Problem.
    pub shape: GemvShape,
    /// Inputs.
    pub generator: Generator,
    /// Layouts of the activations' and the weights' scales.
    pub layouts: [ScaleLayout; 2],
    /// alpha, output, overrides.
    pub options: GemvOptions,
    /// Seed of the inputs.
    pub seed: u64,
}

impl Case {
    /// Runs it and compares with the f64 oracle.
    pub fn run(&self, kernels: &Kernels) -> (GemvResult, Verification) {
        let (a, b) = self.generator.gemv(self.shape, self.layouts, self.seed).expect("inputs");
        let reference = oracle::gemv(&a, &b, self.options.alpha).expect("the oracle");
        let prepared = Gemv::new(kernels, &a, &b, self.options.clone())
            .unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let result = prepared.run().unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let reference = reference.with_additions(result.plan.additions);
        let verification = reference.verify(&result.values(), result.output);
        (result, verification)
    }

    /// Runs it and fails with the first mismatch.
    pub fn check(&self, kernels: &Kernels) -> GemvResult {
        let (result, verification) = self.run(kernels);
        assert!(verification.passed(), "{self:?}\n{}\n{}", result.plan, verification.summary());
        result
    }
}
