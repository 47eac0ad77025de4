//! Quantises rows. A piece of a row is converted to f32, scaled and rounded while the cache holds
//! it, in loops without branches, which compilers turn into vector instructions.

use std::sync::atomic::{AtomicBool, Ordering};

use fp4_formats::recipe::{AdaptiveRecipe, BlockScale, Nvfp4Tensor, Software};
use ptx_emu_simd::{Host, on_host};
use rayon::prelude::*;

use super::adaptive::Adaptive;
use super::source::Source;
use super::{QuantizeOptions, Recipe, TensorScale};
use crate::floats::code_of_e2m1;

/// Elements of a piece, a multiple of the blocks of both formats.
const PIECE: usize = 1024;

/// The largest magnitudes from which tensor-level scales are computed.
pub(super) struct Maxima {
    /// Scales of each row; empty if no scale depends on it.
    pub rows: Vec<f32>,
    /// Scale of the tensor.
    pub tensor: f32,
}

/// Fills codes and linear scales of a matrix with `cols` columns. Returns whether all elements are
/// finite; otherwise the contents are not specified.
pub(super) fn quantize_rows(
    source: Source<'_>,
    cols: usize,
    options: &QuantizeOptions,
    (parameters, maxima): (&[f32], &Maxima),
    codes: &mut [u8],
    scales: &mut [u8],
) -> bool {
    let finite = AtomicBool::new(true);
    let kblocks = cols / options.recipe.format().block() as usize;
    let rows = codes.par_chunks_exact_mut(cols / 2).zip(scales.par_chunks_exact_mut(kblocks));
    rows.enumerate().for_each(|(row, (codes, scales))| {
        let source = source.part(row * cols..(row + 1) * cols);
        let parameter = match parameters {
            [] => 1.0,
            [only] => *only,
            all => all[row],
        };
        let amax = match (options.recipe, options.scale) {
            (Recipe::Adaptive(_), TensorScale::FromAmax) => maxima.tensor,
            (Recipe::Adaptive(_), TensorScale::PerRow) => maxima.rows[row],
            (Recipe::Adaptive(recipe), TensorScale::OneLevel | TensorScale::Given(_)) => {
                recipe.tensor_maximum(parameter)
            }
            (Recipe::Nvfp4(_) | Recipe::Mxfp4(_), _) => 0.0,
        };
        let tensor = (parameter, amax);
        let largest =
            on_host!(host => by_recipe(host, options.recipe, tensor, source, codes, scales));
        if !largest.is_finite() {
            finite.store(false, Ordering::Relaxed);
        }
    });
    finite.into_inner()
}

/// Codes and linear scales of one row by a recipe, for a parameter and, if scales are adaptive, a largest magnitude of
/// the tensor; compiled for the host's instructions. Returns the row's largest magnitude.
fn by_recipe<H: Host>(
    host: H,
    recipe: Recipe,
    tensor: (f32, f32),
    source: Source<'_>,
    codes: &mut [u8],
    scales: &mut [u8],
) -> f32 {
    use AdaptiveRecipe as Of;
    let row = Row { source, codes, scales };
    match recipe {
        Recipe::Nvfp4(recipe) => {
            let tensor = Nvfp4Tensor::new(recipe, tensor.0);
            host.run(|| row.quantize(|_: &[_; 2], amax| tensor.block::<Software>(amax)))
        }
        Recipe::Mxfp4(recipe) => host.run(|| row.quantize(|_: &[_; 4], amax| recipe.block(amax))),
        Recipe::Adaptive(recipe) => match recipe {
            Of::TransformerEngine => {
                row.adaptive::<H, { Of::TransformerEngine as u32 }>(host, tensor)
            }
            Of::TransformerEngineMse => {
                row.adaptive::<H, { Of::TransformerEngineMse as u32 }>(host, tensor)
            }
            Of::TransformerEngine448 => {
                row.adaptive::<H, { Of::TransformerEngine448 as u32 }>(host, tensor)
            }
            Of::TransformerEngine448Mse => {
                row.adaptive::<H, { Of::TransformerEngine448Mse as u32 }>(host, tensor)
            }
            Of::ModelOpt => row.adaptive::<H, { Of::ModelOpt as u32 }>(host, tensor),
        },
    }
}

/// A row of elements, and the places of its codes and linear scales.
struct Row<'a> {
    source: Source<'a>,
    codes: &'a mut [u8],
    scales: &'a mut [u8],
}

impl Row<'_> {
    /// Quantises by the recipe with adaptive scales of this code. Returns the row's largest magnitude.
    fn adaptive<H: Host, const CODE: u32>(self, host: H, (parameter, amax): (f32, f32)) -> f32 {
        let adaptive = Adaptive::<CODE>::new(parameter, amax);
        host.run(|| self.quantize(|groups, amax| adaptive.block(groups, amax)))
    }

    /// Quantises blocks of `GROUPS` groups of eight elements. `scale_of` gives the scale of a block with its largest
    /// magnitude. Returns that of the row.
    #[inline(always)]
    fn quantize<const GROUPS: usize>(
        self,
        scale_of: impl Fn(&[[f32; 8]; GROUPS], f32) -> BlockScale,
    ) -> f32 {
        let Self { source, codes, scales } = self;
        let mut largest = 0;
        let mut values = [0f32; PIECE];
        let mut rounded = [0u8; PIECE];
        let pieces = codes.chunks_mut(PIECE / 2).zip(scales.chunks_mut(PIECE / (8 * GROUPS)));
        for (at, (codes, scales)) in pieces.enumerate() {
            let len = 2 * codes.len();
            let values = &mut values[..len];
            source.part(at * PIECE..at * PIECE + len).load(values);
            let (groups, _) = values.as_chunks_mut::<8>();
            let (blocks, _) = groups.as_chunks_mut::<GROUPS>();
            for (block, scale) in blocks.iter_mut().zip(scales) {
                let amax = magnitude_bits(block);
                largest = largest.max(amax);
                let found = scale_of(block, f32::from_bits(amax));
                *scale = found.byte;
                *block = found.prepared::<Software, GROUPS>(|group| block[group]);
            }
            let rounded = &mut rounded[..len];
            for (code, value) in rounded.iter_mut().zip(values) {
                *code = code_of_e2m1(*value) as u8;
            }
            for (byte, pair) in codes.iter_mut().zip(rounded.as_chunks::<2>().0) {
                // The same as `pack::pair`, in a form of which compilers make vector instructions.
                let pair = u16::from_le_bytes(*pair);
                *byte = (pair | pair >> 4) as u8;
            }
        }
        f32::from_bits(largest)
    }
}

/// The bits of the largest magnitude. Without their signs, floats are ordered like their bits;
/// infinities and NaN are largest.
#[inline(always)]
fn magnitude_bits<const GROUPS: usize>(block: &[[f32; 8]; GROUPS]) -> u32 {
    let mut lanes = [0i32; 8];
    for group in block {
        for (lane, x) in lanes.iter_mut().zip(group) {
            *lane = (*lane).max(x.to_bits() as i32 & i32::MAX);
        }
    }
    lanes.iter().fold(0, |max, &lane| max.max(lane)) as u32
}
