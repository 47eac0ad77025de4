//! Choosing a device.

use fp4_formats::Arch;
use nvfp4::cuda;
use nvfp4::device::{Device, DeviceRequest};
use ptx_emu_core::Gpu;

use crate::support::{Folder, write_no_kernels};

#[test]
fn requests_print_as_they_were_read() {
    let machines = Gpu::ALL.map(|gpu| format!("emu:{}", gpu.name));
    for text in ["auto", "cuda:0", "cuda:7"].into_iter().chain(machines.iter().map(String::as_str))
    {
        let request: DeviceRequest = text.parse().expect("a known form");
        assert_eq!(request.to_string(), text);
    }
    assert_eq!(DeviceRequest::FORMS, format!("auto, cuda:N, {}", machines.join(", ")));
    for text in ["", "cuda", "cuda:", "cuda:-1", "cuda:x", "emu", "emu:", "emu:h100x", "auto:1"] {
        let error = text.parse::<DeviceRequest>().expect_err("unknown").to_string();
        assert_eq!(error, format!("unknown device `{text}`; known: {}", DeviceRequest::FORMS));
    }
}

#[test]
fn emulators_open_anywhere() {
    for (text, arch) in [
        ("emu:a100", Arch::Sm80),
        ("emu:rtx3090", Arch::Sm80),
        ("emu:rtx4090", Arch::Sm80),
        ("emu:l40s", Arch::Sm80),
        ("emu:h200", Arch::Sm90a),
        ("emu:b200", Arch::Sm100a),
        ("emu:b300", Arch::Sm100f),
        ("emu:rtx5090", Arch::Sm120f),
        ("emu:rtx-pro-6000", Arch::Sm120f),
        ("emu:dgx-spark", Arch::Sm120f),
    ] {
        let device = Device::open(&text.parse().expect("known")).expect("opens");
        let choice = device.choice();
        assert_eq!((choice.device.as_str(), choice.arch), (text, arch));
        let end = match arch {
            Arch::Sm80 => {
                "; sm_80 is the portable code: there is no closer one for compute capability"
            }
            Arch::Sm90a | Arch::Sm100a | Arch::Sm100f | Arch::Sm120f => "): asked for",
        };
        assert!(choice.to_string().contains(end), "{choice}");
        let error = device.gpu("timing").expect_err("no GPU").to_string();
        assert_eq!(error, format!("timing needs a GPU; the device is {text}"));
    }
}

/// The portable code runs everywhere on request; closer code only where it belongs.
#[test]
fn targets_are_chosen_on_request() {
    let open = |name: &str| Device::open(&name.parse().expect("known")).expect("opens");
    for name in ["emu:a100", "emu:h200", "emu:b200", "emu:b300", "emu:rtx5090"] {
        let device = open(name).with_arch(Arch::Sm80).expect("it runs everywhere");
        assert_eq!(device.choice().arch, Arch::Sm80, "{name}");
    }
    let error = open("emu:rtx4090").with_arch(Arch::Sm90a).expect_err("another GPU's").to_string();
    let expected = "emu:rtx4090 has compute capability 8.9, which runs no code for sm_90a (9.0)";
    assert_eq!(error, expected);
}

/// A device for which there is closer code is not given the portable one because that is all there is.
#[test]
fn the_portable_code_is_no_replacement() {
    let folder = Folder::new("portable");
    write_no_kernels(folder.path(), Arch::Sm80);
    let open = |name: &str| Device::open(&name.parse().expect("known")).expect("opens");
    let kernels = open("emu:rtx3090").kernels(Some(folder.path())).expect("its own");
    assert_eq!(kernels.device().choice().arch, Arch::Sm80);
    // The code for sm_120f has its kernels, too, for 16-bit activations.
    let kernels = open("emu:rtx5090").kernels(Some(folder.path())).expect("in their place");
    let choice = kernels.device().choice();
    assert_eq!(choice.arch, Arch::Sm80);
    assert!(choice.to_string().contains("because it is not here"), "{choice}");
    for name in ["emu:h200", "emu:b200"] {
        let error = open(name).kernels(Some(folder.path())).expect_err("none").to_string();
        assert!(error.starts_with("no kernels for sm_"), "{name}: {error}");
        let asked = open(name).with_arch(Arch::Sm80).expect("it runs everywhere");
        asked.kernels(Some(folder.path())).expect("on request");
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
