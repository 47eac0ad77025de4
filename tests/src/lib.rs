//! Helpers that the tests of several crates share.

pub mod bounds;
pub mod checksums;
pub mod engine;
pub mod gemm;
pub mod gemv;
pub mod golden;
pub mod mixture;
pub mod mutation;
pub mod quantize;
pub mod refusals;

use fp4_formats::{Arch, Family};
use nvfp4::device::{Device, DeviceRequest, Kernels};
use nvfp4::kernels::KernelFiles;
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

/// Returns the workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of the workspace").to_path_buf()
}

/// The folder into which `cargo xtask build-kernels` puts the PTX, or the one that
/// NVFP4_KERNELS_DIR names.
pub fn kernels_dir() -> PathBuf {
    std::env::var_os("NVFP4_KERNELS_DIR")
        .map_or_else(|| root().join("target/kernels"), PathBuf::from)
}

/// Returns the `model.safetensors` of all-MiniLM-L6-v2, which `NVFP4_TEST_MODEL` names; without it the test is
/// skipped. `cargo xtask fetch-model` fetches it, and `cargo xtask test` passes it on.
pub fn real_model() -> Option<PathBuf> {
    let path = std::env::var_os("NVFP4_TEST_MODEL");
    if path.is_none() {
        skipped::test(
            "NVFP4_TEST_MODEL does not name a model.safetensors; `cargo xtask fetch-model` fetches one",
        );
    }
    path.map(PathBuf::from)
}

/// Linear layers of each block of that model: name, rows, columns.
pub const REAL_LAYERS: [(&str, usize, usize); 6] = [
    ("attention.self.query", 384, 384),
    ("attention.self.key", 384, 384),
    ("attention.self.value", 384, 384),
    ("attention.output.dense", 384, 384),
    ("intermediate.dense", 1536, 384),
    ("output.dense", 384, 1536),
];

/// Returns the PTX of the module for `arch` that has the kernel `entry`.
///
/// # Panics
/// If there is none.
pub fn ptx(arch: Arch, entry: &str) -> String {
    let files = KernelFiles::find(arch, Some(&kernels_dir()));
    let ptx = files.and_then(|files| files.ptx(&files.module_of(entry)?));
    ptx.unwrap_or_else(|error| panic!("{error}"))
}

/// Loads the module for `arch` that has the kernel `entry`, on its machine.
///
/// # Panics
/// If there is none.
pub fn module(arch: Arch, entry: &str) -> &'static Module {
    static LOADED: Mutex<BTreeMap<(Arch, Family), &'static Module>> = Mutex::new(BTreeMap::new());
    let family = Family::of_kernel(arch, entry).unwrap_or_else(|| panic!("no kernel {entry}"));
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.entry((arch, family)).or_insert_with(|| {
        let module = Module::load(&ptx(arch, entry), &machine(arch));
        Box::leak(Box::new(module.unwrap_or_else(|error| panic!("{entry}: {error}"))))
    })
}

/// Returns the machine that the kernels for `arch` are emulated on.
pub const fn machine(arch: Arch) -> Gpu {
    match arch {
        Arch::Sm80 => Gpu::rtx4090(),
        Arch::Sm90a => Gpu::h200(),
        Arch::Sm100a => b200(),
        Arch::Sm100f => b300(),
        Arch::Sm120f => Gpu::rtx5090(),
    }
}

/// Returns the B200 that our kernels are emulated on.
pub const fn b200() -> Gpu {
    Gpu::b200()
}

/// Returns the B300 that they are emulated on.
pub const fn b300() -> Gpu {
    Gpu::b300()
}

/// The emulated machines, of sm_90a and of sm_100a.
pub const DEVICES: [&str; 2] = ["emu:h200", "emu:b200"];

/// The same, and one of sm_120f.
pub const MACHINES: [&str; 3] = [DEVICES[0], DEVICES[1], "emu:rtx5090"];

/// A machine of each target that kernels are compiled for: the same, and one that has the portable code alone.
pub const TARGETS: [&str; 4] = [MACHINES[0], MACHINES[1], MACHINES[2], "emu:rtx4090"];

/// Opens the kernels of an emulated machine: `emu:h200`, `emu:b200`, `emu:b300`, `emu:rtx5090` or `emu:rtx4090`.
pub fn emulated(device: &str, schedule: Schedule) -> Kernels {
    match device.parse().expect("a known device") {
        DeviceRequest::Emulator(gpu) => emulated_on(gpu, schedule),
        other => panic!("{other} is not emulated"),
    }
}

/// Opens the kernels of an emulated machine with changed properties, few SMs for example.
pub fn emulated_on(gpu: Gpu, schedule: Schedule) -> Kernels {
    let device = Device::open(&DeviceRequest::Emulator(gpu)).expect("the emulator opens anywhere");
    let device = device.with_schedule(schedule);
    device.kernels(Some(&kernels_dir())).expect("kernels are built")
}

/// Opens the kernels of another target than the closest on an emulated machine.
pub fn emulated_for(arch: Arch, gpu: Gpu, schedule: Schedule) -> Kernels {
    let device = Device::open(&DeviceRequest::Emulator(gpu)).expect("the emulator opens anywhere");
    let device = device.with_arch(arch).expect("the machine runs it").with_schedule(schedule);
    device.kernels(Some(&kernels_dir())).expect("kernels are built")
}

/// The GPU of all tests.
const GPU: DeviceRequest = DeviceRequest::Cuda(0);

/// Opens the kernels of the GPU.
fn cuda() -> nvfp4::Result<Kernels> {
    Ok(Device::open(&GPU)?.kernels(Some(&kernels_dir())).expect("kernels are built"))
}

/// Opens the kernels of the GPU; without a GPU, the test that needs it is skipped.
pub fn gpu() -> Option<Kernels> {
    cuda().map_err(skipped::test).ok()
}

/// Opens the kernels of the GPU for a test that runs on other devices, too; without a GPU, the test leaves it out.
pub fn also_gpu() -> Option<Kernels> {
    cuda().map_err(|error| skipped::part(GPU, error)).ok()
}

/// Opens the kernels of every device: the emulated ones, and a GPU if there is one.
pub fn devices() -> Vec<Kernels> {
    let emulators = DEVICES.map(|name| emulated(name, Schedule::Eager));
    emulators.into_iter().chain(also_gpu()).collect()
}
