//! The main loop: the steps of an item go through the ring of stages, and each warp multiplies its rows by its
//! tokens, 64 columns at a time.
//!
//! # No decoding
//! `mma.sync` takes codes and scales as they are: `m16n8k64` with `kind::mxf4nvf4` multiplies e2m1 times e2m1 times
//! the ue4m3 scales of 16 columns, with `kind::mxf4` times the ue8m0 scales of 32. Both run at the FP4 rate of the
//! tensor cores, 4096 FLOP per SM and clock (`OMMA`). A product of 16 rows by 8 tokens is 8192 multiply-adds, 16 clocks
//! of a quarter of an SM. `m16n8k32` with `kind::mxf8f6f4` multiplies e2m1 times e4m3 times the ue8m0 scales of 32
//! columns, at the FP8 rate (`QMMA`), half of it. With few tokens, loads from shared memory take longer than products,
//! and DRAM longest.
//!
//! # Operands
//! A stage has 128 columns, two products deep, or four of e4m3. Weights are in global memory in the order of the A
//! fragments: one load of 16 bytes gives a thread its four registers of a product of 16 rows, or those of two in half
//! the bits. Tokens are rows of 64 bytes, whose four pieces are the B registers of both products: one `ldmatrix` loads
//! those of eight tokens. [`codes`](super::codes) has what e4m3 takes instead.
//!
//! # Scales
//! A product takes the scales of a row or a token from one lane of those that hold it, and its selectors name the
//! lane and the bytes. So no lane loads what another has: of the four lanes that share two rows, two have the words
//! of both for the first product, and two for the second; of the four that share a token, each has a word of
//! another token or of another product. One load of a word serves 16 rows, and 16 tokens (NVFP4) or 32 (MXFP4), for
//! both products. Selectors are constants. Tokens in e4m3 have a scale each, which the epilogue multiplies by: their
//! blocks' scales are 1.
//!
//! # Overlap
//! There is one barrier in a step: behind it, the stage of the step has arrived for all threads, and the one
//! before is read, so that copies to it start. Then a warp loads all its weights of the stage, and multiplies eight
//! tokens after the other while it loads the next eight.
//!
//! ```text
//! step      | 0                               | 1
//! wait      | 0                               | 1
//! copy      | AHEAD + 1                       | AHEAD + 2 -> the stage of 0
//! load      | weights, tokens 0 | 1 | 2 | ..  | weights, tokens 0 | ..
//! multiply  |                   | 0 | 1 | ..  |                   | 0 ..
//! ```

use cuda_std::ptx::{cp_async, marker, memory};
use cuda_std::warp;
use fp4_formats::WARP;
use fp4_formats::gemm::Item;
use fp4_formats::gemm::fragments::blocks::{WORD_BYTES, scale_bytes};
use fp4_formats::gemm::fragments::repack::{
    BLOCK_CODE_BYTES, BLOCK_ROWS, CHUNK_BLOCKS, CHUNK_CODE_BYTES, CHUNK_ROWS, THREAD_BYTES,
};
use fp4_formats::gemm::sm120::config::{LANE_CHOICES, MMA_ROWS, MMA_SUMS, MMA_TOKENS, UNIT_SCALES};
use fp4_formats::gemm::work::CtaTile;
use fp4_formats::quantize::Format;

use super::blocks::Blocks;
use super::codes::Codes;
use super::copy::Sources;
use super::{Cta, Kernel, Sm120};
use crate::gemm::warps::{Sums, Walked, Warp, meet};
use crate::gemm::work::WorkList;
use crate::pipeline;

/// Adds the products of an item's steps. There are `AHEAD` stages beside the one that is multiplied and the one
/// that is copied to.
///
/// # Safety
/// All threads of the CTA, converged; nobody uses the stages, and the item has a step.
#[inline(always)]
pub unsafe fn sum_item<
    K: Kernel,
    L: WorkList,
    const ROWS: usize,
    const TOKENS: usize,
    const AHEAD: u32,
>(
    cta: &Cta<'_, L>,
    tile: &CtaTile,
    item: &Item,
) -> Sums<ROWS, TOKENS> {
    let mut sources = Sources::new(cta, tile, item);
    // SAFETY: the stages are free.
    unsafe {
        for stage in 0..=AHEAD {
            sources.copy_weights(stage, stage);
        }
        if !L::GROUPED {
            pipeline::follow_stream();
        }
        for stage in 0..=AHEAD {
            sources.copy_tokens(stage, stage);
            cp_async::cp_async_commit_group();
        }
    }
    let places = Places::new::<K>();
    let mut sums = [[[0.0; MMA_SUMS]; TOKENS]; ROWS];
    let (mut read, mut free) = (0, AHEAD + 1);
    let mut left = item.count();
    while left > 0 {
        // SAFETY: all threads are here. Behind the barrier, the copies of all threads to the stage have arrived,
        // and all have read the stage before.
        unsafe {
            cp_async::cp_async_wait_group::<AHEAD>();
            meet();
            sources.copy_weights(free, AHEAD + 1);
            sources.copy_tokens(free, AHEAD + 1);
            cp_async::cp_async_commit_group();
            sources.advance();
            multiply::<K, ROWS, TOKENS>(cta.memory.stage(read), places, &mut sums);
        }
        (free, read) = (read, if read == AHEAD + 1 { 0 } else { read + 1 });
        left -= 1;
    }
    // SAFETY: all threads are here. Behind the barrier, all have read all stages, and nothing is copied to them.
    unsafe {
        cp_async::cp_async_wait_group::<0>();
        meet();
    }
    sums
}

/// Offsets of a thread's operands in a stage.
#[derive(Clone, Copy)]
struct Places {
    /// Bytes to the codes of the warp's first 16 rows, and to their scales.
    codes: u32,
    scales: u32,
    /// Bytes to what the lane loads first of the warp's first tokens, and to its word of their scales.
    tokens: u32,
    token_scales: u32,
}

impl Places {
    #[inline(always)]
    fn new<K: Kernel>() -> Self {
        let config = &K::CONFIG;
        let Warp { row, token } = Sm120::warp(config);
        let lane = warp::lane_id();
        let chunk = config.weights_offset() + row / CHUNK_ROWS * config.chunk_bytes();
        let (block, group) = (row % CHUNK_ROWS / BLOCK_ROWS, row % BLOCK_ROWS / MMA_ROWS);
        let codes = block * CHUNK_BLOCKS * BLOCK_CODE_BYTES + (group * WARP + lane) * THREAD_BYTES;
        let word = match config.format {
            Format::Nvfp4 => lane,
            Format::Mxfp4 => lane / 4 * 2 + lane % 2,
        };
        let scales = CHUNK_CODE_BYTES
            + row % CHUNK_ROWS / MMA_ROWS * scale_bytes(config.format)
            + word * WORD_BYTES;
        let tokens = Of::<K>::first(config, token);
        // Lanes of tokens that the tile does not have load the words of others.
        let (eights, words) =
            ((config.tokens / MMA_TOKENS).min(config.scale_eights()), config.token_words());
        let choice = lane % LANE_CHOICES % (eights * words).max(1);
        let token_scales = config.token_scales_offset()
            + (token * words + lane / LANE_CHOICES * LANE_CHOICES + choice) * WORD_BYTES;
        Self {
            codes: marker::pin(chunk + codes),
            scales: marker::pin(chunk + scales),
            tokens: marker::pin(tokens),
            token_scales: marker::pin(token_scales),
        }
    }
}

/// The codes of a kernel's tokens.
type Of<K> = <<K as Kernel>::Blocks as Blocks>::Codes;

/// Adds the products of a stage.
///
/// # Safety
/// All threads of the warp are here; the stage is full.
#[inline(always)]
unsafe fn multiply<K: Kernel, const ROWS: usize, const TOKENS: usize>(
    stage: u32,
    places: Places,
    sums: &mut Sums<ROWS, TOKENS>,
) {
    let config = const { &K::CONFIG };
    let rows: [_; ROWS] = core::array::from_fn(|m| {
        let group = m as u32;
        let words = core::array::from_fn(|of_stage| {
            let at = of_stage as u32 * BLOCK_CODE_BYTES + group * WARP * THREAD_BYTES;
            // SAFETY: inside the stage.
            unsafe { memory::ld_shared_v4_b32(stage + places.codes + at) }
        });
        let at = group * scale_bytes(config.format);
        // SAFETY: inside the stage.
        let scales = unsafe { memory::ld_shared_b32(stage + places.scales + at) };
        (Of::<K>::rows(words), scales)
    });
    let together = config.scale_eights() as usize;
    // SAFETY: inside the stage; all threads of the warp are here.
    let load = |eight: usize| unsafe {
        let behind = eight as u32 * MMA_TOKENS * config.code_bytes();
        Of::<K>::tokens(stage + places.tokens, behind)
    };
    let load_scales = |eight: usize| {
        if config.token_words() == 0 {
            return UNIT_SCALES;
        }
        let at = eight as u32 * MMA_TOKENS * config.token_words() * WORD_BYTES;
        // SAFETY: inside the stage.
        unsafe { memory::ld_shared_b32(stage + places.token_scales + at) }
    };
    let (mut next, mut next_scales) = (load(0), load_scales(0));
    for eight in 0..TOKENS {
        let (tokens, scales_b) = (next, next_scales);
        if eight + 1 < TOKENS {
            next = load(eight + 1);
            if (eight + 1).is_multiple_of(together) {
                next_scales = load_scales(eight + 1);
            }
        }
        for product in 0..Of::<K>::PRODUCTS {
            for m in 0..ROWS {
                let (rows, scales_a) = rows[m];
                let (a, b) = ((rows[product], scales_a), (tokens[product], scales_b));
                // SAFETY: all threads of the warp are here.
                unsafe { K::Blocks::multiply(&mut sums[m][eight], a, b, product, eight) };
            }
        }
    }
}
