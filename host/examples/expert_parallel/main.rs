//! A mixture of experts on several devices: each has some of the experts and some of the tokens, whose rows go to the
//! devices of their experts and come back.
//!
//! ```text
//! cargo run --release --package nvfp4 --example expert_parallel -- [DEVICE]
//! cargo run --release --package nvfp4 --example expert_parallel --features nccl -- nccl [EXPERTS]
//! ```
//!
//! DEVICE is one of the emulator's, `emu:h200` if none is named: two emulated devices, which exchange rows through the
//! host's memory and give the bits of one. With `nccl` there is a process for each GPU of the machine, and NCCL
//! exchanges rows in 16 bits, e4m3 and NVFP4; the times of all steps are printed, and that of a layer with all experts on
//! one GPU. EXPERTS is 128 and 256 by default.

mod layer;
#[cfg(feature = "nccl")]
mod nccl;

use layer::{Form, Sizes};
use nvfp4::device::{Device, DeviceRequest};

/// Sizes of a run on the emulator.
const SMALL: Sizes = Sizes { experts: 6, top_k: 2, hidden: 64, between: 96 };

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        #[cfg(feature = "nccl")]
        ["nccl", rest @ ..] => nccl::run(rest),
        #[cfg(not(feature = "nccl"))]
        ["nccl", ..] => anyhow::bail!("built without the feature `nccl`"),
        [] => emulated("emu:h200"),
        [device] => emulated(device),
        _ => anyhow::bail!("at most one argument, a device"),
    }
}

fn emulated(device: &str) -> anyhow::Result<()> {
    let request: DeviceRequest = device.parse()?;
    for form in Form::ALL {
        let agrees = layer::agrees(SMALL, form, [2, 5], || Device::open(&request)?.kernels(None))?;
        anyhow::ensure!(agrees, "{form:?}: two devices and one differ");
        println!("{SMALL:?}, rows in {form:?}: two devices {device} give the bits of one");
    }
    Ok(())
}
