//! The end of a tile: its sums, in shared memory, become results.
//!
//! In a cluster those of all its CTAs are added, in the order of their ranks, for some of the
//! tokens.
//!
//! Where rows of the result are aligned, a thread stores the same eight columns of every so
//! many tokens, whose factors and bias it loads once; several tokens' sums are under way at a
//! time. Elsewhere each piece of eight columns is looked at by itself. Of a result in NVFP4
//! a thread has a whole block.

use cuda_std::ptx::{convert, marker, memory as words, remote};
use cuda_std::thread;
use fp4_formats::FloatType;
use fp4_formats::gemm::hopper::config::{CONSUMER_THREADS, HopperConfig};
use fp4_formats::gemm::hopper::params::HopperParams;

use super::cluster::Share;
use super::decode::Weights;
use super::tile::{Memory, Tile};
use crate::gemm::blocks;
use crate::gemm::epilogue::{self, COLUMNS};

/// Stores the CTA's share of the results of the tile whose sums are in shared memory.
///
/// # Safety
/// All consumer threads; the sums are known to them.
#[inline(always)]
pub unsafe fn store_tile<W: Weights>(
    config: &HopperConfig,
    p: &HopperParams,
    tile: &Tile,
    share: &Share,
    memory: Memory,
) {
    if blocks::wanted(&p.epilogue) {
        // SAFETY: the caller's.
        unsafe { store_blocks::<W>(config, p, tile, share, memory) };
        return;
    }
    let pieces = config.rows / COLUMNS as u32;
    let column = thread::thread_idx_x() % pieces * COLUMNS as u32;
    let n = tile.row_tile * config.rows + column;
    if n >= p.problem.n {
        return;
    }
    let (first, end) = share.part(share.rank);
    let first = first + thread::thread_idx_x() / pieces;
    let unit = const { (1u32 << W::SCHEME.unit_log2()) as f32 };
    let lane = thread::thread_idx_x();
    let swapped = !(lane ^ lane >> 2).is_multiple_of(2);
    let step = CONSUMER_THREADS / pieces;
    let piece =
        Piece { config, p, tile, share, memory, unit, column, n, first, step, end, swapped };
    // SAFETY: the columns from `n` on exist as far as the matrix reaches.
    unsafe {
        if !(p.problem.n.is_multiple_of(COLUMNS as u32)
            && epilogue::rows_aligned(&p.epilogue, &p.problem))
        {
            piece.store_ragged();
        } else if p.epilogue.column_factors != 0 || p.epilogue.bias != 0 {
            // Eight factors and as many biases take registers.
            piece.store::<true, 1, 1>();
        } else if config.loads_remote() {
            // A thread has a token or two, of up to eight CTAs.
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
    share: &Share,
    memory: Memory,
) {
    const BLOCK: u32 = blocks::BLOCK as u32;
    let (to, problem) = (&p.epilogue, &p.problem);
    // What follows from it is not kept while products run.
    let thread = marker::pin(thread::thread_idx_x());
    let count = config.rows / BLOCK;
    if tile.token + share.tokens == problem.m {
        let part = [tile.row_tile * count, count];
        let threads = [share.rank * CONSUMER_THREADS + thread, share.splits * CONSUMER_THREADS];
        // SAFETY: the caller's.
        unsafe { blocks::pad_rows(to, problem, tile.batch, part, threads) };
    }
    let column = thread % count * BLOCK;
    if tile.row_tile * config.rows + column >= problem.n {
        return;
    }
    let unit = const { (1u32 << W::SCHEME.unit_log2()) as f32 };
    let scaled = to.column_factors != 0 || to.bias != 0;
    let (first, end) = share.part(share.rank);
    let mut token = first + thread / count;
    // Unrolled loops run out of registers, as do those that keep what does not change in them.
    let step = marker::pin(CONSUMER_THREADS / count);
    while token < end {
        let n = marker::pin(tile.row_tile * config.rows + column);
        let m = tile.token + token;
        // SAFETY: the token's sums and its factor; all columns of the block exist.
        unsafe {
            let mut results = [[0.0; COLUMNS]; 2];
            for rank in 0..share.splits {
                let at = share.sums(config, memory, rank, token);
                let remote = config.loads_remote() && share.splits > 1;
                add_block(at + column * size_of::<f32>() as u32, remote, &mut results);
            }
            let row_factor = epilogue::row_factor(to, m);
            for half in 0..2 {
                for j in 0..COLUMNS {
                    results[half][j] = results[half][j] * unit * row_factor;
                }
                // As in `Piece::store`; adding nothing would lose the sign of a zero.
                if scaled {
                    for j in 0..COLUMNS {
                        let n = n + (half * COLUMNS + j) as u32;
                        let (factor, added) = epilogue::column_factors(to, n);
                        results[half][j] = results[half][j] * factor + added;
                    }
                }
            }
            blocks::store_results(to, problem, tile.batch, [m, n], results);
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
        // SAFETY: the caller's.
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
    share: &'a Share,
    memory: Memory,
    unit: f32,
    /// First column, in the tile and in the matrix.
    column: u32,
    n: u32,
    first: u32,
    step: u32,
    end: u32,
    /// Whether the thread loads the second half of eight sums first: eight threads that load at
    /// a time then meet no bank twice.
    swapped: bool,
}

impl Piece<'_> {
    /// Adds all CTAs' sums of each of some tokens, in the order of their ranks; `RANKS` CTAs' are
    /// under way at a time.
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
        while rank < self.share.splits {
            let mut parts = [[[0.0; COLUMNS]; BATCH]; RANKS];
            for r in 0..RANKS {
                if rank + (r as u32) < self.share.splits {
                    for i in 0..BATCH {
                        // SAFETY: the caller's.
                        parts[r][i] = unsafe { self.load(rank + r as u32, tokens[i]) };
                    }
                }
            }
            for r in 0..RANKS {
                let exists = rank + (r as u32) < self.share.splits;
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
        let at = self.share.sums(self.config, self.memory, rank, token)
            + self.column * size_of::<f32>() as u32;
        let (before, after) = if self.swapped { (16, 0) } else { (0, 16) };
        let load = |at: u32| {
            // SAFETY: the caller's; a multiple of 16 bytes.
            unsafe {
                if self.config.loads_remote() && self.share.splits > 1 {
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
            // SAFETY: the token's sums; the caller's.
            unsafe {
                let [sums] = self.sums::<1, 1>([token]);
                let (to, problem) = (&self.p.epilogue, &self.p.problem);
                epilogue::store(to, problem, self.unit, self.tile.batch, place, sums);
            }
            token += step;
        }
    }

    /// All columns exist, and are aligned. `SCALED`: there are column factors or a bias.
    /// `BATCH`: tokens whose sums are under way at a time, of `RANKS` CTAs each.
    ///
    /// # Safety
    /// As [`store_tile`].
    #[inline(always)]
    unsafe fn store<const SCALED: bool, const BATCH: usize, const RANKS: usize>(&self) {
        let (to, problem) = (&self.p.epilogue, &self.p.problem);
        let mut factors = [1.0; COLUMNS];
        let mut bias = [0.0; COLUMNS];
        if SCALED {
            for j in 0..COLUMNS {
                // SAFETY: the column exists.
                (factors[j], bias[j]) = unsafe { epilogue::column_factors(to, self.n + j as u32) };
            }
        }
        let step = self.step;
        let mut token = self.first;
        while token < self.end {
            let mut row_factors = [0.0; BATCH];
            let tokens: [u32; BATCH] =
                core::array::from_fn(|i| (token + i as u32 * step).min(self.end - 1));
            for i in 0..BATCH {
                // SAFETY: the token's factor.
                row_factors[i] = unsafe { epilogue::row_factor(to, self.tile.token + tokens[i]) };
            }
            // SAFETY: the tokens' sums.
            let mut results = unsafe { self.sums::<BATCH, RANKS>(tokens) };
            for i in 0..BATCH {
                for j in 0..COLUMNS {
                    let mut result = results[i][j] * self.unit * row_factors[i];
                    if SCALED {
                        result = result * factors[j] + bias[j];
                    }
                    results[i][j] = result;
                }
                let at = token + i as u32 * step;
                if at < self.end {
                    let place = [self.tile.token + at, self.n];
                    let element = epilogue::element(to, problem, self.tile.batch, place);
                    // SAFETY: all eight exist, aligned.
                    unsafe { store_aligned(to.out, element, to.out_type, &results[i]) };
                }
            }
            token += step * BATCH as u32;
        }
    }
}

/// Stores eight results at element `element` of `out`.
///
/// # Safety
/// They exist, at a multiple of 16 bytes.
#[inline(always)]
unsafe fn store_aligned(out: u64, element: u64, out_type: u32, results: &[f32; COLUMNS]) {
    if out_type == FloatType::F32 as u32 {
        let address = out + element * u64::from(FloatType::F32.bytes());
        let bits = |first: usize| core::array::from_fn(|j| results[first + j].to_bits());
        // SAFETY: the caller's.
        unsafe {
            words::st_global_v4_b32(address, bits(0));
            words::st_global_v4_b32(address + 16, bits(4));
        }
        return;
    }
    let address = out + element * u64::from(FloatType::F16.bytes());
    let pairs = if out_type == FloatType::Bf16 as u32 {
        core::array::from_fn(|j| convert::cvt_rn_bf16x2_f32(results[2 * j + 1], results[2 * j]))
    } else {
        core::array::from_fn(|j| convert::cvt_rn_f16x2_f32(results[2 * j + 1], results[2 * j]))
    };
    // SAFETY: the caller's.
    unsafe { words::st_global_v4_b32(address, pairs) };
}
