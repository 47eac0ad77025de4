//! The cost model of sm_120f's configurations: cycles of their steps by the rates of the hardware, as published. Nothing
//! of it is measured.

use fp4_formats::WARP;
use fp4_formats::gemm::Problem;
use fp4_formats::gemm::fragments::blocks::{PRODUCTS, WORD_BYTES};
use fp4_formats::gemm::sm120::config::{MMA_TOKENS, PIECE_BYTES, Sm120Config, TokenCodes, WARPS};

use super::warps::WarpCosts;

/// Multiply-adds of an SM per cycle, of e2m1 by e2m1, and of e2m1 by e4m3.
const PRODUCTS_PER_CYCLE: u32 = 2048;
const BYTE_PRODUCTS_PER_CYCLE: u32 = 1024;
/// Bytes per cycle from an SM's shared memory to registers.
const SHARED_BYTES_PER_CYCLE: u32 = 128;
/// Cycles from a barrier of all warps to the first product behind it.
const STEP_CYCLES: u32 = 120;
/// Bytes per cycle from memory to an SM: those of an RTX 5090, 1.79 TB/s at 2.4 GHz for 170 SMs. A DGX Spark has
/// half, and chooses the same where memory is the limit.
const DRAM_BYTES: u64 = 4;
/// Bytes per cycle from L2 to an SM.
const L2_BYTES: u64 = 16;

/// Returns the cycles of an SM for a step of a tile: of its products, or of the loads of their operands from shared
/// memory if they take longer.
const fn product_cycles(config: &Sm120Config) -> u32 {
    let per_cycle = match config.codes {
        TokenCodes::Blocks => PRODUCTS_PER_CYCLE,
        TokenCodes::E4m3 => BYTE_PRODUCTS_PER_CYCLE,
    };
    let products = config.rows * config.tokens * config.k_step() / per_cycle;
    let rows = config.warp_rows() * WARP * (PRODUCTS * PIECE_BYTES + WORD_BYTES);
    let eights = config.warp_tokens();
    let scales = match config.codes {
        TokenCodes::Blocks => eights.div_ceil(config.scale_eights()) * WARP * WORD_BYTES,
        TokenCodes::E4m3 => 0,
    };
    let loads = WARPS * (rows + eights * MMA_TOKENS * config.code_bytes() + scales);
    let loads = loads / SHARED_BYTES_PER_CYCLE;
    STEP_CYCLES + if products > loads { products } else { loads }
}

impl WarpCosts for Sm120Config {
    const FEWEST_CTAS: bool = true;
    const SUMS_BYTES: Option<u64> = Some(DRAM_BYTES);

    fn step_cycles(&self) -> u32 {
        product_cycles(self)
    }

    fn has_one_order(&self) -> bool {
        true
    }

    fn main_loop(&self, problem: &Problem, steps: u64, resident: u64) -> (u64, &'static str) {
        let steps = steps * resident;
        let products = steps * u64::from(product_cycles(self));
        // Tiles of the same rows run at about the same time: one of them brings weights to L2.
        let passes = u64::from(self.tiles(problem).token_tiles());
        let dram = steps * u64::from(self.weight_bytes()) / (DRAM_BYTES * passes);
        let l2 = steps * u64::from(self.stage_bytes()) / L2_BYTES;
        [(dram, "dram"), (l2, "l2")]
            .into_iter()
            .fold((products, "products"), |most, other| if other.0 > most.0 { other } else { most })
    }
}
