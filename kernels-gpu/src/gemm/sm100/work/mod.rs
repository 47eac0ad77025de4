//! The work list of a CTA's roles: dense and batched products, whose sizes the host knows, grouped
//! ones, whose token counts only the device knows, or mixed ones.

use cuda_std::ptx::marker;
use fp4_formats::gemm::sm100::{Sm100Config, Sm100Params};
use fp4_formats::gemm::work::Tile;
use fp4_formats::gemm::{Affine, Epilogue};
use fp4_formats::tensor_map::TENSOR_MAP_ALIGN;

mod tables;
mod uniform;

pub use uniform::{Scaled, Uniform};

/// A work list. All threads of a cluster get the same answers.
pub trait WorkList: Copy {
    /// Whether a table in shared memory says which tiles there are.
    const GROUPED: bool;

    /// Whether problems have their own parameters.
    const MIXED: bool = false;

    /// The numbering of tiles.
    type Numbers: Copy;

    /// The data that a storing thread keeps of a tile's problem.
    type Group: Copy;

    /// Returns the parameters of a tile's problem; `params` are the launch's.
    ///
    /// # Safety
    /// There is such a problem.
    #[inline(always)]
    unsafe fn params<'a>(self, params: &'a Sm100Params, _: &Tile) -> &'a Sm100Params {
        params
    }

    /// Returns the generic address of the tensor maps; `params` are the tile's parameters.
    #[inline(always)]
    fn maps(self, _: &Sm100Params) -> u64 {
        marker::kernel_parameter::<0, { TENSOR_MAP_ALIGN as u32 }>()
    }

    /// Makes maps `first..end` of a tile's problem known to copies of this thread. `known` is the
    /// problem whose maps are.
    ///
    /// # Safety
    /// There are such maps.
    #[inline(always)]
    unsafe fn acquire(self, _: &Sm100Params, _: &Tile, _: [u32; 2], _: &mut u32) {}

    /// Whether weights are copied before the kernels before have ended. They are not if the choice of
    /// weights depends on those kernels.
    fn begins_early(self) -> bool;

    /// Prepares the list for the other functions. With token counts on the device, it also lets the next
    /// kernel begin.
    ///
    /// # Safety
    /// One whole warp of each CTA; the other threads use the work list behind a barrier.
    #[inline(always)]
    unsafe fn begin(self, _: &Sm100Config, _: bool) {}

    /// If the work list is bad: says so, and makes all results NaN. There are no tiles then.
    ///
    /// # Safety
    /// All storing threads of all CTAs call it.
    #[inline(always)]
    unsafe fn refuse(self, _: &Sm100Params) {}

    /// Returns the numbering of the tiles.
    fn numbers(self, config: &Sm100Config, params: &Sm100Params) -> Self::Numbers;

    /// Returns the number of tiles.
    fn count(self, numbers: &Self::Numbers) -> u32;

    /// Tile number `index`.
    fn tile(self, numbers: &Self::Numbers, index: u32) -> Tile;

    /// Returns the matrix of the activations' scales, and its row with the scales of the first
    /// token of a tile's problem.
    #[inline(always)]
    fn scales(self, tile: &Tile) -> (u32, u32) {
        (tile.tokens.matrix, tile.tokens.first)
    }

    /// Returns the data that storing threads keep of a tile's problem.
    ///
    /// # Safety
    /// There is such a problem.
    unsafe fn group(self, epilogue: &Epilogue, tile: &Tile) -> Self::Group;

    /// One past the last token of the problem.
    #[inline(always)]
    fn end(params: &Sm100Params, _: &Self::Group) -> u32 {
        params.problem.m
    }

    /// Tokens of the result's matrix up to the last problem's last one.
    #[inline(always)]
    fn rows(params: &Sm100Params, _: &Self::Group) -> u32 {
        params.problem.m
    }

    /// Factors and bias of half `half`.
    fn affine(self, epilogue: &Epilogue, half: u32, group: &Self::Group) -> Affine;
}
