//! sm_80 GEMM: weights are decoded into the register operand of `mma.sync`.
//!
//! # Contract
//! Parameters: [`Sm80Params`], of grouped products [`Sm80GroupedParams`], of mixed ones [`Mixed`]. Any M, N, L
//! of at least 1, K a multiple of the block. CTAs compute tiles of C^T, or parts of tiles along K, as the
//! [`Schedule`] says, or of grouped products the work list that each CTA makes of the token counts
//! ([`work`](super::work)). The grid has one CTA per run, all resident at a time, so that a CTA may wait for
//! one with a lower number; their partial sums meet in global memory ([`fix_up`]).
//!
//! # Pipeline
//! ```text
//! copies    | step 0 -> stage 0 | step 1 -> stage 1 | ..., in flight while others are multiplied
//! all warps | wait for stage 0, meet, start a copy to the stage read last, decode stage 0, mma | stage 1 ...
//!                                               after the last step of a tile v
//!           | fix-up | sums to shared memory, over the stages | epilogue, store | copies of the next tile ...
//! ```
//!
//! # Roles
//! All eight warps copy ([`copy`]), decode and multiply ([`main_loop`]), exchange partial sums ([`fix_up`]) and
//! [`store`](super::store). The warps of a tile stand in [`Sm80Config::row_warps`] rows; those of the same row
//! of warps decode the same weights. Warp 0 makes the table of groups.
//!
//! # Shared memory
//! | at | contents |
//! |---|---|
//! | 0 | activations of each stage: 64 columns of each token, pieces of 16 bytes swizzled among eight |
//! | `weights_offset` | weights of each stage, one more than of activations: codes of each 16 rows, then their scales |
//! | 0, after a tile's last stage is read | f32 sums of a strip of tokens, one after the other |
//! | `table_offset` | of a grouped product, the table of groups; of mixed ones, that of products |
//!
//! # Barriers
//! | barrier | guards |
//! |---|---|
//! | 0, table made | the table of groups or products |
//! | 0, stage full | all threads' copies of the following step's activations and of the weights behind them have arrived; this stage is read |
//! | 0, stages read | all stages are read: sums may overwrite them |
//! | 0, sums written | a strip's sums are in shared memory |
//! | 0, sums stored | they are read: the next strip, or stages, may overwrite them |
//! | 0, partial sums sent, flags read | the partial sums are in global memory; the flags are set |
//! | flag (global) | raised by one thread of a contributor, when its partial sums are there; one lane of the owner waits |
//!
//! All threads take part in each.
//!
//! # Arithmetic
//! 16-bit operands are exact (see [`decoded`](super::decoded)), and `mma.sync` adds in f32. The
//! parts of a tile are added in the order of their CTAs, so that results do not depend on timing.
//!
//! [`Sm80GroupedParams`]: fp4_formats::gemm::sm80::Sm80GroupedParams
//! [`Schedule`]: fp4_formats::gemm::Schedule
//! [`Mixed`]: fp4_formats::gemm::Mixed

mod copy;
mod entries;
pub mod fix_up;
mod main_loop;
mod memory;
mod places;
pub mod tile;

use cuda_std::{shared, thread, warp};
use fp4_formats::gemm::groups::Tiling;
use fp4_formats::gemm::sm80::config::{MMA_K, Sm80Config, THREADS};
use fp4_formats::gemm::sm80::params::Sm80Params;
use fp4_formats::gemm::work::CtaTile;
use fp4_formats::gemm::{TileOrder, TileShape};

use super::cta::{self, Head, Target};
use super::decoded::{Decoded, Weights};
use super::store::{self, Share, Staged};
use super::walk::{OwnRun, Walk};
use super::warps::{self, Sums, Warps};
use super::work::WorkList;
use crate::pipeline;
use memory::Memory;

/// sm_80's kernels.
#[derive(Clone, Copy)]
pub enum Sm80 {}

impl Target for Sm80 {
    type Config = Sm80Config;
    type Params = Sm80Params;
    type Memory = Memory;

    const THREADS: u32 = THREADS;
    const GROUPED_RUNS: bool = true;
    const MIXED_TABLE_WAITS: bool = false;

    #[inline(always)]
    fn head(params: &Sm80Params) -> Head<'_> {
        warps::head(params)
    }

    #[inline(always)]
    fn table(config: &Sm80Config) -> u32 {
        shared::dynamic::<128>() + config.table_offset()
    }

    #[inline(always)]
    fn tiles(config: &Sm80Config, _: &Sm80Params) -> (TileShape, TileOrder) {
        (config.work_shape(), Sm80Config::ORDER)
    }

    #[inline(always)]
    fn tiling(config: &Sm80Config, _: &Sm80Params) -> Tiling {
        config.tiling()
    }

    #[inline(always)]
    fn partial_bytes(config: &Sm80Config) -> u32 {
        config.partial_bytes()
    }
}

impl Staged for Sm80 {
    #[inline(always)]
    fn rows(config: &Sm80Config) -> u32 {
        config.rows
    }

    #[inline(always)]
    fn floats_together(config: &Sm80Config) -> u32 {
        if config.min_blocks > 1 { 2 } else { 4 }
    }

    #[inline(always)]
    fn loads_remote(_: &Sm80Config) -> bool {
        false
    }

    #[inline(always)]
    fn is_plain(_: &Sm80Config, params: &Sm80Params) -> bool {
        params.plain != 0
    }

    #[inline(always)]
    fn sums(_: &Sm80Config, memory: Memory, _: &Share, _: u32, token: u32) -> u32 {
        memory.sums(token)
    }
}

impl Warps for Sm80 {
    #[inline(always)]
    fn tokens(config: &Sm80Config) -> u32 {
        config.tokens
    }
}

/// Context of every role, on sm_80.
type Cta<'a, L> = cta::Cta<'a, Sm80, L>;

/// A kernel: its configuration, and how it decodes weights.
trait Kernel {
    const CONFIG: Sm80Config;
    type Weights: Decoded;
}

/// The kernel body of `K`. A warp has `ROWS` by `TOKENS` products in each of a stage's `UNITS` of 16 columns,
/// and `AHEAD` stages beside two: the configuration knows all four, but types cannot ask it.
///
/// # Safety
/// As the module's contract; launched with the configuration's threads and shared memory.
#[inline(always)]
unsafe fn gemm<
    K: Kernel,
    L: WorkList,
    const ROWS: usize,
    const TOKENS: usize,
    const PART: usize,
    const UNITS: usize,
    const AHEAD: u32,
>(
    params: &Sm80Params,
    list: L,
) {
    let config: &'static Sm80Config = const {
        let config = &K::CONFIG;
        assert!(config.warp_rows() as usize == ROWS && config.warp_tokens() as usize == TOKENS);
        assert!(config.part_tokens() as usize == PART);
        assert!(config.k_step() == UNITS as u32 * MMA_K);
        assert!(config.stages() == AHEAD + 2 && config.is_grouped() == L::GROUPED);
        assert!(config.scheme.is(K::Weights::SCHEME));
        config
    };
    let unit = const { (1u32 << <K::Weights as Weights>::SCHEME.unit_log2()) as f32 };
    let memory = Memory { base: shared::dynamic::<128>(), config };
    let cta = &Cta::new(config, params, list, memory, 0);
    L::release();
    if L::GROUPED {
        pipeline::follow_stream();
        // SAFETY: the first warp is whole; all threads of the CTA meet behind it.
        unsafe {
            if thread::thread_idx_x() < warp::LANES {
                L::begin(cta);
            }
            thread::sync_threads();
            L::refuse(cta);
        }
    }
    let mut walk = Walk::<OwnRun>::start(cta);
    loop {
        // SAFETY: the table is made.
        let Some(item) = (unsafe { walk.current(cta) }) else { return };
        let tile = tile::find(cta, item.tile);
        let own = &if L::MIXED {
            // SAFETY: the tile's problem exists.
            unsafe { cta.at(tile.problem) }
        } else {
            *cta
        };
        // SAFETY: all threads are here; the stages are free, and the item has a step.
        let mut sums: Sums<ROWS, TOKENS> = unsafe {
            main_loop::sum_item::<K, L, ROWS, TOKENS, PART, UNITS, AHEAD>(own, &tile, &item)
        };
        let owned = L::owned(cta, &item);
        // SAFETY: all threads are here. An owner's contributors send their sums of this tile.
        unsafe {
            if owned {
                if item.first > 0 {
                    fix_up::add_partials(own, L::first_cta(cta, &item), &mut sums, true);
                }
                store_tile::<L, ROWS, TOKENS>(own, unit, &tile, &sums);
            } else {
                fix_up::send(own, &sums, true);
            }
            walk.advance(cta, &item);
        }
    }
}

/// Stores the results of a tile, a strip of tokens at a time.
///
/// # Safety
/// All threads of the CTA call this, converged; all stages are read.
#[inline(always)]
unsafe fn store_tile<L: WorkList, const ROWS: usize, const TOKENS: usize>(
    cta: &Cta<'_, L>,
    unit: f32,
    tile: &CtaTile,
    sums: &Sums<ROWS, TOKENS>,
) {
    let strip = cta.config.strip_tokens();
    // SAFETY: the tile's problem exists.
    let alphas = unsafe { cta.alphas(tile.problem) };
    let mut first = 0;
    while first < tile.tokens() {
        let part = CtaTile { token: tile.token + first, width: strip, ..*tile };
        // SAFETY: all threads are here; the sums' memory is not used.
        unsafe {
            cta.memory.put_sums(sums, first);
            thread::sync_threads();
            store::store_tile(cta, unit, &part, &Share::whole(part.tokens()), alphas);
            warp::sync();
            thread::sync_threads();
        }
        first += strip;
    }
}
