//! Grouped products: problems with their own token counts, which only the device knows.
//!
//! All problems of a launch have N, K and all types in common. The host knows only an upper bound of
//! the tokens. It chooses the grid, and the kernel assigns the work to CTAs.
//!
//! ```text
//! counts in memory --Table, once per CTA--> first token tile of each problem
//! CTA --EvenRuns--> (tile number, K steps) --row_tiles--> (token tile of all, row tile)
//!     --Table--> (problem, token tile, row tile)
//! ```
//!
//! # Token counts
//! | [`Groups::slot`] | `counts` | problem `p` has |
//! |---|---|---|
//! | 0 | `[problems + 1]` offsets | tokens `counts[p]..counts[p + 1]` of one matrix of [`Groups::bound`] tokens |
//! | S | `[problems]` counts | the first `counts[p]` of the S tokens of matrix `p` |
//! | 1, ids [given](Groups::chosen) | `[problems]` ids of experts | the one token of matrix `p`, if expert `counts[p]` is on this device, whose weights, factors and bias it has; otherwise none |
//!
//! All are i32. Ids may have any value. Offsets may not decrease, begin below 0 or end beyond the bound; counts may
//! not be negative or exceed the slot. If they do, nothing is multiplied: the status word becomes
//! [`STATUS_BAD_COUNTS`], and all results become NaN, so that nobody takes memory's old contents for results.

use super::next::NextWeights;
use super::work::TokenRange;
use crate::Divisor;
use crate::layout::TILE_ROWS;
use crate::moe::Chosen;
use crate::params::blocks;

/// The most problems of a launch: a CTA keeps two words for each in shared memory.
pub const MAX_PROBLEMS: u32 = 1024;

/// Bytes of a CTA's table in shared memory: the number of tiles; the CTA's [`OwnRun`]; for each
/// problem, the number of token tiles before it; the token counts, of which there may be one more.
pub const TABLE_BYTES: u32 =
    (1 + MAX_PROBLEMS + MAX_PROBLEMS + 1) * size_of::<u32>() as u32 + size_of::<OwnRun>() as u32;

/// The status word of a kernel whose token counts are not what [`groups`](self) asks.
pub const STATUS_BAD_COUNTS: u32 = 1;

/// The problems of a launch. Pointers are device addresses, 0 if absent.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Groups {
    /// Token counts, i32.
    pub counts: u64,
    /// Address of the status word, u32, which is left alone if the counts are good.
    pub status: u64,
    /// Factors of each half's sums for each problem, f32: of a gated product, of the gate and of the
    /// other half; of another one, the first. All of a half are multiplied.
    pub factors: [[u64; 2]; 2],
    /// Weights that the stream's next product reads, for the same groups and tokens. Only kernels of sm_90a [that
    /// prefetch](crate::gemm::sm90::config::Sm90Config::prefetches_next) look at them.
    pub next: NextWeights,
    /// The number of problems, at most [`MAX_PROBLEMS`].
    pub problems: u32,
    /// Tokens of a matrix that only one problem has; 0 if all share one matrix.
    pub slot: u32,
    /// Tokens of all matrices together.
    pub bound: u32,
    /// Elements from one problem's column factors, or bias, to the next one's; 0 if all share them.
    pub vector_stride: u32,
    /// Not 0 if no kernel that may still run writes the counts: they are read, and weights copied,
    /// before the kernels before have ended.
    pub settled: u32,
    /// Whether the counts are ids.
    pub chosen: Chosen,
    /// Tiles along the rows of `B`.
    pub row_tiles: Divisor,
    /// The division of K steps among CTAs.
    pub runs: EvenRuns,
}

/// Parameter block of kernels of grouped products, whose other kernels take `P`; passed by value.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct GroupedParams<P> {
    /// The parameters that all kernels take. In the problem, M is the tokens of a matrix and L the number of
    /// matrices. Factors and bias are the first problem's.
    pub gemm: P,
    /// The problems.
    pub groups: Groups,
}

impl Groups {
    /// Offsets or counts in memory.
    #[inline(always)]
    pub const fn counts_len(&self) -> u32 {
        if self.slot == 0 { self.problems + 1 } else { self.problems }
    }

    /// Returns the tokens of a problem whose count, or offset, is the first of these, and the next
    /// one's the second; `None` if they are bad.
    #[inline(always)]
    pub const fn tokens(&self, [own, next]: [i32; 2]) -> Option<u32> {
        if self.chosen.is_given() {
            let experts = &self.chosen.experts;
            return Some((experts.local(own as u32) < experts.count) as u32);
        }
        let (first, end, most) =
            if self.slot == 0 { (own, next, self.bound) } else { (0, own, self.slot) };
        if first < 0 || end < first || end as u32 > most {
            return None;
        }
        Some((end - first) as u32)
    }

    /// Returns the tokens of problem `problem`; `count` reads from the counts. `None` if its own
    /// are bad.
    #[inline(always)]
    pub fn range(&self, problem: u32, count: impl Fn(u32) -> i32) -> Option<TokenRange> {
        if self.slot == 0 {
            let own = [count(problem), count(problem + 1)];
            let tokens = self.tokens(own)?;
            let rows = count(self.problems) as u32;
            Some(TokenRange { matrix: 0, first: own[0] as u32, count: tokens, rows })
        } else {
            let tokens = self.tokens([count(problem), 0])?;
            Some(TokenRange { matrix: problem, first: 0, count: tokens, rows: tokens })
        }
    }

    /// Returns the number of the weights, factors and bias of problem `problem`, which has a token;
    /// `count` is as for [`range`](Self::range).
    #[inline(always)]
    pub fn weights(&self, problem: u32, count: impl Fn(u32) -> i32) -> u32 {
        if self.chosen.is_given() {
            return self.chosen.experts.local(count(problem) as u32);
        }
        problem
    }

    /// Returns the problem that token tile `tile` of all belongs to. `before` returns the number of
    /// token tiles before a problem; there are more than `tile`.
    #[inline(always)]
    pub fn problem_of(&self, tile: u32, before: impl Fn(u32) -> u32) -> u32 {
        last_at_most(self.problems, tile, before)
    }

    /// Tile number `index`: its problem and its place there. `before` is as for
    /// [`problem_of`](Self::problem_of).
    #[inline(always)]
    pub fn locate(&self, index: u32, before: impl Fn(u32) -> u32) -> Located {
        let (token_tile, row_tile) = self.row_tiles.divide(index);
        let problem = self.problem_of(token_tile, &before);
        Located { problem, row_tile, token_tile: token_tile - before(problem) }
    }

    /// Returns the first of the 128x4 layout's tiles along rows that have the scales of problem
    /// `problem`'s activations, whose first token is `first`; every problem has separate tiles.
    /// (With offsets a problem has at most one tile more than its tokens fill, and the floor of a
    /// sum is at least that of its terms: so the tiles of two problems never meet.)
    #[inline(always)]
    pub const fn scale_tile(&self, problem: u32, first: u32) -> u32 {
        let rows = TILE_ROWS as u32;
        if self.slot == 0 { first / rows + problem } else { problem * self.slot.div_ceil(rows) }
    }

    /// Returns the number of such tiles.
    pub const fn scale_tiles(&self) -> u64 {
        let rows = TILE_ROWS as u32;
        if self.slot == 0 {
            (self.bound / rows) as u64 + self.problems as u64
        } else {
            self.slot.div_ceil(rows) as u64 * self.problems as u64
        }
    }

    /// Returns the tokens whose scales are in tile `tile` of [`scale_tiles`](Self::scale_tiles):
    /// their matrix, the first one's row there, and their number, which is 0 for tiles that no
    /// token needs and if counts are bad.
    #[inline(always)]
    pub fn scale_rows(&self, tile: u32, count: impl Fn(u32) -> i32) -> ScaleRows {
        let first = |problem| if self.slot == 0 { count(problem) as u32 } else { 0 };
        let problem = self.problem_of(tile, |problem| self.scale_tile(problem, first(problem)));
        let none = ScaleRows { matrix: 0, first: 0, count: 0 };
        let Some(range) = self.range(problem, &count) else { return none };
        let start = self.scale_tile(problem, range.first);
        if tile < start {
            return none;
        }
        let skipped = (tile - start) * TILE_ROWS as u32;
        ScaleRows {
            matrix: range.matrix,
            first: range.first + skipped,
            count: range.count.saturating_sub(skipped).min(TILE_ROWS as u32),
        }
    }

    /// The most token tiles of all problems, of `tile_tokens` tokens each.
    pub const fn most_token_tiles(&self, tile_tokens: u32) -> u64 {
        if self.slot == 0 {
            // A problem of c tokens has less than c / t + 1 tiles, and one that has none has no
            // tile.
            let last = if self.problems < self.bound { self.problems } else { self.bound };
            (self.bound / tile_tokens) as u64 + last as u64
        } else {
            self.slot.div_ceil(tile_tokens) as u64 * self.problems as u64
        }
    }
}

/// Returns the last index below `count` whose `value`, which does not decrease, is at most `most`; 0 if
/// there is none.
#[inline(always)]
pub fn last_at_most(count: u32, most: u32, value: impl Fn(u32) -> u32) -> u32 {
    let (mut low, mut high) = (0, count);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if value(middle) <= most { low = middle } else { high = middle }
    }
    low
}

/// Tokens whose scales are in one tile of the 128x4 layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleRows {
    /// Their matrix.
    pub matrix: u32,
    /// Row of the first one in it; arbitrary without tokens.
    pub first: u32,
    /// The number of tokens.
    pub count: u32,
}

/// The place of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// Its problem.
    pub problem: u32,
    /// Index of the tile along the rows of `B`.
    pub row_tile: u32,
    /// Index of the tile along the problem's tokens.
    pub token_tile: u32,
}

/// The division of a problem's tokens into tiles: as few as hold them, and no wider than they need
/// be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Tokens that a tile holds, a power of two.
    pub most: u32,
    /// Widths of tiles are multiples of this, a power of two; [`most`](Self::most) if all tiles
    /// have the full width.
    pub unit: u32,
    /// A narrower tile takes as long as one of this width.
    pub floor: u32,
    /// The cost of a step in tokens besides the tile's width: a step takes as long as `fixed`
    /// tokens, and one for each token that the tile has room for.
    pub fixed: u32,
    /// Whether CTAs take even runs if whole tiles would take longer by more than a fix-up.
    pub is_cut: bool,
}

impl Tiling {
    /// Tiles that all have room for `tokens` tokens.
    pub const fn of(tokens: u32) -> Self {
        Self { most: tokens, unit: tokens, floor: tokens, fixed: 0, is_cut: false }
    }

    /// Whether all tiles are equally wide, and a step of each weighs 1.
    #[inline(always)]
    pub const fn is_even(&self) -> bool {
        self.unit == self.most
    }

    /// Tiles of `count` tokens.
    #[inline(always)]
    pub const fn tiles(&self, count: u32) -> u32 {
        count.div_ceil(self.most)
    }

    /// Tokens of each of these tiles but the last, which may have fewer, at least one.
    #[inline(always)]
    pub const fn width(&self, count: u32) -> u32 {
        let tiles = self.tiles(count);
        let spare = tiles * self.most - count;
        let (mut narrower, mut by) = (0, self.most / 2);
        while by >= self.unit {
            if (narrower + by) * tiles <= spare {
                narrower += by;
            }
            by /= 2;
        }
        self.most - narrower
    }

    /// Returns the time of a step of a tile of `width` tokens, in units of tokens.
    #[inline(always)]
    pub const fn weight(&self, width: u32) -> u32 {
        let counted = if width < self.floor { self.floor } else { width };
        (counted + self.fixed) / self.unit
    }

    /// The largest of these weights, at most [`MAX_WEIGHT`].
    pub const fn most_weight(&self) -> u32 {
        self.weight(self.most)
    }
}

/// The most that a step may weigh.
pub const MAX_WEIGHT: u32 = 17;
/// The least that a step weighs where tiles are not equally wide.
pub const LEAST_WEIGHT: u32 = 5;

/// `work` by `weight`, which is one of a [`Tiling`]: 1, or from 5 on up to [`MAX_WEIGHT`].
#[inline(always)]
const fn steps_of(work: u32, weight: u32) -> u32 {
    // A division by a constant is a multiplication.
    match weight {
        LEAST_WEIGHT => work / LEAST_WEIGHT,
        6 => work / 6,
        7 => work / 7,
        8 => work / 8,
        9 => work / 9,
        10 => work / 10,
        11 => work / 11,
        12 => work / 12,
        13 => work / 13,
        14 => work / 14,
        15 => work / 15,
        16 => work / 16,
        MAX_WEIGHT => work / MAX_WEIGHT,
        _ => work,
    }
}

/// The tiles of some problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// The number of tiles.
    pub tiles: u32,
    /// K steps of all of them, each counted by its [weight](Tiling::weight).
    pub total: u32,
    /// No less than the longest run if tiles are [whole](Shares::InTurn).
    pub longest: u32,
}

/// The work of a CTA: K steps, numbered tile after tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnRun {
    /// First step.
    pub first: u32,
    /// The step after the last.
    pub end: u32,
    /// An even number `i` means tile `base + i * stride`.
    pub base: u32,
    /// The distance between the tiles of two numbers, both even or both odd, over that of the numbers.
    pub stride: u32,
    /// An odd number `i` means tile `turned + i * stride`.
    pub turned: u32,
    /// The first CTA that computes steps of the tile in which the run begins.
    pub first_cta: u32,
}

impl OwnRun {
    /// The tile that number `index` means.
    #[inline(always)]
    pub const fn tile(&self, index: u32) -> u32 {
        index * self.stride + if index.is_multiple_of(2) { self.base } else { self.turned }
    }
}

/// The division of tiles among CTAs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shares {
    /// CTAs take whole tiles in turn, in every other round the last CTA first, so that nobody has to add up sums,
    /// and neighbouring tiles, which have operands in common, are computed at the same time. If the heaviest
    /// tiles come first, the CTA that had the heaviest one of a round has the lightest one of the next.
    InTurn,
    /// Each CTA has so much of the work, wherever tiles end: stream-K
    /// ([`schedule`](super::schedule)).
    Even(u32),
}

/// The K steps of all tiles in runs that take equally long, one for each CTA, for tiles that only
/// the kernel knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct EvenRuns {
    /// CTAs of the launch, all resident at a time.
    pub ctas: Divisor,
    /// Steps of a tile.
    pub tile: Divisor,
    /// The least work of a run, but for the last one: shorter ones would cost more to add up than
    /// they save. No less than a step weighs.
    pub least: u32,
    /// Work by which the longest run may exceed an even one if tiles are then
    /// [whole](Shares::InTurn). If tiles are not [cut](Tiling::is_cut), it may exceed it by a
    /// sixteenth.
    pub slack: u32,
}

impl EvenRuns {
    /// The largest deviation of a CTA's even run from its part, as one in so many.
    const UNEVEN: u32 = 16;
    /// Rounds of whole tiles whose longest run is found, not bounded.
    const ROUNDS: u32 = 8;

    /// Divides `work`; `is_cut` is the [tiling's](Tiling::is_cut). The total of the work and its tiles, with
    /// the CTAs added, are below [`Divisor::DIVIDENDS`].
    #[inline(always)]
    pub const fn shares(&self, work: &Work, is_cut: bool) -> Shares {
        let even = self.ctas.div_ceil(work.total);
        let even = if even < self.least { self.least } else { even };
        let each = self.ctas.div_ceil(work.tiles);
        let part = if is_cut { 0 } else { even / Self::UNEVEN };
        let spare = if self.slack < part { part } else { self.slack };
        if each > Self::UNEVEN || work.longest <= even + spare {
            Shares::InTurn
        } else {
            Shares::Even(even)
        }
    }

    /// Returns an upper bound of the longest run of whole tiles, among `tiles` whose steps weigh up
    /// to `most`.
    #[inline(always)]
    pub const fn longest_of(&self, tiles: u32, most: u32) -> u32 {
        self.ctas.div_ceil(tiles) * self.tile.value() * most
    }

    /// Returns the tile of CTA `cta` in round `round` if tiles are taken [in turn](Shares::InTurn).
    #[inline(always)]
    pub const fn turn(&self, cta: u32, round: u32) -> u32 {
        let ctas = self.ctas.value();
        round * ctas + if round.is_multiple_of(2) { cta } else { ctas - 1 - cta }
    }

    /// The CTA that takes tile `tile`.
    #[inline(always)]
    pub const fn taker(&self, tile: u32) -> u32 {
        let (round, at) = self.ctas.divide(tile);
        if round.is_multiple_of(2) { at } else { self.ctas.value() - 1 - at }
    }

    /// Whether tiles are so few that the longest run of whole ones is [found](Self::longest_near).
    #[inline(always)]
    pub const fn is_found(&self, tiles: u32) -> bool {
        tiles > 0 && self.ctas.div_ceil(tiles) <= Self::ROUNDS
    }

    /// Returns the longest of three runs of whole tiles: the one of the CTA that takes tile `first`, the one
    /// of the CTA that takes tile `last`, and the last CTA's. The work of a run differs from its neighbour's
    /// only at the boundaries of weights, so the longest run of all is the longest that this finds with the
    /// first and the last tile of each problem. `weights` returns the weight of a step of each of three
    /// tiles. There are `tiles` tiles, for which [`is_found`](Self::is_found) holds.
    #[inline(always)]
    pub fn longest_near(
        &self,
        tiles: u32,
        [first, last]: [u32; 2],
        weights: impl Fn([u32; 3]) -> [u32; 3],
    ) -> u32 {
        let ctas = [self.taker(first), self.taker(last), self.ctas.value() - 1];
        let (mut work, mut round) = ([0; 3], 0);
        while round * self.ctas.value() < tiles {
            let own = ctas.map(|cta| self.turn(cta, round));
            let found = weights(own.map(|tile| if tile < tiles { tile } else { 0 }));
            for i in 0..ctas.len() {
                work[i] += if own[i] < tiles { found[i] } else { 0 };
            }
            round += 1;
        }
        let [a, b, c] = work;
        a.max(b).max(c) * self.tile.value()
    }

    /// Returns the number of tiles of CTA `cta` if `tiles` tiles are taken [in
    /// turn](Shares::InTurn).
    #[inline(always)]
    const fn own_tiles(&self, tiles: u32, cta: u32) -> u32 {
        let rounds = self.ctas.divide(tiles).0;
        rounds + if self.turn(cta, rounds) < tiles { 1 } else { 0 }
    }

    /// Returns the tile that CTA `cta` begins with, its last one, if `tiles` tiles are taken [in
    /// turn](Shares::InTurn).
    #[inline(always)]
    pub const fn begins_with(&self, tiles: u32, cta: u32) -> Option<u32> {
        match self.own_tiles(tiles, cta) {
            0 => None,
            own => Some(self.turn(cta, own - 1)),
        }
    }

    /// Returns the work of CTA `cta` if tiles are taken [in turn](Shares::InTurn).
    #[inline(always)]
    pub const fn in_turn(&self, work: &Work, cta: u32) -> OwnRun {
        let stride = self.ctas.value();
        let turned = stride - 1 - cta;
        let end = self.own_tiles(work.tiles, cta) * self.tile.value();
        OwnRun { first: 0, end, base: cta, stride, turned, first_cta: cta }
    }

    /// Returns the begin of CTA `cta`'s share; the next CTA's begin is its end.
    #[inline(always)]
    pub const fn boundary(share: u32, work: &Work, cta: u32) -> u32 {
        let start = cta.saturating_mul(share);
        if start < work.total { start } else { work.total }
    }

    /// The step at which a share begins, and the first CTA that computes steps of its tile. The
    /// boundary of CTA `cta` is in a problem with this `weight`; before that there is work `before`,
    /// of `steps` steps.
    #[inline(always)]
    pub const fn begin(
        &self,
        share: u32,
        cta: u32,
        boundary: u32,
        [before, steps, weight]: [u32; 3],
    ) -> (u32, u32) {
        let own = steps_of(boundary - before, weight);
        let tile = before + self.tile.divide(own).0 * self.tile.value() * weight;
        let mut first_cta = cta;
        // A CTA has steps of the tile if the next one's share begins behind its first step.
        while first_cta > 0 && first_cta * share >= tile + weight {
            first_cta -= 1;
        }
        (steps + own, first_cta)
    }
}

blocks! {
    EvenRuns { ctas, tile, least, slack }
    Groups {
        counts, status, factors, next, problems, slot, bound, vector_stride, settled, chosen, row_tiles, runs
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::moe::Experts;
    use std::vec;
    use std::vec::Vec;

    fn groups(problems: u32, slot: u32, bound: u32) -> Groups {
        Groups {
            counts: 0x0102_0304_0506_0708,
            status: 2,
            factors: [[3, 8], [9, 10]],
            next: NextWeights { weights: 15, bytes: 16, ..NextWeights::NONE },
            problems,
            slot,
            bound,
            vector_stride: 5,
            settled: 14,
            chosen: Chosen::NONE,
            row_tiles: Divisor::nearest(3),
            runs: EvenRuns {
                ctas: Divisor::nearest(7),
                tile: Divisor::nearest(5),
                least: 4,
                slack: 6,
            },
        }
    }

    /// Every tile of every problem has one number, also if problems are empty.
    #[test]
    fn tiles_are_numbered() {
        const TOKENS: u32 = 16;
        let all = [&[5u32, 0, 0, 33, 16, 1, 0][..], &[0, 7], &[40, 40, 40], &[1], &[0, 0, 3]];
        for counts in all {
            let total: u32 = counts.iter().sum();
            let groups = groups(counts.len() as u32, 0, total);
            let offset = |at: u32| counts[..at as usize].iter().sum::<u32>() as i32;
            let mut before = vec![0];
            let mut expected = Vec::new();
            for problem in 0..groups.problems {
                let range = groups.range(problem, offset).unwrap();
                assert_eq!(range.count, counts[problem as usize]);
                let tiles = range.count.div_ceil(TOKENS);
                for token_tile in 0..tiles {
                    for row_tile in 0..3 {
                        expected.push(Located { problem, row_tile, token_tile });
                    }
                }
                before.push(before.last().unwrap() + tiles);
            }
            let tiles = *before.last().unwrap();
            assert!(u64::from(tiles) <= groups.most_token_tiles(TOKENS));
            let located: Vec<_> = (0..3 * tiles)
                .map(|index| groups.locate(index, |problem| before[problem as usize]))
                .collect();
            assert_eq!(located, expected);
        }
    }

    #[test]
    fn bad_counts_are_no_range() {
        let contiguous = groups(2, 0, 50);
        for offsets in [[-1, 3, 5], [0, 30, 10], [0, 30, 51], [0, i32::MAX, 5], [i32::MIN, 0, 1]] {
            let good = |problem| contiguous.range(problem, |at| offsets[at as usize]).is_some();
            assert!(!good(0) || !good(1), "{offsets:?}");
        }
        let slots = groups(2, 8, 16);
        let range = |count| slots.range(1, |_| count);
        assert_eq!([-1, 9, i32::MIN].map(range), [None; 3]);
        assert_eq!(range(8), Some(TokenRange { matrix: 1, first: 0, count: 8, rows: 8 }));
        assert_eq!(slots.most_token_tiles(3), 6);
    }

    /// A choice has its expert's weights and a token, if the expert is here.
    #[test]
    fn choices_have_experts() {
        const IDS: [i32; 7] = [4, 7, 3, 9, -2, 20, 5];
        let chosen = Chosen::of(Experts { all: 10, first: 4, count: 4 });
        let groups = Groups { chosen, ..groups(IDS.len() as u32, 1, IDS.len() as u32) };
        let id = |at: u32| IDS[at as usize];
        for (problem, expert) in (0..).zip([Some(0), Some(3), None, None, None, None, Some(1)]) {
            let count = u32::from(expert.is_some());
            let right = TokenRange { matrix: problem, first: 0, count, rows: count };
            assert_eq!(groups.range(problem, id), Some(right));
            if let Some(expert) = expert {
                assert_eq!(groups.weights(problem, id), expert);
            }
        }
        assert_eq!(groups.counts_len(), groups.problems);
        assert_eq!(Groups { chosen: Chosen::NONE, ..groups }.weights(6, id), 6);
    }

    /// Every token's scales are in one tile, those of two problems never in the same, and a problem's
    /// tiles follow each other.
    #[test]
    fn scales_are_in_tiles_of_their_own() {
        let all = [&[5u32, 0, 0, 128, 300, 1, 0][..], &[127, 129], &[0, 0, 256], &[1], &[128; 4]];
        for (counts, slot) in all.into_iter().flat_map(|counts| [(counts, 0), (counts, 300)]) {
            let total: u32 =
                if slot == 0 { counts.iter().sum() } else { slot * counts.len() as u32 };
            let groups = groups(counts.len() as u32, slot, total + 7);
            let offset = |at: u32| counts[..at as usize].iter().sum::<u32>() as i32;
            let count = |at: u32| if slot == 0 { offset(at) } else { counts[at as usize] as i32 };
            let mut expected = Vec::new();
            for (problem, &tokens) in (0..).zip(counts) {
                let range = groups.range(problem, count).unwrap();
                let start = groups.scale_tile(problem, range.first);
                for index in 0..tokens.div_ceil(128) {
                    expected.push((start + index, range.matrix, range.first + 128 * index));
                }
            }
            let tiles = groups.scale_tiles() as u32;
            let found = (0..tiles).map(|tile| (tile, groups.scale_rows(tile, count)));
            let found: Vec<_> = found.filter(|(_, rows)| rows.count > 0).collect();
            let places: Vec<_> =
                found.iter().map(|(t, rows)| (*t, rows.matrix, rows.first)).collect();
            assert_eq!(places, expected, "{counts:?} {slot}");
            let rows: u32 = found.iter().map(|(_, rows)| rows.count).sum();
            assert_eq!(rows, counts.iter().sum::<u32>());
        }
    }

    /// Bad counts give no tile tokens outside the matrices.
    #[test]
    fn bad_counts_have_no_scales_outside() {
        for offsets in
            [[-1, 300, 5], [200, 300, 10], [0, 30, 501], [0, i32::MAX, 5], [i32::MIN, 0, 1]]
        {
            let groups = groups(2, 0, 500);
            for tile in 0..groups.scale_tiles() as u32 {
                let rows = groups.scale_rows(tile, |at| offsets[at as usize]);
                assert!(rows.count == 0 || rows.first + rows.count <= 500, "{offsets:?} {rows:?}");
            }
        }
    }

    /// Tiles hold all tokens of a problem, none is empty, and they are no wider than need be.
    #[test]
    fn widths_are_even() {
        let narrow = Tiling { most: 128, unit: 16, floor: 96, fixed: 128, is_cut: false };
        for count in 1..2000u32 {
            let (tiles, width) = (narrow.tiles(count), narrow.width(count));
            assert!(tiles == count.div_ceil(128) && width.is_multiple_of(16) && width <= 128);
            assert!(tiles * width >= count && (tiles - 1) * width < count, "{count}: {width}");
            assert!(width == 16 || tiles * (width - 16) < count, "{count}: {width}");
            assert_eq!(narrow.weight(width), 8 + width.max(96) / 16);
            let full = Tiling::of(64);
            assert_eq!([full.tiles(count), full.width(count)], [count.div_ceil(64), 64]);
            assert_eq!([full.weight(64), full.most_weight()], [1, 1]);
        }
        assert_eq!([176, 320, 80, 1, 129].map(|count| narrow.width(count)), [96, 112, 80, 16, 80]);
        let wide = Tiling { most: 256, unit: 16, floor: 64, fixed: 16, is_cut: false };
        for work in 0..1000 {
            for weight in [1].into_iter().chain(5..=MAX_WEIGHT) {
                assert_eq!(steps_of(work, weight), work / weight);
            }
        }
        for count in 1..600 {
            assert!((5..=MAX_WEIGHT).contains(&wide.weight(wide.width(count))), "{count}");
            assert!((14..=16).contains(&narrow.weight(narrow.width(count))), "{count}");
        }
    }

    fn even_runs(ctas: u32, steps: u32) -> EvenRuns {
        let (ctas, tile) = (Divisor::nearest(ctas), Divisor::nearest(steps));
        EvenRuns { ctas, tile, least: 1, slack: 0 }
    }

    /// Turns give each tile to one CTA, and every other round goes the other way.
    #[test]
    fn turns() {
        for (ctas, tiles) in [1, 2, 7, 66].into_iter().flat_map(|c| (0..150).map(move |t| (c, t))) {
            let runs = even_runs(ctas, 5);
            let work = Work { tiles, total: tiles * 5, longest: 0 };
            let mut takers = vec![u32::MAX; tiles as usize];
            for cta in 0..ctas {
                let own = runs.in_turn(&work, cta);
                assert_eq!([own.first, own.end % 5, own.first_cta], [0, 0, cta]);
                let last = (own.end / 5).checked_sub(1);
                assert_eq!(runs.begins_with(tiles, cta), last.map(|round| own.tile(round)));
                for round in 0..own.end / 5 {
                    let tile = own.tile(round);
                    assert_eq!([tile, cta], [runs.turn(cta, round), runs.taker(tile)]);
                    assert_eq!(core::mem::replace(&mut takers[tile as usize], cta), u32::MAX);
                }
            }
            assert!(takers.iter().all(|cta| *cta != u32::MAX), "{tiles} for {ctas}");
        }
        let runs = even_runs(3, 1);
        assert_eq!([0, 1, 2, 3].map(|round| runs.turn(0, round)), [0, 5, 6, 11]);
    }

    /// The longest run of whole tiles is that of a CTA next to a boundary of weights.
    #[test]
    fn longest_runs_are_found() {
        let mut seed = 7u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % below
        };
        let mut found = 0;
        for _ in 0..3000 {
            let (ctas, rows, problems) = (1 + random(20), 1 + random(6), 1 + random(9));
            let runs = even_runs(ctas, 4);
            // Token tiles and weight of each problem, the heaviest first.
            let mut classes: Vec<_> =
                (0..problems).map(|_| (random(MAX_WEIGHT) + 1, random(4))).collect();
            classes.sort_by_key(|(weight, _)| core::cmp::Reverse(*weight));
            let weights: Vec<u32> = classes
                .iter()
                .flat_map(|(weight, tiles)| vec![*weight; (tiles * rows) as usize])
                .collect();
            let tiles = weights.len() as u32;
            if !runs.is_found(tiles) {
                continue;
            }
            found += 1;
            let weight = |tile: u32| weights[tile as usize];
            let work_of = |cta| {
                let turns = (0..).map(|round| runs.turn(cta, round));
                4 * turns.take_while(|tile| *tile < tiles).map(weight).sum::<u32>()
            };
            let longest = (0..ctas).map(work_of).max().unwrap();
            let mut before = 0;
            let near = classes.iter().map(|(_, own)| {
                let first = (before * rows).min(tiles - 1);
                before += own;
                let last = (before * rows).max(1) - 1;
                runs.longest_near(tiles, [first, last], |tiles| tiles.map(weight))
            });
            assert_eq!(near.max().unwrap(), longest, "{classes:?}, {rows} rows, {ctas} CTAs");
            let most = classes.iter().map(|(weight, _)| *weight).max().unwrap();
            assert!(longest <= runs.longest_of(tiles, most));
        }
        assert!(found > 1000, "{found}");
    }

    /// Every step is in one run, runs take equally long or are whole tiles, and the first CTA of a
    /// tile is found.
    #[test]
    fn runs_are_even() {
        const STEPS: u32 = 6;
        let narrow = Tiling { most: 128, unit: 16, floor: 96, fixed: 128, is_cut: false };
        let few = vec![5u32, 0, 176, 128, 300, 0];
        let all = [vec![], vec![0, 0], vec![1], few, vec![80; 40], (0..300).collect()];
        for (counts, ctas, [rows, is_cut]) in all.iter().flat_map(|counts| {
            [1, 2, 7, 132].into_iter().flat_map(move |ctas| {
                [[1, 0], [3, 0], [1, 1], [3, 1]].map(move |options| (counts, ctas, options))
            })
        }) {
            let is_cut = is_cut == 1;
            let least = 2 * narrow.most_weight();
            let runs = EvenRuns {
                ctas: Divisor::nearest(ctas),
                tile: Divisor::nearest(STEPS),
                least,
                slack: 8,
            };
            // Each problem: work and steps before it, its weight, its work.
            let mut problems = vec![];
            let (mut work, mut most) = (Work { tiles: 0, total: 0, longest: 0 }, 1);
            for &count in counts.iter().filter(|count| **count > 0) {
                let weight = narrow.weight(narrow.width(count));
                let steps = narrow.tiles(count) * rows * STEPS;
                problems.push(([work.total, work.tiles * STEPS, weight], steps * weight));
                work.tiles += narrow.tiles(count) * rows;
                work.total += steps * weight;
                most = most.max(weight);
            }
            work.longest = runs.longest_of(work.tiles, most);
            let weight_of = |step: u32| {
                let problem = problems.iter().rev().find(|([_, before, _], _)| *before <= step);
                problem.map(|([_, _, weight], _)| *weight).unwrap()
            };
            let shares = runs.shares(&work, is_cut);
            let mut owners = vec![u32::MAX; (work.tiles * STEPS) as usize];
            let mut begins = vec![];
            for cta in 0..ctas {
                let own = match shares {
                    Shares::InTurn => runs.in_turn(&work, cta),
                    Shares::Even(share) => {
                        let find = |of| {
                            let at = EvenRuns::boundary(share, &work, of);
                            let found = problems
                                .iter()
                                .find(|([before, ..], own)| (*before..before + own).contains(&at));
                            match found {
                                Some((place, _)) => runs.begin(share, of, at, *place),
                                None => (work.tiles * STEPS, of),
                            }
                        };
                        let ((first, first_cta), (end, _)) = (find(cta), find(cta + 1));
                        OwnRun { first, end, base: 0, stride: 1, turned: 0, first_cta }
                    }
                };
                let mut took = 0;
                for step in own.first..own.end {
                    let tile = own.tile(step / STEPS);
                    let step = tile * STEPS + step % STEPS;
                    assert_eq!(core::mem::replace(&mut owners[step as usize], cta), u32::MAX);
                    took += weight_of(step);
                }
                begins.push((own.first, own.first_cta));
                if let Shares::Even(share) = shares {
                    assert!(took <= share + most, "{took} of {share}");
                    assert!(share >= least && share <= least.max(work.total / ctas + 1));
                    let is_last = own.end == work.tiles * STEPS;
                    assert!(is_last || took + most > share, "{took} of {share}");
                } else {
                    let even = (work.total / ctas).max(least);
                    let short =
                        work.longest <= even + 1 + if is_cut { 8 } else { (even / 16).max(8) };
                    assert!(short || work.tiles > 16 * ctas);
                }
            }
            assert!(owners.iter().all(|cta| *cta != u32::MAX), "{shares:?}");
            if let Shares::Even(_) = shares {
                for (first, first_cta) in begins.into_iter().filter(|(first, _)| first % STEPS > 0)
                {
                    assert_eq!(owners[(first / STEPS * STEPS) as usize], first_cta);
                }
            }
        }
    }
}
