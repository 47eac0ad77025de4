//! The cost of launching on the host: its time, and nothing on its heap once an operation has been launched
//! before.
//!
//! The path is the one of a GPU: on a machine without one, this program runs again with a driver
//! whose calls do nothing (`cuda/driver.rs`), once for each architecture. With a supported GPU
//! ([`DeviceRequest::Auto`]) the operations run on it, too.

#[path = "../cuda/driver.rs"]
mod driver;
mod operations;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::env;
use std::path::Path;
use std::time::Instant;

use driver::Driver;
use nvfp4::Arch;
use nvfp4::device::{Backend, Device, DeviceRequest, Kernels};
use nvfp4::error::Result;
use nvfp4::gemm::GemmRun;
use nvfp4_lab::bench::HostTimes;

const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/kernels");

thread_local! {
    /// Allocations of this thread, and what it has made larger.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, which counts.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: passed on to the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: passed on to the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// The architectures that kernels are built for, as the fake driver's compute capability.
fn built() -> impl Iterator<Item = (Arch, u32)> {
    [(Arch::Sm90a, 90), (Arch::Sm100a, 100)].into_iter().filter(|(arch, _)| {
        let found = Path::new(KERNELS).join(arch.name()).join("manifest.json").exists();
        if !found {
            skipped::part(arch, "not built; `cargo xtask build-kernels` does it");
        }
        found
    })
}

/// Runs a test of this program as a child, on each architecture's fake driver.
fn on_drivers(child: &str) {
    for (arch, capability) in built() {
        let Some(driver) = Driver::compile(&format!("{child}-{arch}")) else { return };
        let output = driver.run(child, &format!("13020,0,1,{capability},1,0,0,1"));
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arch}:\n{text}\n{errors}");
        assert!(text.contains("the child has run"), "{arch}: {text}");
        println!("{arch}:\n{text}");
    }
}

/// Whether there is a supported GPU; says why not.
fn has_gpu() -> bool {
    match Device::open(&DeviceRequest::Auto) {
        Ok(device) if matches!(device.backend(), Backend::Cuda(_)) => true,
        Ok(device) => {
            skipped::part("launches on a GPU", &device.choice().reason);
            false
        }
        Err(error) => {
            skipped::part("launches on a GPU", error);
            false
        }
    }
}

/// The device of a child, or the GPU of this machine.
fn kernels() -> Kernels {
    let device = Device::open(&DeviceRequest::Auto).expect("a device");
    assert!(matches!(device.backend(), Backend::Cuda(_)), "{}", device.choice());
    device.kernels(Some(Path::new(KERNELS))).expect("built")
}

#[test]
fn launches_allocate_nothing_on_the_host() {
    on_drivers("count_allocations");
    if has_gpu() {
        count_allocations();
    }
}

#[test]
fn launches_are_timed_on_the_host() {
    on_drivers("time_on_the_host");
    if has_gpu() {
        time_on_the_host();
    }
    let device = Device::open(&"emu:h200".parse().expect("a device")).expect("the emulator");
    let Ok(kernels) = device.kernels(Some(Path::new(KERNELS))) else {
        return skipped::part("the emulator", "its kernels are not built");
    };
    let refused = HostTimes::measure(&kernels, operations::prepared_product, GemmRun::launch);
    let error = refused.expect_err("no GPU").to_string();
    assert!(error.contains("timing launches on the host needs a GPU"), "{error}");
}

/// Allocations of the third launch of each operation.
#[test]
#[ignore = "the child of launches_allocate_nothing_on_the_host"]
fn count_allocations() {
    let kernels = kernels();
    let gpu = kernels.device().gpu("launches").expect("a GPU");
    let (mut allocating, mut launched) = (Vec::new(), 0);
    let mut count = |name: &str, launch: &dyn Fn() -> Result<()>| {
        launch()?;
        launch()?;
        let before = ALLOCATIONS.get();
        launch()?;
        let allocations = ALLOCATIONS.get() - before;
        launched += 1;
        if allocations > 0 {
            allocating.push(format!("{allocations}: {name}"));
        }
        Ok(gpu.synchronize()?)
    };
    operations::all(&kernels, &mut count).expect("launched");
    assert!(launched > 30, "{launched} operations");
    assert!(allocating.is_empty(), "allocations:\n{}", allocating.join("\n"));
    println!("\nthe child has run");
}

/// The product and what prepares its activations.
#[test]
#[ignore = "the child of launches_are_timed_on_the_host"]
fn time_on_the_host() {
    let make = operations::prepared_product;
    let times = HostTimes::measure(&kernels(), make, GemmRun::launch).expect("measured");
    assert_eq!(times.kernels, 2, "{times}");
    assert_eq!((times.call.all.len(), times.driver.all.len()), (200, 200));
    assert_eq!(times.library, times.call.median - times.driver.median);
    assert!(times.driver.median > 0.0, "{times}");
    // A driver that does nothing takes no time in which the library's part could be lost.
    if env::var_os("FAKE_CUDA").is_some() {
        assert!(times.library > 0.0, "{times}");
    }
    println!("\nthe child has run");
}

/// Prints what the library takes of each launch, on drivers whose calls do nothing.
#[test]
#[ignore = "prints times"]
fn time_the_library() {
    on_drivers("time_launches");
}

#[test]
#[ignore = "the child of time_the_library"]
fn time_launches() {
    const LAUNCHES: u32 = 2000;
    let mut time = |name: &str, launch: &dyn Fn() -> Result<()>| {
        let mut least = f64::INFINITY;
        for _ in 0..10 {
            let start = Instant::now();
            (0..LAUNCHES).try_for_each(|_| launch())?;
            least = least.min(start.elapsed().as_secs_f64() / f64::from(LAUNCHES));
        }
        println!("{:7.0} ns {name}", least * 1e9);
        Ok(())
    };
    operations::all(&kernels(), &mut time).expect("launched");
    println!("\nthe child has run");
}
