//! The assignment of K steps and tiles to CTAs.
//!
//! The K steps of all tiles form one row, tile after tile. A [`Schedule`] cuts it into runs:
//!
//! | [`Split`] | launch | the run of a CTA |
//! |---|---|---|
//! | `None` | one CTA per tile, or persistent CTAs if tiles exceed the CTAs that fit | a tile; persistent CTAs take even runs, as under stream-K |
//! | `Cluster(n)` (split-K) | one cluster of `n` CTAs per tile | one of `n` even parts of the tile's steps |
//! | `StreamK` | one CTA per SM | an even part of all steps, wherever tiles end |
//!
//! A cluster whose CTAs share an operand by multicast, or multiply together as a pair, counts as
//! one CTA here: its CTAs compute neighbouring tiles, counted as one, in lockstep.
//!
//! A schedule may leave the last steps of each tile out of the row: they are *kept* for the CTA that computes
//! the step before them. A CTA whose run holds no end of a tile then has fewer steps than the others, and its
//! partial sums are there when another CTA needs them.
//!
//! # Stream-K
//! A run is the end of one tile, perhaps whole tiles, and the beginning of another. The CTA whose
//! run holds a tile's last step *owns* the tile. The other CTAs of the tile, its *contributors*,
//! send the owner their partial sums through memory, and the owner adds them (the *fix-up*).
//!
//! A CTA works through its run from the back. It therefore sends the partial sums of its last
//! tile before it waits for anything, and it waits only for CTAs with lower numbers, which the
//! hardware starts first: no CTA waits for one that may not have started.
//!
//! # Split-K
//! The CTAs of a cluster start together and exchange partial sums through their shared memory.

use super::Split;
use crate::Divisor;
use crate::params::blocks;

/// The division of the K steps of all tiles among CTAs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Schedule {
    /// K steps of a tile in the row.
    steps: Divisor,
    /// Steps in the run of a CTA.
    share: Divisor,
    /// One more: steps in the runs of the first [`longer`](Self::longer) CTAs.
    long_share: Divisor,
    /// CTAs of a cluster that split the K of one tile; 1 if runs ignore tile boundaries.
    cluster: Divisor,
    /// The number of CTAs with one step more than the others.
    longer: u32,
    /// K steps of a tile, the kept ones too.
    tile_steps: u32,
}

/// Some K steps of one tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Number of the tile.
    pub tile: u32,
    /// First of its steps.
    pub first: u32,
    /// The step after the last.
    pub end: u32,
}

/// The part of a CTA's run that is not done yet: steps of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First step.
    pub first: u32,
    /// The step after the last.
    pub end: u32,
}

impl Schedule {
    /// Makes the schedule of `split` for `tiles` tiles of `steps` steps; `fit` is the number of
    /// CTAs that run at a time (`None`) or of SMs (`StreamK`). `None` if a CTA would have no step,
    /// or if the row is longer than [`Divisor`]s can divide.
    pub const fn new(split: Split, tiles: u64, steps: u32, fit: u64) -> Option<Self> {
        match split {
            Split::Cluster(cluster) => Self::split_k(tiles, steps, cluster),
            Split::None => {
                let ctas = if tiles < fit { tiles } else { fit };
                Self::stream_k(tiles, steps, ctas as u32)
            }
            Split::StreamK => {
                let Some(total) = tiles.checked_mul(steps as u64) else { return None };
                let ctas = if total < fit { total } else { fit };
                Self::stream_k(tiles, steps, ctas as u32)
            }
        }
    }

    /// Makes even runs of `tiles` tiles of `steps` steps for `ctas` CTAs. `None` if a CTA would
    /// have no step, or if the steps' numbers exceed [`Divisor::DIVIDENDS`].
    pub const fn stream_k(tiles: u64, steps: u32, ctas: u32) -> Option<Self> {
        let total = match tiles.checked_mul(steps as u64) {
            Some(total) if total <= Divisor::DIVIDENDS as u64 => total as u32,
            _ => return None,
        };
        if ctas == 0 || ctas > total {
            return None;
        }
        Some(Self::of(steps, total / ctas, total % ctas, 1))
    }

    /// Returns this schedule of as many CTAs for `tiles` tiles, with the last `kept` steps of each tile out of
    /// the row. It stays the same if tiles are not cut, or if a CTA would have no step.
    pub const fn keeping(self, kept: u32, tiles: u64) -> Self {
        if !self.has_fix_up() || kept >= self.steps() {
            return self;
        }
        let steps = self.steps() - kept;
        match Self::stream_k(tiles, steps, self.ctas(tiles) as u32) {
            Some(schedule) => Self { tile_steps: self.tile_steps, ..schedule },
            None => self,
        }
    }

    /// Makes whole tiles of `steps` steps; CTA `i` computes tile `i`. `None` without steps.
    pub const fn whole_tiles(steps: u32) -> Option<Self> {
        Self::stream_k(1, steps, 1)
    }

    /// Makes tiles of `steps` steps, each computed by a cluster of `cluster` CTAs, more than one.
    /// `None` if a CTA would have no step, or if the steps' numbers exceed [`Divisor::DIVIDENDS`].
    pub const fn split_k(tiles: u64, steps: u32, cluster: u32) -> Option<Self> {
        if cluster < 2 || cluster > steps || steps.checked_mul(cluster).is_none() {
            return None;
        }
        match tiles.checked_mul(steps as u64) {
            Some(total) if total <= Divisor::DIVIDENDS as u64 => {}
            _ => return None,
        }
        Some(Self::of(steps, steps / cluster, 0, cluster))
    }

    /// Makes the schedule of runs of `share` steps, the first `longer` of which have one more.
    const fn of(steps: u32, share: u32, longer: u32, cluster: u32) -> Self {
        Self {
            steps: Divisor::nearest(steps),
            share: Divisor::nearest(share),
            long_share: Divisor::nearest(share + 1),
            cluster: Divisor::nearest(cluster),
            longer,
            tile_steps: steps,
        }
    }

    /// Returns the CTAs of a cluster that split the K of one tile; 1 if runs ignore tile
    /// boundaries.
    #[inline(always)]
    pub const fn cluster(&self) -> Divisor {
        self.cluster
    }

    /// K steps of a tile.
    #[inline(always)]
    pub const fn steps(&self) -> u32 {
        self.tile_steps
    }

    /// The step of the row before which an item begins.
    #[inline(always)]
    pub const fn start(&self, item: &Item) -> u32 {
        item.tile * self.steps.value() + item.first
    }

    /// Whether the CTAs of a cluster split the K of a tile.
    #[inline(always)]
    pub const fn is_split(&self) -> bool {
        self.cluster.value() > 1
    }

    /// The steps of a tile that CTA `rank` of a cluster computes: the first, and the one after
    /// the last. All of them if the cluster does not split K.
    #[inline(always)]
    pub const fn k_part(&self, rank: u32) -> (u32, u32) {
        self.cluster.part(self.steps(), rank)
    }

    /// First step of CTA `cta`'s run.
    const fn first(&self, cta: u32) -> u32 {
        cta * self.share.value() + if cta < self.longer { cta } else { self.longer }
    }

    /// CTA `cta`'s run.
    pub const fn run(&self, cta: u32) -> Run {
        if self.is_split() {
            let (tile, rank) = self.cluster.divide(cta);
            let start = tile * self.steps();
            let (first, end) = self.k_part(rank);
            return Run { first: start + first, end: start + end };
        }
        Run { first: self.first(cta), end: self.first(cta + 1) }
    }

    /// Returns the rest of CTA `cta`'s run if the steps from `end` on are done.
    pub const fn rest(&self, cta: u32, end: u32) -> Run {
        Run { end, ..self.run(cta) }
    }

    /// The CTA whose run holds a step of the row.
    pub const fn cta_of(&self, step: u32) -> u32 {
        // The end of the longer runs fits 32 bits: it is one of the row's steps.
        let longer = self.longer * self.long_share.value();
        if step < longer {
            self.long_share.divide(step).0
        } else {
            self.longer + self.share.divide(step - longer).0
        }
    }

    /// The most CTAs that compute steps of the same tile.
    pub const fn parts(&self) -> u32 {
        if self.is_split() {
            return self.cluster.value();
        }
        let steps = self.steps.value();
        if steps <= 1 { 1 } else { (steps - 2) / self.share.value() + 2 }
    }

    /// Whether partial sums go from CTA to CTA through global memory.
    pub const fn has_fix_up(&self) -> bool {
        let steps = self.steps.value();
        !self.is_split() && (self.longer > 0 || !self.share.value().is_multiple_of(steps))
    }

    /// The most steps that a CTA computes.
    pub const fn most(&self) -> u32 {
        if self.is_split() {
            return self.steps().div_ceil(self.cluster.value());
        }
        let run = self.longest_run();
        run + run.div_ceil(self.steps.value()) * self.kept()
    }

    /// Last K steps of a tile, which are not in the row.
    const fn kept(&self) -> u32 {
        self.tile_steps - self.steps.value()
    }

    /// The most steps of the row in a run.
    const fn longest_run(&self) -> u32 {
        self.share.value() + if self.longer > 0 { 1 } else { 0 }
    }

    /// The most steps of one tile that one CTA computes.
    pub const fn longest(&self) -> u32 {
        let run = if self.is_split() { self.most() } else { self.longest_run() + self.kept() };
        if run < self.steps() { run } else { self.steps() }
    }

    /// CTAs of the launch, for as many tiles as the schedule was made for.
    pub const fn ctas(&self, tiles: u64) -> u64 {
        match self.cluster.value() {
            1 => {
                let steps = tiles * self.steps.value() as u64;
                (steps - self.longer as u64) / self.share.value() as u64
            }
            cluster => tiles * cluster as u64,
        }
    }
}

impl Run {
    /// Whether nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.first >= self.end
    }

    /// Takes the rest of the run's last tile. It is not empty.
    #[inline(always)]
    pub const fn take(&mut self, schedule: &Schedule) -> Item {
        let (tile, last) = schedule.steps.divide(self.end - 1);
        let start = self.end - 1 - last;
        let first = if start > self.first { start } else { self.first };
        let row_end = self.end - start;
        let end = if row_end == schedule.steps.value() { schedule.tile_steps } else { row_end };
        let item = Item { tile, first: first - start, end };
        self.end = first;
        item
    }
}

impl Item {
    /// Returns the number of steps.
    pub const fn count(&self) -> u32 {
        self.end - self.first
    }

    /// Whether the CTA that computes them owns the tile.
    pub const fn owned(&self, schedule: &Schedule) -> bool {
        self.end == schedule.steps()
    }

    /// The first CTA that computes steps of the tile.
    pub const fn first_cta(&self, schedule: &Schedule) -> u32 {
        schedule.cta_of(self.tile * schedule.steps.value())
    }
}

blocks! {
    Schedule { steps, share, long_share, cluster, longer, tile_steps }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    /// Every step of every tile is computed once, a CTA sends the partial sums of at most one tile
    /// and sends them first, and owners find their contributors.
    #[test]
    fn every_step_is_done_once() {
        let sizes = [(1, 1), (1, 9), (3, 7), (32, 56), (56, 16), (56, 128), (200, 3), (5, 1)];
        for (tiles, steps) in sizes {
            for (ctas, kept) in [1, 2, 3, 5, 31, 64, 112, 132, 133, 264, 777]
                .into_iter()
                .flat_map(|ctas| [0, 1, 3, 8].map(|kept| (ctas, kept)))
            {
                let Some(even) = Schedule::stream_k(tiles, steps, ctas) else {
                    assert!(u64::from(ctas) > tiles * u64::from(steps));
                    continue;
                };
                let schedule = even.keeping(kept, tiles);
                assert_eq!((schedule.ctas(tiles), schedule.steps()), (u64::from(ctas), steps));
                if !even.has_fix_up() {
                    assert_eq!(schedule, even);
                }
                let mut done = vec![0u32; (tiles * u64::from(steps)) as usize];
                let mut sent = vec![None; ctas as usize];
                let mut parts = vec![0u32; tiles as usize];
                for cta in 0..ctas {
                    let mut run = schedule.run(cta);
                    assert!(!run.is_empty());
                    let (mut at, mut count) = (0, 0);
                    while !run.is_empty() {
                        let item = run.take(&schedule);
                        assert!(item.count() > 0 && item.count() <= schedule.longest());
                        assert_eq!(schedule.start(&item), run.end);
                        assert_eq!(schedule.cta_of(run.end), cta);
                        count += item.count();
                        parts[item.tile as usize] += 1;
                        for step in item.first..item.end {
                            done[(item.tile * steps + step) as usize] += 1;
                        }
                        if item.owned(&schedule) {
                            for contributor in item.first_cta(&schedule)..cta {
                                assert_eq!(sent[contributor as usize], Some(item.tile));
                            }
                        } else {
                            assert_eq!(at, 0, "partial sums are sent first");
                            sent[cta as usize] = Some(item.tile);
                        }
                        at += 1;
                    }
                    assert!(count <= schedule.most());
                }
                assert!(done.iter().all(|&times| times == 1), "{tiles} x {steps} by {ctas}");
                assert!(parts.iter().all(|&parts| parts <= schedule.parts()));
            }
        }
    }

    /// The CTAs of a cluster compute every step of their tile once.
    #[test]
    fn clusters_share_a_tile_each() {
        for (tiles, steps) in [(1, 2), (3, 7), (32, 56), (5, 129)] {
            for cluster in 2..=8.min(steps) {
                let schedule = Schedule::split_k(tiles, steps, cluster).unwrap();
                let mut next = 0;
                for cta in 0..tiles as u32 * cluster {
                    let mut run = schedule.run(cta);
                    assert_eq!(run.first, next);
                    next = run.end;
                    let item = run.take(&schedule);
                    assert!(run.is_empty() && item.count() > 0);
                    assert!(item.count() <= schedule.most());
                    assert_eq!(item.tile, cta / cluster);
                }
                assert_eq!(u64::from(next), tiles * u64::from(steps));
            }
        }
        assert_eq!(Schedule::split_k(1, 3, 4), None);
        assert_eq!(Schedule::split_k(1, 3, 1), None);
        assert_eq!(Schedule::split_k(1 << 31, 2, 2), None);
    }

    /// Whole tiles are runs of one tile each, however many there are.
    #[test]
    fn whole_tiles_are_not_cut() {
        let schedule = Schedule::whole_tiles(7).unwrap();
        assert!(!schedule.has_fix_up());
        for cta in [0, 1, 9] {
            let mut run = schedule.run(cta);
            assert_eq!(run.take(&schedule), Item { tile: cta, first: 0, end: 7 });
            assert!(run.is_empty());
        }
        assert_eq!(Schedule::whole_tiles(0), None);
    }

    #[test]
    fn schedules_that_do_not_exist() {
        assert_eq!(Schedule::stream_k(1, 3, 4), None);
        assert_eq!(Schedule::stream_k(1, 3, 0), None);
        assert_eq!(Schedule::stream_k(0, 3, 1), None);
        assert_eq!(Schedule::stream_k(1 << 31, 2, 132), None);
        assert_eq!(Schedule::stream_k(u64::MAX, 2, 132), None);
    }
}
