//! The types of weights that are decoded to fragments, and the sizes of their parts.

use super::repack::{BLOCK_COLUMNS, BLOCK_ROWS, CHUNK_BLOCKS, CHUNK_CODE_BYTES, CHUNK_ROWS};
use crate::gemm::{Operands, fold};
use crate::quantize::Format;
use crate::{HalfType, Operand};

/// The types of the weights and of their decoded form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// Format of the weights.
    pub format: Format,
    /// The type that they are decoded to, which is the type of the activations.
    pub operand: Operand,
}

impl Scheme {
    /// NVFP4 weights, f16 activations.
    pub const NVFP4_F16: Self = Self { format: Format::Nvfp4, operand: Operand::F16 };
    /// NVFP4 weights, bf16 activations.
    pub const NVFP4_BF16: Self = Self { format: Format::Nvfp4, operand: Operand::BF16 };
    /// MXFP4 weights, bf16 activations.
    pub const MXFP4_BF16: Self = Self { format: Format::Mxfp4, operand: Operand::BF16 };
    /// NVFP4 weights, e4m3 activations.
    pub const NVFP4_E4M3: Self = Self { format: Format::Nvfp4, operand: Operand::E4m3 };
    /// MXFP4 weights, e4m3 activations.
    pub const MXFP4_E4M3: Self = Self { format: Format::Mxfp4, operand: Operand::E4m3 };

    /// Returns the scheme of a product, whose activations have been decoded. `None` for blocks.
    pub const fn of(operands: Operands) -> Option<Self> {
        match operands.activations {
            Some(operand) => Some(Self { format: operands.weights, operand }),
            None => None,
        }
    }

    /// The formats of a product's weights and activations.
    pub const fn operands(self) -> Operands {
        Operands { weights: self.format, activations: Some(self.operand) }
    }

    /// Whether it is `other`, in a constant.
    pub const fn is(self, other: Self) -> bool {
        const fn number(scheme: Scheme) -> u32 {
            match (scheme.format, scheme.operand) {
                (Format::Nvfp4, Operand::Half(half)) => half as u32,
                (Format::Mxfp4, Operand::Half(half)) => 2 + half as u32,
                (Format::Nvfp4, Operand::E4m3) => 4,
                (Format::Mxfp4, Operand::E4m3) => 5,
            }
        }
        number(self) == number(other)
    }

    /// Scales of a row in 64 columns.
    pub const fn block_scales(self) -> u32 {
        BLOCK_COLUMNS / self.format.block()
    }

    /// Bytes that stand for a block's scale.
    pub const fn scale_bytes(self) -> u32 {
        match (self.format, self.operand) {
            (_, Operand::Half(_)) | (Format::Mxfp4, Operand::E4m3) => 1,
            (Format::Nvfp4, Operand::E4m3) => fold::TABLE_BYTES,
        }
    }

    /// Bytes of the scales of 64 rows by 64 columns.
    pub const fn block_scale_bytes(self) -> u32 {
        BLOCK_ROWS * self.block_scales() * self.scale_bytes()
    }

    /// Offset in a chunk of the rows' factors, behind the scales.
    pub const fn factors_offset(self) -> u32 {
        CHUNK_CODE_BYTES + CHUNK_BLOCKS * CHUNK_BLOCKS * self.block_scale_bytes()
    }

    /// Bytes of a chunk.
    pub const fn chunk_bytes(self) -> u32 {
        match self.operand {
            Operand::Half(_) => self.factors_offset(),
            Operand::E4m3 => self.factors_offset() + CHUNK_ROWS,
        }
    }

    /// log2 of a weight's value over the decoded operand's, scale included.
    ///
    /// NVFP4 in f16: a code's own unit. NVFP4 in bf16: the scale is decoded times 2^119, which
    /// leaves 2^7 of the code's 2^126. MXFP4: 2^3 keep the largest scale inside bf16, and the
    /// smallest product above its smallest subnormal. In e4m3, a row's factor is applied to the sums
    /// of each chunk.
    pub const fn unit_log2(self) -> u32 {
        match (self.format, self.operand) {
            (_, Operand::Half(HalfType::F16)) => HalfType::F16.unit_log2(),
            (Format::Nvfp4, Operand::Half(HalfType::Bf16)) => 7,
            (Format::Mxfp4, Operand::Half(HalfType::Bf16)) => 3,
            (_, Operand::E4m3) => 0,
        }
    }
}
