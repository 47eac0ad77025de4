//! Grouped products: problems with token counts of their own, which only the device knows.
//!
//! All problems of a launch have N, K and the type of everything in common. The host knows an upper
//! bound of the tokens alone; it chooses the grid, and the kernel finds out which CTA computes what.
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
//!
//! All are i32. Offsets may not decrease, begin below 0 or end beyond the bound; counts may not be
//! negative or exceed the slot. Where they do, nothing is multiplied: the status word becomes
//! [`STATUS_BAD_COUNTS`], and all results become NaN, so that nobody takes memory's old contents
//! for results.

use super::schedule::Run;
use super::work::TokenRange;
use crate::Divisor;
use crate::layout::TILE_ROWS;

/// The most problems of a launch: a CTA keeps two words for each in shared memory.
pub const MAX_PROBLEMS: u32 = 1024;

/// Bytes of a CTA's table in shared memory: the work of all tiles; for each problem, how many token
/// tiles precede it; the token counts.
pub const TABLE_BYTES: u32 = (2 * MAX_PROBLEMS + 2) * size_of::<u32>() as u32;

/// What a kernel writes to the status word where token counts are not what [`groups`](self) asks.
pub const STATUS_BAD_COUNTS: u32 = 1;

/// The problems of a launch. Pointers are device addresses, 0 where there is nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Groups {
    /// Token counts, i32.
    pub counts: u64,
    /// The status word, u32, which is left alone where the counts are good.
    pub status: u64,
    /// Factors of each half's sums for each problem, f32: of a gated product, of the gate and of the
    /// other half; of another one, the first. All of a half are multiplied.
    pub factors: [[u64; 2]; 2],
    /// How many there are, at most [`MAX_PROBLEMS`].
    pub problems: u32,
    /// Tokens of a matrix that only one problem has; 0 where all share one matrix.
    pub slot: u32,
    /// Tokens of all matrices together.
    pub bound: u32,
    /// Elements from one problem's column factors, or bias, to the next one's; 0 where all share
    /// them.
    pub vector_stride: u32,
    /// Tiles along the rows of `B`.
    pub row_tiles: Divisor,
    /// The division of K steps among CTAs.
    pub runs: EvenRuns,
}

impl Groups {
    /// Offsets or counts in memory.
    #[inline(always)]
    pub const fn counts_len(&self) -> u32 {
        if self.slot == 0 { self.problems + 1 } else { self.problems }
    }

    /// The tokens of problem `problem`, where `count` reads from the counts; `None` where its own
    /// are bad.
    #[inline(always)]
    pub fn range(&self, problem: u32, count: impl Fn(u32) -> i32) -> Option<TokenRange> {
        if self.slot == 0 {
            let (first, end) = (count(problem), count(problem + 1));
            if first < 0 || end < first || end as u32 > self.bound {
                return None;
            }
            let (first, end) = (first as u32, end as u32);
            let rows = count(self.problems) as u32;
            Some(TokenRange { matrix: 0, first, count: end - first, rows })
        } else {
            let count = count(problem);
            if count < 0 || count as u32 > self.slot {
                return None;
            }
            let count = count as u32;
            Some(TokenRange { matrix: problem, first: 0, count, rows: count })
        }
    }

    /// The problem that token tile `tile` of all belongs to, where `before` says how many token
    /// tiles precede a problem; there are more than `tile`.
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

    /// First of the 128x4 layout's tiles along rows that have the scales of problem `problem`'s
    /// activations, whose first token is `first`, where every problem has tiles of its own. (With
    /// offsets a problem has at most one tile more than its tokens fill, and the floor of a sum is
    /// at least that of its terms: so the tiles of two problems never meet.)
    #[inline(always)]
    pub const fn scale_tile(&self, problem: u32, first: u32) -> u32 {
        let rows = TILE_ROWS as u32;
        if self.slot == 0 { first / rows + problem } else { problem * self.slot.div_ceil(rows) }
    }

    /// How many such tiles there are.
    pub const fn scale_tiles(&self) -> u64 {
        let rows = TILE_ROWS as u32;
        if self.slot == 0 {
            (self.bound / rows) as u64 + self.problems as u64
        } else {
            self.slot.div_ceil(rows) as u64 * self.problems as u64
        }
    }

    /// The tokens whose scales are in tile `tile` of [`scale_tiles`](Self::scale_tiles): their
    /// matrix, the first one's row there, and how many, which is 0 for tiles that no token needs
    /// and where counts are bad.
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

    /// The C layout.
    pub const fn words(&self) -> [u32; size_of::<Self>() / 4] {
        let mut words = [0; size_of::<Self>() / 4];
        let [[a, b], [c, d]] = self.factors;
        let wide = [self.counts, self.status, a, b, c, d];
        let mut i = 0;
        while i < wide.len() {
            words[2 * i] = wide[i] as u32;
            words[2 * i + 1] = (wide[i] >> 32) as u32;
            i += 1;
        }
        let [a, b, c] = self.row_tiles.words();
        let [d, e, f] = self.runs.ctas.words();
        let [g, h, i] = self.runs.tile.words();
        let rest = [
            self.problems,
            self.slot,
            self.bound,
            self.vector_stride,
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            h,
            i,
            self.runs.least,
            self.runs.slack,
            self.runs.reserved,
        ];
        let mut i = 0;
        while i < rest.len() {
            words[2 * wide.len() + i] = rest[i];
            i += 1;
        }
        words
    }
}

/// The last index below `count` whose `value`, which does not decrease, is at most `most`; 0 where none
/// is.
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
    /// Row of the first one in it; any where there are none.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// Where a tile is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// Its problem.
    pub problem: u32,
    /// Index of the tile along the rows of `B`.
    pub row_tile: u32,
    /// Index of the tile along the problem's tokens.
    pub token_tile: u32,
}

/// The K steps of all tiles in even runs, one for each CTA: stream-K
/// ([`schedule`](super::schedule)) for a number of tiles that the kernel finds out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct EvenRuns {
    /// CTAs of the launch, all resident at a time.
    pub ctas: Divisor,
    /// Steps of a tile.
    pub tile: Divisor,
    /// The least steps of a run, but for the last one: shorter ones would cost more to add up than
    /// they save.
    pub least: u32,
    /// Steps that runs may be longer where they are [whole tiles](Self::whole) then, whose sums nobody
    /// has to add up; a sixteenth longer they may be in any case.
    pub slack: u32,
    /// 0; keeps the size of [`Groups`] a multiple of 8.
    pub reserved: u32,
}

impl EvenRuns {
    /// Steps of a run where all tiles have `total`; the last CTAs may have fewer, or none.
    /// `total` and the CTAs together are below [`Divisor::DIVIDENDS`].
    #[inline(always)]
    pub const fn share(&self, total: u32) -> u32 {
        let even = self.ctas.div_ceil(total);
        let even = if even < self.least { self.least } else { even };
        let whole = self.tile.div_ceil(even) * self.tile.value();
        if whole - even <= self.slack || whole - even <= even / 16 { whole } else { even }
    }

    /// The tiles of a run of whole tiles, where `share` is [`share`](Self::share) for `total` steps;
    /// 0 where runs may begin inside of tiles. CTAs take whole tiles in turn, `cta`, `cta + ctas`,
    /// ..., so that neighbouring tiles, which have operands in common, are computed at the same
    /// time.
    #[inline(always)]
    pub const fn whole(&self, share: u32) -> u32 {
        let (tiles, rest) = self.tile.divide(share);
        if rest == 0 { tiles } else { 0 }
    }

    /// The run of CTA `cta` of whole tiles. Its tiles are numbered from `cta * whole` on.
    #[inline(always)]
    pub const fn whole_run(&self, whole: u32, total: u32, cta: u32) -> Run {
        let tiles = self.tile.divide(total).0;
        let own = self.ctas.div_ceil(tiles.saturating_sub(cta));
        let first = cta * whole * self.tile.value();
        Run { first, end: first + own * self.tile.value() }
    }

    /// The tile that number `index` of CTA `cta`'s [`whole_run`](Self::whole_run) means.
    #[inline(always)]
    pub const fn whole_tile(&self, whole: u32, index: u32, cta: u32) -> u32 {
        (index - cta * whole) * self.ctas.value() + cta
    }

    /// The run of CTA `cta`, where `share` is [`share`](Self::share).
    #[inline(always)]
    pub const fn run(share: u32, total: u32, cta: u32) -> Run {
        let first = cta.saturating_mul(share);
        let end = first.saturating_add(share);
        Run {
            first: if first < total { first } else { total },
            end: if end < total { end } else { total },
        }
    }

    /// The first CTA that computes steps of the tile whose first step is `start`; CTA `cta` computes
    /// its last one.
    #[inline(always)]
    pub const fn first_cta(share: u32, start: u32, mut cta: u32) -> u32 {
        while cta > 0 && cta * share > start {
            cta -= 1;
        }
        cta
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn groups(problems: u32, slot: u32, bound: u32) -> Groups {
        Groups {
            counts: 0x0102_0304_0506_0708,
            status: 2,
            factors: [[3, 8], [9, 10]],
            problems,
            slot,
            bound,
            vector_stride: 5,
            row_tiles: Divisor::nearest(3),
            runs: EvenRuns {
                ctas: Divisor::nearest(7),
                tile: Divisor::nearest(5),
                least: 4,
                slack: 6,
                reserved: 0,
            },
        }
    }

    #[test]
    fn words_follow_the_layout() {
        use core::mem::offset_of;
        let groups = groups(11, 12, 13);
        let words = groups.words();
        assert_eq!(words[..4], [0x0506_0708, 0x0102_0304, 2, 0]);
        for (offset, value) in [
            (offset_of!(Groups, factors), 3),
            (offset_of!(Groups, factors) + 24, 10),
            (offset_of!(Groups, problems), 11),
            (offset_of!(Groups, slot), 12),
            (offset_of!(Groups, bound), 13),
            (offset_of!(Groups, vector_stride), 5),
            (offset_of!(Groups, row_tiles), 3),
            (offset_of!(Groups, runs), 7),
            (offset_of!(Groups, runs) + offset_of!(EvenRuns, tile), 5),
            (offset_of!(Groups, runs) + offset_of!(EvenRuns, least), 4),
            (offset_of!(Groups, runs) + offset_of!(EvenRuns, slack), 6),
        ] {
            assert_eq!(words[offset / 4], value, "{offset}");
        }
    }

    /// Every tile of every problem has one number, also where problems are empty.
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

    /// Where counts are bad, no tile's tokens are outside the matrices.
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

    /// Every step is in one run, runs of all but the last are as long as asked, and a tile's first
    /// CTA is found.
    #[test]
    fn runs_are_even() {
        for ctas in [1, 2, 7, 132, 264] {
            let (tile, ctas_of) = (Divisor::nearest(6), Divisor::nearest(ctas));
            let runs = EvenRuns { ctas: ctas_of, tile, least: 4, slack: 2, reserved: 0 };
            for total in [0, 1, 3, 4, 6, 9, 100, 600, 1000, 1584, 4752, 14336, 86016] {
                let share = runs.share(total);
                assert!(share >= 4 && u64::from(share) * u64::from(ctas) >= total.into());
                let even = total.div_ceil(ctas).max(4);
                let longer = even.next_multiple_of(6);
                let is_whole = longer - even <= 2 || longer - even <= even / 16;
                assert_eq!(share, if is_whole { longer } else { even });
                let whole = runs.whole(share);
                assert_eq!(whole > 0, share.is_multiple_of(6));
                if whole > 0 && total.is_multiple_of(6) {
                    let mut taken = vec![0; (total / 6) as usize];
                    for cta in 0..ctas {
                        let Run { first, end } = runs.whole_run(whole, total, cta);
                        assert!(first.is_multiple_of(6) && end.is_multiple_of(6));
                        assert!(first >= cta * share && end <= (cta + 1) * share);
                        for index in first / 6..end / 6 {
                            taken[runs.whole_tile(whole, index, cta) as usize] += 1;
                        }
                    }
                    assert!(taken.iter().all(|times| *times == 1), "{taken:?}");
                }
                let mut next = 0;
                for cta in 0..ctas {
                    let Run { first, end } = EvenRuns::run(share, total, cta);
                    assert_eq!(first, next);
                    assert!(end - first == share || end == total);
                    for start in next..end {
                        assert_eq!(EvenRuns::first_cta(share, start, ctas - 1), cta);
                    }
                    next = end;
                }
                assert_eq!(next, total);
            }
        }
    }
}
