//! Grouped products: which tiles there are, from token counts in memory. Both architectures share
//! this; the contract is [`fp4_formats::gemm::groups`].
//!
//! | function | who | when |
//! |---|---|---|
//! | [`make`](GroupTable::make) | one warp of each CTA | at the start; behind the kernels before, unless the counts are settled |
//! | [`tiles`](GroupTable::tiles), [`own`](GroupTable::own), [`tile`](GroupTable::tile) | any thread | behind a barrier after that |
//! | [`refuse`](GroupTable::refuse) | the storing threads of all CTAs | behind that barrier |
//! | [`alpha`](GroupTable::alpha), [`vectors`](GroupTable::vectors) | storing threads | for each tile |
//!
//! The table in shared memory has a word for the number of tiles; which work is this CTA's; for each
//! problem, how many token tiles precede it; and a copy of the token counts, so that nobody waits for
//! memory at every tile.

mod even;
mod make;

use cuda_std::ptx::{bulk, memory};
use cuda_std::warp;
use fp4_formats::gemm::groups::{Groups, Located, MAX_PROBLEMS, OwnRun, STATUS_BAD_COUNTS};
use fp4_formats::gemm::work::{Tile, TokenRange};
use fp4_formats::gemm::{Affine, Epilogue, Problem, Sink};

use super::epilogue::combine::affine_of;
use super::epilogue::{affine, nan};
use crate::pipeline;

/// Bytes of a word, of a factor and of a column factor.
const WORD: u32 = size_of::<u32>() as u32;
/// Problems that a lane handles at once if each is little work, and counts that it loads at once.
const AHEAD: usize = 8;
/// Stands for the number of tiles if token counts are bad.
const BAD: u32 = u32::MAX;
/// Offsets in the table of the CTA's run, and of the number of token tiles that precede the first
/// problem.
const RUN: u32 = WORD;
const PLACES: u32 = RUN + size_of::<OwnRun>() as u32;

/// The groups of a launch, and the shared address of a CTA's table of them.
#[derive(Clone, Copy)]
pub struct GroupTable<'a> {
    /// The groups.
    pub groups: &'a Groups,
    /// Shared address of the table.
    pub table: u32,
    /// Whether the tiles of up to a warp's lanes of problems are numbered by weight, the heaviest first,
    /// so that whole tiles in turn come closest to even runs.
    pub sorts: bool,
}

impl GroupTable<'_> {
    /// Reports bad counts, and makes all results of `sizes`, the product's, NaN. `thread` is this
    /// thread's number of `threads`, `cta` this CTA's.
    ///
    /// # Safety
    /// All of these threads of all CTAs call it.
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
        // The kernels before may use the memory of the result.
        pipeline::follow_stream();
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

    /// Brings to L2 the first weights that CTA `cta` of the next launch copies. They are a guess: its tiles have as
    /// many rows and tokens as this launch's, and its CTAs are as many and take them in turn.
    ///
    /// # Safety
    /// One thread; there is a next product.
    #[inline(always)]
    pub unsafe fn prefetch_for(self, cta: u32) {
        let next = &self.groups.next;
        let token_tiles = self.groups.row_tiles.divide(self.tiles()).0;
        let tiles = token_tiles * next.row_tiles.value();
        if let Some(tile) = self.groups.runs.begins_with(tiles, cta) {
            let (token_tile, row_tile) = next.row_tiles.divide(tile);
            let place = self.groups.problem_of(token_tile, |place| self.before(place));
            let from = next.address(self.weights(self.problem(place)), row_tile);
            // SAFETY: weights of one of the problems.
            unsafe { bulk::cp_async_bulk_prefetch_l2_global(from, next.bytes) };
        }
    }

    /// Returns the number of tiles; 0 if counts are bad.
    #[inline(always)]
    pub fn tiles(self) -> u32 {
        // SAFETY: the table is made.
        match unsafe { memory::ld_shared_b32(self.table) } {
            BAD => 0,
            tiles => tiles,
        }
    }

    /// Returns this CTA's run, if the table was made with runs. Unused words are not loaded.
    #[inline(always)]
    pub fn own(self) -> OwnRun {
        // SAFETY: the table is made, with runs.
        let word = |at: u32| unsafe { memory::ld_shared_b32(self.table + RUN + at * WORD) };
        OwnRun {
            first: word(0),
            end: word(1),
            base: word(2),
            stride: word(3),
            turned: word(4),
            first_cta: word(5),
        }
    }

    /// Tile number `index`.
    #[inline(always)]
    pub fn tile(self, index: u32) -> Tile {
        let at = self.groups.locate(index, |place| self.before(place));
        let at = Located { problem: self.problem(at.problem), ..at };
        // Bad counts leave no tile.
        let none = TokenRange { matrix: 0, first: 0, count: 0, rows: 0 };
        let tokens = self.groups.range(at.problem, |at| self.count(at)).unwrap_or(none);
        let problem = self.weights(at.problem);
        Tile { problem, row_tile: at.row_tile, token_tile: at.token_tile, tokens }
    }

    /// Returns the number of the weights of problem `problem`, which has a token.
    #[inline(always)]
    fn weights(self, problem: u32) -> u32 {
        self.groups.weights(problem, |at| self.count(at))
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

    /// Returns the vectors of problem `problem`; `affine` has the first problem's.
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

    /// Returns the table's address of the number of token tiles that precede the problem in place
    /// `place` of their order.
    #[inline(always)]
    fn place(self, place: u32) -> u32 {
        self.table + PLACES + place * WORD
    }

    /// Returns the number of token tiles before the problem in place `place`.
    #[inline(always)]
    fn before(self, place: u32) -> u32 {
        // SAFETY: the table is made, and has a word for each problem.
        unsafe { memory::ld_shared_b32(self.place(place)) }
    }

    /// Whether problems are in the order of their weights.
    #[inline(always)]
    fn is_sorted(self) -> bool {
        self.sorts && self.groups.problems <= warp::LANES
    }

    /// Returns the table's address of the problem in place `place`, and of its weight. Few problems
    /// leave this room.
    #[inline(always)]
    fn ordered(self, place: u32) -> u32 {
        const { assert!(warp::LANES * 2 < MAX_PROBLEMS) };
        self.place(MAX_PROBLEMS + place)
    }

    /// Returns the problem in place `place`, and the weight of a step of its tiles, if problems are
    /// sorted.
    #[inline(always)]
    fn order(self, place: u32) -> (u32, u32) {
        // SAFETY: the order is in the table.
        let word = unsafe { memory::ld_shared_b32(self.ordered(place)) };
        (word % MAX_PROBLEMS, word / MAX_PROBLEMS)
    }

    /// The problem in place `place`.
    #[inline(always)]
    fn problem(self, place: u32) -> u32 {
        if self.is_sorted() { self.order(place).0 } else { place }
    }

    /// Returns the table's address of token count number `at`.
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
