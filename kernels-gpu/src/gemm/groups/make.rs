//! The making of the table of groups, by one warp of each CTA.

use core::mem::offset_of;
use core::ops::Range;

use cuda_std::ptx::{marker, memory};
use cuda_std::warp;
use fp4_formats::gemm::groups::{EvenRuns, Groups, MAX_PROBLEMS, OwnRun, Shares, Tiling, Work};

use super::{AHEAD, BAD, GroupTable, RUN, WORD};
use crate::pipeline;

/// Offset of the first CTA in a run.
const FIRST_CTA: u32 = offset_of!(OwnRun, first_cta) as u32;

/// The sums before a problem: token tiles, and their work.
#[derive(Clone, Copy, Default)]
pub(super) struct Before {
    pub(super) tiles: u32,
    pub(super) work: u32,
}

impl Before {
    /// Returns the sums behind so many more tiles of this weight.
    #[inline(always)]
    fn after(self, tiles: u32, weight: u32) -> Self {
        Self { tiles: self.tiles + tiles, work: self.work + tiles * weight }
    }
}

/// The share of each CTA, and the begin and end of this CTA's; [`u32::MAX`] if it has none.
#[derive(Clone, Copy)]
pub(super) struct Boundaries {
    pub(super) share: u32,
    first: u32,
    end: u32,
}

impl Boundaries {
    pub(super) const NONE: Self = Self { share: 0, first: u32::MAX, end: u32::MAX };
}

/// The problems with the boundaries, as [`EvenRuns::begin`] takes them; a weight of 0 if they are
/// not found.
#[derive(Clone, Copy, Default)]
pub(super) struct Found {
    first: [u32; 3],
    end: [u32; 3],
}

impl GroupTable<'_> {
    /// Makes the table for tiles of `tiling`; with `RUNS` also the run of CTA `cta`. Lets the next kernel of the
    /// stream begin.
    ///
    /// # Safety
    /// One whole warp of the CTA; the other threads use the table behind a barrier.
    #[inline(always)]
    pub unsafe fn make<const RUNS: bool>(self, tiling: Tiling, cta: u32) {
        let lane = warp::lane_id();
        // The kernels before may write the counts.
        if self.groups.settled == 0 {
            pipeline::follow_stream();
        }
        // A launch that starts while this kernel runs finds the counts complete.
        pipeline::release_stream();
        // SAFETY: the caller's.
        unsafe {
            // Problems of even tiles are many, and each is little work; of others a lane has few.
            if tiling.is_even() {
                // Pinned: values that follow from these would otherwise stay in registers of other
                // roles.
                let table = Self { table: marker::pin(self.table), ..self };
                table.make_even::<RUNS>(tiling, marker::pin(lane), marker::pin(cta));
            } else {
                self.make_weighed::<RUNS>(tiling, lane, cta);
            }
        }
    }

    /// Makes the table as [`make`](Self::make) says, by lane `lane` of CTA `cta`, if tiles have
    /// different weights.
    ///
    /// # Safety
    /// The same as there.
    #[inline(always)]
    unsafe fn make_weighed<const RUNS: bool>(self, tiling: Tiling, lane: u32, cta: u32) {
        // SAFETY: the warp is whole; the table has a word for each problem and each count.
        unsafe {
            self.copy_counts(lane);
            warp::sync();
            if self.is_sorted() {
                self.sort(tiling, lane);
            }
            let own_problems = self.own_problems(lane);
            let (mut own, mut most, mut bad) = (Before::default(), 1, 0);
            for place in own_problems.clone() {
                let tokens = self.tokens(place);
                bad |= u32::from(tokens.is_none());
                let tokens = tokens.unwrap_or(0);
                let weight = tiling.weight(tiling.width(tokens));
                own = own.after(tiling.tiles(tokens), weight);
                most = if tokens == 0 { most } else { weight.max(most) };
            }
            warp::sync();
            let through = Before {
                tiles: warp::prefix_sum_u32(own.tiles),
                work: warp::prefix_sum_u32(own.work),
            };
            let is_bad = warp::max_u32(bad) != 0;
            self.put_tiles(through.tiles, is_bad, lane);
            let mut boundaries = Boundaries::NONE;
            if RUNS {
                let (last, runs) = (warp::LANES - 1, &self.groups.runs);
                let rows = self.groups.row_tiles.value();
                let steps = rows * runs.tile.value();
                let tiles = warp::broadcast_u32(through.tiles, last) * rows;
                let work = warp::broadcast_u32(through.work, last);
                let most = warp::max_u32(most);
                let longest = if self.is_sorted() && !is_bad && runs.is_found(tiles) {
                    self.longest(tiles, [through.tiles - own.tiles, own.tiles], lane)
                } else {
                    runs.longest_of(tiles, most)
                };
                let all = Work { tiles, total: work * steps, longest };
                boundaries = self.begin_run(&all, tiling.is_cut, is_bad, [lane, cta]);
            }
            let mut before =
                Before { tiles: through.tiles - own.tiles, work: through.work - own.work };
            for place in own_problems {
                memory::st_shared_b32(self.place(place), before.tiles);
                let tokens = self.tokens(place).unwrap_or(0);
                let weight = tiling.weight(tiling.width(tokens));
                let next = before.after(tiling.tiles(tokens), weight);
                if RUNS {
                    let mut found = Found::default();
                    self.look(&mut found, boundaries, before, next, weight);
                    self.end_run(boundaries, found, cta);
                }
                before = next;
            }
            warp::sync();
        }
    }

    /// The problems of a lane: some that follow each other, so that one sum over the lanes is enough.
    #[inline(always)]
    pub(super) fn own_problems(self, lane: u32) -> Range<u32> {
        let problems = self.groups.problems;
        let each = problems.div_ceil(warp::LANES);
        let first = lane * each;
        first..(first + each).min(problems)
    }

    /// Writes the number of tiles; the last lane's problems and all before have `through` token tiles.
    ///
    /// # Safety
    /// The same as [`make`](Self::make).
    #[inline(always)]
    pub(super) unsafe fn put_tiles(self, through: u32, is_bad: bool, lane: u32) {
        if lane == warp::LANES - 1 {
            let tiles = if is_bad { BAD } else { through * self.groups.row_tiles.value() };
            // SAFETY: inside the table.
            unsafe { memory::st_shared_b32(self.table, tiles) };
        }
    }

    /// Puts the problems in the order of their weights, the heaviest first: each lane counts the problems
    /// before its own.
    ///
    /// # Safety
    /// The same as [`make`](Self::make); the counts are in the table.
    #[inline(always)]
    unsafe fn sort(self, tiling: Tiling, lane: u32) {
        let problems = self.groups.problems;
        let mut weight = 0;
        if lane < problems {
            let range = self.groups.range(lane, |at| self.count(at));
            let tokens = range.map_or(0, |range| range.count);
            weight = if tokens == 0 { 0 } else { tiling.weight(tiling.width(tokens)) };
        }
        let (mut place, mut other) = (0, 0);
        while other < problems {
            // SAFETY: the warp is whole, and there is such a lane.
            let weighs = unsafe { warp::broadcast_u32(weight, other) };
            place += u32::from(weighs > weight || weighs == weight && other < lane);
            other += 1;
        }
        // SAFETY: the table has a word for each place; the warp is whole.
        unsafe {
            if lane < problems {
                memory::st_shared_b32(self.ordered(place), lane + weight * MAX_PROBLEMS);
            }
            warp::sync();
        }
    }

    /// Returns the work of the longest run of whole tiles. The problem in place `lane` has `own` token
    /// tiles, behind `before` of others.
    ///
    /// # Safety
    /// The same as [`make`](Self::make); the problems are [sorted](Self::sort), and the counts are good.
    #[inline(always)]
    unsafe fn longest(self, tiles: u32, [before, own]: [u32; 2], lane: u32) -> u32 {
        let Groups { problems, ref runs, row_tiles, .. } = *self.groups;
        let rows = row_tiles.value();
        // SAFETY: the table has a word for each place; the warp is whole.
        unsafe {
            if lane < problems {
                memory::st_shared_b32(self.place(lane), before);
            }
            warp::sync();
            let first = (before * rows).min(tiles - 1);
            let last = ((before + own) * rows).max(1) - 1;
            let longest = runs.longest_near(tiles, [first, last], |tiles| {
                let wanted = tiles.map(|tile| row_tiles.divide(tile).0);
                // The three are looked for at the same time.
                let (mut at, mut span) = ([0; 3], problems);
                while span > 1 {
                    let half = span / 2;
                    let next = at.map(|at| self.before(at + half));
                    for i in 0..at.len() {
                        at[i] += if next[i] <= wanted[i] { half } else { 0 };
                    }
                    span -= half;
                }
                at.map(|at| self.order(at).1)
            });
            warp::max_u32(longest)
        }
    }

    /// Returns the tokens of the problem in place `place`; `None` if its counts are bad.
    ///
    /// # Safety
    /// The counts are in the table, visible to this thread.
    #[inline(always)]
    unsafe fn tokens(self, place: u32) -> Option<u32> {
        self.groups.range(self.problem(place), |at| self.count(at)).map(|range| range.count)
    }

    /// Writes the part of this CTA's run that does not depend on the place of its work, and returns the
    /// share of all CTAs and this one's boundaries. `is_cut` is the [tiling's](Tiling::is_cut); with `bad`
    /// there is no work. If tiles are taken in turn, shares are 0.
    ///
    /// # Safety
    /// The same as [`make`](Self::make); `work` is the same in all lanes.
    #[inline(always)]
    pub(super) unsafe fn begin_run(
        self,
        work: &Work,
        is_cut: bool,
        bad: bool,
        [lane, cta]: [u32; 2],
    ) -> Boundaries {
        let runs = &self.groups.runs;
        let steps = work.tiles * runs.tile.value();
        let (run, boundaries) = if bad {
            (
                OwnRun { first: 0, end: 0, base: 0, stride: 0, turned: 0, first_cta: 0 },
                Boundaries::NONE,
            )
        } else {
            match runs.shares(work, is_cut) {
                Shares::InTurn => (runs.in_turn(work, cta), Boundaries::NONE),
                Shares::Even(share) => {
                    let first = EvenRuns::boundary(share, work, cta);
                    let end = EvenRuns::boundary(share, work, cta + 1);
                    // Boundaries behind all work are in no problem.
                    let run = OwnRun {
                        first: steps,
                        end: steps,
                        base: 0,
                        stride: 1,
                        turned: 0,
                        first_cta: cta,
                    };
                    (run, Boundaries { share, first, end })
                }
            }
        };
        let OwnRun { first, end, base, stride, turned, first_cta } = run;
        if lane == 0 {
            // SAFETY: inside the table.
            unsafe { self.put_run([first, end, base, stride, turned, first_cta]) };
        }
        // SAFETY: the warp is whole.
        unsafe { warp::sync() };
        boundaries
    }

    /// Notes the problem between `place` and `next`, whose steps have this `weight`, if a boundary is
    /// in it.
    #[inline(always)]
    pub(super) fn look(
        self,
        found: &mut Found,
        at: Boundaries,
        place: Before,
        next: Before,
        weight: u32,
    ) {
        let steps = self.groups.row_tiles.value() * self.groups.runs.tile.value();
        let (from, to) = (place.work * steps, next.work * steps);
        let here = [from, place.tiles * steps, weight];
        if from <= at.first && at.first < to {
            found.first = here;
        }
        if from <= at.end && at.end < to {
            found.end = here;
        }
    }

    /// Writes the begin and the end of this CTA's run, if they were found.
    ///
    /// # Safety
    /// The same as [`make`](Self::make), behind [`begin_run`](Self::begin_run); no other lane finds the same.
    #[inline(always)]
    pub(super) unsafe fn end_run(self, at: Boundaries, found: Found, cta: u32) {
        let runs = &self.groups.runs;
        // SAFETY: inside the table.
        unsafe {
            if found.first[2] > 0 {
                let (step, first_cta) = runs.begin(at.share, cta, at.first, found.first);
                memory::st_shared_b32(self.table + RUN, step);
                memory::st_shared_b32(self.table + RUN + FIRST_CTA, first_cta);
            }
            if found.end[2] > 0 {
                let (step, _) = runs.begin(at.share, 0, at.end, found.end);
                memory::st_shared_b32(self.table + RUN + WORD, step);
            }
        }
    }

    /// Writes the CTA's run.
    ///
    /// # Safety
    /// One thread; the others read it behind a barrier.
    #[inline(always)]
    unsafe fn put_run(self, words: [u32; size_of::<OwnRun>() / size_of::<u32>()]) {
        for (i, word) in words.into_iter().enumerate() {
            // SAFETY: inside the table.
            unsafe { memory::st_shared_b32(self.table + RUN + i as u32 * WORD, word) };
        }
    }

    /// Copies a lane's part of the token counts to the table, several at a time.
    ///
    /// # Safety
    /// The same as [`make`](Self::make), behind the kernels before.
    #[inline(always)]
    unsafe fn copy_counts(self, lane: u32) {
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
}
