//! The store of plain results of 16 bits, from a warpgroup's registers: a piece of a block of 64 rows at a
//! time goes through a little shared memory of the warpgroup's own, in which it is transposed. The stages
//! are left alone, so that they are filled for the next tile meanwhile, and one warpgroup may store while
//! the other one multiplies.

use cuda_std::ptx::{barrier, convert, marker, memory as words, mma};
use cuda_std::{thread, warp};
use fp4_formats::gemm::Affine;
use fp4_formats::gemm::hopper::config::{
    HopperConfig, RESULT_ALIGN, RESULT_PIECE, RESULT_PITCH, RESULT_TOKENS,
};
use fp4_formats::gemm::hopper::params::HopperParams;
use fp4_formats::gemm::hopper::repack::{BLOCK_ROWS, WARPGROUP};
use fp4_formats::{FloatType, HalfType};

use super::consumer::{first_block, lane};
use super::decode::Weights;
use super::tile::{Memory, Tile};
use super::work::Work;
use crate::gemm::epilogue::affine::{self, Column};
use crate::gemm::epilogue::{self, COLUMNS};

/// Tokens of a group of `wgmma`'s sums, of which a thread has two rows of two.
const GROUP: u32 = 8;
/// Sums of a thread in a group, and in a piece.
const GROUP_SUMS: usize = 4;
const PIECE_SUMS: usize = GROUPS * GROUP_SUMS;
/// Groups whose matrices are stored together, and that are staged at a time.
const PAIR: usize = 2;
const GROUPS: usize = (RESULT_TOKENS / GROUP) as usize;
/// Rows of a warp's sums.
const WARP_ROWS: u32 = 16;
/// Bytes of a result.
const BYTES: u32 = HalfType::F16.float().bytes();
/// Vectors of a token's results in a block; of those that are staged, how many a thread stores, and how many
/// tokens apart they are.
const PIECES: u32 = BLOCK_ROWS * BYTES / RESULT_ALIGN;
const STORE_TOKENS: u32 = WARPGROUP / PIECES;
const STORES: u32 = RESULT_TOKENS / STORE_TOKENS;

/// Whether the results of a launch are stored so. Pinned, so that the answer takes no register during the
/// main loop.
#[inline(always)]
pub fn applies<W: Work>(config: &HopperConfig, p: &HopperParams) -> bool {
    config.stages_results() && !W::MIXED && marker::pin(p.from_registers) != 0
}

/// Stores the results of the tile whose sums the consumers have.
///
/// # Safety
/// The warpgroup is converged, and its products are finished; the launch is one that this [`applies`] to.
#[inline(always)]
pub unsafe fn store_tile<W: Weights, const SUMS: usize, const BLOCKS: usize>(
    work: impl Work,
    config: &HopperConfig,
    p: &HopperParams,
    (tile, alphas): (&Tile, [f32; 2]),
    memory: Memory,
    sums: &[[f32; SUMS]; BLOCKS],
) {
    let staged = memory.base
        + config.results_offset()
        + thread::thread_idx_x() / WARPGROUP * config.result_bytes();
    let unit = const { (1u32 << W::SCHEME.unit_log2()) as f32 };
    let store = Store { config, p, tile, staged };
    let affine = work.affine(&p.epilogue, 0, tile.problem, alphas);
    // Where all tokens have the same factor, it is multiplied with the unit first, a power of two: the same
    // product, unless that is beyond f32.
    let same = affine.alpha * unit;
    // One branch for all results.
    let is_bf16 = p.epilogue.sink.out_type == FloatType::Bf16 as u32;
    // SAFETY: the caller's; the tokens' factors exist.
    unsafe {
        if affine.row_factors == 0 && same.is_finite() {
            if is_bf16 {
                store.blocks(sums, Same(same), convert::cvt_rn_bf16x2_f32);
            } else {
                store.blocks(sums, Same(same), convert::cvt_rn_f16x2_f32);
            }
        } else {
            store.factors(&affine);
            sync_warpgroup();
            if is_bf16 {
                store.blocks(sums, Own(unit), convert::cvt_rn_bf16x2_f32);
            } else {
                store.blocks(sums, Own(unit), convert::cvt_rn_f16x2_f32);
            }
        }
    }
}

/// What a token's sums are multiplied by.
trait Factors: Copy {
    /// The factors of two tokens, the first of which is number `token` of the tile.
    ///
    /// # Safety
    /// The tile may have the tokens.
    unsafe fn pair(self, store: &Store<'_>, token: u32) -> [f32; 2];

    /// A sum by a token's factor.
    fn value(self, sum: f32, factor: f32) -> f32;
}

/// The same factor for all tokens, with the value of a sum's 1 in it.
#[derive(Clone, Copy)]
struct Same(f32);

impl Factors for Same {
    #[inline(always)]
    unsafe fn pair(self, _: &Store<'_>, _: u32) -> [f32; 2] {
        [self.0; 2]
    }

    #[inline(always)]
    fn value(self, sum: f32, factor: f32) -> f32 {
        sum * factor
    }
}

/// [`Store::factors`] of the tokens, and the value of a sum's 1.
#[derive(Clone, Copy)]
struct Own(f32);

impl Factors for Own {
    #[inline(always)]
    unsafe fn pair(self, store: &Store<'_>, token: u32) -> [f32; 2] {
        // SAFETY: the factors of two tokens are there, at a multiple of eight bytes.
        unsafe { words::ld_shared_v2_b32(store.factor(token)) }.map(f32::from_bits)
    }

    #[inline(always)]
    fn value(self, sum: f32, factor: f32) -> f32 {
        affine::value(sum, self.0, factor, Column::NONE)
    }
}

/// What a thread needs to store its part of a tile.
struct Store<'a> {
    config: &'a HopperConfig,
    p: &'a HopperParams,
    tile: &'a Tile,
    /// Shared address of the warpgroup's piece.
    staged: u32,
}

impl Store<'_> {
    /// Shared address of the factor of a token of the tile.
    #[inline(always)]
    fn factor(&self, token: u32) -> u32 {
        self.staged + RESULT_PIECE + token * size_of::<f32>() as u32
    }

    /// Puts the factors of all tokens into shared memory: loaded for each piece, they would be waited for
    /// each time.
    ///
    /// # Safety
    /// As [`store_tile`]; those of the tile before are not read any more.
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
    unsafe fn blocks<const SUMS: usize, const BLOCKS: usize>(
        &self,
        sums: &[[f32; SUMS]; BLOCKS],
        factors: impl Factors,
        pair: impl Fn(f32, f32) -> u32,
    ) {
        let (sink, tile) = (&self.p.epilogue.sink, self.tile);
        // Pinned, so that what follows from it takes no register during the main loop.
        let thread = marker::pin(lane());
        let (piece, ahead) = (thread % PIECES, thread / PIECES);
        let from = self.staged + ahead * RESULT_PITCH + piece * RESULT_ALIGN;
        let step = u64::from(sink.columns) * u64::from(STORE_TOKENS * BYTES);
        for block in 0..BLOCKS {
            let rows = (first_block::<BLOCKS>() + block as u32) * BLOCK_ROWS;
            let n = tile.row_tile * self.config.rows + rows + piece * COLUMNS as u32;
            // Of rows that there are not, no token is stored.
            let end = if n < sink.columns { tile.tokens() } else { 0 };
            let place = [tile.token + ahead, n];
            let at = epilogue::element(sink, sink.columns, tile.matrix, place);
            let to = sink.out + at * u64::from(BYTES);
            for number in 0..SUMS / PIECE_SUMS {
                let first = number as u32 * RESULT_TOKENS;
                // A tile may have no more tokens than the ones before.
                if self.config.is_wide() && first >= tile.tokens() {
                    continue;
                }
                // SAFETY: the caller's. All that is staged is read before the next piece is.
                let eights: [[u32; 4]; STORES as usize] = unsafe {
                    self.stage(&sums[block], number, thread, factors, &pair);
                    sync_warpgroup();
                    let eights = core::array::from_fn(|i| {
                        words::ld_shared_v4_b32(from + i as u32 * STORE_TOKENS * RESULT_PITCH)
                    });
                    sync_warpgroup();
                    eights
                };
                for i in 0..STORES as usize {
                    if first + i as u32 * STORE_TOKENS + ahead < end {
                        let steps = u64::from(number as u32 * STORES + i as u32);
                        // SAFETY: all eight are inside the result, aligned.
                        unsafe { words::st_global_v4_b32(to + steps * step, eights[i]) };
                    }
                }
            }
        }
    }

    /// Puts the results of piece `number` into shared memory, [tokens, rows].
    ///
    /// # Safety
    /// As [`blocks`](Self::blocks); what was staged before is read.
    #[inline(always)]
    unsafe fn stage<const SUMS: usize>(
        &self,
        sums: &[f32; SUMS],
        number: usize,
        thread: u32,
        factors: impl Factors,
        pair: impl Fn(f32, f32) -> u32,
    ) {
        let lane = thread % warp::LANES;
        let (matrix, column) = (lane / 8, lane % 8);
        let row = thread / warp::LANES * WARP_ROWS + matrix % 2 * 8;
        let place = self.staged + (matrix / 2 * GROUP + column) * RESULT_PITCH + row * BYTES;
        let first = number * GROUPS;
        // All are loaded before the first one is used.
        let own: [[f32; 2]; GROUPS] = core::array::from_fn(|group| {
            let token = (first + group) as u32 * GROUP + lane % 4 * 2;
            // SAFETY: the caller's.
            unsafe { factors.pair(self, token) }
        });
        for pair_of in 0..GROUPS / PAIR {
            let group = pair_of * PAIR;
            let mut matrices = [0; 2 * PAIR];
            for i in 0..PAIR {
                for half in 0..2 {
                    let values: [f32; 2] = core::array::from_fn(|j| {
                        let sum = sums[(first + group + i) * GROUP_SUMS + half * 2 + j];
                        factors.value(sum, own[group + i][j])
                    });
                    matrices[i * 2 + half] = pair(values[1], values[0]);
                }
            }
            let to = place + group as u32 * GROUP * RESULT_PITCH;
            // SAFETY: the warp is converged; these rows of eight results are the warpgroup's.
            unsafe { mma::stmatrix_m8n8_x4_trans_shared_b16(to, matrices) };
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
