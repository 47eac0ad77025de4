//! A layer of a real model in NVFP4: its first query projection on real activations, with 16-bit
//! activations (W4A16) and with NVFP4 ones (W4A4), compared with the product of the original f32
//! numbers:
//!
//! ```text
//! cargo xtask fetch-model
//! cargo run --release --package nvfp4-lab --example real_layer -- [MODEL.safetensors] [DEVICE]
//! ```
//!
//! MODEL is all-MiniLM-L6-v2, where `cargo xtask fetch-model` puts it if none is named. DEVICE is
//! as for `nvfp4 --device`; without a GPU the kernels run on the emulator.

mod compare;

use std::path::PathBuf;

use nvfp4::device::{Device, DeviceRequest};
use nvfp4_checkpoint::Checkpoint;

/// Tokens of the product.
const TOKENS: usize = 16;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().map_or_else(
        || {
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
            PathBuf::from(root).join("target/models/all-MiniLM-L6-v2/model.safetensors")
        },
        PathBuf::from,
    );
    let request: DeviceRequest = arguments.next().as_deref().unwrap_or("auto").parse()?;
    if !path.is_file() {
        println!("skipped: no {}; `cargo xtask fetch-model` fetches a model", path.display());
        return Ok(());
    }
    let kernels = Device::open(&request)?.kernels(None)?;
    println!("{}, {TOKENS} tokens, on {}", compare::LAYER, kernels.device().choice());
    for compared in compare::compare(&kernels, &Checkpoint::open(path)?, TOKENS)? {
        println!("{compared}");
        anyhow::ensure!(compared.verified, "the result differs from the oracle's");
    }
    Ok(())
}
