//! Grouped products: which tiles there are, from token counts in memory. Both architectures share
//! this; the contract is [`fp4_formats::gemm::groups`].
//!
//! | function | who | when |
//! |---|---|---|
//! | [`make`](GroupTable::make) | one warp of each CTA | at the start, behind the kernels before |
//! | [`total`](GroupTable::total), [`tile`](GroupTable::tile) | any thread | behind a barrier after that |
//! | [`refuse`](GroupTable::refuse) | the storing threads of all CTAs | likewise |
//! | [`affine`](GroupTable::affine), [`vectors`](GroupTable::vectors) | storing threads | for each tile |
//!
//! The table in shared memory has a word for the work of all tiles; for each problem, how many token
//! tiles precede it; and a copy of the token counts, so that nobody waits for memory at every tile.

use cuda_std::ptx::{grid, memory};
use cuda_std::warp;
use fp4_formats::gemm::groups::{Groups, STATUS_BAD_COUNTS};
use fp4_formats::gemm::work::{Tile, TokenRange};
use fp4_formats::gemm::{Affine, Epilogue, Problem, Sink};

use super::epilogue::combine::affine_of;
use super::epilogue::{affine, nan};

/// Bytes of a word, of a factor and of a column factor.
const WORD: u32 = size_of::<u32>() as u32;
/// In place of the work of all tiles, where token counts are bad.
const BAD: u32 = u32::MAX;

/// The groups of a launch, and where a CTA's table of them is.
#[derive(Clone, Copy)]
pub struct GroupTable<'a> {
    /// The groups.
    pub groups: &'a Groups,
    /// Shared address of the table.
    pub table: u32,
}

impl GroupTable<'_> {
    /// Makes the table for tiles of `tokens` tokens, each of which is so many `steps` of work.
    ///
    /// # Safety
    /// One whole warp of the CTA; the other threads use the table behind a barrier.
    #[inline(always)]
    pub unsafe fn make(self, tokens: u32, steps: u32) {
        let lane = warp::lane_id();
        // The kernel before may make the counts.
        grid::griddepcontrol_wait();
        // SAFETY: the warp is whole; the table has a word for each problem and each count.
        unsafe {
            self.copy_counts(lane);
            warp::sync();
            // Each lane has problems that follow each other: one sum over the lanes is enough.
            let each = self.groups.problems.div_ceil(warp::LANES);
            let first = lane * each;
            let end = (first + each).min(self.groups.problems);
            let tiles_of = |problem: u32| {
                let range = self.groups.range(problem, |at| self.count(at));
                range.map(|range| range.count.div_ceil(tokens))
            };
            let (mut tiles, mut bad) = (0, 0);
            for problem in first..end {
                match tiles_of(problem) {
                    Some(own) => tiles += own,
                    None => bad = 1,
                }
            }
            warp::sync();
            let through = warp::prefix_sum_u32(tiles);
            bad = warp::max_u32(bad);
            let mut before = through - tiles;
            for problem in first..end {
                memory::st_shared_b32(self.place(problem), before);
                before += tiles_of(problem).unwrap_or(0);
            }
            if lane == warp::LANES - 1 {
                let total = through * self.groups.row_tiles.value() * steps;
                memory::st_shared_b32(self.table, if bad == 0 { total } else { BAD });
            }
            warp::sync();
        }
    }

    /// Copies a lane's part of the token counts to the table, several at a time.
    ///
    /// # Safety
    /// As [`make`](Self::make), behind the kernels before.
    #[inline(always)]
    unsafe fn copy_counts(self, lane: u32) {
        const AHEAD: usize = 8;
        let counts = self.groups.counts_len();
        let mut at = lane;
        while at < counts {
            let place = |i: usize| at + i as u32 * warp::LANES;
            // SAFETY: the counts are there, and the table has a word for each.
            unsafe {
                let words: [u32; AHEAD] = core::array::from_fn(|i| {
                    if place(i) < counts {
                        memory::ld_global_b32(self.groups.counts + u64::from(place(i) * WORD))
                    } else {
                        0
                    }
                });
                for i in 0..AHEAD {
                    if place(i) < counts {
                        memory::st_shared_b32(self.count_place(place(i)), words[i]);
                    }
                }
            }
            at += AHEAD as u32 * warp::LANES;
        }
    }

    /// Where counts are bad: says so, and makes all results of `sizes`, those of the product, NaN.
    /// `thread` is this thread's number of `threads`, `cta` this CTA's.
    ///
    /// # Safety
    /// All of these threads of all CTAs call it; the preceding kernels of the stream have ended.
    #[inline(always)]
    pub unsafe fn refuse(
        self,
        sink: &Sink,
        sizes: &Problem,
        cta: u32,
        [thread, threads]: [u32; 2],
    ) {
        if !self.is_bad() {
            return;
        }
        // SAFETY: the status word, and elements of the result.
        unsafe {
            if cta == 0 && thread == 0 && self.groups.status != 0 {
                memory::st_global_b32(self.groups.status, STATUS_BAD_COUNTS);
            }
            let result = Problem { n: sink.columns, ..*sizes };
            let ctas = [cta, self.groups.runs.ctas.value()];
            nan::fill(sink, &result, ctas, [thread, threads]);
        }
    }

    /// The work of all tiles; 0 where counts are bad.
    #[inline(always)]
    pub fn total(self) -> u32 {
        // SAFETY: the table is made.
        match unsafe { memory::ld_shared_b32(self.table) } {
            BAD => 0,
            total => total,
        }
    }

    /// Tile number `index`.
    #[inline(always)]
    pub fn tile(self, index: u32) -> Tile {
        let at = self.groups.locate(index, |problem| self.before(problem));
        // Where counts are bad, there is no tile.
        let none = TokenRange { matrix: 0, first: 0, count: 0, rows: 0 };
        let tokens = self.groups.range(at.problem, |at| self.count(at)).unwrap_or(none);
        Tile { problem: at.problem, row_tile: at.row_tile, token_tile: at.token_tile, tokens }
    }

    /// Factors and bias of half `half` of problem `problem`.
    ///
    /// # Safety
    /// There is such a problem.
    #[inline(always)]
    pub unsafe fn affine(self, epilogue: &Epilogue, half: u32, problem: u32) -> Affine {
        let mut affine = affine_of(epilogue, half);
        // SAFETY: the caller's.
        affine.alpha = unsafe { self.alpha(epilogue, half, problem) };
        self.vectors(affine, problem)
    }

    /// Factor of all sums of half `half` of problem `problem`.
    ///
    /// # Safety
    /// There is such a problem.
    #[inline(always)]
    pub unsafe fn alpha(self, epilogue: &Epilogue, half: u32, problem: u32) -> f32 {
        let mut alpha = affine_of(epilogue, half).alpha;
        let [gate, up] = self.groups.factors;
        for factors in if half == 0 { gate } else { up } {
            if factors != 0 {
                // SAFETY: there is a factor for each problem.
                let factor = unsafe { memory::ld_global_b32(factors + u64::from(problem * WORD)) };
                alpha *= f32::from_bits(factor);
            }
        }
        alpha
    }

    /// The vectors of problem `problem`, where `affine` has those of the first.
    #[inline(always)]
    pub fn vectors(self, mut affine: Affine, problem: u32) -> Affine {
        let elements = u64::from(problem) * u64::from(self.groups.vector_stride);
        if affine.column_factors != 0 {
            affine.column_factors += elements * u64::from(WORD);
        }
        if affine.bias != 0 {
            affine.bias += elements * affine::bias_bytes(&affine);
        }
        if affine.row_factors != 0 {
            affine.row_factors += u64::from(problem) * u64::from(self.groups.slot * WORD);
        }
        affine
    }

    /// Whether the token counts are bad.
    #[inline(always)]
    fn is_bad(self) -> bool {
        // SAFETY: the table is made.
        unsafe { memory::ld_shared_b32(self.table) == BAD }
    }

    /// Where the table says how many token tiles precede `problem`.
    #[inline(always)]
    fn place(self, problem: u32) -> u32 {
        self.table + (1 + problem) * WORD
    }

    /// How many token tiles precede `problem`.
    #[inline(always)]
    fn before(self, problem: u32) -> u32 {
        // SAFETY: the table is made, and has a word for each problem.
        unsafe { memory::ld_shared_b32(self.place(problem)) }
    }

    /// Where the table has token count number `at`.
    #[inline(always)]
    fn count_place(self, at: u32) -> u32 {
        self.place(self.groups.problems) + at * WORD
    }

    /// Token count number `at`.
    #[inline(always)]
    fn count(self, at: u32) -> i32 {
        // SAFETY: the counts are in the table; only those that there are are asked for.
        unsafe { memory::ld_shared_b32(self.count_place(at)) as i32 }
    }
}
