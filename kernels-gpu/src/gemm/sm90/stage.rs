//! A stage as the consumers read it: where a thread's rows of weights are, and how tiles of activations are
//! described to `wgmma`.

use cuda_std::ptx::{marker, memory};
use cuda_std::thread;
use fp4_formats::gemm::fragments::repack::{
    BLOCK_CODE_BYTES, CHUNK_BLOCKS, CHUNK_CODE_BYTES, WARPGROUP, word_offset,
};
use fp4_formats::gemm::sm90::config::Sm90Config;

use super::operands::{Decoded, STEPS, Scales};

/// Fields of a matrix descriptor: 128-byte swizzle; 1024 bytes from eight rows to the next;
/// the distance along K, which a swizzled tile does not have, as 1.
const DESCRIPTOR: u64 = 1 << 62 | (1024 >> 4) << 32 | 1 << 16;

/// Bits of a shared address that a descriptor takes; the CTA's rank stands above them.
const ADDRESS: u32 = 0x3_ffff;

/// Bytes as descriptors have them: by sixteens.
#[inline(always)]
pub const fn sixteens(bytes: u32) -> u32 {
    bytes >> 4
}

/// Returns the descriptor of a tile that is `offset` times 16 bytes from the shared address `start`.
/// Descriptors that differ in the offset differ by a sum in the low half only: the part of `start` is the
/// same for all tiles of a CTA, and is computed once.
#[inline(always)]
pub fn descriptor(start: u32, offset: u32) -> u64 {
    let low = (sixteens(start & ADDRESS) | DESCRIPTOR as u32) + offset;
    DESCRIPTOR >> 32 << 32 | u64::from(low)
}

/// Index of the thread in its warpgroup.
#[inline(always)]
pub fn lane() -> u32 {
    thread::thread_idx_x() % WARPGROUP
}

/// First of the warpgroup's blocks of rows.
#[inline(always)]
pub fn first_block<const BLOCKS: usize>() -> u32 {
    thread::thread_idx_x() / WARPGROUP * BLOCKS as u32
}

/// The places of a thread's codes and scales in a stage's weights. In registers from before the main
/// loop: to compute them takes a tenth of a step's instructions, and the loads wait for it.
#[derive(Clone, Copy)]
pub struct Places {
    /// Bytes to the codes of the first of the warpgroup's blocks of rows, and to the tables of its
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
        unsafe { (memory::ld_shared_v4_b32(weights + words), Scales::load(weights + scales)) }
    }
}
