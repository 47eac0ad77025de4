//! Work lists that are tables in shared memory: of grouped products, whose token counts only the
//! device knows, and of mixed products.

use cuda_std::ptx::grid;
use cuda_std::{thread, warp};
use fp4_formats::gemm;
use fp4_formats::gemm::groups::Tiling;
use fp4_formats::gemm::sm100::config::STORE_WARPS;
use fp4_formats::gemm::sm100::{Sm100Config, Sm100Params};
use fp4_formats::gemm::work::Tile;
use fp4_formats::gemm::{Affine, Epilogue, Problem, TileOrder, TileShape};
use fp4_formats::layout::TILE_ROWS;

use super::WorkList;
use crate::gemm::epilogue::combine::affine_of;
use crate::gemm::groups::GroupTable;
use crate::gemm::mixed::{self, MixedTable};

/// The data that a storing thread keeps of a group.
#[derive(Clone, Copy)]
pub struct Group {
    problem: u32,
    /// One past its last token.
    end: u32,
    /// Tokens up to the last group's last one.
    rows: u32,
    /// Alpha of each half, times the group's factors.
    alphas: [f32; 2],
}

/// A grouped product. Its table in shared memory is [`Memory::table`](crate::gemm::sm100::memory::Memory)'s.
impl WorkList for GroupTable<'_> {
    const GROUPED: bool = true;

    type Numbers = u32;

    type Group = Group;

    #[inline(always)]
    fn begins_early(self) -> bool {
        self.groups.settled != 0
    }

    #[inline(always)]
    unsafe fn begin(self, config: &Sm100Config, swapped: bool) {
        // SAFETY: the caller's.
        unsafe { self.make::<false>(Tiling::of(config.work_shape(swapped).tokens), 0) };
    }

    #[inline(always)]
    unsafe fn refuse(self, params: &Sm100Params) {
        const THREADS: u32 = STORE_WARPS * warp::LANES;
        let (thread, cta) = (thread::thread_idx_x(), thread::block_idx_x());
        // SAFETY: the caller's.
        unsafe { self.refuse(&params.epilogue.sink, &params.problem, cta, [thread, THREADS]) };
    }

    #[inline(always)]
    fn numbers(self, _: &Sm100Config, _: &Sm100Params) -> Self::Numbers {
        self.tiles()
    }

    #[inline(always)]
    fn count(self, numbers: &Self::Numbers) -> u32 {
        *numbers
    }

    #[inline(always)]
    fn tile(self, _: &Self::Numbers, index: u32) -> Tile {
        self.tile(index)
    }

    #[inline(always)]
    fn scales(self, tile: &Tile) -> (u32, u32) {
        let tile = self.groups.scale_tile(tile.problem, tile.tokens.first);
        (0, tile * TILE_ROWS as u32)
    }

    #[inline(always)]
    unsafe fn group(self, epilogue: &Epilogue, tile: &Tile) -> Self::Group {
        // SAFETY: the caller's.
        let alphas = unsafe {
            let [gate, up] =
                [self.affine(epilogue, 0, tile.problem), self.affine(epilogue, 1, tile.problem)];
            [gate.alpha, up.alpha]
        };
        let (problem, rows) = (tile.problem, tile.tokens.rows);
        Group { problem, end: tile.tokens.first + tile.tokens.count, rows, alphas }
    }

    #[inline(always)]
    fn end(_: &Sm100Params, group: &Self::Group) -> u32 {
        group.end
    }

    #[inline(always)]
    fn rows(_: &Sm100Params, group: &Self::Group) -> u32 {
        group.rows
    }

    #[inline(always)]
    fn affine(self, epilogue: &Epilogue, half: u32, group: &Self::Group) -> Affine {
        let [gate, up] = group.alphas;
        let alpha = if half == 0 { gate } else { up };
        self.vectors(Affine { alpha, ..affine_of(epilogue, half) }, group.problem)
    }
}

/// The work list of mixed products. Their table in shared memory is
/// [`Memory::table`](crate::gemm::sm100::memory::Memory)'s.
impl WorkList for MixedTable<'_> {
    const GROUPED: bool = true;
    const MIXED: bool = true;

    type Numbers = (TileShape, TileOrder);

    type Group = ();

    #[inline(always)]
    unsafe fn params<'a>(self, _: &'a Sm100Params, tile: &Tile) -> &'a Sm100Params {
        // SAFETY: the caller's; the blocks are an sm_100a kernel's.
        unsafe { self.block(tile.problem) }
    }

    #[inline(always)]
    fn maps(self, params: &Sm100Params) -> u64 {
        core::ptr::from_ref(params) as u64
    }

    #[inline(always)]
    unsafe fn acquire(
        self,
        params: &Sm100Params,
        tile: &Tile,
        [first, end]: [u32; 2],
        known: &mut u32,
    ) {
        if *known != tile.problem {
            *known = tile.problem;
            // SAFETY: the caller's.
            unsafe { mixed::acquire_maps(self.maps(params), [first, end]) };
        }
    }

    #[inline(always)]
    fn begins_early(self) -> bool {
        false
    }

    #[inline(always)]
    unsafe fn begin(self, _: &Sm100Config, _: bool) {
        // Threads that meet this warp behind here may read the results of the kernel before, and
        // write its memory.
        grid::griddepcontrol_wait();
        // SAFETY: the caller's.
        unsafe { self.make() };
    }

    #[inline(always)]
    fn numbers(self, config: &Sm100Config, params: &Sm100Params) -> Self::Numbers {
        let swapped = config.is_swapped(params.swapped);
        (config.work_shape(swapped), Sm100Config::order(swapped))
    }

    #[inline(always)]
    fn count(self, _: &Self::Numbers) -> u32 {
        self.mixed.tiles
    }

    #[inline(always)]
    fn tile(self, &(shape, order): &Self::Numbers, index: u32) -> Tile {
        // Roles walk upwards; the longest tiles have the highest numbers.
        let (problem, index) = self.locate(self.mixed.tiles - 1 - index);
        // SAFETY: the tile's problem exists.
        let own: &Sm100Params = unsafe { self.block(problem) };
        let sizes = Problem { l: 1, ..own.problem };
        let tiles = gemm::Tiles::walked(&sizes, shape, order, own.walk);
        Tile { problem, ..tiles.tile(index) }
    }

    #[inline(always)]
    unsafe fn group(self, _: &Epilogue, _: &Tile) -> Self::Group {}

    #[inline(always)]
    fn affine(self, epilogue: &Epilogue, half: u32, (): &Self::Group) -> Affine {
        affine_of(epilogue, half)
    }
}
