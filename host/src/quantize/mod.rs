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

mod adaptive;
pub mod device;
mod rows;
pub mod source;

use std::fmt;

pub use fp4_formats::quantize::{Format, Recipe};
use fp4_formats::recipe::{AdaptiveRecipe, MIN_TORCHAO_PARAMETER, Mxfp4Recipe, Nvfp4Recipe};
use fp4_formats::{FloatType, Nvfp4, ScaleLayout};
use rayon::prelude::*;

use self::rows::{Maxima, quantize_rows};
use self::source::Source;
use crate::error::{Error, Result, filled};
use crate::tensor::{BlockScaled, Blocks, Convention, Dims, GlobalScale, byte_counts};

/// Smallest tensor scale of TorchAO's recipe, 2^-121.
pub const MIN_TENSOR_SCALE: f32 = MIN_TORCHAO_PARAMETER;

/// The source of the tensor-level scale of NVFP4. MXFP4 has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TensorScale {
    /// No tensor-level scale (it is 1).
    OneLevel,
    /// Computed by the recipe from the largest magnitude of the tensor.
    #[default]
    FromAmax,
    /// Computed by the recipe from the largest magnitude of each row.
    PerRow,
    /// The recipe's tensor parameter, from calibration: a multiplier for TorchAO and ModelOpt, a
    /// divisor for Transformer Engine and compressed-tensors. Values beyond its range saturate.
    Given(f32),
}

/// Options of quantisation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
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
    pub const fn new(recipe: Recipe) -> Self {
        Self { recipe, scale: TensorScale::FromAmax, layout: ScaleLayout::Linear }
    }

    /// The same with another [`scale`](Self#structfield.scale).
    #[must_use]
    pub const fn scale(mut self, scale: TensorScale) -> Self {
        self.scale = scale;
        self
    }

    /// The same with another [`layout`](Self#structfield.layout).
    #[must_use]
    pub const fn layout(mut self, layout: ScaleLayout) -> Self {
        self.layout = layout;
        self
    }

    /// Checks a given parameter. Errors name the tensor `name`.
    pub(crate) fn check(&self, name: &str) -> Result<()> {
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
    let source = Source::Values(values);
    quantize_source(name, source, dims, options)?.ok_or_else(|| not_finite(name, source, dims))
}

/// The same from little-endian elements of type `dtype`, which are converted piece by piece.
///
/// # Errors
/// The errors of [`quantize_matrix`].
pub fn quantize_bytes(
    name: &str,
    dtype: FloatType,
    bytes: &[u8],
    dims: Dims,
    options: &QuantizeOptions,
) -> Result<QuantizedMatrix> {
    let width = dtype.bytes() as usize;
    if !bytes.len().is_multiple_of(width) {
        let required = format!("a multiple of {width}, the size of {}", dtype.name());
        return Err(Error::shape(format!("bytes of `{name}`"), required, bytes.len()));
    }
    let source = Source::Bytes(dtype, bytes);
    quantize_source(name, source, dims, options)?.ok_or_else(|| not_finite(name, source, dims))
}

/// The error for the first element that is not finite.
fn not_finite(name: &str, source: Source<'_>, dims: Dims) -> Error {
    let one = |index: usize| source.part(index..index + 1);
    let index = (0..source.len()).find(|&index| !one(index).maximum().is_finite()).unwrap_or(0);
    let mut value = [0.0];
    one(index).load(&mut value);
    Error::NonFinite { tensor: name.into(), index: dims.position(index), value: value[0] }
}

/// [`quantize_matrix`] from any [`Source`]; `None` if an element is not finite.
///
/// # Errors
/// The same as [`quantize_matrix`], but for elements that are not finite.
pub fn quantize_source(
    name: &str,
    source: Source<'_>,
    dims: Dims,
    options: &QuantizeOptions,
) -> Result<Option<QuantizedMatrix>> {
    let (rows, cols) = (dims.batch() * dims.rows(), dims.cols());
    if source.len() != dims.elements() {
        return Err(Error::shape(
            format!("length of `{name}`"),
            format!("{} ({} x {} x {})", dims.elements(), dims.batch(), dims.rows(), cols),
            source.len(),
        ));
    }
    let format = options.recipe.format();
    let block = format.block() as usize;
    if !cols.is_multiple_of(block) {
        let required = format!("a multiple of {block} ({})", format.name());
        return Err(Error::shape(format!("K of `{name}`"), required, cols));
    }
    options.check(name)?;
    let maxima = maxima(source, cols, options);
    if !maxima.tensor.is_finite() {
        return Ok(None);
    }
    let parameters = parameters(options, &maxima);

    let kblocks = cols / block;
    let scale_bytes = options
        .layout
        .bytes(rows, kblocks)
        .map_err(|error| Error::overflow(format!("scales of `{name}`"), error))?;
    let mut codes = filled("codes", rows * cols / 2, 0u8)?;
    let mut scales = filled("scales", rows * kblocks, 0u8)?;
    let with = (parameters.as_slice(), &maxima);
    if !quantize_rows(source, cols, options, with, &mut codes, &mut scales) {
        return Ok(None);
    }
    if options.layout != ScaleLayout::Linear {
        let mut ordered = filled("scales", scale_bytes, 0u8)?;
        for (at, &byte) in scales.iter().enumerate() {
            ordered[options.layout.offset(at / kblocks, at % kblocks, kblocks)] = byte;
        }
        scales = ordered;
    }
    Ok(Some(QuantizedMatrix { options: *options, rows, cols, codes, scales, parameters }))
}

/// The largest magnitudes that the tensor's or the rows' scales are computed from.
fn maxima(source: Source<'_>, cols: usize, options: &QuantizeOptions) -> Maxima {
    match (options.recipe.parameter_of(), options.scale) {
        (None, _) | (Some(_), TensorScale::OneLevel | TensorScale::Given(_)) => {
            Maxima { rows: Vec::new(), tensor: 0.0 }
        }
        (Some(_), TensorScale::FromAmax) => {
            Maxima { rows: Vec::new(), tensor: source.par_maximum() }
        }
        (Some(_), TensorScale::PerRow) => {
            let rows = (0..source.len() / cols).into_par_iter();
            let rows: Vec<f32> =
                rows.map(|row| source.part(row * cols..(row + 1) * cols).maximum()).collect();
            // Not `f32::max`, which ignores NaN.
            let bits = rows.iter().fold(0, |max, x| x.to_bits().max(max));
            Maxima { rows, tensor: f32::from_bits(bits) }
        }
    }
}

/// The recipe's tensor parameters.
fn parameters(options: &QuantizeOptions, maxima: &Maxima) -> Vec<f32> {
    let of = |amax: f32| options.recipe.tensor_parameter(amax);
    match (of(maxima.tensor), options.scale) {
        (None, _) => Vec::new(),
        (Some(_), TensorScale::OneLevel) => vec![1.0],
        (Some(_), TensorScale::Given(given)) => vec![given],
        (Some(parameter), TensorScale::FromAmax) => vec![parameter],
        (Some(_), TensorScale::PerRow) => maxima.rows.iter().filter_map(|&amax| of(amax)).collect(),
    }
}
