//! The main loop: the steps of an item go through the ring of stages, and each warp multiplies its rows by its
//! tokens, 64 columns at a time.
//!
//! # No decoding
//! `mma.sync` takes codes and scales as they are: `m16n8k64` with `kind::mxf4nvf4` multiplies e2m1 times e2m1 times
//! the ue4m3 scales of 16 columns, with `kind::mxf4` times the ue8m0 scales of 32. Both run at the FP4 rate of the
//! tensor cores, 4096 FLOP per SM and clock (`OMMA`); the same codes in `kind::mxf8f6f4` would run at FP8's
//! (`QMMA`), half of it. A product of 16 rows by 8 tokens is 8192 multiply-adds, 16 clocks
//! of a quarter of an SM. With few tokens, loads from shared memory take longer than products, and DRAM longest.
//!
//! # Operands
//! A stage has 128 columns, two products deep. Weights are in global memory in the order of the A fragments: one
//! load of 16 bytes gives a thread its four registers of a product of 16 rows. Tokens are rows of 64 bytes, whose
//! four pieces are the B registers of both products: one `ldmatrix` loads those of eight tokens.
//!
//! # Scales
//! A product takes the scales of a row or a token from one lane of those that hold it, and its selectors name the
//! lane and the bytes. So no lane loads what another has: of the four lanes that share two rows, two have the words
//! of both for the first product, and two for the second; of the four that share a token, each has a word of
//! another token or of another product. One load of a word serves 16 rows, and 16 tokens (NVFP4) or 32 (MXFP4), for
//! both products. Selectors are constants.
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

use cuda_std::ptx::{cp_async, marker, memory, mma};
use cuda_std::warp;
use fp4_formats::WARP;
use fp4_formats::gemm::Item;
use fp4_formats::gemm::fragments::blocks::{PRODUCTS, WORD_BYTES, row_words, scale_bytes};
use fp4_formats::gemm::fragments::repack::{
    BLOCK_CODE_BYTES, BLOCK_ROWS, CHUNK_BLOCKS, CHUNK_CODE_BYTES, CHUNK_ROWS, THREAD_BYTES,
};
use fp4_formats::gemm::sm120::config::{
    LANE_CHOICES, MMA_ROWS, MMA_SUMS, MMA_TOKENS, PIECE_BYTES, TOKEN_BYTES,
};
use fp4_formats::gemm::work::CtaTile;
use fp4_formats::quantize::Format;

use super::blocks::Blocks;
use super::copy::{Sources, swizzle};
use super::{Cta, Kernel, Sm120};
use crate::gemm::warps::{Sums, Walked, Warp, meet};
use crate::gemm::work::WorkList;
use crate::pipeline;

/// Products of a stage along K.
const DEPTH: usize = PRODUCTS as usize;
/// Registers of B in a stage: two for each product.
const _: () = assert!(DEPTH * 2 == 4);

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
    /// Bytes to the lane's row of a matrix of the warp's first tokens, and to the lane's word of their scales.
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
        // Matrices are the four pieces of eight tokens.
        let (piece, of_eight) = (lane / 8, lane % 8);
        let tokens = (token + of_eight) * TOKEN_BYTES + swizzle(of_eight, piece) * PIECE_BYTES;
        // Lanes of tokens that the tile does not have load the words of others.
        let eights = (config.tokens / MMA_TOKENS).min(config.scale_eights());
        let choice = lane % LANE_CHOICES % (eights * row_words(config.format));
        let token_scales = config.token_scales_offset()
            + (token * row_words(config.format) + lane / LANE_CHOICES * LANE_CHOICES + choice)
                * WORD_BYTES;
        Self {
            codes: marker::pin(chunk + codes),
            scales: marker::pin(chunk + scales),
            tokens: marker::pin(tokens),
            token_scales: marker::pin(token_scales),
        }
    }
}

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
    let (mut a, mut scales_a) = ([[[0; 4]; DEPTH]; ROWS], [0; ROWS]);
    for m in 0..ROWS {
        let group = m as u32;
        for product in 0..DEPTH {
            let at = product as u32 * BLOCK_CODE_BYTES + group * WARP * THREAD_BYTES;
            // SAFETY: inside the stage.
            a[m][product] = unsafe { memory::ld_shared_v4_b32(stage + places.codes + at) };
        }
        let at = group * scale_bytes(config.format);
        // SAFETY: inside the stage.
        scales_a[m] = unsafe { memory::ld_shared_b32(stage + places.scales + at) };
    }
    let together = config.scale_eights() as usize;
    // SAFETY: inside the stage; all threads of the warp are here.
    let load = |eight: usize| unsafe {
        let at = eight as u32 * MMA_TOKENS * TOKEN_BYTES;
        mma::ldmatrix_m8n8_x4_shared_b16(stage + places.tokens + at)
    };
    // SAFETY: inside the stage.
    let load_scales = |eight: usize| unsafe {
        let at = eight as u32 * MMA_TOKENS * row_words(config.format) * WORD_BYTES;
        memory::ld_shared_b32(stage + places.token_scales + at)
    };
    let (mut next, mut next_scales) = (load(0), load_scales(0));
    for eight in 0..TOKENS {
        let ([first, second, third, fourth], scales_b) = (next, next_scales);
        if eight + 1 < TOKENS {
            next = load(eight + 1);
            if (eight + 1).is_multiple_of(together) {
                next_scales = load_scales(eight + 1);
            }
        }
        for (product, b) in [[first, second], [third, fourth]].into_iter().enumerate() {
            for m in 0..ROWS {
                let (a, b) = ((a[m][product], scales_a[m]), (b, scales_b));
                // SAFETY: all threads of the warp are here.
                unsafe { K::Blocks::multiply(&mut sums[m][eight], a, b, product, eight) };
            }
        }
    }
}
