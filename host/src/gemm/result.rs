//! The result of a GEMM: its type, its buffer, and how it comes back.

use fp4_formats::gemm::{OUT_MXFP4, OUT_NVFP4, OUT_RECIPE, ResultScales};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4, ScaleLayout, e2m1, pack};

use super::GemmPlan;
use super::strides::Strides;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::floats;
use crate::tensor::{BlockScaled, Dims, byte_counts};
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

/// The result on a device. Buffers start at multiples of 16 bytes. The matrices of a batch follow
/// each other, unless [`BatchStrides`](super::BatchStrides) say otherwise.
#[derive(Clone, Copy, Debug)]
pub enum ResultBuffers<'a> {
    /// `[L, M, N]` floats.
    Floats(&'a DeviceBuffer),
    /// NVFP4 or MXFP4.
    Blocks {
        /// Packed codes `[L, M, N/2]`.
        codes: &'a DeviceBuffer,
        /// Block scales, a padded matrix per batch entry. Padding is written as zero.
        scales: &'a DeviceBuffer,
    },
}

impl<'a> From<&'a DeviceBuffer> for ResultBuffers<'a> {
    fn from(floats: &'a DeviceBuffer) -> Self {
        Self::Floats(floats)
    }
}

impl ResultBuffers<'_> {
    /// Checks kinds, sizes and `device` for a result whose matrices are where `strides` say. Gives
    /// the address of the elements, and the kernels' parameters for the scales.
    pub(super) fn place(
        self,
        output: Output,
        strides: &Strides,
        device: &Device,
    ) -> Result<(u64, ResultScales)> {
        let Strides { result, result_scales, .. } = strides;
        match (self, output.blocks()) {
            (Self::Floats(floats), None) => {
                Ok((result.place("the result", floats, device)?, ResultScales::NONE))
            }
            (Self::Blocks { codes, scales }, Some((_, scale, layout))) => {
                let codes = result.place("the result's codes", codes, device)?;
                let scales = ResultScales {
                    out: result_scales.place("the result's scales", scales, device)?,
                    stride: result_scales.stride as u64,
                    parameter: scale,
                    blocked: u32::from(layout == ScaleLayout::Blocked128x4),
                };
                Ok((codes, scales))
            }
            (Self::Floats(_), Some(_)) => Err(Error::shape("result", output.name(), "floats")),
            (Self::Blocks { .. }, None) => Err(Error::shape("result", output.name(), "blocks")),
        }
    }
}

/// The result `[L, M, N]` of a GEMM.
#[derive(Clone, Debug)]
pub struct GemmResult {
    /// Little-endian elements of [`output`](Self::output), or packed codes; row-major.
    pub bytes: Vec<u8>,
    /// Block scales of a result in NVFP4 or MXFP4, padding included; else empty.
    pub scales: Vec<u8>,
    /// Batch, M, N.
    pub dims: Dims,
    /// Their type.
    pub output: Output,
    /// The largest magnitude of the results, each as it is in f32 before it is rounded or quantised,
    /// where [`GemmOptions::magnitude`](super::GemmOptions::magnitude) asks for it. NaN if one of them
    /// is.
    pub magnitude: Option<f32>,
    /// The plan that it was computed by.
    pub plan: GemmPlan,
}

impl GemmResult {
    /// The elements as f32; of blocks `code * (scale * block scale)`, NaN where the block's scale
    /// is.
    #[must_use]
    pub fn values(&self) -> Vec<f32> {
        let (decode, block_bytes): (fn(u8) -> f32, _) = match self.output {
            Output::Floats(floats) => return floats::decode(floats, &self.bytes),
            Output::Nvfp4 { .. } => (Nvfp4::decode_scale, Nvfp4::BLOCK_BYTES),
            Output::Mxfp4 { .. } => (Mxfp4::decode_scale, Mxfp4::BLOCK_BYTES),
        };
        let Some((_, scale, _)) = self.output.blocks() else { return Vec::new() };
        let multipliers = self.block_scales().map(|byte| scale * decode(byte));
        let blocks = self.bytes.chunks_exact(block_bytes).zip(multipliers);
        let values = blocks.flat_map(|(codes, multiplier)| {
            let codes = codes.iter().flat_map(|&byte| <[u8; 2]>::from(pack::unpair(byte)));
            codes.map(move |code| e2m1::decode(code) * multiplier)
        });
        values.collect()
    }

    /// The scale of each block, row-major; none of floats.
    pub fn block_scales(&self) -> impl Iterator<Item = u8> + '_ {
        self.output
            .blocks()
            .into_iter()
            .flat_map(|(format, _, layout)| self.scales_of_blocks(format.block() as usize, layout))
    }

    fn scales_of_blocks(&self, block: usize, layout: ScaleLayout) -> impl Iterator<Item = u8> + '_ {
        let (dims, blocks) = (self.dims, self.dims.cols() / block);
        let stride = self.scales.len() / dims.batch();
        let rows =
            (0..dims.batch()).flat_map(move |batch| (0..dims.rows()).map(move |m| (batch, m)));
        rows.flat_map(move |(batch, m)| {
            (0..blocks).map(move |block| batch * stride + layout.offset(m, block, blocks))
        })
        .map(|at| self.scales[at])
    }

    /// A result in the format `F` as a tensor called `name`: another product's activations, for example.
    ///
    /// # Errors
    /// [`Error::Shape`] where the result is of another type, [`Error::ScaleNotFinite`] where it has a
    /// NaN.
    pub fn into_blocks<F: BlockFormat>(self, name: &str) -> Result<BlockScaled<F>> {
        match self.output.blocks() {
            Some((format, scale, layout)) if format.name() == F::NAME => {
                BlockScaled::new(name, self.dims, layout, self.bytes, self.scales, scale)
            }
            _ => Err(Error::shape("type of the result", F::NAME, self.output.name())),
        }
    }
}
