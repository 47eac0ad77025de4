//! The table of groups whose tiles all weigh the same. There may be hundreds of them, and nothing is copied
//! before the table is there.

use core::array::from_fn;

use cuda_std::ptx::memory;
use cuda_std::warp;
use fp4_formats::gemm::groups::{Tiling, Work};

use super::make::{Before, Boundaries, Found};
use super::{AHEAD, GroupTable, WORD};

/// The counts of [`AHEAD`] problems, each with the one after it: a problem ends at the offset at which the
/// next one begins.
type Counts = [i32; AHEAD + 1];

impl GroupTable<'_> {
    /// Makes the table as [`make`](Self::make) says, by lane `lane` of CTA `cta`, if all tiles
    /// weigh 1.
    ///
    /// # Safety
    /// The same as there.
    #[inline(always)]
    pub(super) unsafe fn make_even<const RUNS: bool>(self, tiling: Tiling, lane: u32, cta: u32) {
        let problems = self.own_problems(lane);
        // SAFETY: the warp is whole; the table has a word for each problem and each count.
        unsafe {
            let (mut own, mut bad) = (0, 0);
            let mut first = problems.start;
            while first < problems.end {
                let counts = self.load_counts(first, problems.end);
                for i in 0..AHEAD {
                    if first + (i as u32) < problems.end {
                        let tokens = self.groups.tokens([counts[i], counts[i + 1]]);
                        bad |= u32::from(tokens.is_none());
                        own += tiling.tiles(tokens.unwrap_or(0));
                    }
                }
                first += AHEAD as u32;
            }
            warp::sync();
            let through = warp::prefix_sum_u32(own);
            let is_bad = warp::max_u32(bad) != 0;
            self.put_tiles(through, is_bad, lane);
            let mut boundaries = Boundaries::NONE;
            if RUNS {
                let runs = &self.groups.runs;
                let tiles = warp::broadcast_u32(through, warp::LANES - 1);
                let tiles = tiles * self.groups.row_tiles.value();
                let longest = runs.longest_of(tiles, 1);
                let all = Work { tiles, total: tiles * runs.tile.value(), longest };
                boundaries = self.begin_run(&all, tiling.is_cut, is_bad, [lane, cta]);
            }
            let mut before = through - own;
            let mut first = problems.start;
            while first < problems.end {
                let (counts, mut found) = (self.counts(first), Found::default());
                for i in 0..AHEAD {
                    let problem = first + i as u32;
                    if problem < problems.end {
                        memory::st_shared_b32(self.place(problem), before);
                        let tokens = self.groups.tokens([counts[i], counts[i + 1]]).unwrap_or(0);
                        let next = before + tiling.tiles(tokens);
                        // Whole tiles in turn have no boundaries.
                        if RUNS && boundaries.share > 0 {
                            let [from, to] =
                                [before, next].map(|tiles| Before { tiles, work: tiles });
                            self.look(&mut found, boundaries, from, to, 1);
                        }
                        before = next;
                    }
                }
                if RUNS && boundaries.share > 0 {
                    self.end_run(boundaries, found, cta);
                }
                first += AHEAD as u32;
            }
            warp::sync();
        }
    }

    /// Loads the counts of a lane's problems from `first` on, and copies to the table the counts of
    /// problems before `end`, with the one behind the last of all.
    ///
    /// # Safety
    /// The same as [`make`](Self::make), behind the kernels before; there is such a problem.
    #[inline(always)]
    unsafe fn load_counts(self, first: u32, end: u32) -> Counts {
        let len = self.groups.counts_len();
        let end = if end == self.groups.problems { len } else { end };
        // SAFETY: the counts are there, and the table has a word for each.
        unsafe {
            // Indices are clamped to the last count: branches would wait for each load.
            let counts: Counts = from_fn(|i| {
                let at = (first + i as u32).min(len - 1);
                memory::ld_global_b32(self.groups.counts + u64::from(at * WORD)) as i32
            });
            for (i, count) in counts.into_iter().enumerate() {
                let at = first + i as u32;
                memory::st_shared_b32_if(at < end, self.count_place(at), count as u32);
            }
            counts
        }
    }

    /// The same counts, from the table.
    ///
    /// # Safety
    /// The counts are in the table, visible to this thread.
    #[inline(always)]
    unsafe fn counts(self, first: u32) -> Counts {
        let last = self.groups.counts_len() - 1;
        from_fn(|i| self.count((first + i as u32).min(last)))
    }
}
