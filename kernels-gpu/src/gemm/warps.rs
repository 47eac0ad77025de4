//! The body of kernels whose warps multiply by `mma.sync` and all do the same: the walk over the CTA's items,
//! the [fix-up](super::sm80::fix_up) of partial sums, and the way of the sums through shared memory to their
//! [store](super::store).
//!
//! A thread holds the sums of its warp's rows and tokens as the C fragments of m16n8 products.

use cuda_std::ptx::memory;
use cuda_std::{thread, warp};
use fp4_formats::gemm::Item;
use fp4_formats::gemm::fragments::WarpParams;
use fp4_formats::gemm::fragments::warps::{MMA_ROWS, MMA_SUMS, MMA_TOKENS};
use fp4_formats::gemm::work::CtaTile;

use super::cta::{Cta, Head};
use super::sm80::{fix_up, tile};
use super::store::{self, Share, Staged};
use super::walk::{OwnRun, Walk};
use super::work::WorkList;
use crate::pipeline;

/// A thread's sums: of its warp's 16 rows by eight tokens each.
pub type Sums<const ROWS: usize, const TOKENS: usize> = [[[f32; MMA_SUMS]; TOKENS]; ROWS];

/// A target whose warps multiply by `mma.sync` and all do the same.
pub trait Warps: Staged {
    /// Tokens of a configuration's tile.
    fn tokens(config: &Self::Config) -> u32;
}

/// A target whose kernel body is [`run`].
pub trait Walked: Warps {
    /// Tokens whose sums are in shared memory at a time.
    fn strip_tokens(config: &Self::Config) -> u32;

    /// The place of this thread's warp in a tile.
    fn warp(config: &Self::Config) -> Warp;

    /// Shared address of the sums of token `token` of a strip.
    fn strip(memory: Self::Memory, token: u32) -> u32;
}

/// The parameters that kernels for all tensor cores take.
#[inline(always)]
pub fn head<T>(params: &WarpParams<T>) -> Head<'_> {
    let WarpParams {
        problem, schedule, walk, epilogue, partials, flags, row_factor_stride, ..
    } = params;
    Head {
        problem,
        schedule,
        walk,
        epilogue,
        partials: *partials,
        flags: *flags,
        row_factor_stride: *row_factor_stride,
    }
}

/// The place of a warp in a tile.
#[derive(Clone, Copy)]
pub struct Warp {
    /// First row of weights.
    pub row: u32,
    /// First token.
    pub token: u32,
}

impl Warp {
    /// This thread's warp, of `row_warps` side by side along the rows that have `rows` rows and `tokens` tokens each,
    /// both over those of one product.
    #[inline(always)]
    pub fn own(row_warps: u32, [rows, tokens]: [u32; 2]) -> Self {
        let warp = thread::thread_idx_x() / warp::LANES;
        Self {
            row: warp % row_warps * rows * MMA_ROWS,
            token: warp / row_warps * tokens * MMA_TOKENS,
        }
    }
}

/// Waits for all threads of the CTA.
///
/// # Safety
/// All of them reach such a call.
#[inline(always)]
pub unsafe fn meet() {
    // SAFETY: the caller's.
    unsafe {
        warp::sync();
        thread::sync_threads();
    }
}

/// The main loop of a kernel.
pub trait MainLoop<T: Walked, L: WorkList, const ROWS: usize, const TOKENS: usize> {
    /// Adds the products of an item's steps.
    ///
    /// # Safety
    /// All threads of the CTA, converged; nobody uses the stages, and the item has a step. Afterwards all stages are
    /// read.
    unsafe fn sum_item(cta: &Cta<'_, T, L>, tile: &CtaTile, item: &Item) -> Sums<ROWS, TOKENS>;
}

/// The kernel body: all items of the CTA, whose sums `M` makes; `unit` is the value of a sum's 1.
///
/// # Safety
/// All threads of the CTA; nobody uses its shared memory.
#[inline(always)]
pub unsafe fn run<
    T: Walked,
    L: WorkList,
    M: MainLoop<T, L, ROWS, TOKENS>,
    const ROWS: usize,
    const TOKENS: usize,
>(
    cta: &Cta<'_, T, L>,
    unit: f32,
) {
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
        let mut sums: Sums<ROWS, TOKENS> = unsafe { M::sum_item(own, &tile, &item) };
        let owned = L::owned(cta, &item);
        // With few tokens, most of the partial sums are of tokens that do not exist.
        let first_token = T::warp(own.config).token + warp::lane_id() % 4 * 2;
        let has_tokens = first_token < tile.tokens();
        // SAFETY: all threads are here. An owner's contributors send their sums of this tile.
        unsafe {
            if owned {
                if item.first > 0 {
                    fix_up::add_partials(own, L::first_cta(cta, &item), &mut sums, has_tokens);
                }
                store_tile(own, unit, &tile, &sums);
            } else {
                fix_up::send(own, &sums, has_tokens);
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
unsafe fn store_tile<T: Walked, L: WorkList, const ROWS: usize, const TOKENS: usize>(
    cta: &Cta<'_, T, L>,
    unit: f32,
    tile: &CtaTile,
    sums: &Sums<ROWS, TOKENS>,
) {
    let strip = T::strip_tokens(cta.config);
    // SAFETY: the tile's problem exists.
    let alphas = unsafe { cta.alphas(tile.problem) };
    let mut first = 0;
    while first < tile.tokens() {
        let part = CtaTile { token: tile.token + first, width: strip, ..*tile };
        // SAFETY: all threads are here; the sums' memory is not used.
        unsafe {
            put_sums(cta, sums, first);
            thread::sync_threads();
            store::store_tile(cta, unit, &part, &Share::whole(part.tokens()), alphas);
            warp::sync();
            thread::sync_threads();
        }
        first += strip;
    }
}

/// Puts the sums of a strip's tokens, the first of which is the tile's `first`, into shared memory, f32,
/// [tokens, rows] with the configuration's pitch.
///
/// # Safety
/// Nobody uses the stages or the sums of another strip any more.
#[inline(always)]
unsafe fn put_sums<T: Walked, L: WorkList, const ROWS: usize, const TOKENS: usize>(
    cta: &Cta<'_, T, L>,
    sums: &Sums<ROWS, TOKENS>,
    first: u32,
) {
    let Warp { row, token } = T::warp(cta.config);
    let lane = warp::lane_id();
    for n in 0..TOKENS {
        let eight = token + n as u32 * MMA_TOKENS;
        // Wraps for tokens of a strip before.
        let eight = eight.wrapping_sub(first);
        if eight >= T::strip_tokens(cta.config) {
            continue;
        }
        for m in 0..ROWS {
            for (i, sum) in sums[m][n].into_iter().enumerate() {
                let row = row + m as u32 * MMA_ROWS + lane / 4 + i as u32 / 2 * 8;
                let token = eight + lane % 4 * 2 + i as u32 % 2;
                let at = T::strip(cta.memory, token) + row * size_of::<f32>() as u32;
                // SAFETY: inside the strip's sums.
                unsafe { memory::st_shared_b32(at, sum.to_bits()) };
            }
        }
    }
}
