//! Work lists that are tables in shared memory: of grouped products, whose token counts only the
//! device knows, and of mixed products.

use cuda_std::ptx::marker;
use cuda_std::thread;
use fp4_formats::gemm::groups::OwnRun;
use fp4_formats::gemm::work::Tile;
use fp4_formats::gemm::{Affine, Epilogue, Item, Problem, Run};
use fp4_formats::layout::TILE_ROWS;

use super::{WorkList, alphas_of, tiles};
use crate::gemm::cta::{Cta, Target};
use crate::gemm::epilogue::combine::affine_of;
use crate::gemm::groups::GroupTable;
use crate::gemm::mixed::{self, MixedTable};
use crate::pipeline;

/// A grouped product.
impl WorkList for GroupTable<'_> {
    const GROUPED: bool = true;

    #[inline(always)]
    fn begins_early(self) -> bool {
        self.groups.settled != 0
    }

    #[inline(always)]
    unsafe fn begin<T: Target>(cta: &Cta<'_, T, Self>) {
        let tiling = T::tiling(cta.config, cta.params);
        // SAFETY: the caller's.
        unsafe {
            if T::GROUPED_RUNS {
                cta.list.make::<true>(tiling, T::run_index(cta.config));
            } else {
                cta.list.make::<false>(tiling, 0);
            }
        }
    }

    #[inline(always)]
    unsafe fn refuse<T: Target>(cta: &Cta<'_, T, Self>) {
        let (ctas, threads) = T::storing_thread(cta);
        let head = cta.head();
        // SAFETY: the caller's.
        unsafe { cta.list.refuse(&head.epilogue.sink, head.problem, ctas, threads) };
    }

    #[inline(always)]
    fn prefetches_next<T: Target>(cta: &Cta<'_, T, Self>) -> bool {
        T::prefetches_next(cta.config) && cta.list.groups.next.weights != 0
    }

    #[inline(always)]
    unsafe fn prefetch_next<T: Target>(cta: &Cta<'_, T, Self>) {
        // SAFETY: the caller's.
        unsafe { cta.list.prefetch_for(thread::block_idx_x()) };
    }

    #[inline(always)]
    fn count<T: Target>(cta: &Cta<'_, T, Self>) -> u32 {
        cta.list.tiles()
    }

    #[inline(always)]
    fn run<T: Target>(cta: &Cta<'_, T, Self>) -> Run {
        let OwnRun { first, end, .. } = cta.list.own();
        Run { first, end }
    }

    #[inline(always)]
    fn first_cta<T: Target>(cta: &Cta<'_, T, Self>, _: &Item) -> u32 {
        // Only at the run's begin can steps of a tile be another CTA's.
        cta.list.own().first_cta
    }

    #[inline(always)]
    fn tile<T: Target>(cta: &Cta<'_, T, Self>, index: u32) -> Tile {
        cta.list.tile(if T::GROUPED_RUNS { cta.list.own().tile(index) } else { index })
    }

    #[inline(always)]
    fn scales(self, tile: &Tile) -> (u32, u32) {
        let tile = self.groups.scale_tile(tile.problem, tile.tokens.first);
        (0, tile * TILE_ROWS as u32)
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

/// Mixed products. CTAs take whole tiles; the longest tiles have the highest numbers.
impl WorkList for MixedTable<'_> {
    const GROUPED: bool = true;
    const MIXED: bool = true;

    #[inline(always)]
    unsafe fn params<T: Target>(self, _: &T::Params, problem: u32) -> &T::Params {
        // SAFETY: the caller's; the blocks are this architecture's.
        unsafe { self.block(problem) }
    }

    #[inline(always)]
    fn maps<T: Target>(self, params: &T::Params) -> u64 {
        core::ptr::from_ref(params) as u64
    }

    #[inline(always)]
    unsafe fn acquire(self, maps: u64, range: [u32; 2]) {
        // SAFETY: the caller's.
        unsafe { mixed::acquire_maps(maps, range) };
    }

    #[inline(always)]
    fn begins_early(self) -> bool {
        false
    }

    #[inline(always)]
    unsafe fn begin<T: Target>(cta: &Cta<'_, T, Self>) {
        if T::MIXED_TABLE_WAITS {
            // Threads that meet this warp behind here may read the results of the kernel before, and
            // write its memory.
            pipeline::follow_stream();
        }
        // SAFETY: the caller's.
        unsafe { cta.list.make() };
    }

    #[inline(always)]
    fn count<T: Target>(cta: &Cta<'_, T, Self>) -> u32 {
        cta.list.mixed.tiles
    }

    #[inline(always)]
    fn run<T: Target>(cta: &Cta<'_, T, Self>) -> Run {
        cta.list.mixed.run(marker::pin(thread::block_idx_x()))
    }

    #[inline(always)]
    fn take<T: Target>(cta: &Cta<'_, T, Self>, run: &mut Run) -> Item {
        let tile = run.end - 1;
        run.end = cta.list.mixed.end(tile);
        let (problem, _) = cta.list.locate(tile);
        // SAFETY: the tile's problem exists.
        let own = unsafe { cta.at(problem) };
        Item { tile, first: 0, end: own.head().schedule.steps() }
    }

    #[inline(always)]
    fn end<T: Target>(cta: &Cta<'_, T, Self>, item: &Item) -> u32 {
        cta.list.mixed.end(item.tile)
    }

    #[inline(always)]
    fn owned<T: Target>(_: &Cta<'_, T, Self>, _: &Item) -> bool {
        true
    }

    #[inline(always)]
    fn first_cta<T: Target>(_: &Cta<'_, T, Self>, _: &Item) -> u32 {
        thread::block_idx_x()
    }

    #[inline(always)]
    fn tile<T: Target>(cta: &Cta<'_, T, Self>, index: u32) -> Tile {
        let (problem, index) = cta.list.locate(index);
        // SAFETY: the tile's problem exists.
        let own = unsafe { cta.at(problem) };
        let sizes = Problem { l: 1, ..*own.head().problem };
        Tile { problem, ..tiles(&own, &sizes).tile(index) }
    }

    #[inline(always)]
    unsafe fn alphas(self, epilogue: &Epilogue, _: u32) -> [f32; 2] {
        alphas_of(epilogue)
    }

    #[inline(always)]
    fn affine(self, epilogue: &Epilogue, half: u32, _: u32, _: [f32; 2]) -> Affine {
        affine_of(epilogue, half)
    }
}
