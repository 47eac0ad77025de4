//! The probe's answers for drivers that this machine does not have.

use nvfp4::cuda::{CudaDevice, probe};

pub use crate::driver::Driver;

#[test]
fn the_probe_tells_drivers_apart() {
    let Some(driver) = Driver::compile("probe") else { return };
    let cases = [
        (
            "11030,0,1,90",
            "probe: the NVIDIA driver is too old: it supports CUDA 11.3, \
             CUDA 11.4 or newer is required",
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
            "13020,0,2,75",
            "open 1: cuda:1 (Fake GPU) has compute capability 7.5; there are kernels for \
             sm_90a (9.0), sm_100a (10.0), sm_100f (10.0, 10.3), sm_120f (12.0, 12.1) and sm_80 (8.0 \
             and later)",
        ),
        ("13020,0,1,90", "open 1: cuda:1 does not exist: the driver reports 1 device(s)"),
        // A code newer than cust survives the way through it.
        ("13020,0,1,90", "open 0: cuDevicePrimaryCtxRetain returned unknown code (4242)"),
    ];
    for (answers, expected) in cases {
        let output = driver.run("fake_driver::say_what_is_here", answers);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.lines().any(|line| line == expected),
            "driver {answers}: expected\n{expected}\nin\n{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
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
