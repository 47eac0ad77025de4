//! NVFP4 and MXFP4 as types, so that block sizes and byte counts never appear as literals.

use crate::layout::{ScaleLayout, SizeOverflow};
use crate::{e2m1, e4m3, pack, ue8m0};

/// A block-scaled 4-bit format: e2m1 elements, and one scale byte per [`BLOCK`](Self::BLOCK)
/// consecutive elements along K.
///
/// The formats are zero-sized types; generic code takes them as a type parameter.
pub trait BlockFormat: Copy + core::fmt::Debug + Default + Eq + Send + Sync + 'static {
    /// Lower-case name, as used in shape strings and reports.
    const NAME: &'static str;

    /// Elements that share one scale.
    const BLOCK: usize;

    /// Packed bytes of one block's elements.
    const BLOCK_BYTES: usize = Self::BLOCK / 2;

    /// Largest magnitude of a block scale.
    const MAX_SCALE: f32;

    /// The value of a scale byte, which may be NaN.
    fn decode_scale(byte: u8) -> f32;

    /// Whether the byte is a scale that a kernel accepts: a finite, non-negative number.
    fn scale_is_valid(byte: u8) -> bool;

    /// Blocks along K, or `None` if K is not a multiple of the block.
    #[inline]
    #[must_use]
    fn blocks(k: usize) -> Option<usize> {
        k.is_multiple_of(Self::BLOCK).then_some(k / Self::BLOCK)
    }

    /// Bytes of the packed codes of a `rows` x `k` matrix whose rows each start on a byte.
    ///
    /// # Errors
    /// [`SizeOverflow`] if the count does not fit `usize`.
    fn code_bytes(rows: usize, k: usize) -> Result<usize, SizeOverflow> {
        rows.checked_mul(pack::packed_len(k)).ok_or(SizeOverflow { rows, columns: k })
    }

    /// Bytes of the scales of a `rows` x `k` matrix in `layout`, padding included. A last block
    /// that K fills only partly counts as a block.
    ///
    /// # Errors
    /// [`SizeOverflow`] if the count does not fit `usize`.
    fn scale_bytes(rows: usize, k: usize, layout: ScaleLayout) -> Result<usize, SizeOverflow> {
        layout.bytes(rows, k.div_ceil(Self::BLOCK))
    }
}

/// NVFP4: blocks of 16, ue4m3 scales, and in software one f32 scale per tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nvfp4;

impl Nvfp4 {
    /// Largest magnitude of an element times a block scale: 6 * 448. A tensor's f32 scale is its
    /// largest magnitude divided by this.
    pub const MAX_SCALED: f32 = e2m1::MAX * e4m3::MAX;
}

impl BlockFormat for Nvfp4 {
    const NAME: &'static str = "nvfp4";
    const BLOCK: usize = 16;
    const MAX_SCALE: f32 = e4m3::MAX;

    #[inline]
    fn decode_scale(byte: u8) -> f32 {
        e4m3::decode(byte)
    }

    #[inline]
    fn scale_is_valid(byte: u8) -> bool {
        e4m3::is_unsigned_finite(byte)
    }
}

/// MXFP4 of the OCP microscaling specification: blocks of 32, ue8m0 scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mxfp4;

impl BlockFormat for Mxfp4 {
    const NAME: &'static str = "mxfp4";
    const BLOCK: usize = 32;
    const MAX_SCALE: f32 = ue8m0::decode(ue8m0::MAX_CODE);

    #[inline]
    fn decode_scale(byte: u8) -> f32 {
        ue8m0::decode(byte)
    }

    #[inline]
    fn scale_is_valid(byte: u8) -> bool {
        byte != ue8m0::NAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts() {
        assert_eq!(Nvfp4::code_bytes(7168, 16384), Ok(7168 * 8192));
        assert_eq!(Nvfp4::scale_bytes(7168, 16384, ScaleLayout::Linear), Ok(7168 * 1024));
        assert_eq!(Nvfp4::scale_bytes(1, 16, ScaleLayout::Blocked128x4), Ok(512));
        assert_eq!(Mxfp4::scale_bytes(3, 33, ScaleLayout::Linear), Ok(6));
        assert_eq!(
            Nvfp4::code_bytes(usize::MAX, 4),
            Err(SizeOverflow { rows: usize::MAX, columns: 4 })
        );
    }

    #[test]
    fn blocks_demand_whole_blocks() {
        assert_eq!(Nvfp4::blocks(48), Some(3));
        assert_eq!(Nvfp4::blocks(40), None);
        assert_eq!(Mxfp4::blocks(48), None);
    }

    #[test]
    fn valid_scales_are_the_finite_non_negative_ones() {
        for byte in 0..=255u8 {
            let nv = Nvfp4::decode_scale(byte);
            assert_eq!(
                Nvfp4::scale_is_valid(byte),
                nv.is_finite() && nv.is_sign_positive(),
                "nvfp4 {byte:#x}"
            );
            assert_eq!(
                Mxfp4::scale_is_valid(byte),
                !Mxfp4::decode_scale(byte).is_nan(),
                "mxfp4 {byte:#x}"
            );
        }
    }
}
