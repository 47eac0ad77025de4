//! The main loop of 16-bit operands: `wgmma` on weights that each thread decodes to its registers.
//!
//! # One step
//! A step of K is 128 columns, the codes and scales of a stage. A consumer warpgroup has one or two blocks of
//! 64 rows of weights (`BLOCKS`); a *unit* is one block by 64 columns: four `wgmma`s of 16 columns.
//!
//! - *Load.* Before anything else of the step, the thread loads its 16 bytes of codes of each unit, two rows by
//!   64 columns, and their scales: shared memory answers while the units before are multiplied.
//! - *Decode.* A word of eight codes becomes the A fragment of one `wgmma`, four registers of two 16-bit
//!   values. There is no table: masks and shifts bring sign, exponent and mantissa of e2m1 to the places that
//!   they have in f16 or bf16, and multiplying by the scale restores the value exactly
//!   ([`operands`](super::operands)). Shifts are products by [powers of two](Consumer::multipliers), so that
//!   they stay on one pipe whatever else the kernel has. (In e4m3, where a [table](super::folded) of eight
//!   magnitudes is made of each scale, the main loop is another.)
//! - *Multiply.* Four asynchronous `wgmma`s add weights times activations, which they read from the stage, to
//!   the sums in registers, and are one group.
//!
//! # Overlap
//! Units alternate between two sets of operand registers, and at most one group is unfinished:
//!
//! ```text
//! tensor core | unit 0        | unit 1        | unit 2        | unit 3        | unit 0 of the next step
//! threads     | decode unit 1 | decode unit 2 | decode unit 3 | load, decode unit 0 | ..
//! ```
//!
//! Before unit `u` is decoded, `wgmma_wait_group::<1>` says that unit `u - 2`, which had the same registers, is
//! finished. That is also when a stage is known to be read: the products of a step are finished in unit 1 of the
//! next one, which then releases the stage for the producer's copies. If a step takes
//! [two stages](fp4_formats::gemm::sm90::Sm90Config::step_stages), each is released by itself. The two
//! warpgroups do not wait for each other: while one decodes, the other's products fill the tensor core.

use cuda_std::ptx::{marker, wgmma};
use fp4_formats::gemm::fragments::repack::CHUNK_BLOCKS;
use fp4_formats::gemm::fragments::word::Multipliers;
use fp4_formats::gemm::sm90::config::{BOX_BYTES, WGMMA_BYTES};

use super::Kernel;
use super::consumer::Consumer;
use super::memory::Memory;
use super::multicast::release;
use super::operands::{Narrow, Product, STEPS, Scales, Weights};
use super::stage::{Places, descriptor, sixteens};
use crate::pipeline::Cursor;

/// A main loop with `SUMS` sums per thread for each of `BLOCKS` blocks of rows.
pub trait MainLoop<const SUMS: usize, const BLOCKS: usize>: Weights {
    /// Sums the products of an item: of the next `count` steps, at least one, of a tile of `width` tokens.
    /// If the tiles of `K` have several widths, it takes the narrowest product that has room for them.
    ///
    /// # Safety
    /// All threads of the warpgroup, converged; the ring is initialised and known to them.
    unsafe fn sum_item<K: Kernel>(
        consumer: &mut Consumer<Self, SUMS, BLOCKS>,
        memory: Memory,
        width: u32,
        count: u32,
        cursor: &mut Cursor,
    );
}

impl<W: Narrow + Product<SUMS>, const SUMS: usize, const BLOCKS: usize> MainLoop<SUMS, BLOCKS>
    for W
{
    #[inline(always)]
    unsafe fn sum_item<K: Kernel>(
        consumer: &mut Consumer<Self, SUMS, BLOCKS>,
        memory: Memory,
        width: u32,
        count: u32,
        cursor: &mut Cursor,
    ) {
        // SAFETY: the caller's.
        unsafe {
            if const { K::CONFIG.uses_mma_sync() } {
                consumer.sum_by_mma_sync(memory, count, cursor);
            } else if const { K::CONFIG.has_widths() } {
                consumer.sum_width(memory, width, count, cursor);
            } else {
                consumer.sum_steps::<SUMS>(memory, count, cursor);
            }
        }
    }
}

impl<W: Narrow, const SUMS: usize, const BLOCKS: usize> Consumer<W, SUMS, BLOCKS> {
    /// Sums the products of the next `count` steps, at least one, into the first `N` sums of each
    /// block.
    ///
    /// # Safety
    /// All threads of the warpgroup, converged; the ring is initialised and known to them.
    #[inline(always)]
    pub unsafe fn sum_steps<const N: usize>(
        &mut self,
        memory: Memory,
        count: u32,
        cursor: &mut Cursor,
    ) where
        W: Product<N>,
    {
        let (config, ring) = (memory.config, memory.ring());
        let places = Places::new::<BLOCKS>(config);
        let by = self.multipliers();
        let parts = config.step_stages(2 * N as u32);
        // The stages of the step before.
        let mut last = [cursor.stage; 2];
        let mut step = 0;
        // There is a first step. A path around the loop would join it with sums that no product
        // wrote, and ptxas would run the products one by one.
        loop {
            // SAFETY: the stage has arrived when the wait returns. Its predecessor is read: its
            // products are finished where `step` says so, and its codes were decoded before.
            unsafe {
                ring.wait_full(cursor);
                last = self.step::<N>(memory, (places, by), cursor, |part| {
                    release(config, ring.empty(last[part]), step > 0);
                });
            }
            cursor.advance();
            step += 1;
            if step >= count {
                break;
            }
        }
        // SAFETY: the warpgroup is converged; with its products the last stages are read.
        unsafe {
            wgmma::wgmma_wait_group::<0>();
            for stage in &last[..parts as usize] {
                release(config, ring.empty(*stage), true);
            }
        }
    }

    /// One step of K, whose first stage has arrived; returns its stages. Calls `release` with each
    /// stage's number in the step when the products of the same stage of the step before are finished.
    ///
    /// # Safety
    /// As [`sum_steps`](Self::sum_steps).
    #[inline(always)]
    unsafe fn step<const N: usize>(
        &mut self,
        memory: Memory,
        (places, by): (Places, Multipliers),
        cursor: &mut Cursor,
        mut release: impl FnMut(usize),
    ) -> [u32; 2]
    where
        W: Product<N>,
    {
        let (config, ring) = (memory.config, memory.ring());
        let is_wide = config.step_stages(2 * N as u32) == 2;
        let mut stages = [cursor.stage; 2];
        let weights = memory.weights(cursor.stage);
        let mut words = [[[0; STEPS]; BLOCKS]; CHUNK_BLOCKS as usize];
        let mut scales = [[<W::Scales>::NONE; BLOCKS]; CHUNK_BLOCKS as usize];
        for kb in 0..CHUNK_BLOCKS as usize {
            for block in 0..BLOCKS {
                // SAFETY: inside the stage's weights.
                (words[kb][block], scales[kb][block]) =
                    unsafe { places.load::<W>(config, weights, block as u32, kb as u32) };
            }
        }
        for kb in 0..CHUNK_BLOCKS as usize {
            if is_wide && kb > 0 {
                cursor.advance();
                stages[kb] = cursor.stage;
                // SAFETY: the caller's.
                unsafe { ring.wait_full(cursor) };
            }
            let columns = if is_wide { 0 } else { kb as u32 * BOX_BYTES * config.stage_tokens() };
            let offset = stages[kb] * sixteens(config.activation_bytes()) + sixteens(columns);
            for block in 0..BLOCKS {
                // SAFETY: the warpgroup is converged. At most the last unit's products are
                // unfinished: these operands' registers are free.
                unsafe { wgmma::wgmma_wait_group::<1>() };
                let unit = kb * BLOCKS + block;
                if is_wide {
                    release(kb);
                } else if unit == 1 {
                    release(0);
                }
                let words = words[kb][block].map(marker::pin);
                let scales = scales[kb][block].pin();
                let mut own = [[0; 4]; STEPS];
                let operands =
                    if config.has_widths() { &mut self.operands[unit % 2] } else { &mut own };
                for k in 0..STEPS {
                    operands[k] = W::fragment(words[k], scales, k, by).map(marker::pin);
                }
                // SAFETY: the warpgroup is converged; operands are written above the fence and
                // left alone below; the tile arrived by copies, in the async proxy.
                unsafe {
                    wgmma::wgmma_fence();
                    for k in 0..STEPS {
                        let b = descriptor(memory.base, offset + sixteens(k as u32 * WGMMA_BYTES));
                        // The compiler knows that there are so many.
                        if let Some(sums) = self.sums[block].first_chunk_mut::<N>() {
                            W::add(sums, operands[k], b);
                        }
                    }
                    wgmma::wgmma_commit_group();
                }
            }
        }
        stages
    }
}
