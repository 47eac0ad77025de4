//! Work lists of dense and batched products, whose sizes the host knows.

use fp4_formats::gemm;
use fp4_formats::gemm::sm100::{Sm100Config, Sm100Params};
use fp4_formats::gemm::work::Tile;
use fp4_formats::gemm::{Affine, Epilogue};

use super::WorkList;
use crate::gemm::epilogue::combine::affine_of;

/// A dense or batched product.
#[derive(Clone, Copy)]
pub struct Uniform;

impl WorkList for Uniform {
    const GROUPED: bool = false;

    type Numbers = gemm::Tiles;

    type Group = ();

    #[inline(always)]
    fn begins_early(self) -> bool {
        true
    }

    #[inline(always)]
    fn numbers(self, config: &Sm100Config, params: &Sm100Params) -> Self::Numbers {
        let swapped = config.is_swapped(params.swapped);
        let (shape, order) = (config.work_shape(swapped), Sm100Config::order(swapped));
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
    unsafe fn group(self, _: &Epilogue, _: &Tile) -> Self::Group {}

    #[inline(always)]
    fn affine(self, epilogue: &Epilogue, half: u32, (): &Self::Group) -> Affine {
        affine_of(epilogue, half)
    }
}

/// A dense or batched product of activations in e4m3: each batch entry has its own row factors, the
/// scales of its tokens, at distances of [`Sm100Params::row_factor_stride`].
#[derive(Clone, Copy)]
pub struct Scaled {
    pub row_factor_stride: u32,
}

impl WorkList for Scaled {
    const GROUPED: bool = false;

    type Numbers = <Uniform as WorkList>::Numbers;

    /// Its matrix.
    type Group = u32;

    #[inline(always)]
    fn begins_early(self) -> bool {
        Uniform.begins_early()
    }

    #[inline(always)]
    fn numbers(self, config: &Sm100Config, params: &Sm100Params) -> Self::Numbers {
        Uniform.numbers(config, params)
    }

    #[inline(always)]
    fn count(self, numbers: &Self::Numbers) -> u32 {
        Uniform.count(numbers)
    }

    #[inline(always)]
    fn tile(self, numbers: &Self::Numbers, index: u32) -> Tile {
        Uniform.tile(numbers, index)
    }

    #[inline(always)]
    unsafe fn group(self, _: &Epilogue, tile: &Tile) -> Self::Group {
        tile.tokens.matrix
    }

    #[inline(always)]
    fn affine(self, epilogue: &Epilogue, half: u32, matrix: &Self::Group) -> Affine {
        let affine = affine_of(epilogue, half);
        let before = u64::from(*matrix) * u64::from(self.row_factor_stride);
        let row_factors = affine.row_factors + before * size_of::<f32>() as u64;
        Affine { row_factors, ..affine }
    }
}
