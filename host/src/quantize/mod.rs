//! Quantises f32 to NVFP4 and MXFP4 on the CPU, with the bytes of the project that a recipe is
//! named after.
//!
//! The arithmetic is [`fp4_formats::recipe`], which the kernels use too. Here it is applied to
//! whole matrices, rows in parallel. [`device`] quantises on a GPU or on the emulator and gives the
//! same bytes.
//!
//! Infinities and NaN in the input are errors, because no project has codes for them.
//!
//! # Example
//! ```
//! use nvfp4::error::Error;
//! use nvfp4::quantize::{Format, QuantizeOptions, quantize_matrix, recipe_by_name};
//! use nvfp4::tensor::Dims;
//!
//! # fn main() -> nvfp4::error::Result<()> {
//! let dims = Dims::new(1, 2, 32)?;
//! let mut values = [0.0; 64];
//! values[..4].copy_from_slice(&[6.0, -1.5, 0.4, 3.0]);
//! let options = QuantizeOptions::new(recipe_by_name(Format::Mxfp4, "floor")?);
//! let matrix = quantize_matrix("x", &values, dims, &options)?;
//! // Two codes per byte, the first in the low nibble. Block scales 2^0 and, of zeros, 2^-127.
//! assert_eq!(matrix.codes[..2], [0xb7, 0x51]);
//! assert_eq!(matrix.scales, [127, 0]);
//!
//! values[40] = f32::NAN;
//! let error = quantize_matrix("x", &values, dims, &options).unwrap_err();
//! assert!(matches!(error, Error::NonFinite { .. }), "{error}");
//! # Ok(())
//! # }
//! ```

pub mod device;

use std::fmt;

pub use fp4_formats::quantize::{Format, Recipe};
use fp4_formats::recipe::{
    AdaptiveRecipe, AdaptiveTensor, BlockScale, MIN_TORCHAO_PARAMETER, Mxfp4Recipe, Nvfp4Recipe,
    Nvfp4Tensor, Software,
};
use fp4_formats::{Nvfp4, ScaleLayout};
use rayon::prelude::*;

use crate::checkpoint::{Blocks, Convention, GlobalScale};
use crate::error::{Error, Position, Result, filled};
use crate::tensor::{BlockScaled, Dims, byte_counts};

/// Smallest tensor scale of TorchAO's recipe, 2^-121.
pub const MIN_TENSOR_SCALE: f32 = MIN_TORCHAO_PARAMETER;

/// The source of the tensor-level scale of NVFP4. MXFP4 has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TensorScale {
    /// No tensor-level scale (it is 1).
    OneLevel,
    /// From the largest magnitude of the tensor, by the recipe.
    #[default]
    FromAmax,
    /// From the largest magnitude of each row, by the recipe.
    PerRow,
    /// The recipe's tensor parameter, from calibration: a multiplier for TorchAO and ModelOpt, a
    /// divisor for Transformer Engine and compressed-tensors. Values beyond its range saturate.
    Given(f32),
}

/// Options of quantisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizeOptions {
    /// The recipe.
    pub recipe: Recipe,
    /// The tensor-level scale; ignored for MXFP4.
    pub scale: TensorScale,
    /// Layout of the block scales.
    pub layout: ScaleLayout,
}

impl QuantizeOptions {
    /// A recipe with the usual options: two levels, linear scales.
    #[must_use]
    pub fn new(recipe: Recipe) -> Self {
        Self { recipe, scale: TensorScale::FromAmax, layout: ScaleLayout::Linear }
    }

    /// Checks a given parameter. Errors name the tensor `name`.
    fn check(&self, name: &str) -> Result<()> {
        let (Some(project), TensorScale::Given(given)) = (self.recipe.parameter_of(), self.scale)
        else {
            return Ok(());
        };
        if project.accepts(given) {
            return Ok(());
        }
        Err(Error::Scalar {
            field: format!("tensor scale of `{name}`"),
            required: match project {
                Nvfp4Recipe::TorchAo => "finite and at least 2^-121",
                Nvfp4Recipe::ModelOpt => "finite and at least 2^-140",
                Nvfp4Recipe::TransformerEngine | Nvfp4Recipe::CompressedTensors => {
                    "finite and at least 2^-119"
                }
            },
            actual: f64::from(given),
        })
    }
}

/// The recipe of this name for `format`.
///
/// # Errors
/// [`Error::Shape`], which lists the known names.
pub fn recipe_by_name(format: Format, name: &str) -> Result<Recipe> {
    let (found, names): (_, Vec<&str>) = match format {
        Format::Nvfp4 => (
            Nvfp4Recipe::from_name(name)
                .map(Recipe::Nvfp4)
                .or_else(|| AdaptiveRecipe::from_name(name).map(Recipe::Adaptive)),
            (Nvfp4Recipe::ALL.iter().map(|recipe| recipe.name()))
                .chain(AdaptiveRecipe::ALL.iter().map(|recipe| recipe.name()))
                .collect(),
        ),
        Format::Mxfp4 => (
            Mxfp4Recipe::from_name(name).map(Recipe::Mxfp4),
            std::iter::once("torchao")
                .chain(Mxfp4Recipe::ALL.iter().map(|recipe| recipe.name()))
                .collect(),
        ),
    };
    found.ok_or_else(|| {
        let required = format!("one of {}", names.join(", "));
        Error::shape(format!("recipe for {}", format.name()), required, format!("`{name}`"))
    })
}

/// A quantised matrix as bytes, from a kernel or from the CPU.
#[derive(Clone, PartialEq)]
pub struct QuantizedMatrix {
    /// The options it was quantised with.
    pub options: QuantizeOptions,
    /// Rows.
    pub rows: usize,
    /// Columns (K).
    pub cols: usize,
    /// Packed codes, `[rows, cols / 2]`.
    pub codes: Vec<u8>,
    /// Block scales in the options' layout, padding zero.
    pub scales: Vec<u8>,
    /// The recipe's tensor parameters: one, or one per row; empty for MXFP4.
    pub parameters: Vec<f32>,
}

impl fmt::Debug for QuantizedMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuantizedMatrix({} x {}, {:?})", self.rows, self.cols, self.options)
    }
}

/// The first byte at which two results differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// `codes`, `scales` or `parameters`.
    pub part: &'static str,
    /// Index within it.
    pub index: usize,
    /// The bits expected.
    pub expected: u32,
    /// The bits found.
    pub found: u32,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, index, expected, found } = self;
        write!(f, "{part}[{index}] is {found:#x}, expected {expected:#x}")
    }
}

impl QuantizedMatrix {
    /// The first difference from `expected`, compared bit for bit. A missing byte differs from
    /// every byte.
    #[must_use]
    pub fn difference(&self, expected: &Self) -> Option<Difference> {
        fn first(part: &'static str, found: &[u32], expected: &[u32]) -> Option<Difference> {
            let len = found.len().max(expected.len());
            let at = |list: &[u32], index: usize| list.get(index).copied();
            let index = (0..len).find(|&index| at(found, index) != at(expected, index))?;
            let or_missing = |list| at(list, index).unwrap_or(u32::MAX);
            let (expected, found) = (or_missing(expected), or_missing(found));
            Some(Difference { part, index, expected, found })
        }
        let bytes = |list: &[u8]| -> Vec<u32> { list.iter().map(|&x| x.into()).collect() };
        let bits = |list: &[f32]| -> Vec<u32> { list.iter().map(|x| x.to_bits()).collect() };
        if self.codes != expected.codes {
            return first("codes", &bytes(&self.codes), &bytes(&expected.codes));
        }
        if self.scales != expected.scales {
            return first("scales", &bytes(&self.scales), &bytes(&expected.scales));
        }
        first("parameters", &bits(&self.parameters), &bits(&expected.parameters))
    }

    /// The tensor-level multipliers of dequantisation: one, or one per row; empty for MXFP4.
    #[must_use]
    pub fn multipliers(&self) -> Vec<f32> {
        let multiplier = |project: Nvfp4Recipe| {
            self.parameters.iter().map(|&parameter| project.multiplier(parameter)).collect()
        };
        self.options.recipe.parameter_of().map(multiplier).unwrap_or_default()
    }

    /// The tensor-level scale in the recipe's own convention; `None` with a single level.
    #[must_use]
    pub fn global(&self) -> Option<GlobalScale> {
        let project = self.options.recipe.parameter_of()?;
        let &[parameter] = self.parameters.as_slice() else { return None };
        let convention = if project.parameter_is_divisor() {
            Convention::Divisor
        } else {
            Convention::Multiplier
        };
        let two_levels = self.options.scale != TensorScale::OneLevel;
        two_levels.then(|| GlobalScale::new(convention, parameter))
    }

    /// The same as a checked tensor of `dims`, which has as many rows in total.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is one tensor-level scale per row, or if a batch of matrices has
    /// scales in 128x4 tiles; the errors of [`BlockScaled::new`], of which
    /// [`Error::ScaleNotFinite`] occurs with MXFP4 recipes that have no scale for the largest f32.
    pub fn into_blocks(self, name: &str, dims: Dims) -> Result<Blocks> {
        if self.options.recipe.parameter_of().is_some() && self.parameters.len() != 1 {
            let field = format!("tensor-level scales of `{name}`");
            return Err(Error::shape(field, "one", self.parameters.len()));
        }
        let multiplier = self.multipliers().first().copied().unwrap_or(1.0);
        let (format, layout) = (self.options.recipe.format(), self.options.layout);
        Blocks::new(format, name, dims, layout, self.codes, self.scales, multiplier)
    }
}

/// Quantises row-major `values` of shape `dims` to NVFP4 by TorchAO's recipe, scales in `layout`.
///
/// # Errors
/// [`Error::Shape`] if K is not a multiple of 16, if the length disagrees with `dims`, or for
/// scales per row, which [`BlockScaled`] cannot hold; [`Error::NonFinite`] for the first infinity
/// or NaN; [`Error::Scalar`] for a given scale that is not finite or below [`MIN_TENSOR_SCALE`].
pub fn quantize(
    name: &str,
    values: &[f32],
    dims: Dims,
    scale: TensorScale,
    layout: ScaleLayout,
) -> Result<BlockScaled<Nvfp4>> {
    if scale == TensorScale::PerRow {
        return Err(Error::shape(format!("tensor-level scales of `{name}`"), "one", "one per row"));
    }
    byte_counts::<Nvfp4>(name, dims, layout)?;
    let recipe = Recipe::Nvfp4(Nvfp4Recipe::TorchAo);
    let options = QuantizeOptions { recipe, scale, layout: ScaleLayout::Linear };
    let matrix = quantize_matrix(name, values, dims, &options)?;
    match matrix.into_blocks(name, dims)? {
        Blocks::Nvfp4(tensor) if layout == ScaleLayout::Linear => Ok(tensor),
        Blocks::Nvfp4(tensor) => tensor.to_layout(layout),
        // The recipe is one of NVFP4.
        Blocks::Mxfp4(_) => Err(Error::shape("format", Format::Nvfp4.name(), "mxfp4")),
    }
}

/// Quantises row-major `values` of shape `dims`. The rows of a batch are consecutive, like those of
/// one matrix. Errors name the input `name`.
///
/// # Errors
/// [`Error::Shape`] if K is not a multiple of the block or the length disagrees with `dims`,
/// [`Error::NonFinite`] for the first infinity or NaN, [`Error::Scalar`] for a given parameter
/// that the recipe does not accept, [`Error::Memory`] and [`Error::Overflow`].
pub fn quantize_matrix(
    name: &str,
    values: &[f32],
    dims: Dims,
    options: &QuantizeOptions,
) -> Result<QuantizedMatrix> {
    let (rows, cols) = (dims.batch() * dims.rows(), dims.cols());
    if values.len() != dims.elements() {
        return Err(Error::shape(
            format!("length of `{name}`"),
            format!("{} ({} x {} x {})", dims.elements(), dims.batch(), dims.rows(), cols),
            values.len(),
        ));
    }
    let format = options.recipe.format();
    let block = format.block() as usize;
    if !cols.is_multiple_of(block) {
        let required = format!("a multiple of {block} ({})", format.name());
        return Err(Error::shape(format!("K of `{name}`"), required, cols));
    }
    options.check(name)?;
    let maxima = row_maxima(name, values, dims)?;
    let maximum = maxima.iter().fold(0f32, |max, &x| max.max(x));
    let parameters = parameters(options, &maxima, maximum);

    let kblocks = cols / block;
    let scale_bytes = options
        .layout
        .bytes(rows, kblocks)
        .map_err(|error| Error::overflow(format!("scales of `{name}`"), error))?;
    let mut codes = filled("codes", rows * cols / 2, 0u8)?;
    let mut scales = filled("scales", rows * kblocks, 0u8)?;
    codes
        .par_chunks_exact_mut(cols / 2)
        .zip(scales.par_chunks_exact_mut(kblocks))
        .zip(values.par_chunks_exact(cols))
        .enumerate()
        .for_each(|(row, ((codes, scales), values))| {
            let parameter = match parameters.as_slice() {
                [] => 1.0,
                [only] => *only,
                all => all[row],
            };
            match options.recipe {
                Recipe::Nvfp4(recipe) => {
                    let tensor = Nvfp4Tensor::new(recipe, parameter);
                    let block = by_maximum(|amax| tensor.block::<Software>(amax));
                    quantize_row(values, codes, scales, block);
                }
                Recipe::Adaptive(recipe) => {
                    let amax = match options.scale {
                        TensorScale::FromAmax => maximum,
                        TensorScale::PerRow => maxima[row],
                        TensorScale::OneLevel | TensorScale::Given(_) => {
                            recipe.tensor_maximum(parameter)
                        }
                    };
                    let tensor = AdaptiveTensor::new(recipe, parameter, amax);
                    let block = |groups: &[[f32; 8]]| tensor.block::<Software>(groups);
                    quantize_row(values, codes, scales, block);
                }
                Recipe::Mxfp4(recipe) => {
                    quantize_row(values, codes, scales, by_maximum(|amax| recipe.block(amax)));
                }
            }
        });
    if options.layout != ScaleLayout::Linear {
        let mut ordered = filled("scales", scale_bytes, 0u8)?;
        for (at, &byte) in scales.iter().enumerate() {
            ordered[options.layout.offset(at / kblocks, at % kblocks, kblocks)] = byte;
        }
        scales = ordered;
    }
    Ok(QuantizedMatrix { options: *options, rows, cols, codes, scales, parameters })
}

/// The scale of a block from its largest magnitude, for [`quantize_row`].
fn by_maximum(scale: impl Fn(f32) -> BlockScale) -> impl Fn(&[[f32; 8]]) -> BlockScale {
    move |groups| scale(groups.as_flattened().iter().fold(0f32, |max, x| max.max(x.abs())))
}

/// Codes and linear scales of one row, which has one block per scale. `block_scale` gives the scale
/// of a block, which is groups of eight elements.
fn quantize_row(
    values: &[f32],
    codes: &mut [u8],
    scales: &mut [u8],
    block_scale: impl Fn(&[[f32; 8]]) -> BlockScale,
) {
    let block = values.len() / scales.len();
    let blocks = values.chunks_exact(block).zip(codes.chunks_exact_mut(block / 2));
    for ((values, codes), scale) in blocks.zip(scales) {
        let (groups, _) = values.as_chunks::<8>();
        let found = block_scale(groups);
        *scale = found.byte;
        let (words, _) = codes.as_chunks_mut::<4>();
        for (values, codes) in groups.iter().zip(words) {
            *codes = found.codes::<Software>(*values).to_le_bytes();
        }
    }
}

/// The recipe's tensor parameters from the rows' largest magnitudes and that of the tensor.
fn parameters(options: &QuantizeOptions, maxima: &[f32], maximum: f32) -> Vec<f32> {
    let of = |amax: f32| options.recipe.tensor_parameter(amax);
    match (of(maximum), options.scale) {
        (None, _) => Vec::new(),
        (Some(_), TensorScale::OneLevel) => vec![1.0],
        (Some(_), TensorScale::Given(given)) => vec![given],
        (Some(parameter), TensorScale::FromAmax) => vec![parameter],
        (Some(_), TensorScale::PerRow) => maxima.iter().filter_map(|&amax| of(amax)).collect(),
    }
}

/// Largest magnitude of each row. All values are finite.
fn row_maxima(name: &str, values: &[f32], dims: Dims) -> Result<Vec<f32>> {
    let maxima: Vec<f32> = values
        .par_chunks_exact(dims.cols())
        .map(|row| {
            // Without their signs, floats are ordered like their bits; infinities and NaN are
            // largest.
            let bits = row.iter().fold(0u32, |max, x| max.max(x.abs().to_bits()));
            f32::from_bits(bits)
        })
        .collect();
    let Some(row) = maxima.iter().position(|x| !x.is_finite()) else { return Ok(maxima) };
    let start = row * dims.cols();
    let found = values[start..].iter().position(|x| !x.is_finite()).unwrap_or(0);
    let (index, value): (Position, f32) = (dims.position(start + found), values[start + found]);
    Err(Error::NonFinite { tensor: name.into(), index, value })
}
