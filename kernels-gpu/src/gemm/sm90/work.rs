//! The work list of a CTA's roles: dense and batched products, whose sizes the host knows, grouped
//! ones, whose token counts only the device knows, or mixed ones.

use cuda_std::ptx::{grid, marker};
use cuda_std::thread;
use fp4_formats::gemm::groups::OwnRun;
use fp4_formats::gemm::sm90::config::{CONSUMER_THREADS, Sm90Config};
use fp4_formats::gemm::sm90::params::Sm90Params;
use fp4_formats::gemm::work::Tile as WorkTile;
use fp4_formats::gemm::{Affine, Epilogue, Item, Problem, Run, Tiles};
use fp4_formats::tensor_map::TENSOR_MAP_ALIGN;

use super::{Cta, multicast};
use crate::gemm::epilogue::combine::affine_of;
use crate::gemm::groups::GroupTable;
use crate::gemm::mixed::{self, MixedTable};

/// A work list. All threads of a CTA get the same answers.
pub trait WorkList: Copy {
    /// Whether a table in shared memory says which tiles there are, so that nothing can be copied
    /// before it is made.
    const GROUPED: bool;

    /// Whether problems have their own parameters.
    const MIXED: bool = false;

    /// Whether CTAs take whole tiles alone.
    const WHOLE_TILES: bool = Self::MIXED;

    /// Whether problems have their own factors.
    const OWN_FACTORS: bool = Self::GROUPED;

    /// Lets the next kernel of the stream begin, unless [`begin`](Self::begin) does: as soon as it may read the
    /// token counts that this one reads.
    #[inline(always)]
    fn release() {
        if !Self::GROUPED || Self::MIXED {
            grid::griddepcontrol_launch_dependents();
        }
    }

    /// The parameters of problem `problem`, from those of the launch.
    ///
    /// # Safety
    /// There is such a problem.
    #[inline(always)]
    unsafe fn params(self, launch: &Sm90Params, _: u32) -> &Sm90Params {
        launch
    }

    /// Generic address of the tensor maps at the head of these parameters, the problem's.
    #[inline(always)]
    fn maps(self, _: &Sm90Params) -> u64 {
        marker::kernel_parameter::<0, { TENSOR_MAP_ALIGN as u32 }>()
    }

    /// Makes the tensor map at this [address](Self::maps) known to copies of this thread.
    ///
    /// # Safety
    /// There is one.
    #[inline(always)]
    unsafe fn acquire(self, _: u64) {}

    /// Prepares the list for the other functions. With token counts on the device, it also lets the next
    /// kernel begin.
    ///
    /// # Safety
    /// One whole warp of the CTA; the other threads use the work list behind a barrier.
    #[inline(always)]
    unsafe fn begin(_: &Cta<'_, Self>) {}

    /// If the work list is bad: says so, and makes all results NaN. There are no tiles then.
    ///
    /// # Safety
    /// All consumers of all CTAs call it.
    #[inline(always)]
    unsafe fn refuse(_: &Cta<'_, Self>) {}

    /// Whether the CTA brings weights of the next launch to L2.
    #[inline(always)]
    fn prefetches_next(_: &Cta<'_, Self>) -> bool {
        false
    }

    /// Brings to L2 the first data that this CTA's part of the next launch reads.
    ///
    /// # Safety
    /// One thread of a CTA that [does so](Self::prefetches_next).
    #[inline(always)]
    unsafe fn prefetch_next(_: &Cta<'_, Self>) {}

    /// This CTA's run; all CTAs of a multicast have the same.
    fn run(cta: &Cta<'_, Self>) -> Run;

    /// Returns the rest of it if the steps from `end` on are done.
    #[inline(always)]
    fn rest(cta: &Cta<'_, Self>, end: u32) -> Run {
        Run { end, ..Self::run(cta) }
    }

    /// Takes the rest of a run's last tile. It is not empty.
    #[inline(always)]
    fn take(cta: &Cta<'_, Self>, run: &mut Run) -> Item {
        run.take(&cta.params.schedule)
    }

    /// Returns the end of the rest of the run when `item`, which was its last, is done.
    #[inline(always)]
    fn end(cta: &Cta<'_, Self>, item: &Item) -> u32 {
        cta.params.schedule.start(item)
    }

    /// Whether this CTA stores the tile of an item.
    #[inline(always)]
    fn owned(cta: &Cta<'_, Self>, item: &Item) -> bool {
        item.owned(&cta.params.schedule)
    }

    /// The first CTA that computes steps of an item's tile; this CTA computes the last.
    fn first_cta(cta: &Cta<'_, Self>, item: &Item) -> u32;

    /// Tile number `index`.
    fn tile(cta: &Cta<'_, Self>, index: u32) -> WorkTile;

    /// Factors of the sums of both halves of problem `problem`.
    ///
    /// # Safety
    /// There is such a problem.
    unsafe fn alphas(self, epilogue: &Epilogue, problem: u32) -> [f32; 2];

    /// Factors and bias of half `half` of problem `problem`, whose [`alphas`](Self::alphas) these are.
    fn affine(self, epilogue: &Epilogue, half: u32, problem: u32, alphas: [f32; 2]) -> Affine;
}

impl<'a, L: WorkList> Cta<'a, L> {
    /// The same with the parameters of problem `problem`.
    ///
    /// # Safety
    /// There is such a problem.
    #[inline(always)]
    pub unsafe fn at(&self, problem: u32) -> Self {
        if !L::MIXED {
            return *self;
        }
        // SAFETY: the caller's.
        let params = unsafe { self.list.params(self.params, problem) };
        Self { params, maps: self.list.maps(params), ..*self }
    }

    /// The same with another work list.
    #[inline(always)]
    fn of<M>(&self, list: M) -> Cta<'a, M> {
        let Self { config, params, maps, memory, rank, .. } = *self;
        Cta { config, params, maps, list, memory, rank }
    }

    /// Factors of the sums of both halves of problem `problem`.
    ///
    /// # Safety
    /// There is such a problem.
    #[inline(always)]
    pub unsafe fn alphas(&self, problem: u32) -> [f32; 2] {
        // SAFETY: the caller's.
        unsafe { self.list.alphas(&self.at(problem).params.epilogue, problem) }
    }
}

/// The tiles of a product of these sizes.
#[inline(always)]
fn tiles(config: &Sm90Config, params: &Sm90Params, sizes: &Problem) -> Tiles {
    Tiles::walked(sizes, config.work_shape(), Sm90Config::ORDER, params.walk)
}

/// A dense or batched product.
#[derive(Clone, Copy)]
pub struct Uniform;

impl WorkList for Uniform {
    const GROUPED: bool = false;

    #[inline(always)]
    fn run(cta: &Cta<'_, Self>) -> Run {
        // Pinned: recomputed at each use, to save registers.
        let run = multicast::run_of(cta.config, marker::pin(thread::block_idx_x()));
        cta.params.schedule.run(run)
    }

    #[inline(always)]
    fn first_cta(cta: &Cta<'_, Self>, item: &Item) -> u32 {
        item.first_cta(&cta.params.schedule)
    }

    #[inline(always)]
    fn tile(cta: &Cta<'_, Self>, index: u32) -> WorkTile {
        tiles(cta.config, cta.params, &cta.params.problem).tile(index)
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

/// A dense or batched product of activations in e4m3: each batch entry has its own row factors, the
/// scales of its tokens, at distances of [`Sm90Params::row_factor_stride`].
#[derive(Clone, Copy)]
pub struct Scaled {
    pub row_factor_stride: u32,
}

impl WorkList for Scaled {
    const GROUPED: bool = false;
    const OWN_FACTORS: bool = true;

    #[inline(always)]
    fn run(cta: &Cta<'_, Self>) -> Run {
        Uniform::run(&cta.of(Uniform))
    }

    #[inline(always)]
    fn first_cta(cta: &Cta<'_, Self>, item: &Item) -> u32 {
        Uniform::first_cta(&cta.of(Uniform), item)
    }

    #[inline(always)]
    fn tile(cta: &Cta<'_, Self>, index: u32) -> WorkTile {
        Uniform::tile(&cta.of(Uniform), index)
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
impl WorkList for GroupTable<'_> {
    const GROUPED: bool = true;

    #[inline(always)]
    unsafe fn begin(cta: &Cta<'_, Self>) {
        let run = multicast::run_of(cta.config, thread::block_idx_x());
        // SAFETY: the caller's.
        unsafe { cta.list.make::<true>(cta.config.tiling(), run) };
    }

    #[inline(always)]
    unsafe fn refuse(cta: &Cta<'_, Self>) {
        let (config, params) = (cta.config, cta.params);
        let run = multicast::run_of(config, thread::block_idx_x());
        let thread = cta.rank * CONSUMER_THREADS + thread::thread_idx_x();
        let threads = [thread, config.multicast * CONSUMER_THREADS];
        // SAFETY: the caller's.
        unsafe { cta.list.refuse(&params.epilogue.sink, &params.problem, run, threads) };
    }

    #[inline(always)]
    fn prefetches_next(cta: &Cta<'_, Self>) -> bool {
        cta.config.prefetches_next() && cta.list.groups.next.weights != 0
    }

    #[inline(always)]
    unsafe fn prefetch_next(cta: &Cta<'_, Self>) {
        // SAFETY: the caller's.
        unsafe { cta.list.prefetch_for(thread::block_idx_x()) };
    }

    #[inline(always)]
    fn run(cta: &Cta<'_, Self>) -> Run {
        let OwnRun { first, end, .. } = cta.list.own();
        Run { first, end }
    }

    #[inline(always)]
    fn first_cta(cta: &Cta<'_, Self>, _: &Item) -> u32 {
        // Only at the run's begin can steps of a tile be another CTA's.
        cta.list.own().first_cta
    }

    #[inline(always)]
    fn tile(cta: &Cta<'_, Self>, index: u32) -> WorkTile {
        cta.list.tile(cta.list.own().tile(index))
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

/// The work list of mixed products. CTAs take whole tiles. The table in shared memory is
/// [`Sm90Config::table_offset`]'s.
impl WorkList for MixedTable<'_> {
    const GROUPED: bool = true;
    const MIXED: bool = true;

    #[inline(always)]
    unsafe fn params(self, _: &Sm90Params, problem: u32) -> &Sm90Params {
        // SAFETY: the caller's; the blocks are an sm_90a kernel's.
        unsafe { self.block(problem) }
    }

    #[inline(always)]
    fn maps(self, own: &Sm90Params) -> u64 {
        const { assert!(core::mem::offset_of!(Sm90Params, activations) == 0) };
        core::ptr::from_ref(own) as u64
    }

    #[inline(always)]
    unsafe fn acquire(self, map: u64) {
        // SAFETY: the caller's.
        unsafe { mixed::acquire_maps(map, [0, 1]) };
    }

    #[inline(always)]
    unsafe fn begin(cta: &Cta<'_, Self>) {
        // SAFETY: the caller's.
        unsafe { cta.list.make() };
    }

    #[inline(always)]
    fn run(cta: &Cta<'_, Self>) -> Run {
        cta.list.mixed.run(marker::pin(thread::block_idx_x()))
    }

    #[inline(always)]
    fn take(cta: &Cta<'_, Self>, run: &mut Run) -> Item {
        let tile = run.end - 1;
        run.end = cta.list.mixed.end(tile);
        let (problem, _) = cta.list.locate(tile);
        // SAFETY: the tile's problem exists.
        let own = unsafe { cta.at(problem) };
        Item { tile, first: 0, end: own.params.schedule.steps() }
    }

    #[inline(always)]
    fn end(cta: &Cta<'_, Self>, item: &Item) -> u32 {
        cta.list.mixed.end(item.tile)
    }

    #[inline(always)]
    fn owned(_: &Cta<'_, Self>, _: &Item) -> bool {
        true
    }

    #[inline(always)]
    fn first_cta(_: &Cta<'_, Self>, _: &Item) -> u32 {
        thread::block_idx_x()
    }

    #[inline(always)]
    fn tile(cta: &Cta<'_, Self>, index: u32) -> WorkTile {
        let (problem, index) = cta.list.locate(index);
        // SAFETY: the tile's problem exists.
        let own = unsafe { cta.at(problem) }.params;
        let sizes = Problem { l: 1, ..own.problem };
        WorkTile { problem, ..tiles(cta.config, own, &sizes).tile(index) }
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
