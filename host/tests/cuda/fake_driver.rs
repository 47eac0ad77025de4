//! What the probe makes of drivers that this machine does not have: a library
//! with a driver's functions is compiled, and this test program runs again as a
//! child that finds it as `libcuda.so.1`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvfp4::cuda::{CudaDevice, probe};

/// A driver that answers from the environment: `FAKE_CUDA=version,init,count,cc`.
const SOURCE: &str = r#"
fn field(index: usize) -> i32 {
    let fields = std::env::var("FAKE_CUDA").unwrap_or_default();
    fields.split(',').nth(index).and_then(|field| field.parse().ok()).unwrap_or(0)
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> u32 {
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *version = field(0) };
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_: u32) -> u32 {
    field(1) as u32
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> u32 {
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *count = field(2) };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> u32 {
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *device = ordinal };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut u8, _: i32, _: i32) -> u32 {
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { name.copy_from(c"Fake GPU".as_ptr().cast(), 9) };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _: i32) -> u32 {
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *bytes = 8 << 30 };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: u32, _: i32) -> u32 {
    let answer = match attribute {
        75 => field(3) / 10,
        76 => field(3) % 10,
        38 => 50 << 20,
        // Withdrawn: the memory clock.
        36 => return 1,
        _ => 7,
    };
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *value = answer };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: u32, name: *mut *const u8) -> u32 {
    if code != 804 {
        return 1;
    }
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *name = c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE".as_ptr().cast() };
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(_: usize, _: i32) -> u32 {
    4242
}
"#;

#[test]
fn the_probe_tells_drivers_apart() {
    let folder = env::temp_dir().join(format!("nvfp4-fake-driver-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder");
    if let Err(why) = compile(&folder) {
        fs::remove_dir_all(&folder).expect("the temporary folder can go");
        return println!("skipped: drivers that are not here, because {why}");
    }
    let cases = [
        (
            "12080,0,1,90",
            "probe: the NVIDIA driver is too old: it supports CUDA 12.8, \
             CUDA 13.0 or newer is required",
        ),
        (
            "13000,804,1,90",
            "probe: the NVIDIA driver does not start: cuInit returned \
             CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804)",
        ),
        ("13000,100,1,90", "probe: the NVIDIA driver reports no GPU"),
        ("13000,0,0,90", "probe: the NVIDIA driver reports no GPU"),
        (
            "13000,34,1,90",
            "probe: no NVIDIA driver: libcuda.so.1 is the CUDA toolkit's stub library",
        ),
        (
            "13020,0,2,89",
            "probe: CUDA 13.2: cuda:0 Fake GPU, compute capability 8.9, 7 SMs, 50 MiB L2, \
             8192 MiB; cuda:1 Fake GPU, compute capability 8.9, 7 SMs, 50 MiB L2, 8192 MiB",
        ),
        (
            "13020,0,2,89",
            "open 1: cuda:1 (Fake GPU) has compute capability 8.9; \
             supported are 9.0 (sm_90a) and 10.0 (sm_100a)",
        ),
        ("13020,0,1,90", "open 1: cuda:1 does not exist: the driver reports 1 device(s)"),
        // A code newer than cust survives the way through it.
        ("13020,0,1,90", "open 0: cuDevicePrimaryCtxRetain returned unknown code (4242)"),
    ];
    let program = env::current_exe().expect("this program's path");
    for (driver, expected) in cases {
        let output = Command::new(&program)
            .args(["--exact", "fake_driver::say_what_is_here", "--ignored", "--nocapture"])
            .env("LD_LIBRARY_PATH", &folder)
            .env("FAKE_CUDA", driver)
            .output()
            .expect("this program runs again");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.lines().any(|line| line == expected),
            "driver {driver}: expected\n{expected}\nin\n{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    fs::remove_dir_all(&folder).expect("the temporary folder can go");
}

#[test]
#[ignore = "the child of the_probe_tells_drivers_apart"]
fn say_what_is_here() {
    println!();
    match probe() {
        Ok(info) => {
            let devices: Vec<_> = info.devices.iter().map(ToString::to_string).collect();
            println!("probe: CUDA {}: {}", info.version, devices.join("; "));
        }
        Err(error) => println!("probe: {error}"),
    }
    for ordinal in [0, 1] {
        match CudaDevice::open(ordinal) {
            Ok(device) => println!("open {ordinal}: {}", device.info()),
            Err(error) => println!("open {ordinal}: {error}"),
        }
    }
}

/// Compiles [`SOURCE`] with the rustc beside the cargo that runs the tests.
fn compile(folder: &Path) -> Result<(), String> {
    let source = folder.join("fake.rs");
    fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
    let rustc = env::var_os("CARGO")
        .map(|cargo| PathBuf::from(cargo).with_file_name("rustc"))
        .filter(|rustc| rustc.exists())
        .unwrap_or_else(|| PathBuf::from("rustc"));
    let output = Command::new(&rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "-o"])
        .arg(folder.join("libcuda.so.1"))
        .arg(&source)
        .output()
        .map_err(|error| format!("{}: {error}", rustc.display()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
