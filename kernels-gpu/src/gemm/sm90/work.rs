//! The work list as a CTA's roles see it: of dense and batched products, whose sizes the host knows, of
//! grouped ones, whose token counts only the device knows, or of several products of sizes of their
//! own.

use cuda_std::ptx::{grid, marker};
use cuda_std::thread;
use fp4_formats::gemm::groups::OwnRun;
use fp4_formats::gemm::sm90::config::{CONSUMER_THREADS, Sm90Config};
use fp4_formats::gemm::sm90::params::Sm90Params;
use fp4_formats::gemm::work::Tile as WorkTile;
use fp4_formats::gemm::{Affine, Epilogue, Item, Problem, Run, Tiles};

use super::multicast;
use crate::gemm::epilogue::combine::affine_of;
use crate::gemm::groups::GroupTable;
use crate::gemm::mixed::{self, MixedTable};

/// A work list. All threads of a CTA get the same answers.
pub trait Work: Copy {
    /// Whether a table in shared memory says which tiles there are, so that nothing can be copied
    /// before it is made.
    const GROUPED: bool;

    /// Whether problems have parameters of their own.
    const MIXED: bool = false;

    /// Whether CTAs take whole tiles alone.
    const WHOLE_TILES: bool = Self::MIXED;

    /// Whether problems have factors of their own.
    const OWN_FACTORS: bool = Self::GROUPED;

    /// Lets the next kernel of the stream begin, unless [`begin`](Self::begin) does: as soon as it may read the
    /// token counts that this one reads.
    #[inline(always)]
    fn release() {
        if !Self::GROUPED || Self::MIXED {
            grid::griddepcontrol_launch_dependents();
        }
    }

    /// The parameters of problem `problem`; `p` are those of the launch.
    ///
    /// # Safety
    /// There is such a problem.
    #[inline(always)]
    unsafe fn params(self, p: &Sm90Params, _: u32) -> &Sm90Params {
        p
    }

    /// The address of the activations' tensor map of problem `problem`; `map` is that of the launch.
    ///
    /// # Safety
    /// As [`params`](Self::params).
    #[inline(always)]
    unsafe fn map(self, map: u64, _: u32) -> u64 {
        map
    }

    /// Makes the tensor map at this [address](Self::map) known to copies of this thread.
    ///
    /// # Safety
    /// There is one.
    #[inline(always)]
    unsafe fn acquire(self, _: u64) {}

    /// Makes what the other functions need. Of token counts on the device, it also lets the next kernel begin.
    ///
    /// # Safety
    /// One whole warp of the CTA; the other threads use the work list behind a barrier.
    #[inline(always)]
    unsafe fn begin(self, _: &Sm90Config) {}

    /// If the work list is bad: says so, and makes all results NaN. There are no tiles then.
    ///
    /// # Safety
    /// All consumers of all CTAs call it.
    #[inline(always)]
    unsafe fn refuse(self, _: &Sm90Config, _: &Sm90Params) {}

    /// Whether the CTA brings weights of the next launch to L2.
    #[inline(always)]
    fn prefetches_next(self, _: &Sm90Config) -> bool {
        false
    }

    /// Brings to L2 what this CTA's part of the next launch reads first.
    ///
    /// # Safety
    /// One thread of a CTA that [does so](Self::prefetches_next).
    #[inline(always)]
    unsafe fn prefetch_next(self) {}

    /// This CTA's run; all CTAs of a multicast have the same.
    fn run(self, config: &Sm90Config, p: &Sm90Params) -> Run;

    /// What is left of it if the steps from `end` on are done.
    #[inline(always)]
    fn rest(self, config: &Sm90Config, p: &Sm90Params, end: u32) -> Run {
        Run { end, ..self.run(config, p) }
    }

    /// Takes what is left of a run's last tile. Something is left.
    #[inline(always)]
    fn take(self, p: &Sm90Params, run: &mut Run) -> Item {
        run.take(&p.schedule)
    }

    /// Where the rest of the run ends when `item`, which was its last, is done.
    #[inline(always)]
    fn end(self, p: &Sm90Params, item: &Item) -> u32 {
        p.schedule.start(item)
    }

    /// Whether this CTA stores the tile of an item.
    #[inline(always)]
    fn owned(self, p: &Sm90Params, item: &Item) -> bool {
        item.owned(&p.schedule)
    }

    /// The first CTA that computes steps of an item's tile; this CTA computes the last.
    fn first_cta(self, p: &Sm90Params, item: &Item) -> u32;

    /// Tile number `index`.
    fn tile(self, config: &Sm90Config, p: &Sm90Params, index: u32) -> WorkTile;

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
    fn run(self, config: &Sm90Config, p: &Sm90Params) -> Run {
        // Pinned: recomputed where it is needed, to save registers.
        p.schedule.run(multicast::run_of(config, marker::pin(thread::block_idx_x())))
    }

    #[inline(always)]
    fn first_cta(self, p: &Sm90Params, item: &Item) -> u32 {
        item.first_cta(&p.schedule)
    }

    #[inline(always)]
    fn tile(self, config: &Sm90Config, p: &Sm90Params, index: u32) -> WorkTile {
        Tiles::walked(&p.problem, config.work_shape(), Sm90Config::ORDER, p.walk).tile(index)
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

/// A dense or batched product of activations in e4m3: each batch entry has row factors of its own, the
/// scales of its tokens, [`Sm90Params::row_factor_stride`] apart.
#[derive(Clone, Copy)]
pub struct Scaled {
    pub row_factor_stride: u32,
}

impl Work for Scaled {
    const GROUPED: bool = false;
    const OWN_FACTORS: bool = true;

    #[inline(always)]
    fn run(self, config: &Sm90Config, p: &Sm90Params) -> Run {
        Uniform.run(config, p)
    }

    #[inline(always)]
    fn first_cta(self, p: &Sm90Params, item: &Item) -> u32 {
        Uniform.first_cta(p, item)
    }

    #[inline(always)]
    fn tile(self, config: &Sm90Config, p: &Sm90Params, index: u32) -> WorkTile {
        Uniform.tile(config, p, index)
    }

    #[inline(always)]
    unsafe fn alphas(self, epilogue: &Epilogue, problem: u32) -> [f32; 2] {
        // SAFETY: the caller's.
        unsafe { Uniform.alphas(epilogue, problem) }
    }

    #[inline(always)]
    fn affine(self, epilogue: &Epilogue, half: u32, problem: u32, _: [f32; 2]) -> Affine {
        let affine = affine_of(epilogue, half);
        let before = u64::from(problem) * u64::from(self.row_factor_stride);
        let row_factors = affine.row_factors + before * size_of::<f32>() as u64;
        Affine { row_factors, ..affine }
    }
}

/// A grouped product. Its table in shared memory is [`Sm90Config::table_offset`]'s.
impl Work for GroupTable<'_> {
    const GROUPED: bool = true;

    #[inline(always)]
    unsafe fn begin(self, config: &Sm90Config) {
        // SAFETY: the caller's.
        unsafe {
            self.make::<true>(config.tiling(), multicast::run_of(config, thread::block_idx_x()));
        }
    }

    #[inline(always)]
    unsafe fn refuse(self, config: &Sm90Config, p: &Sm90Params) {
        let cta = multicast::run_of(config, thread::block_idx_x());
        let thread = multicast::rank(config) * CONSUMER_THREADS + thread::thread_idx_x();
        let threads = [thread, config.multicast * CONSUMER_THREADS];
        // SAFETY: the caller's.
        unsafe { self.refuse(&p.epilogue.sink, &p.problem, cta, threads) };
    }

    #[inline(always)]
    fn prefetches_next(self, config: &Sm90Config) -> bool {
        config.prefetches_next() && self.groups.next.weights != 0
    }

    #[inline(always)]
    unsafe fn prefetch_next(self) {
        // SAFETY: the caller's.
        unsafe { self.prefetch_for(thread::block_idx_x()) };
    }

    #[inline(always)]
    fn run(self, _: &Sm90Config, _: &Sm90Params) -> Run {
        let OwnRun { first, end, .. } = self.own();
        Run { first, end }
    }

    #[inline(always)]
    fn first_cta(self, _: &Sm90Params, _: &Item) -> u32 {
        // Only where the run begins can steps of a tile be another CTA's.
        self.own().first_cta
    }

    #[inline(always)]
    fn tile(self, _: &Sm90Config, _: &Sm90Params, index: u32) -> WorkTile {
        self.tile(self.own().tile(index))
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

/// Products of sizes of their own. CTAs take whole tiles. The table in shared memory is
/// [`Sm90Config::table_offset`]'s.
impl Work for MixedTable<'_> {
    const GROUPED: bool = true;
    const MIXED: bool = true;

    #[inline(always)]
    unsafe fn params(self, _: &Sm90Params, problem: u32) -> &Sm90Params {
        // SAFETY: the caller's; the blocks are an sm_90a kernel's.
        unsafe { self.block(problem) }
    }

    #[inline(always)]
    unsafe fn map(self, _: u64, problem: u32) -> u64 {
        // SAFETY: the caller's; a block begins with the map.
        let own: &Sm90Params = unsafe { self.block(problem) };
        core::ptr::from_ref(own) as u64
    }

    #[inline(always)]
    unsafe fn acquire(self, map: u64) {
        // SAFETY: the caller's.
        unsafe { mixed::acquire_maps(map, [0, 1]) };
    }

    #[inline(always)]
    unsafe fn begin(self, _: &Sm90Config) {
        // SAFETY: the caller's.
        unsafe { self.make() };
    }

    #[inline(always)]
    fn run(self, _: &Sm90Config, _: &Sm90Params) -> Run {
        self.mixed.run(marker::pin(thread::block_idx_x()))
    }

    #[inline(always)]
    fn take(self, p: &Sm90Params, run: &mut Run) -> Item {
        let tile = run.end - 1;
        run.end = self.mixed.end(tile);
        let (problem, _) = self.locate(tile);
        // SAFETY: the tile's problem exists.
        let own = unsafe { self.params(p, problem) };
        Item { tile, first: 0, end: own.schedule.steps() }
    }

    #[inline(always)]
    fn end(self, _: &Sm90Params, item: &Item) -> u32 {
        self.mixed.end(item.tile)
    }

    #[inline(always)]
    fn owned(self, _: &Sm90Params, _: &Item) -> bool {
        true
    }

    #[inline(always)]
    fn first_cta(self, _: &Sm90Params, _: &Item) -> u32 {
        thread::block_idx_x()
    }

    #[inline(always)]
    fn tile(self, config: &Sm90Config, p: &Sm90Params, index: u32) -> WorkTile {
        let (problem, index) = self.locate(index);
        // SAFETY: the tile's problem exists.
        let own = unsafe { self.params(p, problem) };
        let sizes = Problem { l: 1, ..own.problem };
        let tiles = Tiles::walked(&sizes, config.work_shape(), Sm90Config::ORDER, own.walk);
        WorkTile { problem, ..tiles.tile(index) }
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
