//! f32 to e2m1 for sm_100a, which converts pairs in hardware.

use cuda_std::ptx::{convert, float, integer};
use fp4_formats::recipe::Reciprocal;

/// Returns the operands of [`round`] for numbers: the numbers themselves.
#[inline(always)]
pub fn prepare(v: [f32; 8]) -> [f32; 8] {
    v
}

/// `v * factor`.
#[inline(always)]
pub fn products(mut v: [f32; 8], factor: f32, unsigned_zero: bool) -> [f32; 8] {
    for value in &mut v {
        *value *= factor;
        if unsigned_zero {
            // Makes -0 +0.
            *value += 0.0;
        }
    }
    v
}

/// `v * factor`, a zero as +0, where no product of a number is so small that it becomes zero.
#[inline(always)]
pub fn unsigned_products(mut v: [f32; 8], factor: f32) -> [f32; 8] {
    for value in &mut v {
        *value = float::fma_rn_f32(*value, factor, 0.0);
    }
    v
}

/// The codes of `v * factor`, a power of two.
#[inline(always)]
pub fn scaled(v: [f32; 8], factor: f32) -> u32 {
    round(products(v, factor, false))
}

/// `v / divisor`, given the nearest number to the divisor's reciprocal; a zero as +0.
#[inline(always)]
pub fn quotients(mut v: [f32; 8], divisor: f32, nearest: f32) -> [f32; 8] {
    let reciprocal = Reciprocal::new(divisor, nearest, float::fma_rn_f32);
    for value in &mut v {
        *value = reciprocal.times(*value, float::fma_rn_f32);
    }
    v
}

/// The codes of eight values, element `i` in bits `4 i ..`; nearest even,
/// saturating, signs kept.
#[inline(always)]
pub fn round(v: [f32; 8]) -> u32 {
    let mut pairs = [0; 4];
    for i in 0..4 {
        pairs[i] = convert::cvt_rn_satfinite_e2m1x2_f32(v[2 * i + 1], v[2 * i]);
    }
    let low = integer::prmt_b32(pairs[0], pairs[1], 0x0040);
    let high = integer::prmt_b32(pairs[2], pairs[3], 0x0040);
    integer::prmt_b32(low, high, 0x5410)
}
