//! The map of a CTA's shared memory: what is where, in the order of the table in [`sm80`](super).

use cuda_std::ptx::memory;
use cuda_std::{thread, warp};
use fp4_formats::gemm::sm80::config::{MMA_ROWS, MMA_TOKENS, Sm80Config};

use crate::gemm::warps::Sums;

/// Shared addresses of a CTA.
#[derive(Clone, Copy)]
pub struct Memory {
    /// Address of the dynamic shared memory.
    pub base: u32,
    /// The kernel's configuration, which has all offsets.
    pub config: &'static Sm80Config,
}

impl Memory {
    /// Activations of a stage.
    #[inline(always)]
    pub fn activations(self, stage: u32) -> u32 {
        self.base + stage * self.config.activation_bytes()
    }

    /// Weights of a stage.
    #[inline(always)]
    pub fn weights(self, stage: u32) -> u32 {
        self.base + self.config.weights_offset() + stage * self.config.weight_bytes()
    }

    /// Sums of a token of a strip.
    #[inline(always)]
    pub fn sums(self, token: u32) -> u32 {
        self.base + token * self.config.sum_pitch() * size_of::<f32>() as u32
    }

    /// Puts the sums of a strip's tokens, the first of which is the tile's `first`, into shared memory, f32,
    /// [tokens, rows] with the configuration's pitch.
    ///
    /// # Safety
    /// Nobody uses the stages or the sums of another strip any more.
    #[inline(always)]
    pub unsafe fn put_sums<const ROWS: usize, const TOKENS: usize>(
        self,
        sums: &Sums<ROWS, TOKENS>,
        first: u32,
    ) {
        let Warp { row, token } = Warp::own(self.config);
        let lane = warp::lane_id();
        for n in 0..TOKENS {
            let eight = token + n as u32 * MMA_TOKENS;
            // Wraps for tokens of a strip before.
            let eight = eight.wrapping_sub(first);
            if eight >= self.config.strip_tokens() {
                continue;
            }
            for m in 0..ROWS {
                for (i, sum) in sums[m][n].into_iter().enumerate() {
                    let row = row + m as u32 * MMA_ROWS + lane / 4 + i as u32 / 2 * 8;
                    let token = eight + lane % 4 * 2 + i as u32 % 2;
                    let at = self.sums(token) + row * size_of::<f32>() as u32;
                    // SAFETY: inside the strip's sums.
                    unsafe { memory::st_shared_b32(at, sum.to_bits()) };
                }
            }
        }
    }
}

/// The place of a warp in a tile.
#[derive(Clone, Copy)]
pub struct Warp {
    /// First row of weights.
    pub row: u32,
    /// First token.
    pub token: u32,
}

impl Warp {
    /// This thread's warp.
    #[inline(always)]
    pub fn own(config: &Sm80Config) -> Self {
        let warp = thread::thread_idx_x() / warp::LANES;
        Self {
            row: warp % config.row_warps * config.warp_rows() * MMA_ROWS,
            token: warp / config.row_warps * config.warp_tokens() * MMA_TOKENS,
        }
    }
}
