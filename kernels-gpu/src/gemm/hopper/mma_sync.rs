//! Consumers for few tokens: each warp multiplies its 16 rows of a block by `mma.sync`.
//!
//! Its fragments are those of `wgmma`, so the order of the weights and their decoding are the same.
//! A step loads all its operands first and releases its stage before it decodes them.

use cuda_std::ptx::mma;
use cuda_std::warp;
use fp4_formats::gemm::hopper::config::{BOX_BYTES, HopperConfig};
use fp4_formats::gemm::hopper::repack::CHUNK_BLOCKS;

use super::consumer::{Consumer, load};
use super::decode::{Narrow, STEPS};
use super::multicast::release;
use super::tile::Memory;
use crate::pipeline::{Cursor, Ring};

/// Block columns of a stage.
const COLUMNS: usize = CHUNK_BLOCKS as usize;
/// Bytes of a token's row of a box, and of a piece that the swizzle moves.
const ROW: u32 = BOX_BYTES;
const PIECE: u32 = 16;
/// Tokens of a product.
const TOKENS: u32 = 8;
/// Sums of a thread that one product adds to.
const SUMS_EACH: usize = 4;

/// A thread's operands of eight tokens by 64 columns, for each product of 16 columns.
type Tokens = [[u32; 2]; STEPS];

impl<W: Narrow, const SUMS: usize, const BLOCKS: usize> Consumer<W, SUMS, BLOCKS> {
    /// As [`multiply`](Self::multiply), for one block of rows and few tokens.
    ///
    /// # Safety
    /// As [`multiply`](Self::multiply).
    #[inline(always)]
    pub unsafe fn multiply_mma_sync(
        &mut self,
        config: &HopperConfig,
        count: u32,
        memory: Memory,
        ring: Ring,
        cursor: &mut Cursor,
    ) {
        // Products of even and odd number add to separate sums: a product takes longer than
        // decoding the operands of the next.
        let mut sums = [[0.0; SUMS]; 2];
        for _ in 0..count {
            // SAFETY: the stage has arrived when the wait returns, and is read when it is
            // released.
            unsafe {
                ring.wait_full(cursor);
                let weights = memory.weights(config, cursor.stage);
                let words: [_; COLUMNS] =
                    core::array::from_fn(|kb| load::<W, 1>(config, weights, 0, kb as u32));
                let tokens = tokens(config, memory.activations(config, cursor.stage));
                release(config, ring.empty(cursor.stage), true);
                for kb in 0..COLUMNS {
                    let (words, scales) = words[kb];
                    for k in 0..STEPS {
                        let fragment = W::fragment(words[k], scales, k);
                        for i in 0..SUMS / SUMS_EACH {
                            let sums = &mut sums[k % 2].as_chunks_mut().0[i];
                            W::multiply_mma_sync(sums, fragment, tokens[i][kb][k]);
                        }
                    }
                }
            }
            cursor.advance();
        }
        for i in 0..SUMS {
            *self.sum_mut(i) = sums[0][i] + sums[1][i];
        }
    }
}

/// The stage's activations as operands, eight tokens each, for up to 16 tokens.
///
/// # Safety
/// The warp is converged; the stage's activations, at the shared address, have arrived.
#[inline(always)]
unsafe fn tokens(config: &HopperConfig, activations: u32) -> [[Tokens; COLUMNS]; 2] {
    let mut operands = [[[[0; 2]; STEPS]; COLUMNS]; 2];
    let (matrix, row) = (warp::lane_id() / 8, warp::lane_id() % 8);
    for group in 0..config.tokens / TOKENS {
        for kb in 0..COLUMNS {
            let rows = activations + kb as u32 * ROW * config.tokens + (group * TOKENS + row) * ROW;
            for half in 0..2 {
                let piece = (half as u32 * 4 + matrix) ^ row;
                // SAFETY: inside the stage's activations.
                let [a, b, c, d] =
                    unsafe { mma::ldmatrix_m8n8_x4_shared_b16(rows + piece * PIECE) };
                let operands = &mut operands[group as usize][kb];
                operands[2 * half] = [a, b];
                operands[2 * half + 1] = [c, d];
            }
        }
    }
    operands
}
