//! Parameter blocks, passed by value. Addresses are device addresses.

use crate::params::blocks;

#[cfg(doc)]
use super::{NO_ERROR, QuantizeConfig, Recipe, ScaleSource};
#[cfg(doc)]
use crate::{FloatType, recipe::Nvfp4Recipe};

/// Parameter block of every quantise kernel.
///
/// | field | shape | layout |
/// |---|---|---|
/// | `input`, `up` | `[M, K]` of the configuration's type | 16-byte aligned |
/// | `codes` | `[M, K/2]` bytes | 16-byte aligned |
/// | `scales` | `[M, K/block]` | `blocked`; all padding of 128x4 is written as zero |
/// | `tensor` | `[1]` or `[M]` f32 | 4-byte aligned; see [`ScaleSource`] |
/// | `tensor_out` | `[1]`, or `[M]` for [`ScaleSource::RowAmax`], f32 | 4-byte aligned |
/// | `errors` | one u64 | 8-byte aligned; see the module's head |
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct QuantizeParams {
    /// The matrix; the gate if the configuration is fused with SwiGLU.
    pub input: u64,
    /// The second factor of `silu(gate) * up`; 0 for configurations without it.
    pub up: u64,
    /// Packed e2m1 codes, element `2j` in the low nibble.
    pub codes: u64,
    /// Block scales.
    pub scales: u64,
    /// Largest magnitudes; 0 for [`ScaleSource::Given`].
    pub tensor: u64,
    /// The address to which the used tensor parameters are written; 0 if they are not.
    pub tensor_out: u64,
    /// The address to which the index of an element that is not finite is written; 0 if it is not.
    pub errors: u64,
    /// Rows.
    pub m: u32,
    /// Columns, a multiple of the block.
    pub k: u32,
    /// The recipe's tensor parameter for [`ScaleSource::Given`].
    pub given: f32,
    /// A [`ScaleSource`].
    pub source: u32,
    /// 1 if `scales` is in the 128x4 layout, 0 if linear.
    pub blocked: u32,
    /// [`Recipe::code`]; ignored by configurations made for one recipe.
    pub recipe: u32,
    /// Tasks per warp if CTAs are not persistent, at most [`QuantizeConfig::stages`]. The stride
    /// of a warp's tasks is the number of the CTA's warps, and there must be enough CTAs for all tasks;
    /// see [`QuantizeConfig::launch`].
    pub depth: u32,
    /// The [`FloatType`] of the input; read only by configurations for any type.
    pub element: u32,
}

/// Parameter block of every amax kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct AmaxParams {
    /// `[M, K]` of the configuration's type, 16-byte aligned; the gate if the
    /// configuration is fused with SwiGLU.
    pub input: u64,
    /// The same as [`QuantizeParams::up`].
    pub up: u64,
    /// f32: `[M]` if `per_row`, otherwise `[1]`, which must hold zero before the launch. The
    /// result is NaN if an element is.
    pub out: u64,
    /// Rows.
    pub m: u32,
    /// Columns, a multiple of 16.
    pub k: u32,
    /// 1 for one maximum per row, 0 for one of the whole matrix.
    pub per_row: u32,
    /// 0; keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Parameter block of every dequantise kernel.
///
/// The result is `code * (scale * tensor)`. The product of the scales is rounded to f32, its
/// product with the code is rounded to f32, and that is rounded to the type of the result.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct DequantizeParams {
    /// Packed e2m1 codes, `[M, K/2]` bytes, 8-byte aligned.
    pub codes: u64,
    /// Block scales, `[M, K/block]`; padding is not read.
    pub scales: u64,
    /// f32: `[1]` for [`ScaleSource::TensorAmax`], `[M]` for [`ScaleSource::RowAmax`]; in both
    /// cases these are multipliers ([`Nvfp4Recipe::multiplier`]), not maxima. 0 for
    /// [`ScaleSource::Given`].
    pub tensor: u64,
    /// Result, `[M, K]` of the configuration's type, 16-byte aligned.
    pub out: u64,
    /// Rows.
    pub m: u32,
    /// Columns, a multiple of the block.
    pub k: u32,
    /// The multiplier for [`ScaleSource::Given`].
    pub given: f32,
    /// A [`ScaleSource`]: the source of the multiplier.
    pub source: u32,
    /// 1 if `scales` is in the 128x4 layout, 0 if linear.
    pub blocked: u32,
    /// 0; keeps the size a multiple of 8.
    pub reserved: u32,
}

blocks! {
    QuantizeParams {
        input, up, codes, scales, tensor, tensor_out, errors, m, k, given, source, blocked, recipe, depth, element
    }
    AmaxParams { input, up, out, m, k, per_row, reserved }
    DequantizeParams { codes, scales, tensor, out, m, k, given, source, blocked, reserved }
}
