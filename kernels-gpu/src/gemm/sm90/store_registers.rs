//! The store of results of 16 bits that need nothing of their columns, from a warpgroup's registers: a piece
//! of a block of 64 rows at a time goes through a little shared memory of the warpgroup's own, in which it is
//! transposed. The stages are left alone, so that they are filled for the next tile meanwhile, and one
//! warpgroup may store while the other one multiplies.
//!
//! In a gated product, a thread has the sums of the gate and of `up` for the same result: they are eight rows
//! apart ([`PairedRows`](fp4_formats::gemm::combine::PairedRows)). A piece takes 128 bytes of each of 32 rows
//! of shared memory:
//!
//! | product | bytes of row `r` | results |
//! |---|---|---|
//! | plain | all | 64 of token `r` |
//! | gated | the first half, the second half | 32 of token `r`, 32 of token `32 + r` |
//!
//! Only dense products are gated here. ptxas chooses the instructions for the shifts of a main loop by the
//! products and shifts of the whole kernel. With this code in the kernels of grouped products, their loops
//! for fewer than 128 tokens, for which decoding is the limit, were up to 4 % slower.

use cuda_std::ptx::{barrier, convert, marker, memory as words};
use cuda_std::thread;
use fp4_formats::FloatType;
use fp4_formats::gemm::Affine;
use fp4_formats::gemm::fragments::repack::{BLOCK_ROWS, WARPGROUP};
use fp4_formats::gemm::sm90::config::{
    RESULT_ALIGN, RESULT_PIECE, RESULT_PITCH, RESULT_TOKENS, Sm90Config,
};
use fp4_formats::gemm::sm90::params::Sm90Params;

use super::Cta;
use super::operands::Weights;
use super::stage::{first_block, lane};
use super::strips::{BYTES, Gated, Own, Plain, STRIP_SUMS, Same, Strip};
use super::tile::Tile;
use crate::gemm::epilogue::affine;
use crate::gemm::epilogue::{self, COLUMNS};
use crate::gemm::work::WorkList;

/// Vectors of a row of shared memory; rows that the threads read at a time, and how many of them a thread
/// reads.
const PIECES: u32 = BLOCK_ROWS * BYTES / RESULT_ALIGN;
const STORE_ROWS: u32 = WARPGROUP / PIECES;
const STORES: u32 = RESULT_TOKENS / STORE_ROWS;

/// Whether the results of a launch are stored so, or those of [few tokens](super::store_few). Pinned, so that the answer takes no register during the
/// main loop.
#[inline(always)]
pub fn applies<L: WorkList>(cta: &Cta<'_, L>) -> bool {
    let config = cta.config;
    let may = config.stages_results() || config.stores_few();
    may && !L::MIXED && marker::pin(cta.params.from_registers) != 0
}

/// Stores the results of the tile whose sums the consumers have.
///
/// # Safety
/// The warpgroup is converged, and its products are finished; the launch is one that this [`applies`] to.
#[inline(always)]
pub unsafe fn store_tile<W: Weights, L: WorkList, const SUMS: usize, const BLOCKS: usize>(
    cta: &Cta<'_, L>,
    (tile, alphas): (&Tile, [f32; 2]),
    sums: &[[f32; SUMS]; BLOCKS],
) {
    let (config, p) = (cta.config, cta.params);
    let staged = cta.memory.results(thread::thread_idx_x() / WARPGROUP);
    let unit = const { (1u32 << W::SCHEME.unit_log2()) as f32 };
    let store = Store { config, p, tile, staged };
    let affine = cta.list.affine(&p.epilogue, 0, tile.problem, alphas);
    // If all tokens have the same factor, it is multiplied with the unit first, a power of two: the same
    // product, unless that is beyond f32.
    let same = affine.alpha * unit;
    // One branch for all results.
    let is_bf16 = p.epilogue.sink.out_type == FloatType::Bf16 as u32;
    // Pinned, like the answer of `applies`.
    if !L::OWN_FACTORS && marker::pin(p.epilogue.combine.gated) != 0 {
        let gated = Gated { unit, alphas, step: &p.epilogue.combine };
        // One copy of the code for both types: it is long.
        let pair = |first, second| {
            let f16 = convert::cvt_rn_f16x2_f32(first, second);
            let bf16 = convert::cvt_rn_bf16x2_f32(first, second);
            if is_bf16 { bf16 } else { f16 }
        };
        // SAFETY: the caller's.
        return unsafe { store.blocks(sums, gated, pair) };
    }
    // SAFETY: the caller's; the tokens' factors exist.
    unsafe {
        if affine.row_factors == 0 && same.is_finite() {
            if is_bf16 {
                store.blocks(sums, Plain(Same(same)), convert::cvt_rn_bf16x2_f32);
            } else {
                store.blocks(sums, Plain(Same(same)), convert::cvt_rn_f16x2_f32);
            }
        } else {
            store.factors(&affine);
            sync_warpgroup();
            if is_bf16 {
                store.blocks(sums, Plain(Own(unit)), convert::cvt_rn_bf16x2_f32);
            } else {
                store.blocks(sums, Plain(Own(unit)), convert::cvt_rn_f16x2_f32);
            }
        }
    }
}

/// The context of a thread that stores its part of a tile.
pub(super) struct Store<'a> {
    config: &'a Sm90Config,
    p: &'a Sm90Params,
    tile: &'a Tile,
    /// Shared address of the warpgroup's piece.
    staged: u32,
}

impl Store<'_> {
    /// Shared address of the factor of a token of the tile.
    #[inline(always)]
    pub(super) fn factor(&self, token: u32) -> u32 {
        self.staged + RESULT_PIECE + token * size_of::<f32>() as u32
    }

    /// Puts the factors of all tokens into shared memory: loaded for each piece, they would be waited for
    /// each time.
    ///
    /// # Safety
    /// The same as [`store_tile`]; the factors of the tile before are not read any more.
    #[inline(always)]
    unsafe fn factors(&self, affine: &Affine) {
        let last = self.tile.tokens() - 1;
        let mut token = marker::pin(lane());
        let width = if self.config.is_wide() { self.tile.width } else { self.config.tokens };
        while token < width.next_multiple_of(RESULT_TOKENS) {
            // SAFETY: the token's factor, and its place.
            unsafe {
                let factor = affine::row_factor(affine, self.tile.token + token.min(last));
                words::st_shared_b32(self.factor(token), factor.to_bits());
            }
            token += WARPGROUP;
        }
    }

    /// Stores the warpgroup's blocks, a piece after the other. `pair` rounds two results, the second to the
    /// low half.
    ///
    /// # Safety
    /// As [`store_tile`]; the factors are there.
    #[inline(always)]
    unsafe fn blocks<S: Strip, const SUMS: usize, const BLOCKS: usize>(
        &self,
        sums: &[[f32; SUMS]; BLOCKS],
        strip: S,
        pair: impl Fn(f32, f32) -> u32,
    ) {
        let (sink, tile) = (&self.p.epilogue.sink, self.tile);
        // Pinned, so that values that follow from it take no register during the main loop.
        let thread = marker::pin(lane());
        let (piece, row) = (thread % PIECES, thread / PIECES);
        let from = self.staged + row * RESULT_PITCH + piece * RESULT_ALIGN;
        // The row's token, and which vector of its results.
        let vectors = const { PIECES / S::HALVES };
        let (ahead, vector) = (piece / vectors * RESULT_TOKENS + row, piece % vectors);
        let step = u64::from(sink.columns) * u64::from(STORE_ROWS * BYTES);
        for block in 0..BLOCKS {
            let rows = (first_block::<BLOCKS>() + block as u32) * S::ROWS;
            let n = tile.row_tile * (self.config.rows / S::HALVES) + rows + vector * COLUMNS as u32;
            // Rows past the last store no token.
            let end = if n < sink.columns { tile.tokens() } else { 0 };
            let place = [tile.token + ahead, n];
            let at = epilogue::element(sink, sink.columns, tile.matrix, place);
            let to = sink.out + at * u64::from(BYTES);
            for number in 0..SUMS.div_ceil(S::SUMS) {
                let first = number as u32 * S::TOKENS;
                // A tile may have no more tokens than the ones before.
                if self.config.is_wide() && first >= tile.tokens() {
                    continue;
                }
                // SAFETY: the caller's. All that is staged is read before the next piece is.
                let eights: [[u32; 4]; STORES as usize] = unsafe {
                    for i in 0..S::HALVES {
                        let at = number * S::SUMS + i as usize * STRIP_SUMS;
                        if let Some(sums) = sums[block][at.min(SUMS)..].first_chunk() {
                            let token = first + i * RESULT_TOKENS;
                            let to = self.staged + i * S::ROWS * BYTES;
                            strip.stage(self, sums, token, [thread, to], &pair);
                        }
                    }
                    sync_warpgroup();
                    let eights = core::array::from_fn(|i| {
                        words::ld_shared_v4_b32(from + i as u32 * STORE_ROWS * RESULT_PITCH)
                    });
                    sync_warpgroup();
                    eights
                };
                for i in 0..STORES as usize {
                    let token = first + i as u32 * STORE_ROWS;
                    if token + ahead < end {
                        let steps = u64::from(token / STORE_ROWS);
                        // SAFETY: all eight are inside the result, aligned.
                        unsafe { words::st_global_v4_b32(to + steps * step, eights[i]) };
                    }
                }
            }
        }
    }
}

/// Waits for the threads of the warpgroup.
///
/// # Safety
/// All of them reach such a call, warp by warp converged.
#[inline(always)]
unsafe fn sync_warpgroup() {
    // SAFETY: each barrier is one warpgroup's; those before are of all threads and of all consumers.
    unsafe {
        if thread::thread_idx_x() < WARPGROUP {
            barrier::bar_sync_threads::<2, WARPGROUP>();
        } else {
            barrier::bar_sync_threads::<3, WARPGROUP>();
        }
    }
}
