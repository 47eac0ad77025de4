//! The cost model of sm_80's configurations: cycles of their steps, as measured on an H200.

use fp4_formats::gemm::Problem;
use fp4_formats::gemm::sm80::config::{CONFIGS, GROUPED, MIXED, Sm80Config};

use super::fragments::every_tile_has_cycles;
use super::warps::WarpCosts;

/// Returns the cycles of an SM for a step of a tile, decoded and multiplied. 0 for a tile that no
/// configuration has.
const fn product_cycles(config: &Sm80Config) -> u32 {
    match (config.rows, config.tokens, config.blocks) {
        (128, 8, 2) => 560,
        (128, 8, 1) => 290,
        (128, 16, 2) => 620,
        (128, 16, 1) => 310,
        (128, 32, 1) => 440,
        (128, 64, 1) => 750,
        (128, 128, 1) => 1175,
        (256, 64, 1) => 1230,
        // Groups leave no registers to load far ahead.
        (256, 128, 1) if config.is_grouped() => 2090,
        (256, 128, 1) => 1950,
        _ => 0,
    }
}

every_tile_has_cycles!(Sm80Config, product_cycles);

/// Bytes per cycle from memory to an SM of an H200. GPUs with less choose the same where memory is the limit.
const DRAM_BYTES: u64 = 16;
/// A CTA that is alone on an SM which could have more takes longer by one of so many parts: nothing hides its waits.
const ALONE: u64 = 8;

impl WarpCosts for Sm80Config {
    const FEWEST_CTAS: bool = false;
    const SUMS_BYTES: Option<u64> = None;

    fn step_cycles(&self) -> u32 {
        product_cycles(self)
    }

    /// Warps with two products of a unit or fewer add units of even and odd number to separate sums.
    fn has_one_order(&self) -> bool {
        const FEW: u32 = 2;
        self.warp_rows() * self.warp_tokens() > FEW
    }

    fn main_loop(&self, _: &Problem, steps: u64, resident: u64) -> (u64, &'static str) {
        let mut products = steps * u64::from(product_cycles(self)) * resident;
        if resident < self.min_blocks.into() {
            products += products / ALONE;
        }
        let bytes = u64::from(self.weight_bytes() + self.activation_bytes());
        let dram = steps * u64::from(self.weight_bytes()) * resident / DRAM_BYTES
            + steps * bytes * resident / (4 * DRAM_BYTES);
        if dram > products { (dram, "dram") } else { (products, "products") }
    }
}
