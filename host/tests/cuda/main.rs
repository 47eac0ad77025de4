//! The CUDA backend on this machine: with a GPU every check of `checks` runs,
//! without one the typed answer of the probe is asserted and the rest is listed
//! as skipped.

mod checks;
mod driver;
mod engines;
mod fake_driver;
mod modules;
mod recordings;
mod stream;

use checks::Outcome;
use nvfp4::cuda::{CudaDevice, CudaError, DriverError, probe};

#[test]
fn backend_on_this_machine() {
    let info = match probe() {
        Ok(info) => info,
        Err(error) => {
            skipped::part("checks on a device", &error);
            return without_a_driver(error);
        }
    };
    println!("driver for CUDA {} from {}", info.version, info.library);
    let mut failed = Vec::new();
    for device in &info.devices {
        if device.arch().is_none() {
            skipped::part(device, "not supported");
            let error = CudaDevice::open(device.ordinal).map(|_| ());
            assert!(
                matches!(error, Err(CudaError::UnsupportedDevice { .. })),
                "{device}: {error:?}"
            );
            continue;
        }
        println!("{device}");
        let open = CudaDevice::open(device.ordinal).expect("a supported device opens");
        for (name, outcome) in checks::run(&open) {
            println!("  {name}: {outcome}");
            if matches!(outcome, Outcome::Fail(_)) {
                failed.push(format!("{device}: {name}: {outcome}"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Every call says the same without a usable driver.
fn without_a_driver(error: DriverError) {
    let open = CudaDevice::open(0).map(|_| ());
    assert_eq!(open, Err(CudaError::Driver(error.clone())));
    assert_eq!(probe(), Err(error.clone()));
    if cuda_lazy::library().is_err() {
        let DriverError::Missing { reason } = &error else {
            panic!("no library, and yet: {error:?}");
        };
        assert!(reason.contains("libcuda.so.1"), "{reason}");
    }
}
