//! The consumers: two warpgroups, each with its own blocks of 64 rows of `B`.
//!
//! A *unit* is one block of 64 rows by 64 columns: four `wgmma`s whose operands a thread
//! decodes from 16 bytes. Units alternate between two sets of operand registers: while the
//! products of one unit run, the next unit is decoded.

use cuda_std::ptx::{marker, memory, wgmma};
use cuda_std::{thread, warp};
use fp4_formats::gemm::sm90::config::{BOX_BYTES, Sm90Config, TRIMMED_TOKENS};
use fp4_formats::gemm::sm90::repack::{
    BLOCK_CODE_BYTES, BLOCK_ROWS, CHUNK_BLOCKS, CHUNK_CODE_BYTES, WARPGROUP, WGMMA_BYTES,
    word_offset,
};
use fp4_formats::gemm::sm90::word::Multipliers;

use super::decode::{Decoded, Narrow, Product, STEPS};
use super::multicast::release;
use super::tile::Memory;
use crate::pipeline::{Cursor, Ring};

/// Fields of a matrix descriptor: 128-byte swizzle; 1024 bytes from eight rows to the next;
/// the distance along K, which a swizzled tile does not have, as 1.
const DESCRIPTOR: u64 = 1 << 62 | (1024 >> 4) << 32 | 1 << 16;

/// Bits of a shared address that a descriptor takes; the CTA's rank stands above them.
const ADDRESS: u32 = 0x3_ffff;

/// Bytes as descriptors have them: by sixteens.
#[inline(always)]
pub(super) const fn sixteens(bytes: u32) -> u32 {
    bytes >> 4
}

/// The descriptor of a tile that is `offset` times 16 bytes from the shared address `start`. Descriptors that
/// differ in the offset differ by a sum in the low half only: what `start` gives is the same for all tiles
/// of a CTA, and is computed once.
#[inline(always)]
pub(super) fn descriptor(start: u32, offset: u32) -> u64 {
    let low = (sixteens(start & ADDRESS) | DESCRIPTOR as u32) + offset;
    DESCRIPTOR >> 32 << 32 | u64::from(low)
}

/// A unit's operands: a fragment for each `wgmma`.
type Operands = [[u32; 4]; STEPS];

/// A thread's sums: `SUMS` of each of its warpgroup's `BLOCKS` blocks of rows.
pub struct Consumer<W, const SUMS: usize, const BLOCKS: usize> {
    sums: [[f32; SUMS]; BLOCKS],
    /// The operands of the last two units.
    operands: [Operands; 2],
    /// `Sm90Params::one`.
    one: u32,
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
    /// No sums yet; `one` is `Sm90Params::one`.
    #[inline(always)]
    pub fn new(one: u32) -> Self {
        Self {
            sums: [[0.0; SUMS]; BLOCKS],
            operands: [[[0; 4]; STEPS]; 2],
            one,
            weights: core::marker::PhantomData,
        }
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

    /// Puts the sums of a tile of `width` tokens into shared memory, f32, [tokens, rows] with the
    /// configuration's pitch.
    ///
    /// # Safety
    /// The products are finished, and nobody uses the stages any more.
    #[inline(always)]
    pub unsafe fn put_sums(&self, config: &Sm90Config, width: u32, memory: Memory) {
        let lane = lane();
        let row = lane / warp::LANES * 16 + lane % warp::LANES / 4;
        let token = lane % 4 * 2;
        for block in 0..BLOCKS {
            let row = (first_block::<BLOCKS>() + block as u32) * BLOCK_ROWS + row;
            for i in 0..SUMS as u32 {
                if config.is_wide()
                    && 8 * (i / 4) / config.stage_tokens() * config.stage_tokens() >= width
                {
                    continue;
                }
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
    /// What decoding multiplies words by.
    #[inline(always)]
    pub(super) fn multipliers(&self) -> Multipliers {
        W::HALF.multipliers(self.one).map(marker::pin)
    }

    /// Sums the products of the next `count` steps, at least one, of a tile of `width` tokens: by
    /// the narrowest product that has room for them.
    ///
    /// # Safety
    /// As [`multiply`](Self::multiply).
    #[inline(always)]
    pub unsafe fn multiply_width(
        &mut self,
        config: &Sm90Config,
        width: u32,
        count: u32,
        memory: Memory,
        ring: Ring,
        cursor: &mut Cursor,
    ) {
        // SAFETY: the caller's.
        unsafe {
            if config.trims() {
                const { assert!(matches!(TRIMMED_TOKENS, [32, 40, 48])) };
                match width {
                    ..=32 => self.multiply::<16>(config, count, memory, ring, cursor),
                    33..=40 => self.multiply::<20>(config, count, memory, ring, cursor),
                    41.. => self.multiply::<24>(config, count, memory, ring, cursor),
                }
                return self.keep_operands(memory, count);
            }
            if !config.is_wide() {
                match width {
                    ..=96 => self.multiply::<48>(config, count, memory, ring, cursor),
                    97..=112 => self.multiply::<56>(config, count, memory, ring, cursor),
                    113.. => self.multiply::<64>(config, count, memory, ring, cursor),
                }
                return self.keep_operands(memory, count);
            }
            // A product of 144 tokens takes longer than one of 160.
            match width {
                ..=48 => self.multiply::<24>(config, count, memory, ring, cursor),
                49..=64 => self.multiply::<32>(config, count, memory, ring, cursor),
                65..=80 => self.multiply::<40>(config, count, memory, ring, cursor),
                81..=96 => self.multiply::<48>(config, count, memory, ring, cursor),
                97..=112 => self.multiply::<56>(config, count, memory, ring, cursor),
                113..=128 => self.multiply::<64>(config, count, memory, ring, cursor),
                129..=160 => self.multiply::<80>(config, count, memory, ring, cursor),
                161..=176 => self.multiply::<88>(config, count, memory, ring, cursor),
                177..=192 => self.multiply::<96>(config, count, memory, ring, cursor),
                193..=208 => self.multiply::<104>(config, count, memory, ring, cursor),
                209..=224 => self.multiply::<112>(config, count, memory, ring, cursor),
                225..=240 => self.multiply::<120>(config, count, memory, ring, cursor),
                241.. => self.multiply::<128>(config, count, memory, ring, cursor),
            }
            self.keep_operands(memory, count);
        }
    }

    /// Where the loops of all widths meet, this uses the operands of the last two units, which is why
    /// ptxas keeps those of all loops in the same registers. Without it, each product of the kernel has
    /// registers of its own for its operand, which are not enough. It is never executed: there is a step.
    ///
    /// # Safety
    /// The products are finished.
    #[inline(always)]
    unsafe fn keep_operands(&self, memory: Memory, count: u32) {
        if marker::pin(count) == 0 {
            let mut at = memory.base;
            for unit in 0..2 {
                for k in 0..STEPS {
                    // SAFETY: inside the first stage.
                    unsafe { memory::st_shared_v4_b32(at, self.operands[unit][k]) };
                    at += size_of::<[u32; 4]>() as u32;
                }
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
        config: &Sm90Config,
        count: u32,
        memory: Memory,
        ring: Ring,
        cursor: &mut Cursor,
    ) where
        W: Product<N>,
    {
        let places = Places::new::<BLOCKS>(config);
        let by = self.multipliers();
        let parts = config.step_stages(2 * N as u32);
        // The stages of the step before.
        let mut last = [cursor.stage; 2];
        let mut step = 0;
        // There is a first step. A path around the loop would join it with sums that no
        // product wrote, and ptxas would run the products one by one.
        loop {
            // SAFETY: the stage has arrived when the wait returns. Its predecessor is read: its
            // products are finished where `step` says so, and its codes were decoded before.
            unsafe {
                ring.wait_full(cursor);
                last = self.step::<N>(config, memory, (places, by), ring, cursor, |part| {
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
    /// As [`multiply`](Self::multiply).
    #[inline(always)]
    unsafe fn step<const N: usize>(
        &mut self,
        config: &Sm90Config,
        memory: Memory,
        (places, by): (Places, Multipliers),
        ring: Ring,
        cursor: &mut Cursor,
        mut release: impl FnMut(usize),
    ) -> [u32; 2]
    where
        W: Product<N>,
    {
        let is_wide = config.step_stages(2 * N as u32) == 2;
        let mut stages = [cursor.stage; 2];
        let weights = memory.weights(config, cursor.stage);
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
                let scales = W::pin(scales[kb][block]);
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
                            W::multiply(sums, operands[k], b);
                        }
                    }
                    wgmma::wgmma_commit_group();
                }
            }
        }
        stages
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
    pub fn new<const BLOCKS: usize>(config: &Sm90Config) -> Self {
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
    pub fn of(self, config: &Sm90Config, block: u32, kb: u32) -> Self {
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
        config: &Sm90Config,
        weights: u32,
        block: u32,
        kb: u32,
    ) -> ([u32; STEPS], W::Scales) {
        let Self { words, scales } = self.of(config, block, kb);
        // SAFETY: the offsets are inside a chunk.
        unsafe { (memory::ld_shared_v4_b32(weights + words), W::scales(weights + scales)) }
    }
}
