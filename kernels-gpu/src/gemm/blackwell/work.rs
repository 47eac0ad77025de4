//! The work list as a CTA's roles see it: of dense and batched products, whose sizes the host knows,
//! or of grouped ones, whose token counts only the device knows.

use cuda_std::{thread, warp};
use fp4_formats::gemm;
use fp4_formats::gemm::blackwell::config::STORE_WARPS;
use fp4_formats::gemm::blackwell::{BlackwellConfig, BlackwellParams};
use fp4_formats::gemm::work::Tile;
use fp4_formats::gemm::{Affine, Epilogue};
use fp4_formats::layout::TILE_ROWS;

use crate::gemm::epilogue::combine::affine_of;
use crate::gemm::groups::GroupTable;

/// A work list. All threads of a cluster get the same answers.
pub trait List: Copy {
    /// Whether problems have token counts of their own.
    const GROUPED: bool;

    /// What numbers tiles.
    type Numbers: Copy;

    /// What a storing thread keeps of a tile's problem.
    type Group: Copy;

    /// Makes what the other functions need.
    ///
    /// # Safety
    /// One whole warp of each CTA; the other threads use the work list behind a barrier.
    unsafe fn begin(self, config: &BlackwellConfig, swapped: bool);

    /// If the work list is bad: says so, and makes all results NaN. There are no tiles then.
    ///
    /// # Safety
    /// All storing threads of all CTAs call it; the preceding kernels of the stream have ended.
    unsafe fn refuse(self, params: &BlackwellParams);

    /// What numbers the tiles.
    fn numbers(self, config: &BlackwellConfig, params: &BlackwellParams) -> Self::Numbers;

    /// How many there are.
    fn count(self, numbers: &Self::Numbers) -> u32;

    /// Tile number `index`.
    fn tile(self, numbers: &Self::Numbers, index: u32) -> Tile;

    /// Matrix of the activations' scales, and its row with those of the first token of a tile's
    /// problem.
    fn scales(self, tile: &Tile) -> (u32, u32);

    /// What storing threads keep of a tile's problem.
    ///
    /// # Safety
    /// There is such a problem.
    unsafe fn group(self, epilogue: &Epilogue, tile: &Tile) -> Self::Group;

    /// One past the last token of the problem.
    fn end(params: &BlackwellParams, group: &Self::Group) -> u32;

    /// Tokens of the result's matrix up to the last problem's last one.
    fn rows(params: &BlackwellParams, group: &Self::Group) -> u32;

    /// Factors and bias of half `half`.
    fn affine(self, epilogue: &Epilogue, half: u32, group: &Self::Group) -> Affine;
}

/// A dense or batched product.
#[derive(Clone, Copy)]
pub struct Uniform;

impl List for Uniform {
    const GROUPED: bool = false;

    type Numbers = gemm::Tiles;

    type Group = ();

    #[inline(always)]
    unsafe fn begin(self, _: &BlackwellConfig, _: bool) {}

    #[inline(always)]
    unsafe fn refuse(self, _: &BlackwellParams) {}

    #[inline(always)]
    fn numbers(self, config: &BlackwellConfig, params: &BlackwellParams) -> Self::Numbers {
        let swapped = params.swapped != 0;
        let (shape, order) = (config.work_shape(swapped), BlackwellConfig::order(swapped));
        gemm::Tiles::walked(&params.problem, shape, order, params.walk)
    }

    #[inline(always)]
    fn count(self, numbers: &Self::Numbers) -> u32 {
        numbers.counts.launched()
    }

    #[inline(always)]
    fn tile(self, numbers: &Self::Numbers, index: u32) -> Tile {
        numbers.tile(index)
    }

    #[inline(always)]
    fn scales(self, tile: &Tile) -> (u32, u32) {
        (tile.tokens.matrix, tile.tokens.first)
    }

    #[inline(always)]
    unsafe fn group(self, _: &Epilogue, _: &Tile) -> Self::Group {}

    #[inline(always)]
    fn end(params: &BlackwellParams, (): &Self::Group) -> u32 {
        params.problem.m
    }

    #[inline(always)]
    fn rows(params: &BlackwellParams, (): &Self::Group) -> u32 {
        params.problem.m
    }

    #[inline(always)]
    fn affine(self, epilogue: &Epilogue, half: u32, (): &Self::Group) -> Affine {
        affine_of(epilogue, half)
    }
}

/// What a storing thread keeps of a group.
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

/// A grouped product. Its table in shared memory is [`Control::table`](super::control::Control)'s.
impl List for GroupTable<'_> {
    const GROUPED: bool = true;

    type Numbers = u32;

    type Group = Group;

    #[inline(always)]
    unsafe fn begin(self, config: &BlackwellConfig, swapped: bool) {
        // SAFETY: the caller's.
        unsafe { self.make(config.work_shape(swapped).tokens, 1) };
    }

    #[inline(always)]
    unsafe fn refuse(self, params: &BlackwellParams) {
        const THREADS: u32 = STORE_WARPS * warp::LANES;
        let (thread, cta) = (thread::thread_idx_x(), thread::block_idx_x());
        // SAFETY: the caller's.
        unsafe { self.refuse(&params.epilogue.sink, &params.problem, cta, [thread, THREADS]) };
    }

    #[inline(always)]
    fn numbers(self, _: &BlackwellConfig, _: &BlackwellParams) -> Self::Numbers {
        self.total()
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
    fn end(_: &BlackwellParams, group: &Self::Group) -> u32 {
        group.end
    }

    #[inline(always)]
    fn rows(_: &BlackwellParams, group: &Self::Group) -> u32 {
        group.rows
    }

    #[inline(always)]
    fn affine(self, epilogue: &Epilogue, half: u32, group: &Self::Group) -> Affine {
        let [gate, up] = group.alphas;
        let alpha = if half == 0 { gate } else { up };
        self.vectors(Affine { alpha, ..affine_of(epilogue, half) }, group.problem)
    }
}
