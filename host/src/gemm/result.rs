//! The result of a GEMM: its type, its buffer, and how it comes back.

use fp4_formats::gemm::ResultScales;
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, ScaleLayout, e2m1, pack};

use super::strides::Strides;
use super::{GemmPlan, Output};
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::floats;
use crate::tensor::{BlockScaled, Dims};

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
