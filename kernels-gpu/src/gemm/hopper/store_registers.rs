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
/// Sums of a thread in a group.
const GROUP_SUMS: usize = 4;
/// Groups whose matrices are stored together, and that are staged at a time.
const PAIR: u32 = 2;
const GROUPS: u32 = RESULT_TOKENS / GROUP;
/// Rows of a warp's sums.
const WARP_ROWS: u32 = 16;
/// Bytes of a result.
const BYTES: u32 = HalfType::F16.float().bytes();
/// Pieces of 16 bytes of a token's results in a block, and of those that are staged, how many a thread
/// stores.
const PIECES: u32 = BLOCK_ROWS * BYTES / RESULT_ALIGN;
const STORES: u32 = RESULT_TOKENS * PIECES / WARPGROUP;

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
    tile: &Tile,
    memory: Memory,
    sums: &[[f32; SUMS]; BLOCKS],
) {
    let staged = memory.base
        + config.results_offset()
        + thread::thread_idx_x() / WARPGROUP * config.result_bytes();
    let unit = const { (1u32 << W::SCHEME.unit_log2()) as f32 };
    let store = Store { config, p, tile, staged, unit };
    // SAFETY: the tile's problem exists.
    let alphas = unsafe { work.alphas(&p.epilogue, tile.problem) };
    let affine = work.affine(&p.epilogue, 0, tile.problem, alphas);
    // SAFETY: the tokens' factors; the warpgroup is converged.
    unsafe {
        store.factors(&affine);
        sync_warpgroup();
    }
    // One branch for all results.
    // SAFETY: the caller's.
    unsafe {
        if p.epilogue.sink.out_type == FloatType::Bf16 as u32 {
            store.blocks(sums, convert::cvt_rn_bf16x2_f32);
        } else {
            store.blocks(sums, convert::cvt_rn_f16x2_f32);
        }
    }
}

/// What a thread needs to store its part of a tile.
struct Store<'a> {
    config: &'a HopperConfig,
    p: &'a HopperParams,
    tile: &'a Tile,
    /// Shared address of the warpgroup's piece.
    staged: u32,
    /// Value of a sum's 1.
    unit: f32,
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
        while token < self.config.tokens {
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
    /// As [`store_tile`].
    #[inline(always)]
    unsafe fn blocks<const SUMS: usize, const BLOCKS: usize>(
        &self,
        sums: &[[f32; SUMS]; BLOCKS],
        pair: impl Fn(f32, f32) -> u32,
    ) {
        let tokens = self.tile.tokens();
        let groups = (SUMS / GROUP_SUMS) as u32;
        for block in 0..BLOCKS {
            let mut first = 0;
            while first < groups {
                // SAFETY: the caller's.
                unsafe {
                    self.stage(&sums[block], first, &pair);
                    sync_warpgroup();
                    let block = first_block::<BLOCKS>() + block as u32;
                    self.copy(block, first * GROUP, tokens);
                    sync_warpgroup();
                }
                first += GROUPS;
            }
        }
    }

    /// Puts the results of the groups from `first` on into shared memory, [tokens, rows].
    ///
    /// # Safety
    /// As [`store_tile`]; what was staged before is stored.
    #[inline(always)]
    unsafe fn stage<const SUMS: usize>(
        &self,
        sums: &[f32; SUMS],
        first: u32,
        pair: impl Fn(f32, f32) -> u32,
    ) {
        let lane = warp::lane_id();
        let (matrix, column) = (lane / 8, lane % 8);
        let row = lane_row() + matrix % 2 * 8;
        let place = self.staged + (matrix / 2 * GROUP + column) * RESULT_PITCH + row * BYTES;
        let mut group = 0;
        while group < GROUPS {
            let mut matrices = [0; 4];
            for i in 0..PAIR {
                let at = first + group + i;
                let token = at * GROUP + lane % 4 * 2;
                // SAFETY: the factors of two tokens are there, at a multiple of eight bytes.
                let factors = unsafe { words::ld_shared_v2_b32(self.factor(token)) };
                let factors = factors.map(f32::from_bits);
                for half in 0..2 {
                    let values: [f32; 2] = core::array::from_fn(|j| {
                        let sum = sums[at as usize * GROUP_SUMS + half * 2 + j];
                        affine::value(sum, self.unit, factors[j], Column::NONE)
                    });
                    matrices[i as usize * 2 + half] = pair(values[1], values[0]);
                }
            }
            let to = place + group * GROUP * RESULT_PITCH;
            // SAFETY: the warp is converged; these rows of eight results are the warpgroup's.
            unsafe { mma::stmatrix_m8n8_x4_trans_shared_b16(to, matrices) };
            group += PAIR;
        }
    }

    /// Stores what is staged: results of the tokens from `first` on in block `block` of the tile.
    ///
    /// # Safety
    /// As [`store_tile`]; all of it is there.
    #[inline(always)]
    unsafe fn copy(&self, block: u32, first: u32, tokens: u32) {
        let (p, tile) = (self.p, self.tile);
        let thread = marker::pin(lane());
        let (piece, ahead) = (thread % PIECES, thread / PIECES);
        let rows = tile.row_tile * self.config.rows + block * BLOCK_ROWS;
        let n = rows + piece * COLUMNS as u32;
        let sink = &p.epilogue.sink;
        for i in 0..STORES {
            let token = i * (WARPGROUP / PIECES) + ahead;
            let from = self.staged + token * RESULT_PITCH + piece * RESULT_ALIGN;
            // SAFETY: a piece of what is staged.
            let eight = unsafe { words::ld_shared_v4_b32(from) };
            let token = first + token;
            if token < tokens && n < sink.columns {
                let place = [tile.token + token, n];
                let at = epilogue::element(sink, sink.columns, tile.matrix, place);
                // SAFETY: all eight are inside the result, aligned.
                unsafe { words::st_global_v4_b32(sink.out + at * u64::from(BYTES), eight) };
            }
        }
    }
}

/// First of the warp's rows in a block.
#[inline(always)]
fn lane_row() -> u32 {
    lane() / warp::LANES * WARP_ROWS
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
