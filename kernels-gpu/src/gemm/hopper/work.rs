//! The work list as a CTA's roles see it: of dense and batched products, whose sizes the host knows,
//! or of grouped ones, whose token counts only the device knows.

use cuda_std::ptx::{grid, marker, memory};
use cuda_std::{thread, warp};
use fp4_formats::gemm::groups::{Groups, STATUS_BAD_COUNTS};
use fp4_formats::gemm::hopper::config::{CONSUMER_THREADS, HopperConfig};
use fp4_formats::gemm::hopper::params::HopperParams;
use fp4_formats::gemm::work::{Tile as WorkTile, TokenRange};
use fp4_formats::gemm::{Affine, Epilogue, EvenRuns, Item, Problem, Run, Tiles};

use super::multicast;
use crate::gemm::epilogue::combine::affine_of;
use crate::gemm::epilogue::{affine, nan};

/// Bytes of a word, of a factor and of a column factor.
const WORD: u32 = size_of::<u32>() as u32;
/// In place of the number of steps, where token counts are bad.
const BAD: u32 = u32::MAX;

/// A work list. All threads of a CTA get the same answers.
pub trait Work: Copy {
    /// Whether problems have token counts of their own.
    const GROUPED: bool;

    /// Makes what the other functions need.
    ///
    /// # Safety
    /// One whole warp of the CTA; the other threads use the work list behind a barrier.
    #[inline(always)]
    unsafe fn begin(self, _: &HopperConfig, _: &HopperParams) {}

    /// If the work list is bad: says so, and makes all results NaN. There are no tiles then.
    ///
    /// # Safety
    /// All consumers of all CTAs call it; the preceding kernels of the stream have ended.
    #[inline(always)]
    unsafe fn refuse(self, _: &HopperParams) {}

    /// This CTA's run; all CTAs of a multicast have the same.
    fn run(self, config: &HopperConfig, p: &HopperParams) -> Run;

    /// What is left of it if the steps from `end` on are done.
    #[inline(always)]
    fn rest(self, config: &HopperConfig, p: &HopperParams, end: u32) -> Run {
        Run { end, ..self.run(config, p) }
    }

    /// The first CTA that computes steps of an item's tile; this CTA computes the last.
    fn first_cta(self, p: &HopperParams, item: &Item) -> u32;

    /// Tile number `index`.
    fn tile(self, config: &HopperConfig, p: &HopperParams, index: u32) -> WorkTile;

    /// Factors and bias of half `half` of problem `problem`.
    ///
    /// # Safety
    /// There is such a problem.
    unsafe fn affine(self, epilogue: &Epilogue, half: u32, problem: u32) -> Affine;
}

/// A dense or batched product.
#[derive(Clone, Copy)]
pub struct Uniform;

impl Work for Uniform {
    const GROUPED: bool = false;

    #[inline(always)]
    fn run(self, config: &HopperConfig, p: &HopperParams) -> Run {
        // Pinned: recomputed where it is needed, to save registers.
        p.schedule.run(multicast::run_of(config, marker::pin(thread::block_idx_x())))
    }

    #[inline(always)]
    fn first_cta(self, p: &HopperParams, item: &Item) -> u32 {
        item.first_cta(&p.schedule)
    }

    #[inline(always)]
    fn tile(self, config: &HopperConfig, p: &HopperParams, index: u32) -> WorkTile {
        Tiles::walked(&p.problem, config.work_shape(), HopperConfig::ORDER, p.walk).tile(index)
    }

    #[inline(always)]
    unsafe fn affine(self, epilogue: &Epilogue, half: u32, _: u32) -> Affine {
        affine_of(epilogue, half)
    }
}

/// A grouped product. Its table in shared memory is [`HopperConfig::table_offset`]'s.
#[derive(Clone, Copy)]
pub struct Grouped<'a> {
    pub groups: &'a Groups,
    /// Shared address of the table.
    pub table: u32,
}

impl Work for Grouped<'_> {
    const GROUPED: bool = true;

    #[inline(always)]
    unsafe fn begin(self, config: &HopperConfig, p: &HopperParams) {
        let lane = warp::lane_id();
        let (mut before, mut bad, mut first) = (0, 0, 0);
        // The kernel before may make the counts.
        grid::griddepcontrol_wait();
        // SAFETY: the warp is whole; the table has a word for each problem.
        unsafe {
            while first < self.groups.problems {
                let problem = first + lane;
                let mut tiles = 0;
                if problem < self.groups.problems {
                    match self.groups.range(problem, |at| self.count(at)) {
                        Some(range) => tiles = range.count.div_ceil(config.tokens),
                        None => bad = 1,
                    }
                }
                warp::sync();
                let through = warp::prefix_sum_u32(tiles);
                if problem < self.groups.problems {
                    memory::st_shared_b32(self.place(problem), before + through - tiles);
                }
                before += warp::broadcast_u32(through, warp::LANES - 1);
                first += warp::LANES;
            }
            bad = warp::max_u32(bad);
            if lane == 0 {
                let steps = before * self.groups.row_tiles.value() * p.schedule.steps();
                memory::st_shared_b32(self.table, if bad == 0 { steps } else { BAD });
            }
            warp::sync();
        }
    }

    #[inline(always)]
    unsafe fn refuse(self, p: &HopperParams) {
        if !self.is_bad() {
            return;
        }
        let (thread, cta) = (thread::thread_idx_x(), thread::block_idx_x());
        // SAFETY: the status word, and elements of the result.
        unsafe {
            if cta == 0 && thread == 0 && self.groups.status != 0 {
                memory::st_global_b32(self.groups.status, STATUS_BAD_COUNTS);
            }
            let sink = &p.epilogue.sink;
            let result = Problem { n: sink.columns, ..p.problem };
            let ctas = [cta, self.groups.runs.ctas.value()];
            nan::fill(sink, &result, ctas, [thread, CONSUMER_THREADS]);
        }
    }

    #[inline(always)]
    fn run(self, _: &HopperConfig, _: &HopperParams) -> Run {
        let steps = self.steps();
        let share = self.groups.runs.share(steps);
        EvenRuns::run(share, steps, marker::pin(thread::block_idx_x()))
    }

    #[inline(always)]
    fn first_cta(self, p: &HopperParams, item: &Item) -> u32 {
        let share = self.groups.runs.share(self.steps());
        EvenRuns::first_cta(share, item.tile * p.schedule.steps(), thread::block_idx_x())
    }

    #[inline(always)]
    fn tile(self, _: &HopperConfig, _: &HopperParams, index: u32) -> WorkTile {
        let at = self.groups.locate(index, |problem| self.before(problem));
        // Where counts are bad, there is no tile.
        let none = TokenRange { matrix: 0, first: 0, count: 0, rows: 0 };
        let tokens = self.groups.range(at.problem, |at| self.count(at)).unwrap_or(none);
        WorkTile { problem: at.problem, row_tile: at.row_tile, token_tile: at.token_tile, tokens }
    }

    #[inline(always)]
    unsafe fn affine(self, epilogue: &Epilogue, half: u32, problem: u32) -> Affine {
        let (groups, mut affine) = (self.groups, affine_of(epilogue, half));
        let [gate, up] = groups.factors;
        for factors in if half == 0 { gate } else { up } {
            if factors != 0 {
                // SAFETY: there is a factor for each problem.
                let factor = unsafe { memory::ld_global_b32(factors + u64::from(problem * WORD)) };
                affine.alpha *= f32::from_bits(factor);
            }
        }
        let elements = u64::from(problem) * u64::from(groups.vector_stride);
        if affine.column_factors != 0 {
            affine.column_factors += elements * u64::from(WORD);
        }
        if affine.bias != 0 {
            affine.bias += elements * affine::bias_bytes(&affine);
        }
        if affine.row_factors != 0 {
            affine.row_factors += u64::from(problem) * u64::from(groups.slot * WORD);
        }
        affine
    }
}

impl Grouped<'_> {
    /// K steps of all tiles.
    #[inline(always)]
    fn steps(self) -> u32 {
        // SAFETY: the table is made.
        match unsafe { memory::ld_shared_b32(self.table) } {
            BAD => 0,
            steps => steps,
        }
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

    /// Token count number `at`.
    #[inline(always)]
    fn count(self, at: u32) -> i32 {
        // SAFETY: only counts that there are are asked for.
        unsafe { memory::ld_global_b32(self.groups.counts + u64::from(at * WORD)) as i32 }
    }
}
