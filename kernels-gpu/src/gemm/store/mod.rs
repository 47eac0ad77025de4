//! The store of a tile: its sums, in shared memory, become results.
//!
//! In a split-K cluster, each CTA stores some of the tokens and adds the sums of all CTAs for them,
//! in the order of their ranks.
//!
//! | results | a thread stores |
//! |---|---|
//! | floats in aligned rows, with neither column factors nor a bias nor an activation, without their largest magnitude | eight columns of tokens at a fixed distance, the sums of several tokens in flight |
//! | other floats in aligned rows, NVFP4, MXFP4 | eight columns, or a block, of tokens at a fixed distance ([`any`]) |
//! | floats in other rows | one column of tokens at a fixed distance |
//!
//! In a gated product, a thread has eight sums of the gate and the eight of `up` behind them, or one
//! of each. It goes through the affine step for one and then the other, in the same code.
//!
//! Lanes store side by side.

mod any;
mod share;

use cuda_std::ptx::{marker, memory as words, remote};
use cuda_std::thread;
use fp4_formats::gemm::combine::GATE_ROWS;
use fp4_formats::gemm::work::CtaTile;
use fp4_formats::gemm::{Affine, Problem, Sink};

pub use share::Share;

use super::cta::{Cta, Target};
use crate::gemm::epilogue::affine::{self, Column};
use crate::gemm::epilogue::combine::combine;
use crate::gemm::epilogue::line::{self, Line};
use crate::gemm::epilogue::{self, COLUMNS, direct, largest};
use crate::gemm::work::WorkList;

/// A target whose kernels put the sums of a tile into shared memory before they store it.
pub trait Staged: Target {
    /// Rows of weights of a tile.
    fn rows(config: &Self::Config) -> u32;

    /// Tokens whose floats a thread stores together, if it has the sums of all: 4 or 2.
    fn floats_together(config: &Self::Config) -> u32;

    /// Whether the sums of a cluster are few, and are loaded from shared memory of its other CTAs.
    fn loads_remote(config: &Self::Config) -> bool;

    /// Whether the epilogue [is plain](fp4_formats::gemm::Epilogue::is_plain).
    fn is_plain(config: &Self::Config, params: &Self::Params) -> bool;

    /// Returns the address of the sums that CTA `rank` has of token `token` of this CTA's part, in the
    /// cluster's window if sums are loaded remotely.
    fn sums(
        config: &Self::Config,
        memory: Self::Memory,
        part: &Share,
        rank: u32,
        token: u32,
    ) -> u32;
}

/// Stores the CTA's part of the results of the tile whose sums are in shared memory; `unit` is the value
/// of a sum's 1. A thread uses
/// all sums that it loads from other CTAs, so that its loads have returned afterwards.
///
/// # Safety
/// All consumers call this, warp by warp converged; the sums are visible to them.
#[inline(always)]
pub unsafe fn store_tile<T: Staged, L: WorkList>(
    cta: &Cta<'_, T, L>,
    unit: f32,
    tile: &CtaTile,
    part: &Share,
    alphas: [f32; 2],
) {
    let (config, head) = (cta.config, cta.head());
    let sink = &head.epilogue.sink;
    // Pinned, so that values that follow from it take no register during the main loop.
    let thread = marker::pin(thread::thread_idx_x());
    let result = Problem { m: tile.rows, n: sink.columns, ..*head.problem };
    let store = Store { cta, sink, result: &result, tile, part, unit, thread, alphas };
    let columns = if L::GROUPED { marker::pin(sink.columns) } else { sink.columns };
    let sizes = Problem { n: columns, ..result };
    let aligned = sizes.n.is_multiple_of(COLUMNS as u32);
    let is_blocks = epilogue::is_blocks(sink);
    // SAFETY: all consumers are here, and the sums are visible to them.
    unsafe {
        let found = if is_blocks || aligned && line::rows_aligned(sink, &sizes) {
            if is_blocks || !T::is_plain(config, cta.params) {
                if T::loads_remote(config) {
                    return store.store_halves();
                }
                store.store_blocks()
            } else if T::loads_remote(config) {
                // A thread stores one or two tokens, whose sums are in up to eight CTAs. In a batch
                // of several it would load some that it does not use.
                return store.store_floats::<1, 4>();
            } else if T::floats_together(config) == 2 {
                return store.store_floats::<2, 1>();
            } else {
                return store.store_floats::<4, 1>();
            }
        } else if T::loads_remote(config) {
            store.store_columns::<1>()
        } else {
            store.store_columns::<2>()
        };
        largest::raise(sink, || found);
    }
}

/// The context of a thread that stores its part of a tile.
#[derive(Clone, Copy)]
pub(super) struct Store<'a, T: Target, L> {
    pub cta: &'a Cta<'a, T, L>,
    /// Address and type of the results.
    pub sink: &'a Sink,
    /// Sizes of the result.
    pub result: &'a Problem,
    pub tile: &'a CtaTile,
    pub part: &'a Share,
    /// Value of a sum's 1.
    pub unit: f32,
    pub thread: u32,
    /// Factors of the sums of both halves.
    pub alphas: [f32; 2],
}

/// Some columns of every `step`th token of a tile, from the `ahead`th on.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    /// First of the sums of a token, in the tile.
    pub column: u32,
    /// First column of the result.
    pub n: u32,
    pub ahead: u32,
    pub step: u32,
    /// Whether the thread loads the second half of eight sums first, so that the eight threads
    /// that load at the same time have no bank conflict.
    pub second_first: bool,
}

impl<T: Staged, L: WorkList> Store<'_, T, L> {
    /// Returns the tokens of a thread if `2^log2` neighbouring threads store a token: the first one,
    /// behind the first that the CTA stores, and the distance of the others.
    #[inline(always)]
    fn tokens(&self, log2: u32) -> (u32, u32) {
        (self.thread >> log2, T::THREADS >> log2)
    }

    /// Factors and bias of half `half` of the tile's problem.
    #[inline(always)]
    pub(super) fn affine(&self, half: u32) -> Affine {
        self.cta.list.affine(self.cta.head().epilogue, half, self.tile.problem, self.alphas)
    }

    /// Returns 1 if two sums make a result.
    #[inline(always)]
    pub(super) fn gated(&self) -> u32 {
        self.cta.head().epilogue.combine.gated
    }

    /// Returns the thread's piece of rows of eight results each, or `1 << eights_log2` times eight.
    /// `gated` is [`Self::gated`], or 0 if that is known.
    #[inline(always)]
    pub(super) fn piece(&self, gated: u32, eights_log2: u32) -> Piece {
        let columns_log2 = const { (COLUMNS as u32).ilog2() } + eights_log2;
        let log2 = T::rows(self.cta.config).ilog2() - columns_log2 - gated;
        let index = self.thread & ((1 << log2) - 1);
        let column = index << columns_log2 << gated;
        let n =
            ((self.tile.row_tile * T::rows(self.cta.config)) >> gated) + (index << columns_log2);
        let (ahead, step) = self.tokens(log2);
        let second_first = !(self.thread ^ self.thread >> 2).is_multiple_of(2);
        Piece { column, n, ahead, step, second_first }
    }

    /// The address of the sums that CTA `rank` has of token `token`.
    #[inline(always)]
    fn address(&self, rank: u32, token: u32) -> u32 {
        T::sums(self.cta.config, self.cta.memory, self.part, rank, token)
    }

    /// Whether sums are loaded from the cluster's shared memory.
    #[inline(always)]
    fn is_remote(&self) -> bool {
        T::loads_remote(self.cta.config) && self.part.ctas() > 1
    }

    /// Adds all CTAs' sums of each of some tokens, in the order of their ranks; `RANKS` CTAs' are
    /// in flight at a time.
    ///
    /// # Safety
    /// They are there.
    #[inline(always)]
    pub(super) unsafe fn sums<const BATCH: usize, const RANKS: usize>(
        &self,
        piece: &Piece,
        columns: [u32; BATCH],
        tokens: [u32; BATCH],
    ) -> [[f32; COLUMNS]; BATCH] {
        let mut sums = [[0.0; COLUMNS]; BATCH];
        let mut rank = 0;
        while rank < self.part.ctas() {
            let mut parts = [[[0.0; COLUMNS]; BATCH]; RANKS];
            for r in 0..RANKS {
                if rank + (r as u32) < self.part.ctas() {
                    for i in 0..BATCH {
                        let rank = rank + r as u32;
                        // SAFETY: the sums are there.
                        parts[r][i] = unsafe { self.load(piece, rank, columns[i], tokens[i]) };
                    }
                }
            }
            for r in 0..RANKS {
                let exists = rank + (r as u32) < self.part.ctas();
                for i in 0..BATCH {
                    for j in 0..COLUMNS {
                        let sum = sums[i][j] + parts[r][i][j];
                        sums[i][j] = if exists { sum } else { sums[i][j] };
                    }
                }
            }
            rank += RANKS as u32;
        }
        sums
    }

    /// CTA `rank`'s sums of a token, from a column of the tile on.
    ///
    /// # Safety
    /// They are there.
    #[inline(always)]
    unsafe fn load(&self, piece: &Piece, rank: u32, column: u32, token: u32) -> [f32; COLUMNS] {
        let at = self.address(rank, token) + column * size_of::<f32>() as u32;
        let (before, after) = if piece.second_first { (16, 0) } else { (0, 16) };
        let load = |at: u32| {
            // SAFETY: the sums are there, at a multiple of 16 bytes.
            unsafe {
                if self.is_remote() {
                    remote::ld_shared_cluster_v4_b32(at)
                } else {
                    words::ld_shared_v4_b32(at)
                }
            }
        };
        let (one, other) = (load(at + before), load(at + after));
        core::array::from_fn(|j| {
            let first = (j < COLUMNS / 2) != piece.second_first;
            let half = j % (COLUMNS / 2);
            f32::from_bits(if first { one[half] } else { other[half] })
        })
    }

    /// Floats in aligned rows, with neither column factors nor a bias. `BATCH`: tokens whose sums
    /// are in flight at a time, of `RANKS` CTAs each.
    ///
    /// # Safety
    /// As [`store_tile`].
    #[inline(always)]
    unsafe fn store_floats<const BATCH: usize, const RANKS: usize>(&self) {
        let piece = self.piece(0, 0);
        if piece.n >= self.result.n {
            return;
        }
        let own;
        let affine = if L::OWN_FACTORS {
            own = self.affine(0);
            &own
        } else {
            &self.cta.head().epilogue.affine
        };
        let sink = self.sink;
        let (first, end) = self.part.range(self.part.rank);
        let mut token = first + piece.ahead;
        while token < end {
            let mut row_factors = [0.0; BATCH];
            let tokens: [u32; BATCH] =
                core::array::from_fn(|i| (token + i as u32 * piece.step).min(end - 1));
            for i in 0..BATCH {
                // SAFETY: the token's factor.
                row_factors[i] = unsafe { affine::row_factor(affine, self.tile.token + tokens[i]) };
            }
            // SAFETY: the tokens' sums.
            let mut results =
                unsafe { self.sums::<BATCH, RANKS>(&piece, [piece.column; BATCH], tokens) };
            for i in 0..BATCH {
                for j in 0..COLUMNS {
                    let (row, column) = (row_factors[i], Column::NONE);
                    results[i][j] = affine::value(results[i][j], self.unit, row, column);
                }
                let at = token + i as u32 * piece.step;
                if at < end {
                    let place = [self.tile.token + at, piece.n];
                    let (result, matrix) = (self.result, self.tile.matrix);
                    // SAFETY: all eight exist, aligned.
                    unsafe {
                        direct::store_aligned_row(sink, result, matrix, place, results[i]);
                    }
                }
            }
            token += piece.step * BATCH as u32;
        }
    }

    /// Floats in rows that are not aligned. Each thread stores elements of one column. `BATCH`:
    /// tokens whose sums are in flight at a time. The largest magnitude, if it is asked for.
    ///
    /// # Safety
    /// As [`store_tile`].
    #[inline(always)]
    unsafe fn store_columns<const BATCH: usize>(&self) -> f32 {
        let mut found = 0.0;
        let (tile, epilogue, gated) = (self.tile, self.cta.head().epilogue, self.gated());
        let log2 = T::rows(self.cta.config).ilog2() - gated;
        let index = self.thread & ((1 << log2) - 1);
        let n = ((tile.row_tile * T::rows(self.cta.config)) >> gated) + index;
        if n >= self.result.n {
            return found;
        }
        // Every eight sums of a gate precede eight of `up`.
        let column = if gated == 0 { index } else { index + index / GATE_ROWS * GATE_ROWS };
        let (first, end) = self.part.range(self.part.rank);
        let (ahead, step) = self.tokens(log2);
        let mut token = first + ahead;
        while token < end {
            let tokens: [u32; BATCH] =
                core::array::from_fn(|i| (token + i as u32 * step).min(end - 1));
            let mut results = [0.0; BATCH];
            let mut half = 0;
            loop {
                let affine = self.affine(half);
                let column = column + half * GATE_ROWS;
                // SAFETY: the tokens' sums and factors, and the column's.
                let values = unsafe {
                    let sums = self.column_sums(column, tokens);
                    let factors = affine::column(&affine, n);
                    core::array::from_fn(|i| {
                        let row = affine::row_factor(&affine, tile.token + tokens[i]);
                        affine::value(sums[i], self.unit, row, factors)
                    })
                };
                results = combine(&epilogue.combine, half, results, values);
                half = marker::pin(half + 1);
                if half > gated {
                    break;
                }
            }
            for i in 0..BATCH {
                let token = token + i as u32 * step;
                if token < end {
                    let place = [tile.token + token, n];
                    let (sink, result, matrix) = (self.sink, self.result, tile.matrix);
                    let line = Line::one(matrix, place);
                    // SAFETY: the element is inside the result.
                    unsafe {
                        let [value] = line.finish(sink, result, [results[i]], &mut found);
                        direct::store_element(sink, result, matrix, place, value);
                    }
                }
            }
            token += step * BATCH as u32;
        }
        found
    }

    /// Adds all CTAs' sums of one column of each of some tokens, in the order of their ranks.
    ///
    /// # Safety
    /// They are there.
    #[inline(always)]
    unsafe fn column_sums<const BATCH: usize>(
        &self,
        column: u32,
        tokens: [u32; BATCH],
    ) -> [f32; BATCH] {
        let mut sums = [0.0; BATCH];
        let mut rank = 0;
        while rank < self.part.ctas() {
            for i in 0..BATCH {
                let at = self.address(rank, tokens[i]) + column * size_of::<f32>() as u32;
                // SAFETY: the sum is there.
                let bits = unsafe {
                    if self.is_remote() {
                        remote::ld_shared_cluster_b32(at)
                    } else {
                        words::ld_shared_b32(at)
                    }
                };
                sums[i] += f32::from_bits(bits);
            }
            rank += 1;
        }
        sums
    }
}
