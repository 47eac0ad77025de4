//! The sink of NVFP4 with adaptive block scales.

use super::sink::{Sink, element, scale, store_any, write_level};
use super::{Place, magnitude, pad_blocks};
use crate::quantize::{AnyRange, F32};
use cuda_std::ptx::{marker, memory};
use fp4_formats::quantize::{QuantizeParams, ScaleSource};
use fp4_formats::recipe::{AdaptiveRecipe, AdaptiveTensor, BlockScale};
use fp4_formats::rows::RowsParams;
use fp4_formats::rows::arithmetic::{CHUNK, Chunk};

/// NVFP4 with adaptive block scales.
pub struct Adaptive;

impl Sink for Adaptive {
    type Row = AdaptiveTensor;
    type Usual = Self;
    const BITS: u32 = 4;

    #[inline(always)]
    fn reduces(p: &QuantizeParams) -> bool {
        p.source == ScaleSource::RowAmax as u32
    }

    /// Two ways of each block are more code than copies of it are worth.
    #[inline(always)]
    fn is_usual(_p: &QuantizeParams) -> bool {
        false
    }

    #[inline(always)]
    fn row(p: &RowsParams, amax: f32) -> AdaptiveTensor {
        let recipe = AdaptiveRecipe::from_code(p.quantize.recipe);
        let (parameter, amax) = if Self::reduces(&p.quantize) {
            (recipe.tensor_parameter(amax), amax)
        } else {
            (p.quantize.given, recipe.tensor_maximum(p.quantize.given))
        };
        AdaptiveTensor::new(recipe, parameter, amax)
    }

    #[inline(always)]
    unsafe fn note(p: &RowsParams, row: u32, amax: f32) {
        let recipe = AdaptiveRecipe::from_code(p.quantize.recipe);
        let by_row = Self::reduces(&p.quantize);
        let parameter = if by_row { recipe.tensor_parameter(amax) } else { p.quantize.given };
        let multiplier = recipe.project().multiplier(parameter);
        // SAFETY: the same as the caller's.
        unsafe { write_level(p, row, by_row, parameter, multiplier) };
    }

    #[inline(always)]
    unsafe fn store(
        p: &RowsParams,
        of_row: &AdaptiveTensor,
        place: &Place,
        chunk: u32,
        values: &Chunk,
    ) {
        if chunk >= place.chunks {
            return;
        }
        let of_block = better(of_row, values);
        // SAFETY: the chunk exists, and no other lane has it.
        unsafe {
            store_any(&p.quantize, of_block, element(&p.quantize, place.row, chunk), values);
            let at = scale(&p.quantize, place.row, chunk, place.chunks);
            memory::st_global_b8(at, u16::from(of_block.byte));
        }
    }

    #[inline(always)]
    unsafe fn pad(p: &RowsParams, row: u32, thread: u32) {
        // SAFETY: the same as the caller's.
        unsafe { pad_blocks(&p.quantize, p.quantize.k / CHUNK as u32, row, thread) };
    }
}

/// The better scale of a block, as [`AdaptiveTensor::block`] chooses it, by one copy of the code that rounds eight
/// elements.
#[inline(always)]
fn better(tensor: &AdaptiveTensor, values: &Chunk) -> BlockScale {
    let amax = magnitude(values);
    let mut way = tensor.candidate::<AnyRange<F32>>(amax, false);
    let (mut chosen, mut least, mut error) = (way.scale, 0.0, 0.0);
    let (mut step, mut group) = (0, values[0]);
    loop {
        let codes = way.tried.codes::<AnyRange<F32>>(group);
        error = tensor.add_errors::<AnyRange<F32>>(way.factor, codes, group, error);
        // The pin keeps the compiler from unrolling the loop.
        step = marker::pin(step + 1);
        group = if step % 2 == 0 { values[0] } else { values[1] };
        if step == 2 {
            least = error;
            (way, error) = (tensor.candidate::<AnyRange<F32>>(amax, true), 0.0);
        } else if step == 4 {
            if error < least {
                chosen = way.scale;
            }
            return chosen;
        }
    }
}
