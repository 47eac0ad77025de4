//! sm_120f GEMM: block-scaled products by `mma.sync`, of weights and tokens of 4 bits, or of tokens in e4m3.
//!
//! # Contract
//! Parameters: [`Sm120Params`], of grouped products [`Sm120GroupedParams`], of mixed ones [`Mixed`]. Any M, N, L
//! of at least 1, K a multiple of the block. CTAs compute tiles of C^T, or parts of tiles along K, as the
//! [`Schedule`] says, or of grouped products the work list that each CTA makes of the token counts
//! ([`work`](super::work)). The grid has one CTA per run, all resident at a time, so that a CTA may wait for
//! one with a lower number; their partial sums meet in global memory ([`fix_up`](super::sm80::fix_up)).
//!
//! # Pipeline
//! ```text
//! copies    | steps 0.. -> stages 0.., in flight while others are multiplied | a stage ahead ...
//! all warps | wait for stage 0, meet, start copies to the stage read last, load, mma | stage 1 ...
//!                                               after the last step of a tile v
//!           | fix-up | sums to shared memory, over the stages | epilogue, store | copies of the next tile ...
//! ```
//!
//! # Roles
//! All eight warps copy ([`copy`]), multiply ([`main_loop`]), exchange partial sums
//! ([`fix_up`](super::sm80::fix_up)) and [`store`](super::store). The warps of a tile stand in
//! [`Sm120Config::row_warps`] rows. Warp 0 makes the table of groups.
//!
//! # Shared memory
//! | at | contents |
//! |---|---|
//! | 0, in each stage | codes of the tokens: 64 bytes of each, or 128 of e4m3, whose pieces of 16 bytes are swizzled |
//! | `token_scales_offset`, in each stage | words of four scales of the tokens, in the order of the lanes that load them; none of e4m3 |
//! | `weights_offset`, in each stage | chunks of weights: codes, then scales, as they are in global memory |
//! | 0, after a tile's last stage is read | f32 sums of a strip of tokens, one after the other |
//! | `table_offset` | of a grouped product, the table of groups; of mixed ones, that of products |
//!
//! # Barriers
//! | barrier | guards |
//! |---|---|
//! | 0, table made | the table of groups or products |
//! | 0, stage full | all threads' copies of the stage have arrived; the stage before is read |
//! | 0, stages read | all stages are read: sums may overwrite them |
//! | 0, sums written | a strip's sums are in shared memory |
//! | 0, sums stored | they are read: the next strip, or stages, may overwrite them |
//! | 0, partial sums sent, flags read | the partial sums are in global memory; the flags are set |
//! | flag (global) | raised by one thread of a contributor, when its partial sums are there; one lane of the owner waits |
//!
//! All threads take part in each. Activations are copied, and results and partial sums written, after
//! `griddepcontrol.wait`; a product that is not grouped copies its first weights before.
//!
//! # Arithmetic
//! Products of codes and scales are exact, and `mma.sync` adds them in f32. The parts of a tile are added in the
//! order of their CTAs, so that results do not depend on timing.
//!
//! [`Sm120GroupedParams`]: fp4_formats::gemm::sm120::Sm120GroupedParams
//! [`Schedule`]: fp4_formats::gemm::Schedule
//! [`Mixed`]: fp4_formats::gemm::Mixed

mod blocks;
mod codes;
mod copy;
mod entries;
mod main_loop;
mod memory;

use core::marker::PhantomData;

use cuda_std::{shared, thread, warp};
use fp4_formats::gemm::groups::Tiling;
use fp4_formats::gemm::sm120::config::{Sm120Config, THREADS};
use fp4_formats::gemm::sm120::params::Sm120Params;
use fp4_formats::gemm::work::CtaTile;
use fp4_formats::gemm::{Item, TileOrder, TileShape};

use super::cta::{self, Head, Target};
use super::store::{Share, Staged};
use super::warps::{self, MainLoop, Sums, Walked, Warp, Warps};
use super::work::WorkList;
use blocks::Blocks;
use codes::Codes;
use memory::Memory;

/// sm_120f's kernels for block-scaled products.
#[derive(Clone, Copy)]
pub enum Sm120 {}

impl Target for Sm120 {
    type Config = Sm120Config;
    type Params = Sm120Params;
    type Memory = Memory;

    const THREADS: u32 = THREADS;
    const GROUPED_RUNS: bool = true;
    const MIXED_TABLE_WAITS: bool = false;

    #[inline(always)]
    fn head(params: &Sm120Params) -> Head<'_> {
        warps::head(params)
    }

    #[inline(always)]
    fn table(config: &Sm120Config) -> u32 {
        shared::dynamic::<128>() + config.table_offset()
    }

    #[inline(always)]
    fn tiles(config: &Sm120Config, _: &Sm120Params) -> (TileShape, TileOrder) {
        (config.work_shape(), Sm120Config::ORDER)
    }

    #[inline(always)]
    fn tiling(config: &Sm120Config, _: &Sm120Params) -> Tiling {
        config.tiling()
    }

    #[inline(always)]
    fn partial_bytes(config: &Sm120Config) -> u32 {
        config.partial_bytes()
    }

    /// Threads that have the same tokens are side by side: those whose tokens do not exist send nothing.
    #[inline(always)]
    fn vector() -> u32 {
        const LANES: u32 = 4;
        let (warp, lane) = (thread::thread_idx_x() / warp::LANES, warp::lane_id());
        lane % LANES * (THREADS / LANES) + warp * (warp::LANES / LANES) + lane / LANES
    }
}

impl Staged for Sm120 {
    #[inline(always)]
    fn rows(config: &Sm120Config) -> u32 {
        config.rows
    }

    #[inline(always)]
    fn floats_together(config: &Sm120Config) -> u32 {
        if config.min_blocks > 1 { 2 } else { 4 }
    }

    #[inline(always)]
    fn loads_remote(_: &Sm120Config) -> bool {
        false
    }

    #[inline(always)]
    fn is_plain(_: &Sm120Config, params: &Sm120Params) -> bool {
        params.plain != 0
    }

    #[inline(always)]
    fn sums(_: &Sm120Config, memory: Memory, _: &Share, _: u32, token: u32) -> u32 {
        memory.sums(token)
    }
}

impl Warps for Sm120 {
    #[inline(always)]
    fn tokens(config: &Sm120Config) -> u32 {
        config.tokens
    }
}

impl Walked for Sm120 {
    #[inline(always)]
    fn strip_tokens(config: &Sm120Config) -> u32 {
        config.strip_tokens()
    }

    #[inline(always)]
    fn warp(config: &Sm120Config) -> Warp {
        Warp::own(config.row_warps, [config.warp_rows(), config.warp_tokens()])
    }

    #[inline(always)]
    fn strip(memory: Memory, token: u32) -> u32 {
        memory.sums(token)
    }
}

/// Context of every role, on sm_120f.
type Cta<'a, L> = cta::Cta<'a, Sm120, L>;

/// A kernel: its configuration, and its block-scaled products.
trait Kernel {
    const CONFIG: Sm120Config;
    type Blocks: Blocks;
}

/// The main loop of `K`.
struct Loop<K, const AHEAD: u32>(PhantomData<K>);

impl<K: Kernel, L: WorkList, const ROWS: usize, const TOKENS: usize, const AHEAD: u32>
    MainLoop<Sm120, L, ROWS, TOKENS> for Loop<K, AHEAD>
{
    #[inline(always)]
    unsafe fn sum_item(cta: &Cta<'_, L>, tile: &CtaTile, item: &Item) -> Sums<ROWS, TOKENS> {
        // SAFETY: the caller's.
        unsafe { main_loop::sum_item::<K, L, ROWS, TOKENS, AHEAD>(cta, tile, item) }
    }
}

/// The kernel body of `K`. A warp has `ROWS` by `TOKENS` products in each 64 columns, and there are `AHEAD` stages
/// beside two: the configuration knows all three, but types cannot ask it.
///
/// # Safety
/// As the module's contract; launched with the configuration's threads and shared memory.
#[inline(always)]
unsafe fn gemm<K: Kernel, L: WorkList, const ROWS: usize, const TOKENS: usize, const AHEAD: u32>(
    params: &Sm120Params,
    list: L,
) {
    let config: &'static Sm120Config = const {
        let config = &K::CONFIG;
        assert!(config.warp_rows() as usize == ROWS && config.warp_tokens() as usize == TOKENS);
        assert!(config.stages() == AHEAD + 2 && config.is_grouped() == L::GROUPED);
        assert!(config.format as u32 == K::Blocks::FORMAT as u32);
        assert!(config.codes as u32 == <K::Blocks as Blocks>::Codes::TOKENS as u32);
        config
    };
    let memory = Memory { base: shared::dynamic::<128>(), config };
    let cta = &Cta::new(config, params, list, memory, 0);
    // SAFETY: all threads are here.
    unsafe { warps::run::<_, _, Loop<K, AHEAD>, ROWS, TOKENS>(cta, 1.0) }
}
