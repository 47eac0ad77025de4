//! The work list as a CTA's roles see it: of dense and batched products, whose sizes the host knows,
//! or of grouped ones, whose token counts only the device knows.

use cuda_std::ptx::marker;
use cuda_std::thread;
use fp4_formats::gemm::hopper::config::{CONSUMER_THREADS, HopperConfig};
use fp4_formats::gemm::hopper::params::HopperParams;
use fp4_formats::gemm::work::Tile as WorkTile;
use fp4_formats::gemm::{Affine, Epilogue, EvenRuns, Item, Run, Tiles};

use super::multicast;
use crate::gemm::epilogue::combine::affine_of;
use crate::gemm::groups::GroupTable;

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

    /// Factors of the sums of both halves of problem `problem`.
    ///
    /// # Safety
    /// There is such a problem.
    unsafe fn alphas(self, epilogue: &Epilogue, problem: u32) -> [f32; 2];

    /// Factors and bias of half `half` of problem `problem`, whose [`alphas`](Self::alphas) these are.
    fn affine(self, epilogue: &Epilogue, half: u32, problem: u32, alphas: [f32; 2]) -> Affine;
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
    unsafe fn alphas(self, epilogue: &Epilogue, _: u32) -> [f32; 2] {
        [affine_of(epilogue, 0).alpha, affine_of(epilogue, 1).alpha]
    }

    #[inline(always)]
    fn affine(self, epilogue: &Epilogue, half: u32, _: u32, _: [f32; 2]) -> Affine {
        affine_of(epilogue, half)
    }
}

/// A grouped product. Its table in shared memory is [`HopperConfig::table_offset`]'s.
impl Work for GroupTable<'_> {
    const GROUPED: bool = true;

    #[inline(always)]
    unsafe fn begin(self, config: &HopperConfig, p: &HopperParams) {
        // SAFETY: the caller's.
        unsafe { self.make(config.tokens, p.schedule.steps()) };
    }

    #[inline(always)]
    unsafe fn refuse(self, p: &HopperParams) {
        let (thread, cta) = (thread::thread_idx_x(), thread::block_idx_x());
        let threads = [thread, CONSUMER_THREADS];
        // SAFETY: the caller's.
        unsafe { self.refuse(&p.epilogue.sink, &p.problem, cta, threads) };
    }

    #[inline(always)]
    fn run(self, _: &HopperConfig, _: &HopperParams) -> Run {
        let (steps, runs) = (self.total(), &self.groups.runs);
        let (share, cta) = (runs.share(steps), marker::pin(thread::block_idx_x()));
        match runs.whole(share) {
            0 => EvenRuns::run(share, steps, cta),
            whole => runs.whole_run(whole, steps, cta),
        }
    }

    #[inline(always)]
    fn first_cta(self, p: &HopperParams, item: &Item) -> u32 {
        let share = self.groups.runs.share(self.total());
        EvenRuns::first_cta(share, item.tile * p.schedule.steps(), thread::block_idx_x())
    }

    #[inline(always)]
    fn tile(self, _: &HopperConfig, _: &HopperParams, index: u32) -> WorkTile {
        let runs = &self.groups.runs;
        match runs.whole(runs.share(self.total())) {
            0 => self.tile(index),
            whole => self.tile(runs.whole_tile(whole, index, thread::block_idx_x())),
        }
    }

    #[inline(always)]
    unsafe fn alphas(self, epilogue: &Epilogue, problem: u32) -> [f32; 2] {
        // SAFETY: the caller's.
        unsafe { [self.alpha(epilogue, 0, problem), self.alpha(epilogue, 1, problem)] }
    }

    #[inline(always)]
    fn affine(self, epilogue: &Epilogue, half: u32, problem: u32, alphas: [f32; 2]) -> Affine {
        let [gate, up] = alphas;
        let alpha = if half == 0 { gate } else { up };
        self.vectors(Affine { alpha, ..affine_of(epilogue, half) }, problem)
    }
}
