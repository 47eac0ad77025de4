//! Operations that an engine puts before the products of a layer, in one kernel: the norm, with the residual before it, or the
//! gated activation; a rotation; and the quantisation.
//!
//! [`fp4_formats::rows`] defines the arithmetic and names the sources. The input is read in one pass, and each result is
//! written once. A row's results have the same bits whatever the number of rows, its position, and the other rows.
//! [`reference()`] computes the same on the CPU.
//!
//! A [`Rows`] is made once per shape and launched any number of times; a launch allocates nothing.
//!
//! # Example
//! Without a GPU, this runs on the emulator. With `None` in place of the folder, kernels are looked for beside the
//! program.
//! ```
//! use std::path::Path;
//!
//! use nvfp4::buffer::DeviceBuffer;
//! use nvfp4::device::{Device, DeviceRequest};
//! use nvfp4::quantize::{Format, QuantizeOptions, TensorScale, recipe_by_name};
//! use nvfp4::rows::{Operands, Results, Rows, RowsOptions, Source, reference};
//! use nvfp4::{FloatType, HalfType, floats};
//!
//! # fn main() -> nvfp4::error::Result<()> {
//! let device = Device::open(&DeviceRequest::Auto)?;
//! let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
//! let nvfp4 = QuantizeOptions::new(recipe_by_name(Format::Nvfp4, "te")?).scale(TensorScale::PerRow);
//! let source = Source::RmsNorm { epsilon: 1e-6, residual: true };
//! let options = RowsOptions::new(source, Results::Blocks(nvfp4));
//! let norm = Rows::new(&kernels, 2, 64, HalfType::Bf16, &options)?;
//!
//! let values = |from: usize, count: usize| (from..from + count).map(|at| (at as f64).sin());
//! let [x, residual] = [0, 128].map(|from| floats::encode(FloatType::Bf16, values(from, 128)));
//! let weight = floats::encode(FloatType::Bf16, values(256, 64));
//! let upload = |name: &str, bytes: &[u8]| DeviceBuffer::upload(&device, name, bytes);
//! let (on_x, on_residual) = (upload("x", &x)?, upload("residual", &residual)?);
//! let on_weight = upload("weight", &weight)?;
//! // The sum takes the residual's place.
//! norm.launch(&Operands::normed(&on_x, &on_weight).residual(&on_residual))?;
//!
//! let operands = Operands::normed(&x[..], &weight[..]).residual(&residual[..]);
//! let expected = reference(2, 64, HalfType::Bf16, &options, &operands)?;
//! assert_eq!(norm.result("x")?.difference(&expected.made), None);
//! assert_eq!(Some(on_residual.read()?), expected.residual);
//! # Ok(())
//! # }
//! ```

mod device;
mod operands;
mod reference;

use fp4_formats::gemm::Activation;
use fp4_formats::rows::{MAX_COLUMNS, Norm, RowsSink};
pub use fp4_formats::rows::{Rotation, RowsConfig};
use fp4_formats::{Divisor, HalfType, ScaleLayout};

pub(crate) use self::device::Planned;
pub use self::device::Rows;
pub use self::operands::{Operands, Outputs};
pub use self::reference::{Reference, reference, values};
use crate::error::{Error, Result};
use crate::quantize::{Difference, QuantizeOptions, QuantizedMatrix, Recipe, TensorScale};
use crate::setters::setters;
use crate::shape::MAX_DIM;

/// The values of a row before they are rotated and quantised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// The input.
    Plain,
    /// RMSNorm of the input, times weights.
    RmsNorm {
        /// The addend of the mean of squares. Positive.
        epsilon: f32,
        /// Whether a residual is added to the input first, and updated.
        residual: bool,
    },
    /// LayerNorm of the input, times weights.
    LayerNorm {
        /// The addend of the variance. Positive.
        epsilon: f32,
        /// Whether a residual is added to the input first, and updated.
        residual: bool,
        /// Whether a vector is added behind the weights.
        bias: bool,
    },
    /// `act(gate) * up` of two matrices. The input is the gate.
    Gated(Activation),
}

impl Source {
    /// Whether a residual is added and updated.
    #[must_use]
    pub const fn has_residual(&self) -> bool {
        match self {
            Self::RmsNorm { residual, .. } | Self::LayerNorm { residual, .. } => *residual,
            Self::Plain | Self::Gated(_) => false,
        }
    }

    /// Whether the input is two matrices.
    #[must_use]
    pub const fn is_gated(&self) -> bool {
        match self {
            Self::Gated(_) => true,
            Self::Plain | Self::RmsNorm { .. } | Self::LayerNorm { .. } => false,
        }
    }

    /// The norm and its epsilon.
    const fn norm(&self) -> (Norm, f32) {
        match self {
            Self::Plain | Self::Gated(_) => (Norm::None, 0.0),
            Self::RmsNorm { epsilon, .. } => (Norm::Rms, *epsilon),
            Self::LayerNorm { epsilon, .. } => (Norm::Layer, *epsilon),
        }
    }

    /// The name in reports.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::RmsNorm { residual: false, .. } => "rms-norm",
            Self::RmsNorm { residual: true, .. } => "residual + rms-norm",
            Self::LayerNorm { residual: false, .. } => "layer-norm",
            Self::LayerNorm { residual: true, .. } => "residual + layer-norm",
            Self::Gated(_) => "gated",
        }
    }

    fn check(&self) -> Result<()> {
        let scalar = |field: &str, required: &'static str, value: f32, fits: bool| {
            if fits && value.is_finite() {
                return Ok(());
            }
            Err(Error::Scalar { field: field.into(), required, actual: value.into() })
        };
        match *self {
            Self::RmsNorm { epsilon, .. } | Self::LayerNorm { epsilon, .. } => {
                scalar("epsilon of the norm", "positive and finite", epsilon, epsilon > 0.0)
            }
            Self::Gated(Activation::ClampedSwiglu { limit, slope }) => {
                scalar("limit of the activation", "positive and finite", limit, limit > 0.0)?;
                scalar("slope of the activation", "finite", slope, true)
            }
            Self::Plain | Self::Gated(_) => Ok(()),
        }
    }
}

/// The kind of the results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Results {
    /// NVFP4 or MXFP4. The tensor-level scale of NVFP4 is given, or that of each row: a row's largest magnitude is found
    /// in the same pass, a matrix's is not known before all rows are read.
    Blocks(QuantizeOptions),
    /// e4m3 with a scale for each row ([`fp4_formats::quantize::tokens`]).
    E4m3,
    /// The input's type.
    Half,
}

impl Results {
    const fn sink(&self) -> RowsSink {
        match self {
            Self::Blocks(options) => match options.recipe {
                Recipe::Nvfp4(_) => RowsSink::Nvfp4,
                Recipe::Adaptive(_) => RowsSink::Adaptive,
                Recipe::Mxfp4(_) => RowsSink::Mxfp4,
            },
            Self::E4m3 => RowsSink::E4m3,
            Self::Half => RowsSink::Half,
        }
    }

    const fn layout(&self) -> ScaleLayout {
        match self {
            Self::Blocks(options) => options.layout,
            Self::E4m3 | Self::Half => ScaleLayout::Linear,
        }
    }

    /// Whether every row has a number by which its products are multiplied.
    const fn has_multipliers(&self) -> bool {
        match self {
            Self::Blocks(options) => {
                options.recipe.parameter_of().is_some()
                    && matches!(options.scale, TensorScale::PerRow)
            }
            Self::E4m3 => true,
            Self::Half => false,
        }
    }

    /// The name in reports.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Blocks(options) => options.recipe.format().name(),
            Self::E4m3 => "e4m3",
            Self::Half => "16 bits",
        }
    }
}

/// Rows of the input that are chosen by an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// Rows of the input. No element of the index, divided by [`divisor`](Self::divisor), is above; the launch does not
    /// check it.
    pub rows: usize,
    /// An element of the index is divided by it, without the remainder: the experts of a token, for an index of slots.
    pub divisor: u32,
}

/// Options of an operation on rows.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RowsOptions {
    /// The values.
    pub source: Source,
    /// The kind of the results.
    pub results: Results,
    /// The rotation of each 16 values.
    pub rotation: Option<Rotation>,
    /// Whether rows of the input are chosen by an index. An element `u32::MAX` makes a row of zeros.
    pub gather: Option<Gather>,
}

impl RowsOptions {
    /// Options without rotation and index.
    #[must_use]
    pub const fn new(source: Source, results: Results) -> Self {
        Self { source, results, rotation: None, gather: None }
    }

    /// Checks a shape and everything that does not depend on it.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Scalar`].
    fn check(&self, rows: usize, cols: usize) -> Result<Checked> {
        let Self { source, results, rotation: _, gather } = self;
        source.check()?;
        if let Results::Blocks(options) = results {
            options.check("input")?;
            let is_known = !matches!(options.scale, TensorScale::FromAmax);
            if options.recipe.parameter_of().is_some() && !is_known {
                let required = "given, one level, or that of each row";
                return Err(Error::shape("tensor-level scale", required, "of the whole matrix"));
            }
        }
        let granularity = results.sink().granularity();
        let m = match u32::try_from(rows) {
            Ok(m) if (1..=MAX_DIM).contains(&u64::from(m)) => m,
            _ => return Err(Error::shape("M", format!("from 1 to {MAX_DIM}"), rows)),
        };
        let k = match u32::try_from(cols) {
            Ok(k) if k > 0 && k <= MAX_COLUMNS && k.is_multiple_of(granularity) => k,
            _ => {
                let required = format!("a multiple of {granularity} up to {MAX_COLUMNS}");
                return Err(Error::shape("K", required, cols));
            }
        };
        let (mut from_rows, mut divisor) = (rows, Divisor::ONE);
        if let Some(gather) = gather {
            if source.has_residual() {
                return Err(Error::shape("index", "absent where there is a residual", "there"));
            }
            divisor = Divisor::new(gather.divisor).ok_or_else(|| {
                let required = format!("from 1 to {}", Divisor::DIVIDENDS);
                Error::shape("divisor of the index", required, gather.divisor)
            })?;
            if !(1..=MAX_DIM).contains(&(gather.rows as u64)) {
                let required = format!("from 1 to {MAX_DIM}");
                return Err(Error::shape("rows of the input", required, gather.rows));
            }
            from_rows = gather.rows;
        }
        Ok(Checked { m, k, from_rows, divisor })
    }
}

setters!(RowsOptions { rotation: Option<Rotation>, gather: Option<Gather> });

/// A shape that kernels take.
#[derive(Clone, Copy, Debug)]
struct Checked {
    m: u32,
    k: u32,
    /// Rows of the input.
    from_rows: usize,
    divisor: Divisor,
}

/// The result of an operation on rows, in host memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Made {
    /// Codes and block scales; parameters are one for each row or one.
    Blocks(QuantizedMatrix),
    /// e4m3.
    E4m3 {
        /// `[M, K]`.
        codes: Vec<u8>,
        /// `[M]`.
        scales: Vec<f32>,
    },
    /// Little-endian elements of the input's type, `[M, K]`.
    Half(Vec<u8>),
}

impl Made {
    /// The first difference from `expected`, compared bit for bit. Results of different kinds differ at once.
    #[must_use]
    pub fn difference(&self, expected: &Self) -> Option<Difference> {
        let bytes = |part, found: &[u8], expected: &[u8]| {
            let len = found.len().max(expected.len());
            let at =
                |list: &[u8], index: usize| list.get(index).map_or(u32::MAX, |&byte| byte.into());
            let differs = |&index: &usize| at(found, index) != at(expected, index);
            let index = (0..len).find(differs)?;
            let (expected, found) = (at(expected, index), at(found, index));
            Some(Difference { part, index, expected, found })
        };
        let le = |scales: &[f32]| -> Vec<u8> {
            scales.iter().flat_map(|scale| scale.to_le_bytes()).collect()
        };
        match (self, expected) {
            (Self::Blocks(found), Self::Blocks(expected)) => found.difference(expected),
            (Self::E4m3 { codes, scales }, Self::E4m3 { codes: of, scales: and }) => {
                bytes("codes", codes, of).or_else(|| bytes("scales' bytes", &le(scales), &le(and)))
            }
            (Self::Half(found), Self::Half(expected)) => bytes("bytes", found, expected),
            (Self::Blocks(_) | Self::E4m3 { .. } | Self::Half(_), _) => {
                Some(Difference { part: "kind", index: 0, expected: 0, found: 1 })
            }
        }
    }
}

/// Bytes of a matrix of 16-bit elements.
///
/// # Errors
/// [`Error::Shape`] where they cannot be counted.
fn half_bytes(rows: usize, cols: usize) -> Result<usize> {
    let bytes = rows.checked_mul(cols).and_then(|elements| elements.checked_mul(2));
    bytes.ok_or_else(|| Error::shape("M K", "a size in bytes that can be addressed", "more"))
}

/// Checks that the operands are those that the options ask for, and no others.
///
/// # Errors
/// [`Error::Shape`].
fn operands_given<'a, T: ?Sized>(
    options: &RowsOptions,
    operands: &Operands<'a, T>,
) -> Result<Operands<'a, T>> {
    let Operands { input: _, up, residual, residual_out, weight, bias, index } = *operands;
    let (source, has_norm) = (&options.source, options.source.norm().0 != Norm::None);
    let has_bias = matches!(source, Source::LayerNorm { bias: true, .. });
    let there = |is: bool| if is { "there" } else { "absent" };
    for (what, asked, given) in [
        ("`up`", source.is_gated(), up.is_some()),
        ("`residual`", source.has_residual(), residual.is_some()),
        ("the weights", has_norm, weight.is_some()),
        ("the bias", has_bias, bias.is_some()),
        ("the index", options.gather.is_some(), index.is_some()),
    ] {
        if asked != given {
            return Err(Error::shape(what, there(asked), there(given)));
        }
    }
    if residual_out.is_some() && residual.is_none() {
        return Err(Error::shape("place of the sums", "absent without a residual", "there"));
    }
    Ok(*operands)
}

/// The type that a name in messages has.
const fn type_name(element: HalfType) -> &'static str {
    element.name()
}
