//! Work lists of dense and batched products, whose sizes the host knows.

use fp4_formats::gemm::work::Tile;
use fp4_formats::gemm::{Affine, Epilogue, Item, Run};

use super::{WorkList, alphas_of, tiles};
use crate::gemm::cta::{Cta, Target};
use crate::gemm::epilogue::combine::affine_of;

/// A dense or batched product.
#[derive(Clone, Copy)]
pub struct Uniform;

impl WorkList for Uniform {
    const GROUPED: bool = false;

    #[inline(always)]
    fn count<T: Target>(cta: &Cta<'_, T, Self>) -> u32 {
        tiles(cta, cta.head().problem).counts.launched()
    }

    #[inline(always)]
    fn run<T: Target>(cta: &Cta<'_, T, Self>) -> Run {
        cta.head().schedule.run(T::run_index(cta.config))
    }

    #[inline(always)]
    fn first_cta<T: Target>(cta: &Cta<'_, T, Self>, item: &Item) -> u32 {
        item.first_cta(cta.head().schedule)
    }

    #[inline(always)]
    fn tile<T: Target>(cta: &Cta<'_, T, Self>, index: u32) -> Tile {
        tiles(cta, cta.head().problem).tile(index)
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

/// A dense or batched product of activations in e4m3: each batch entry has its own row factors, the
/// scales of its tokens, at these distances.
#[derive(Clone, Copy)]
pub struct Scaled {
    /// Distance of the row factors of two batch entries; 0 if they share them.
    pub row_factor_stride: u32,
}

impl WorkList for Scaled {
    const GROUPED: bool = false;
    const OWN_FACTORS: bool = true;

    #[inline(always)]
    fn count<T: Target>(cta: &Cta<'_, T, Self>) -> u32 {
        Uniform::count(&cta.with(Uniform))
    }

    #[inline(always)]
    fn run<T: Target>(cta: &Cta<'_, T, Self>) -> Run {
        Uniform::run(&cta.with(Uniform))
    }

    #[inline(always)]
    fn first_cta<T: Target>(cta: &Cta<'_, T, Self>, item: &Item) -> u32 {
        Uniform::first_cta(&cta.with(Uniform), item)
    }

    #[inline(always)]
    fn tile<T: Target>(cta: &Cta<'_, T, Self>, index: u32) -> Tile {
        Uniform::tile(&cta.with(Uniform), index)
    }

    #[inline(always)]
    unsafe fn alphas(self, epilogue: &Epilogue, _: u32) -> [f32; 2] {
        alphas_of(epilogue)
    }

    #[inline(always)]
    fn affine(self, epilogue: &Epilogue, half: u32, problem: u32, _: [f32; 2]) -> Affine {
        let affine = affine_of(epilogue, half);
        let before = u64::from(problem) * u64::from(self.row_factor_stride);
        let row_factors = affine.row_factors + before * size_of::<f32>() as u64;
        Affine { row_factors, ..affine }
    }
}
