//! The types of the tensors.

use cuda_std::ptx::{convert, mma};

/// A 16-bit type.
pub trait Element {
    /// The value of an element.
    fn value(bits: u16) -> f32;

    /// The nearest element.
    fn round(value: f32) -> u16;

    /// The nearest elements of two numbers, that of `low` in the low half.
    fn pair(high: f32, low: f32) -> u32;

    /// Adds the product of 16 rows of `a` and 8 columns of `b` to the sums.
    ///
    /// # Safety
    /// All threads of the warp reach this same call.
    unsafe fn multiply(sums: &mut [f32; 4], a: [u32; 4], b: [u32; 2]);
}

/// IEEE binary16.
pub struct F16;
/// bfloat16.
pub struct Bf16;

impl Element for F16 {
    #[inline(always)]
    fn value(bits: u16) -> f32 {
        convert::cvt_f32_f16(bits)
    }

    #[inline(always)]
    fn round(value: f32) -> u16 {
        convert::cvt_rn_f16_f32(value)
    }

    #[inline(always)]
    fn pair(high: f32, low: f32) -> u32 {
        convert::cvt_rn_f16x2_f32(high, low)
    }

    #[inline(always)]
    unsafe fn multiply(sums: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        // SAFETY: all threads of the warp are here.
        unsafe { mma::mma_m16n8k16_f32_f16_f16(sums, a, b) }
    }
}

impl Element for Bf16 {
    #[inline(always)]
    fn value(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn round(value: f32) -> u16 {
        convert::cvt_rn_bf16_f32(value)
    }

    #[inline(always)]
    fn pair(high: f32, low: f32) -> u32 {
        convert::cvt_rn_bf16x2_f32(high, low)
    }

    #[inline(always)]
    unsafe fn multiply(sums: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        // SAFETY: all threads of the warp are here.
        unsafe { mma::mma_m16n8k16_f32_bf16_bf16(sums, a, b) }
    }
}
