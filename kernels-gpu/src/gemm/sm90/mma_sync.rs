//! Consumers for few tokens: each warp multiplies its 16 rows of a block by `mma.sync`.
//!
//! Its fragments are the same as `wgmma`'s, so the order of the weights and their decoding are the
//! same. With eight tokens, the next step's operands are on their way to registers while a step is
//! multiplied; 16 tokens leave no registers for that.

use cuda_std::ptx::{marker, mma};
use cuda_std::warp;
use fp4_formats::gemm::fragments::repack::CHUNK_BLOCKS;
use fp4_formats::gemm::fragments::word::Multipliers;
use fp4_formats::gemm::sm90::config::{BOX_BYTES, Sm90Config};

use super::consumer::Consumer;
use super::memory::Memory;
use super::multicast::release;
use super::operands::{Decoded, Narrow, STEPS};
use super::stage;
use crate::pipeline::Cursor;

/// Block columns of a stage.
const COLUMNS: usize = CHUNK_BLOCKS as usize;
/// Bytes of a token's row of a box, and of a piece that the swizzle moves.
const ROW: u32 = BOX_BYTES;
const PIECE: u32 = 16;
/// Tokens of a product.
const TOKENS: u32 = 8;
/// Sums of a thread that one product adds to.
const SUMS_EACH: usize = 4;

/// A thread's operands of eight tokens, for each block column and each product of 16 columns.
type Tokens = [[[u32; 2]; STEPS]; COLUMNS];

impl<W: Narrow, const SUMS: usize, const BLOCKS: usize> Consumer<W, SUMS, BLOCKS> {
    /// Sums as [`sum_steps`](Self::sum_steps) does, for one block of rows and few tokens.
    ///
    /// # Safety
    /// As [`sum_steps`](Self::sum_steps).
    #[inline(always)]
    pub unsafe fn sum_by_mma_sync(&mut self, memory: Memory, count: u32, cursor: &mut Cursor) {
        // Products of even and odd number add to separate sums: a product takes longer than
        // decoding the operands of the next.
        let mut sums = [[0.0; SUMS]; 2];
        // With 16 tokens, products of `mma.sync` are many, and shifts that the compiler divides are
        // faster.
        let by = if SUMS == SUMS_EACH { self.multipliers() } else { W::HALF.multipliers(1) };
        let steps = Steps { memory, places: Places::new(memory.config) };
        // SAFETY: the caller's; the producer has so many steps.
        unsafe {
            if const { SUMS == SUMS_EACH } {
                // Two steps at a time, so that two sets of registers take turns: to move operands
                // from one to the other would wait for them.
                let mut now = steps.operands::<W>(cursor);
                let mut left = count - 1;
                while left >= 2 {
                    let next = steps.operands::<W>(cursor);
                    multiply::<W, SUMS>(&mut sums, &now, by);
                    now = steps.operands::<W>(cursor);
                    multiply::<W, SUMS>(&mut sums, &next, by);
                    left -= 2;
                }
                if left > 0 {
                    let next = steps.operands::<W>(cursor);
                    multiply::<W, SUMS>(&mut sums, &now, by);
                    now = next;
                }
                multiply::<W, SUMS>(&mut sums, &now, by);
            } else {
                for _ in 0..count {
                    multiply::<W, SUMS>(&mut sums, &steps.operands::<W>(cursor), by);
                }
            }
        }
        for i in 0..SUMS {
            *self.sum_mut(i) = sums[0][i] + sums[1][i];
        }
    }
}

/// A thread's operands of a step.
struct Operands<W: Decoded> {
    /// Codes and scales of each block column.
    words: [([u32; STEPS], W::Scales); COLUMNS],
    /// The operands of eight tokens each.
    tokens: [Tokens; 2],
}

/// Adds a step's products.
///
/// # Safety
/// All threads of the warp reach this same call.
#[inline(always)]
unsafe fn multiply<W: Decoded, const SUMS: usize>(
    sums: &mut [[f32; SUMS]; 2],
    operands: &Operands<W>,
    by: Multipliers,
) {
    for kb in 0..COLUMNS {
        let (words, scales) = operands.words[kb];
        for k in 0..STEPS {
            let fragment = W::fragment(words[k], scales, k, by);
            for i in 0..SUMS / SUMS_EACH {
                let sums = &mut sums[k % 2].as_chunks_mut().0[i];
                // SAFETY: all threads of the warp are here.
                unsafe { W::multiply_mma_sync(sums, fragment, operands.tokens[i][kb][k]) };
            }
        }
    }
}

/// The steps that a warp takes from the ring.
struct Steps {
    memory: Memory,
    places: Places,
}

impl Steps {
    /// Waits for the next stage, loads all operands, and releases it.
    ///
    /// # Safety
    /// The warp is converged; the ring is initialised and known to it, and its producer has another
    /// step.
    #[inline(always)]
    unsafe fn operands<W: Decoded>(&self, cursor: &mut Cursor) -> Operands<W> {
        let (config, ring, places) = (self.memory.config, self.memory.ring(), self.places);
        let weights = self.memory.weights(cursor.stage);
        let activations = self.memory.activations(cursor.stage);
        // SAFETY: the stage has arrived when the wait returns, and is read when it is released.
        let operands = unsafe {
            ring.wait_full(cursor);
            let words =
                core::array::from_fn(|kb| places.weights.load::<W>(config, weights, 0, kb as u32));
            let tokens = places.tokens(config, activations);
            release(config, ring.empty(cursor.stage), true);
            Operands { words, tokens }
        };
        cursor.advance();
        operands
    }
}

/// Places of a thread's operands in a stage. They are kept in registers across the main loop,
/// because recomputing them costs a tenth of a step's instructions.
#[derive(Clone, Copy)]
struct Places {
    weights: stage::Places,
    /// Bytes from the stage's activations to the lane's row of a matrix, of either half of a box's
    /// columns.
    rows: [u32; 2],
}

impl Places {
    #[inline(always)]
    fn new(config: &Sm90Config) -> Self {
        let (matrix, row) = (warp::lane_id() / 8, warp::lane_id() % 8);
        Self {
            weights: stage::Places::new::<1>(config),
            rows: [0, 4].map(|half| marker::pin(row * ROW + ((half + matrix) ^ row) * PIECE)),
        }
    }

    /// The stage's activations as operands, eight tokens each, for up to 16 tokens.
    ///
    /// # Safety
    /// The warp is converged; the stage's activations, at the shared address, have arrived.
    #[inline(always)]
    unsafe fn tokens(&self, config: &Sm90Config, activations: u32) -> [Tokens; 2] {
        let mut operands = [[[[0; 2]; STEPS]; COLUMNS]; 2];
        for group in 0..config.tokens / TOKENS {
            for kb in 0..COLUMNS {
                let first = activations + (kb as u32 * config.tokens + group * TOKENS) * ROW;
                for half in 0..2 {
                    // SAFETY: inside the stage's activations.
                    let [a, b, c, d] =
                        unsafe { mma::ldmatrix_m8n8_x4_shared_b16(first + self.rows[half]) };
                    let operands = &mut operands[group as usize][kb];
                    operands[2 * half] = [a, b];
                    operands[2 * half + 1] = [c, d];
                }
            }
        }
        operands
    }
}
