//! Elements of f16, bf16 or f32 in memory, of a type that only the launch knows: a [`FloatType`] as a number.

use cuda_std::ptx::convert;
use fp4_formats::FloatType;

/// Whether elements have 4 bytes; those of all other types have 2.
#[inline(always)]
pub fn is_f32(float_type: u32) -> bool {
    float_type == FloatType::F32 as u32
}

/// Bytes of an element.
#[inline(always)]
pub fn bytes(float_type: u32) -> u64 {
    u64::from(if is_f32(float_type) { FloatType::F32.bytes() } else { FloatType::F16.bytes() })
}

/// The values of elements of 2 bytes, by their bits. One branch for all.
#[inline(always)]
pub fn widened<const N: usize>(float_type: u32, halves: [u16; N]) -> [f32; N] {
    if float_type == FloatType::F16 as u32 {
        halves.map(convert::cvt_f32_f16)
    } else {
        halves.map(|half| f32::from_bits(u32::from(half) << 16))
    }
}
