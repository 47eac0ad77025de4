//! What launching costs on the host: nothing on its heap once an operation has been launched before.
//!
//! The path is the one of a GPU: on a machine without one, this program runs again with a driver
//! whose calls do nothing (`cuda/driver.rs`), once for each architecture. With a supported GPU
//! ([`DeviceRequest::Auto`]) the operations run on it, too.

#[path = "../cuda/driver.rs"]
mod driver;
mod operations;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::time::Instant;

use driver::Driver;
use nvfp4::Arch;
use nvfp4::device::{Backend, Device, DeviceRequest};
use nvfp4::error::Result;

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
            println!("skipped: {arch} is not built; `cargo xtask build-kernels` does it");
        }
        found
    })
}

#[test]
fn launches_allocate_nothing_on_the_host() {
    for (arch, capability) in built() {
        let Some(driver) = Driver::compile(&format!("launch-{arch}")) else { return };
        let output = driver.run("count_allocations", &format!("13020,0,1,{capability},1,0,0,1"));
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arch}:\n{text}\n{errors}");
        assert!(text.contains("the child has run"), "{arch}: {text}");
    }
    match Device::open(&DeviceRequest::Auto).map(|device| device.choice().clone()) {
        Ok(choice) if choice.device.starts_with("cuda:") => count_allocations(),
        Ok(choice) => println!("skipped: launches on a GPU, because {}", choice.reason),
        Err(error) => println!("skipped: launches on a GPU, because {error}"),
    }
}

/// Allocations of the third launch of each operation.
#[test]
#[ignore = "the child of launches_allocate_nothing_on_the_host"]
fn count_allocations() {
    let device = Device::open(&DeviceRequest::Auto).expect("a device");
    assert!(matches!(device.backend(), Backend::Cuda(_)), "{}", device.choice());
    let kernels = device.kernels(Some(Path::new(KERNELS))).expect("built");
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
        device.gpu("launches")?.synchronize()?;
        Ok(())
    };
    operations::all(&kernels, &mut count).expect("launched");
    assert!(launched > 30, "{launched} operations");
    assert!(allocating.is_empty(), "allocations:\n{}", allocating.join("\n"));
    println!("\nthe child has run");
}

/// Time of the library's own part.
#[test]
#[ignore = "prints times of a driver that does nothing"]
fn time_launches() {
    for (arch, capability) in built() {
        let Some(driver) = Driver::compile(&format!("launch-times-{arch}")) else { return };
        let output = driver.run("time_with_a_driver", &format!("13020,0,1,{capability},1,0,0,1"));
        println!("{arch}:\n{}", String::from_utf8_lossy(&output.stdout));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
#[ignore = "the child of time_launches"]
fn time_with_a_driver() {
    let device = Device::open(&DeviceRequest::Auto).expect("a device");
    let kernels = device.kernels(Some(Path::new(KERNELS))).expect("built");
    let mut time = |name: &str, launch: &dyn Fn() -> Result<()>| {
        const LAUNCHES: u32 = 2000;
        let mut best = f64::INFINITY;
        for _ in 0..10 {
            let start = Instant::now();
            for _ in 0..LAUNCHES {
                launch()?;
            }
            best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(LAUNCHES));
        }
        println!("{best:7.0} ns {name}");
        Ok(())
    };
    operations::all(&kernels, &mut time).expect("launched");
}
