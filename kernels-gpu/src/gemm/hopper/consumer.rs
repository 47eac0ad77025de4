//! The consumers: two warpgroups, each with its own blocks of 64 rows of `B`.
//!
//! A *unit* is one block of 64 rows by 64 columns: four `wgmma`s whose operands a thread
//! decodes from 16 bytes. Units alternate between two sets of operand registers: while the
//! products of one unit run, the next unit is decoded.

use cuda_std::ptx::{marker, memory, wgmma};
use cuda_std::{thread, warp};
use fp4_formats::gemm::hopper::config::{BOX_BYTES, HopperConfig};
use fp4_formats::gemm::hopper::repack::{
    BLOCK_CODE_BYTES, BLOCK_ROWS, CHUNK_BLOCKS, CHUNK_CODE_BYTES, WARPGROUP, WGMMA_BYTES,
    word_offset,
};

use super::decode::{Decoded, Narrow, Product, STEPS};
use super::multicast::release;
use super::tile::Memory;
use crate::pipeline::{Cursor, Ring};

/// Fields of a matrix descriptor: 128-byte swizzle; 1024 bytes from eight rows to the next;
/// the distance along K, which a swizzled tile does not have, as 1.
const DESCRIPTOR: u64 = 1 << 62 | (1024 >> 4) << 32 | 1 << 16;

/// Bits of a shared address that a descriptor takes; the CTA's rank stands above them.
const ADDRESS: u32 = 0x3_ffff;

/// The descriptor of a tile `offset` bytes from the shared address `start`. The descriptors of a
/// stage differ by a sum in the low half only.
#[inline(always)]
pub(super) fn descriptor(start: u32, offset: u32) -> u64 {
    let low = ((start & ADDRESS) >> 4 | DESCRIPTOR as u32) + (offset >> 4);
    DESCRIPTOR >> 32 << 32 | u64::from(low)
}

/// A thread's sums: `SUMS` of each of its warpgroup's `BLOCKS` blocks of rows.
pub struct Consumer<W, const SUMS: usize, const BLOCKS: usize> {
    sums: [[f32; SUMS]; BLOCKS],
    weights: core::marker::PhantomData<W>,
}

/// Index of the thread in its warpgroup.
#[inline(always)]
pub(super) fn lane() -> u32 {
    thread::thread_idx_x() % WARPGROUP
}

/// First of the warpgroup's blocks of rows.
#[inline(always)]
pub(super) fn first_block<const BLOCKS: usize>() -> u32 {
    thread::thread_idx_x() / WARPGROUP * BLOCKS as u32
}

impl<W, const SUMS: usize, const BLOCKS: usize> Consumer<W, SUMS, BLOCKS> {
    #[inline(always)]
    pub fn new() -> Self {
        Self { sums: [[0.0; SUMS]; BLOCKS], weights: core::marker::PhantomData }
    }

    /// The sums. The same thread of every CTA holds the same tokens and rows.
    #[inline(always)]
    pub fn sums(&self) -> &[[f32; SUMS]; BLOCKS] {
        &self.sums
    }

    /// The sums, to add to them.
    #[inline(always)]
    pub fn sums_mut(&mut self) -> &mut [[f32; SUMS]; BLOCKS] {
        &mut self.sums
    }

    /// Sum `i` of the first block.
    #[inline(always)]
    pub(super) fn sum_mut(&mut self, i: usize) -> &mut f32 {
        &mut self.sums[0][i]
    }

    /// Puts the sums into shared memory, f32, [tokens, rows] with the configuration's pitch.
    ///
    /// # Safety
    /// The products are finished, and nobody uses the stages any more.
    #[inline(always)]
    pub unsafe fn put_sums(&self, config: &HopperConfig, memory: Memory) {
        let lane = lane();
        let row = lane / warp::LANES * 16 + lane % warp::LANES / 4;
        let token = lane % 4 * 2;
        for block in 0..BLOCKS {
            let row = (first_block::<BLOCKS>() + block as u32) * BLOCK_ROWS + row;
            for i in 0..SUMS as u32 {
                let row = row + 8 * (i / 2 % 2);
                let token = token + 8 * (i / 4) + i % 2;
                let at = (token * config.sum_pitch() + row) * size_of::<f32>() as u32;
                let bits = self.sums[block][i as usize].to_bits();
                // SAFETY: inside the sums.
                unsafe { memory::st_shared_b32(memory.sums(config, 0) + at, bits) };
            }
        }
    }
}

impl<W: Narrow, const SUMS: usize, const BLOCKS: usize> Consumer<W, SUMS, BLOCKS> {
    /// Sums the products of the next `count` steps, at least one, of a tile of `width` tokens: by
    /// the narrowest product that has room for them.
    ///
    /// # Safety
    /// As [`multiply`](Self::multiply).
    #[inline(always)]
    pub unsafe fn multiply_width(
        &mut self,
        config: &HopperConfig,
        width: u32,
        count: u32,
        memory: Memory,
        ring: Ring,
        cursor: &mut Cursor,
    ) {
        // SAFETY: the caller's.
        unsafe {
            match width {
                ..=96 => self.multiply::<48>(config, count, memory, ring, cursor),
                97..=112 => self.multiply::<56>(config, count, memory, ring, cursor),
                113.. => self.multiply::<64>(config, count, memory, ring, cursor),
            }
        }
    }

    /// Sums the products of the next `count` steps, at least one, into the first `N` sums of each
    /// block.
    ///
    /// # Safety
    /// All threads of the warpgroup, converged; the ring is initialised and known to them.
    #[inline(always)]
    pub unsafe fn multiply<const N: usize>(
        &mut self,
        config: &HopperConfig,
        count: u32,
        memory: Memory,
        ring: Ring,
        cursor: &mut Cursor,
    ) where
        W: Product<N>,
    {
        let mut last = *cursor;
        let places = Places::new::<BLOCKS>(config);
        let mut step = 0;
        // There is a first step. A path around the loop would join it with sums that no
        // product wrote, and ptxas would run the products one by one.
        loop {
            // SAFETY: the stage has arrived when the wait returns. Its predecessor is read: its
            // products are finished where `stage` says so, and its codes were decoded before.
            unsafe {
                ring.wait_full(cursor);
                self.stage::<N>(config, memory, places, cursor.stage, || {
                    release(config, ring.empty(last.stage), step > 0);
                });
            }
            last = *cursor;
            cursor.advance();
            step += 1;
            if step >= count {
                break;
            }
        }
        // SAFETY: the warpgroup is converged; with its products the last stage is read.
        unsafe {
            wgmma::wgmma_wait_group::<0>();
            release(config, ring.empty(last.stage), true);
        }
    }

    /// One step of K. Calls `release` when the products of the step before are finished.
    ///
    /// # Safety
    /// As [`multiply`](Self::multiply); stage `stage` has arrived.
    #[inline(always)]
    unsafe fn stage<const N: usize>(
        &mut self,
        config: &HopperConfig,
        memory: Memory,
        places: Places,
        stage: u32,
        mut release: impl FnMut(),
    ) where
        W: Product<N>,
    {
        let activations = memory.activations(config, stage);
        let weights = memory.weights(config, stage);
        let mut words = [[[0; STEPS]; BLOCKS]; CHUNK_BLOCKS as usize];
        let mut scales = [[W::NONE; BLOCKS]; CHUNK_BLOCKS as usize];
        for kb in 0..CHUNK_BLOCKS as usize {
            for block in 0..BLOCKS {
                // SAFETY: inside the stage's weights.
                (words[kb][block], scales[kb][block]) =
                    unsafe { places.load::<W>(config, weights, block as u32, kb as u32) };
            }
        }
        for kb in 0..CHUNK_BLOCKS as usize {
            for block in 0..BLOCKS {
                // SAFETY: the warpgroup is converged. At most the last unit's products are
                // unfinished: these operands' registers are free.
                unsafe { wgmma::wgmma_wait_group::<1>() };
                if kb * BLOCKS + block == 1 {
                    release();
                }
                let words = words[kb][block].map(marker::pin);
                let scales = W::pin(scales[kb][block]);
                let mut fragments = [[0; 4]; STEPS];
                for k in 0..STEPS {
                    fragments[k] = W::fragment(words[k], scales, k).map(marker::pin);
                }
                let tile = kb as u32 * BOX_BYTES * config.tokens;
                // SAFETY: the warpgroup is converged; operands are written above the fence and
                // left alone below; the tile arrived by copies, in the async proxy.
                unsafe {
                    wgmma::wgmma_fence();
                    for k in 0..STEPS {
                        let b = descriptor(activations, tile + k as u32 * WGMMA_BYTES);
                        // The compiler knows that there are so many.
                        if let Some(sums) = self.sums[block].first_chunk_mut::<N>() {
                            W::multiply(sums, fragments[k], b);
                        }
                    }
                    wgmma::wgmma_commit_group();
                }
            }
        }
    }
}

/// Where a thread's codes and scales are in a stage's weights. In registers from before the main loop:
/// to compute them takes a tenth of a step's instructions, and the loads wait for it.
#[derive(Clone, Copy)]
pub(super) struct Places {
    /// Bytes to the codes of the first of the warpgroup's blocks of rows, and to what stands for its
    /// scales.
    pub words: u32,
    pub scales: u32,
}

impl Places {
    /// The places of the thread, of a warpgroup with `BLOCKS` blocks of rows.
    #[inline(always)]
    pub fn new<const BLOCKS: usize>(config: &HopperConfig) -> Self {
        let block = first_block::<BLOCKS>();
        let (chunk, rb) = (block / CHUNK_BLOCKS, block % CHUNK_BLOCKS);
        let chunk = chunk * config.chunk_bytes;
        let scales = rb * CHUNK_BLOCKS * config.block_scale_bytes
            + lane() / 4 * 2 * config.scheme.block_scales() * config.scheme.scale_bytes();
        Self {
            words: marker::pin(chunk + word_offset(rb, 0, lane(), 0)),
            scales: marker::pin(chunk + CHUNK_CODE_BYTES + scales),
        }
    }

    /// The places of block `block` of the warpgroup's rows, block column `kb`.
    #[inline(always)]
    pub fn of(self, config: &HopperConfig, block: u32, kb: u32) -> Self {
        // The warpgroup's blocks are in one chunk.
        let index = block * CHUNK_BLOCKS + kb;
        Self {
            words: self.words + index * BLOCK_CODE_BYTES,
            scales: self.scales + index * config.block_scale_bytes,
        }
    }

    /// The thread's codes and scales there.
    ///
    /// # Safety
    /// `weights` is the shared address of a stage's weights, which have arrived.
    #[inline(always)]
    pub unsafe fn load<W: Decoded>(
        self,
        config: &HopperConfig,
        weights: u32,
        block: u32,
        kb: u32,
    ) -> ([u32; STEPS], W::Scales) {
        let Self { words, scales } = self.of(config, block, kb);
        // SAFETY: the offsets are inside a chunk.
        unsafe { (memory::ld_shared_v4_b32(weights + words), W::scales(weights + scales)) }
    }
}
