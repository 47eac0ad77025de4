//! A mixture-of-experts block of a checkpoint on disk, in gpt-oss's layout (MXFP4) or in ModelOpt's
//! (NVFP4), on random tokens, compared with a reference in f32:
//!
//! ```text
//! cargo run --release --package nvfp4-lab --example moe_block -- MODEL [BLOCK] [DEVICE]
//! ```
//!
//! BLOCK is what names of the block's tensors begin with, `model.layers.0.mlp` if it is left out.
//! DEVICE is as for `nvfp4 --device`; without a GPU the kernels run on the emulator. The activations
//! are bf16 (W4A16), and of NVFP4 weights also NVFP4 (W4A4).

mod block;
mod f32_reference;

use nvfp4::device::Device;
use nvfp4_checkpoint::Model;

/// Tokens that go through the block.
const TOKENS: usize = 12;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next() else {
        anyhow::bail!("usage: moe_block MODEL [BLOCK] [DEVICE]");
    };
    let name = arguments.next().unwrap_or_else(|| "model.layers.0.mlp".into());
    let device = arguments.next().unwrap_or_else(|| "auto".into());
    let kernels = Device::open(&device.parse()?)?.kernels(None)?;
    println!("{name} on {}", kernels.device().choice());
    for ran in block::run(&kernels, &Model::open(path)?, &name, TOKENS)? {
        println!("{ran}");
        anyhow::ensure!(ran.verified, "a step differs from the oracle");
    }
    Ok(())
}
