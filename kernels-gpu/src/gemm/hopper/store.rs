//! The store of a tile: its sums, in shared memory, become results.
//!
//! Of a split-K cluster, each CTA stores some of the tokens and adds the sums of all CTAs for them,
//! in the order of their ranks.
//!
//! Where rows of the result are aligned, a thread stores the same eight columns of every so
//! many tokens. It loads their factors and bias once, and has the sums of several tokens in flight.
//! Elsewhere each piece of eight columns is stored by itself. Of a result in NVFP4 a thread stores
//! whole blocks.

use cuda_std::ptx::{marker, memory as words, remote};
use cuda_std::thread;
use fp4_formats::gemm::hopper::config::{CONSUMER_THREADS, HopperConfig};
use fp4_formats::gemm::hopper::params::HopperParams;

use super::decode::Weights;
use super::split_k::Part;
use super::tile::{Memory, Tile};
use crate::gemm::epilogue::affine::{self, Column};
use crate::gemm::epilogue::combine::combine;
use crate::gemm::epilogue::{self, COLUMNS, blocks, direct};

/// Stores the CTA's part of the results of the tile whose sums are in shared memory.
///
/// # Safety
/// All consumers call this; the sums are visible to them.
#[inline(always)]
pub unsafe fn store_tile<W: Weights>(
    config: &HopperConfig,
    p: &HopperParams,
    tile: &Tile,
    part: &Part,
    memory: Memory,
) {
    if epilogue::is_nvfp4(&p.epilogue.sink) {
        // SAFETY: all consumers are here, and the sums are visible to them.
        unsafe { store_blocks::<W>(config, p, tile, part, memory) };
        return;
    }
    let pieces = config.rows / COLUMNS as u32;
    // Two CTAs per SM with 64 tokens each have no register left during the main loop: what follows
    // from the thread's index is computed behind it.
    let thread = if config.min_blocks > 1 && config.tokens > 32 {
        marker::pin(thread::thread_idx_x())
    } else {
        thread::thread_idx_x()
    };
    let column = thread % pieces * COLUMNS as u32;
    let n = tile.row_tile * config.rows + column;
    if n >= p.problem.n {
        return;
    }
    let (first, end) = part.range(part.rank);
    let first = first + thread / pieces;
    let unit = const { (1u32 << W::SCHEME.unit_log2()) as f32 };
    let swapped = !(thread ^ thread >> 2).is_multiple_of(2);
    let step = CONSUMER_THREADS / pieces;
    let piece = Piece { config, p, tile, part, memory, unit, column, n, first, step, end, swapped };
    // SAFETY: the columns from `n` on exist as far as the matrix reaches.
    unsafe {
        if !(p.problem.n.is_multiple_of(COLUMNS as u32)
            && direct::rows_aligned(&p.epilogue.sink, &p.problem))
        {
            piece.store_ragged();
        } else if affine::has_columns(&p.epilogue.affine) {
            // Eight factors and eight biases take the registers of a batch.
            piece.store::<true, 1, 1>();
        } else if config.loads_remote() {
            // A thread stores one or two tokens, whose sums are in up to eight CTAs.
            piece.store::<false, 1, 4>();
        } else if config.min_blocks > 1 {
            piece.store::<false, 2, 1>();
        } else {
            piece.store::<false, 4, 1>();
        }
    }
}

/// [`store_tile`] of a result in NVFP4.
///
/// # Safety
/// As [`store_tile`].
#[inline(always)]
unsafe fn store_blocks<W: Weights>(
    config: &HopperConfig,
    p: &HopperParams,
    tile: &Tile,
    part: &Part,
    memory: Memory,
) {
    const BLOCK: u32 = blocks::BLOCK as u32;
    let (affine, sink) = (&p.epilogue.affine, &p.epilogue.sink);
    let problem = &p.problem;
    // Pinned, so that what follows from it takes no register during the main loop.
    let thread = marker::pin(thread::thread_idx_x());
    let count = config.rows / BLOCK;
    if tile.token + part.tokens == problem.m {
        let columns = [tile.row_tile * count, count];
        let threads = [part.rank * CONSUMER_THREADS + thread, part.ctas() * CONSUMER_THREADS];
        // SAFETY: the result is NVFP4, and these are its columns of blocks.
        unsafe { blocks::pad_rows(sink, problem, tile.matrix, columns, threads) };
    }
    let column = thread % count * BLOCK;
    if tile.row_tile * config.rows + column >= problem.n {
        return;
    }
    let unit = const { (1u32 << W::SCHEME.unit_log2()) as f32 };
    let has_columns = affine::has_columns(affine);
    let (first, end) = part.range(part.rank);
    let mut token = first + thread / count;
    // Pinned, so that the loop is not unrolled: it would run out of registers.
    let step = marker::pin(CONSUMER_THREADS / count);
    while token < end {
        let n = marker::pin(tile.row_tile * config.rows + column);
        let m = tile.token + token;
        // SAFETY: the token's sums and its factor; all columns of the block exist.
        unsafe {
            let mut results = [[0.0; COLUMNS]; 2];
            for rank in 0..part.ctas() {
                let at = part.sums(config, memory, rank, token);
                let remote = config.loads_remote() && part.ctas() > 1;
                add_block(at + column * size_of::<f32>() as u32, remote, &mut results);
            }
            let row = affine::row_factor(affine, m);
            for half in 0..2 {
                for j in 0..COLUMNS {
                    results[half][j] = affine::scaled(results[half][j], unit, row);
                }
                if has_columns {
                    for j in 0..COLUMNS {
                        let n = n + (half * COLUMNS + j) as u32;
                        results[half][j] = affine::column(affine, n).apply(results[half][j]);
                    }
                }
                results[half] = results[half].map(|value| combine(&p.epilogue, value));
            }
            blocks::store(sink, problem, tile.matrix, [m, n], results);
        }
        token += step;
    }
}

/// Adds the sums of a block at a shared address, of the cluster's window if `remote`.
///
/// # Safety
/// They are there; a multiple of 16.
#[inline(always)]
unsafe fn add_block(at: u32, remote: bool, sums: &mut [[f32; COLUMNS]; 2]) {
    for i in 0..blocks::BLOCK / 4 {
        let at = at + 16 * i as u32;
        // SAFETY: the sums are there, at a multiple of 16.
        let word = unsafe {
            if remote { remote::ld_shared_cluster_v4_b32(at) } else { words::ld_shared_v4_b32(at) }
        };
        for j in 0..4 {
            sums[i / 2][i % 2 * 4 + j] += f32::from_bits(word[j]);
        }
    }
}

/// Eight columns of the tokens `first`, `first + step`, ... below `end` of a tile.
struct Piece<'a> {
    config: &'a HopperConfig,
    p: &'a HopperParams,
    tile: &'a Tile,
    part: &'a Part,
    memory: Memory,
    unit: f32,
    /// First column, in the tile and in the matrix.
    column: u32,
    n: u32,
    first: u32,
    step: u32,
    end: u32,
    /// Whether the thread loads the second half of eight sums first, so that the eight threads
    /// that load at the same time have no bank conflict.
    swapped: bool,
}

impl Piece<'_> {
    /// Adds all CTAs' sums of each of some tokens, in the order of their ranks; `RANKS` CTAs' are
    /// in flight at a time.
    ///
    /// # Safety
    /// They are there.
    #[inline(always)]
    unsafe fn sums<const BATCH: usize, const RANKS: usize>(
        &self,
        tokens: [u32; BATCH],
    ) -> [[f32; COLUMNS]; BATCH] {
        let mut sums = [[0.0; COLUMNS]; BATCH];
        let mut rank = 0;
        while rank < self.part.ctas() {
            let mut parts = [[[0.0; COLUMNS]; BATCH]; RANKS];
            for r in 0..RANKS {
                if rank + (r as u32) < self.part.ctas() {
                    for i in 0..BATCH {
                        // SAFETY: the sums are there.
                        parts[r][i] = unsafe { self.load(rank + r as u32, tokens[i]) };
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

    /// CTA `rank`'s sums of a token.
    ///
    /// # Safety
    /// They are there.
    #[inline(always)]
    unsafe fn load(&self, rank: u32, token: u32) -> [f32; COLUMNS] {
        let at = self.part.sums(self.config, self.memory, rank, token)
            + self.column * size_of::<f32>() as u32;
        let (before, after) = if self.swapped { (16, 0) } else { (0, 16) };
        let load = |at: u32| {
            // SAFETY: the sums are there, at a multiple of 16 bytes.
            unsafe {
                if self.config.loads_remote() && self.part.ctas() > 1 {
                    remote::ld_shared_cluster_v4_b32(at)
                } else {
                    words::ld_shared_v4_b32(at)
                }
            }
        };
        let (one, other) = (load(at + before), load(at + after));
        core::array::from_fn(|j| {
            let first = (j < COLUMNS / 2) != self.swapped;
            let half = j % (COLUMNS / 2);
            f32::from_bits(if first { one[half] } else { other[half] })
        })
    }

    /// # Safety
    /// As [`store_tile`].
    #[inline(always)]
    unsafe fn store_ragged(&self) {
        // Unrolled loops run out of registers.
        let step = marker::pin(self.step);
        let mut token = self.first;
        while token < self.end {
            let place = [self.tile.token + token, self.n];
            // SAFETY: the token's sums are there, and the columns that exist are inside the result.
            unsafe {
                let [sums] = self.sums::<1, 1>([token]);
                let (epilogue, problem) = (&self.p.epilogue, &self.p.problem);
                let exist = problem.n - self.n;
                let results = affine::row_results(epilogue, self.unit, place, exist, sums);
                direct::store_row(&epilogue.sink, problem, self.tile.matrix, place, exist, results);
            }
            token += step;
        }
    }

    /// All columns exist, and are aligned. `SCALED`: there are column factors or a bias.
    /// `BATCH`: tokens whose sums are in flight at a time, of `RANKS` CTAs each.
    ///
    /// # Safety
    /// As [`store_tile`].
    #[inline(always)]
    unsafe fn store<const SCALED: bool, const BATCH: usize, const RANKS: usize>(&self) {
        let (affine, sink) = (&self.p.epilogue.affine, &self.p.epilogue.sink);
        let mut columns = [Column::NONE; COLUMNS];
        if SCALED {
            // SAFETY: all eight columns exist.
            columns = unsafe { affine::columns(affine, self.n) };
        }
        let step = self.step;
        let mut token = self.first;
        while token < self.end {
            let mut row_factors = [0.0; BATCH];
            let tokens: [u32; BATCH] =
                core::array::from_fn(|i| (token + i as u32 * step).min(self.end - 1));
            for i in 0..BATCH {
                // SAFETY: the token's factor.
                row_factors[i] = unsafe { affine::row_factor(affine, self.tile.token + tokens[i]) };
            }
            // SAFETY: the tokens' sums.
            let mut results = unsafe { self.sums::<BATCH, RANKS>(tokens) };
            for i in 0..BATCH {
                for j in 0..COLUMNS {
                    let (epilogue, sum) = (&self.p.epilogue, results[i][j]);
                    results[i][j] =
                        affine::result(epilogue, sum, self.unit, row_factors[i], columns[j]);
                }
                let at = token + i as u32 * step;
                if at < self.end {
                    let place = [self.tile.token + at, self.n];
                    let (problem, matrix) = (&self.p.problem, self.tile.matrix);
                    // SAFETY: all eight exist, aligned.
                    unsafe {
                        direct::store_aligned_row(sink, problem, matrix, place, results[i]);
                    }
                }
            }
            token += step * BATCH as u32;
        }
    }
}
