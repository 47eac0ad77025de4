//! Choosing a device.

use fp4_formats::Arch;
use nvfp4::cuda;
use nvfp4::device::{Device, DeviceRequest};

#[test]
fn requests_print_as_they_were_read() {
    for text in ["auto", "cuda:0", "cuda:7", "emu:h200", "emu:b200", "emu:b300"] {
        let request: DeviceRequest = text.parse().expect("a known form");
        assert_eq!(request.to_string(), text);
    }
    for text in ["", "cuda", "cuda:", "cuda:-1", "cuda:x", "emu", "emu:", "emu:h100x", "auto:1"] {
        let error = text.parse::<DeviceRequest>().expect_err("unknown").to_string();
        let expected =
            format!("unknown device `{text}`; known: auto, cuda:N, emu:h200, emu:b200, emu:b300");
        assert_eq!(error, expected);
    }
}

#[test]
fn emulators_open_anywhere() {
    for (text, arch) in
        [("emu:h200", Arch::Sm90a), ("emu:b200", Arch::Sm100a), ("emu:b300", Arch::Sm100f)]
    {
        let device = Device::open(&text.parse().expect("known")).expect("opens");
        let choice = device.choice();
        assert_eq!((choice.device.as_str(), choice.arch), (text, arch));
        assert!(choice.to_string().ends_with(": asked for"), "{choice}");
        let error = device.gpu("timing").expect_err("no GPU").to_string();
        assert_eq!(error, format!("timing needs a GPU; the device is {text}"));
    }
}

#[test]
fn auto_says_why() {
    let device = Device::open(&DeviceRequest::Auto).expect("falls back");
    let choice = device.choice();
    match cuda::probe() {
        Ok(driver) if driver.devices.iter().any(|info| info.arch().is_some()) => {
            assert!(choice.device.starts_with("cuda:"), "{choice}");
        }
        Ok(_) => assert!(choice.reason.starts_with("no supported GPU"), "{choice}"),
        Err(error) => {
            assert_eq!(choice.device, "emu:h200");
            if matches!(error, cuda::DriverError::Missing { .. }) {
                assert_eq!(choice.reason, "no NVIDIA driver on this machine");
            }
            let cuda = Device::open(&DeviceRequest::Cuda(0)).expect_err("no driver");
            assert_eq!((cuda.to_string(), cuda.exit_code()), (error.to_string(), 2));
        }
    }
}
