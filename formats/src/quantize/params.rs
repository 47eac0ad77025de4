//! Parameter blocks, passed by value. Addresses are device addresses.

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

impl QuantizeParams {
    /// The block as the kernel's `.param` space holds it.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        bytes(
            [
                self.input,
                self.up,
                self.codes,
                self.scales,
                self.tensor,
                self.tensor_out,
                self.errors,
            ],
            [
                self.m,
                self.k,
                self.given.to_bits(),
                self.source,
                self.blocked,
                self.recipe,
                self.depth,
                self.element,
            ],
        )
    }
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
}

impl AmaxParams {
    /// The block as the kernel's `.param` space holds it.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        bytes([self.input, self.up, self.out], [self.m, self.k, self.per_row])
    }
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
}

impl DequantizeParams {
    /// The block as the kernel's `.param` space holds it.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        bytes(
            [self.codes, self.scales, self.tensor, self.out],
            [self.m, self.k, self.given.to_bits(), self.source, self.blocked],
        )
    }
}

/// `wide`, then `narrow`, in little endian, then zeros for padding: the C layout of a structure
/// with these fields.
pub(crate) const fn bytes<const W: usize, const N: usize, const B: usize>(
    wide: [u64; W],
    narrow: [u32; N],
) -> [u8; B] {
    const { assert!(B == (W * 8 + N * 4).next_multiple_of(8)) };
    let mut bytes = [0; B];
    let mut at = 0;
    while at < W * 8 + N * 4 {
        bytes[at] = if at < W * 8 {
            wide[at / 8].to_le_bytes()[at % 8]
        } else {
            narrow[at / 4 - W * 2].to_le_bytes()[at % 4]
        };
        at += 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn bytes_follow_the_layout() {
        let params = QuantizeParams {
            input: 1,
            up: 2,
            codes: 3,
            scales: 4,
            tensor: 5,
            tensor_out: 6,
            errors: 7 << 32,
            m: 8,
            k: 9,
            given: 1.5,
            source: 11,
            blocked: 12,
            recipe: 13,
            depth: 14,
            element: 15,
        };
        let bytes = params.to_bytes();
        assert_eq!(word(&bytes, offset_of!(QuantizeParams, tensor_out)), 6);
        assert_eq!(word(&bytes, offset_of!(QuantizeParams, errors) + 4), 7);
        assert_eq!(word(&bytes, offset_of!(QuantizeParams, given)), 1.5f32.to_bits());
        assert_eq!(word(&bytes, offset_of!(QuantizeParams, recipe)), 13);
        assert_eq!(word(&bytes, offset_of!(QuantizeParams, depth)), 14);
        assert_eq!(word(&bytes, offset_of!(QuantizeParams, element)), 15);

        let params = AmaxParams { input: 1, up: 2, out: 3, m: 4, k: 5, per_row: 6 };
        let bytes = params.to_bytes();
        assert_eq!(word(&bytes, offset_of!(AmaxParams, out)), 3);
        assert_eq!(word(&bytes, offset_of!(AmaxParams, per_row)), 6);
        assert_eq!(bytes[36..], [0; 4]);

        let params = DequantizeParams {
            codes: 1,
            scales: 2,
            tensor: 3,
            out: 4,
            m: 5,
            k: 6,
            given: 0.5,
            source: 8,
            blocked: 9,
        };
        let bytes = params.to_bytes();
        assert_eq!(word(&bytes, offset_of!(DequantizeParams, out)), 4);
        assert_eq!(word(&bytes, offset_of!(DequantizeParams, given)), 0.5f32.to_bits());
        assert_eq!(word(&bytes, offset_of!(DequantizeParams, blocked)), 9);
    }
}
