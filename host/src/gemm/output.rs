//! The type of a result.

use fp4_formats::gemm::{OUT_MXFP4, OUT_NVFP4, OUT_RECIPE};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4, ScaleLayout};

use crate::error::{Error, Result};
use crate::tensor::{Dims, byte_counts};
use crate::tune::ResultKind;

/// The type of a GEMM's result `[L, M, N]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output {
    /// Floats.
    Floats(FloatType),
    /// NVFP4, in blocks of 16 columns, of which N is a multiple: what TorchAO's recipe makes of
    /// the result in f32 of the same kernel and split of K, bit for bit but for the sign of zeros.
    /// A plan may choose others than for floats, as quantising takes time.
    ///
    /// There is no error for results that are not finite: a block with a NaN has the scale NaN,
    /// and an infinity becomes the largest magnitude, 2688 times `scale`, as does any number
    /// beyond that.
    Nvfp4 {
        /// The tensor's scale, known before the product: values are
        /// `code * (scale * block scale)`. From 2^-121 on; 1/2688 of the largest magnitude
        /// that is expected, 1 for block scales alone.
        scale: f32,
        /// Order of the block scales, a matrix per batch entry.
        layout: ScaleLayout,
    },
    /// MXFP4, in blocks of 32 columns, of which N is a multiple: what the OCP MX specification makes of
    /// the result in f32 of the same kernel and split of K, bit for bit but for the sign of zeros.
    ///
    /// There is no error for results that are not finite: a block with a NaN or an infinity has the
    /// scale NaN.
    Mxfp4 {
        /// Order of the block scales, a matrix per batch entry.
        layout: ScaleLayout,
    },
}

impl Default for Output {
    fn default() -> Self {
        Self::Floats(FloatType::F16)
    }
}

impl From<FloatType> for Output {
    fn from(floats: FloatType) -> Self {
        Self::Floats(floats)
    }
}

impl ResultKind {
    /// The result of this kind, in NVFP4 with the tensor scale `scale`.
    #[must_use]
    pub fn output(self, scale: f32) -> Output {
        match self {
            Self::Floats(dtype) => dtype.into(),
            Self::Blocks(Format::Nvfp4, layout) => Output::Nvfp4 { scale, layout },
            Self::Blocks(Format::Mxfp4, layout) => Output::Mxfp4 { layout },
        }
    }
}

impl From<Output> for ResultKind {
    fn from(output: Output) -> Self {
        match output {
            Output::Floats(floats) => Self::Floats(floats),
            Output::Nvfp4 { layout, .. } => Self::Blocks(Format::Nvfp4, layout),
            Output::Mxfp4 { layout } => Self::Blocks(Format::Mxfp4, layout),
        }
    }
}

impl Output {
    /// NVFP4 with the scale for results of at most this magnitude.
    #[must_use]
    pub fn nvfp4_of(largest: f32, layout: ScaleLayout) -> Self {
        Self::Nvfp4 { scale: OUT_RECIPE.tensor_parameter(largest), layout }
    }

    /// The type's name in commands and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Floats(floats) => floats.name(),
            Self::Nvfp4 { .. } => Format::Nvfp4.name(),
            Self::Mxfp4 { .. } => Format::Mxfp4.name(),
        }
    }

    /// A result in a block format, as one of any such type: the format, the factor of all values, and
    /// the layout of the scales.
    #[must_use]
    pub fn blocks(self) -> Option<(Format, f32, ScaleLayout)> {
        match self {
            Self::Floats(_) => None,
            Self::Nvfp4 { scale, layout } => Some((Format::Nvfp4, scale, layout)),
            Self::Mxfp4 { layout } => Some((Format::Mxfp4, 1.0, layout)),
        }
    }

    /// Bytes of elements (packed codes) and of scales of a result.
    ///
    /// # Errors
    /// [`Error::Shape`] for columns that are not whole blocks, [`Error::Overflow`].
    pub fn bytes(self, dims: Dims) -> Result<[usize; 2]> {
        match self {
            Self::Floats(floats) => {
                let bytes = dims.elements().checked_mul(floats.bytes() as usize);
                let bytes = bytes.ok_or_else(|| Error::Overflow {
                    what: "result".into(),
                    detail: format!("{} elements", dims.elements()),
                })?;
                Ok([bytes, 0])
            }
            Self::Nvfp4 { layout, .. } => block_bytes::<Nvfp4>(dims, layout),
            Self::Mxfp4 { layout } => block_bytes::<Mxfp4>(dims, layout),
        }
    }

    /// Bits of an element, scales left out.
    pub(super) fn element_bits(self) -> usize {
        match self {
            Self::Floats(floats) => 8 * floats.bytes() as usize,
            Self::Nvfp4 { .. } | Self::Mxfp4 { .. } => 4,
        }
    }

    /// Neighbouring elements that are always stored together.
    pub(super) fn stored_together(self) -> usize {
        match self {
            Self::Floats(_) => 1,
            Self::Nvfp4 { .. } => Nvfp4::BLOCK,
            Self::Mxfp4 { .. } => Mxfp4::BLOCK,
        }
    }

    /// Checks what does not depend on the shape.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::Nvfp4 { scale, .. } if !OUT_RECIPE.accepts(scale) => Err(Error::Scalar {
                field: "scale of the result".into(),
                required: "finite and at least 2^-121",
                actual: f64::from(scale),
            }),
            Self::Floats(_) | Self::Nvfp4 { .. } | Self::Mxfp4 { .. } => Ok(()),
        }
    }

    /// Returns the kernels' number of the type.
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Floats(floats) => floats as u32,
            Self::Nvfp4 { .. } => OUT_NVFP4,
            Self::Mxfp4 { .. } => OUT_MXFP4,
        }
    }
}

/// Bytes of codes and of scales of a result in blocks of `F`.
fn block_bytes<F: BlockFormat>(dims: Dims, layout: ScaleLayout) -> Result<[usize; 2]> {
    if !dims.cols().is_multiple_of(F::BLOCK) {
        let required = format!("a multiple of {} for a result in {}", F::BLOCK, F::NAME);
        return Err(Error::shape("N", required, dims.cols()));
    }
    let (codes, scales) = byte_counts::<F>("result", dims, layout)?;
    Ok([codes, scales])
}
