//! A gated MLP on two devices: each has half of the outputs of gate and up, and the same half of the
//! inputs of the matrix back. The results of both devices add up to the whole.
//!
//! ```text
//! cargo run --release --package nvfp4 --example tensor_parallel -- [DEVICE]
//! cargo run --release --package nvfp4 --example tensor_parallel --features nccl -- nccl
//! ```
//!
//! DEVICE is one of the emulator's, `emu:h200` if none is named: two emulated devices, whose results are
//! added on the host. With `nccl` there is a process for each of two GPUs, and NCCL adds.

mod mlp;
#[cfg(feature = "nccl")]
mod nccl;

use mlp::{Mlp, Sizes, relative_error};
use nvfp4::device::{Device, DeviceRequest};

/// Devices.
const RANKS: usize = 2;
/// Sizes of a run on the emulator.
const SMALL: Sizes = Sizes { tokens: 8, hidden: 256, between: 512 };

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
    let open = || Device::open(&request)?.kernels(None);
    let mlp = Mlp::random(SMALL)?;
    let x = mlp::tokens(SMALL)?;
    let whole = mlp.place(&open()?, SMALL.tokens)?.run(&x)?;
    let sum = mlp::on_several_devices(&mlp, &x, RANKS, SMALL.tokens, open)?;
    let error = relative_error(&sum, &whole);
    println!("{SMALL:?} on {RANKS} devices {device}: differs from one device's by {error:.1e}");
    anyhow::ensure!(error < mlp::BOUND, "the sum of parts is not the whole");
    Ok(())
}
