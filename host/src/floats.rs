//! Floats of a [`FloatType`] as bytes: conversion to and from numbers, range and rounding error. Rounding to e2m1's
//! values.

use fp4_formats::{FloatType, e2m1};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Significant bits, the hidden one included.
#[must_use]
pub const fn precision(dtype: FloatType) -> u32 {
    match dtype {
        FloatType::F16 => f16::MANTISSA_DIGITS,
        FloatType::Bf16 => bf16::MANTISSA_DIGITS,
        FloatType::F32 => f32::MANTISSA_DIGITS,
    }
}

/// Exponent of the smallest subnormal.
const fn min_exponent(dtype: FloatType) -> i32 {
    match dtype {
        FloatType::F16 => -24,
        FloatType::Bf16 => -133,
        FloatType::F32 => -149,
    }
}

/// Largest finite value.
#[must_use]
pub fn max(dtype: FloatType) -> f64 {
    match dtype {
        FloatType::F16 => f16::MAX.to_f64(),
        FloatType::Bf16 => bf16::MAX.to_f64(),
        FloatType::F32 => f64::from(f32::MAX),
    }
}

/// Largest error of rounding a number with a magnitude of at most `magnitude` to the nearest value:
/// half a unit in the last place, or half the smallest subnormal.
#[must_use]
pub fn half_ulp(dtype: FloatType, magnitude: f64) -> f64 {
    let relative = (-f64::from(precision(dtype))).exp2();
    (magnitude * relative).max((f64::from(min_exponent(dtype)) - 1.0).exp2())
}

/// Numbers from little-endian elements; an incomplete last element is dropped.
#[must_use]
pub fn decode(dtype: FloatType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / dtype.bytes() as usize];
    decode_to(dtype, bytes, &mut values);
    values
}

/// The same into `values`. Elements without a place there are left out, as are places without an
/// element.
pub fn decode_to(dtype: FloatType, bytes: &[u8], values: &mut [f32]) {
    match dtype {
        FloatType::F16 => {
            /// Elements that are converted at once.
            const PIECE: usize = 64;
            let mut piece = [f16::ZERO; PIECE];
            let (items, _) = bytes.as_chunks::<2>();
            for (items, values) in items.chunks(PIECE).zip(values.chunks_mut(PIECE)) {
                let len = items.len().min(values.len());
                for (x, &item) in piece.iter_mut().zip(&items[..len]) {
                    *x = f16::from_le_bytes(item);
                }
                piece[..len].convert_to_f32_slice(&mut values[..len]);
            }
        }
        FloatType::Bf16 => {
            let (items, _) = bytes.as_chunks::<2>();
            for (value, &item) in values.iter_mut().zip(items) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(item)) << 16);
            }
        }
        FloatType::F32 => {
            let (items, _) = bytes.as_chunks::<4>();
            for (value, &item) in values.iter_mut().zip(items) {
                *value = f32::from_le_bytes(item);
            }
        }
    }
}

/// Little-endian elements, each rounded to the nearest value of the type.
#[must_use]
pub fn encode(dtype: FloatType, values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    let values = values.into_iter();
    match dtype {
        FloatType::F16 => values.flat_map(|x| f16::from_f32(to_odd(x)).to_le_bytes()).collect(),
        FloatType::Bf16 => values.flat_map(|x| bf16::from_f32(to_odd(x)).to_le_bytes()).collect(),
        FloatType::F32 => values.flat_map(|x| (x as f32).to_le_bytes()).collect(),
    }
}

/// Rounds to f32 so that a second rounding to a narrower type gives the same as rounding `x`
/// directly: an inexact result gets an odd mantissa, which is never a tie in the narrower type.
/// (The conversions of `half` from f64 ignore the low half of the mantissa.)
fn to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    if f64::from(nearest) == x || !nearest.is_finite() {
        return nearest;
    }
    let away = f64::from(nearest).abs() > x.abs();
    f32::from_bits((nearest.to_bits() - u32::from(away)) | 1)
}

/// The value of e2m1 to which a magnitude rounds: that of the code of [`e2m1::encode`].
///
/// A number to which 2^22 times its power of two is added keeps one bit behind its first; the sum's last bit is that of
/// the code, so that ties go to the even one. Below 1 there are steps of a half, as from 1 to 2.
#[inline(always)]
#[must_use]
pub fn nearest_e2m1(magnitude: f32) -> f32 {
    let (sum, large) = rounding_sum(magnitude);
    sum - large
}

/// A magnitude, at most 6, plus the number at which it is rounded to e2m1, and that number.
#[inline(always)]
fn rounding_sum(magnitude: f32) -> (f32, f32) {
    const EXPONENT: u32 = f32::INFINITY.to_bits();
    const BITS: u32 = 22 << MANTISSA;
    // Comparisons instead of `min` and `max`, which take more instructions because of NaN.
    let bounded = if magnitude < e2m1::MAX { magnitude } else { e2m1::MAX };
    let power = f32::from_bits(bounded.to_bits() & EXPONENT);
    let power = if power > 1.0 { power } else { 1.0 };
    let large = f32::from_bits(power.to_bits() + BITS);
    (bounded + large, large)
}

/// Bits of a mantissa without the hidden one.
const MANTISSA: u32 = f32::MANTISSA_DIGITS - 1;

/// The code of [`e2m1::encode`], in loops of vectors with fewer instructions; that of a NaN may have a sign.
///
/// The sum of [`nearest_e2m1`] has the magnitude in halves of its power of two as its last bits: the magnitude's code if
/// the power is 1. Each doubling of the power adds two codes.
#[inline(always)]
#[must_use]
pub fn code_of_e2m1(x: f32) -> u32 {
    /// The exponent of 2^22, the power 1 times the number at which it is rounded.
    const FIRST: u32 = 127 + 22;
    let (sum, _) = rounding_sum(x.abs());
    let bits = sum.to_bits();
    let magnitude = (bits & 7) + ((bits >> MANTISSA) - FIRST) * 2;
    magnitude | x.to_bits() >> 28 & 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every magnitude from 0 to 8 of which the last 8 bits are 0, those beside the ties, and what is no number.
    #[test]
    fn magnitudes_round_as_codes_do() {
        let check = |x: f32| {
            let code = e2m1::encode(x);
            assert_eq!(nearest_e2m1(x).to_bits(), e2m1::decode(code).to_bits(), "{x:e}");
            assert_eq!(code_of_e2m1(x), u32::from(code), "{x:e}");
            assert_eq!(code_of_e2m1(-x), u32::from(code | 8), "{:e}", -x);
        };
        (0..=8f32.to_bits() >> 8).for_each(|bits| check(f32::from_bits(bits << 8)));
        for tie in [0.25f32, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] {
            [tie.next_down(), tie, tie.next_up()].into_iter().for_each(check);
        }
        [f32::MAX, f32::INFINITY, f32::NAN, f32::from_bits(1)].into_iter().for_each(check);
    }

    /// Rounding to f16 errs by at most half an ulp: at the midpoint of every pair of adjacent ones.
    #[test]
    fn half_ulp_bounds_f16_rounding() {
        for bits in 0..f16::MAX.to_bits() {
            let (low, high) = (f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
            let middle = f64::midpoint(low, high);
            let error = (f16::from_f64(middle).to_f64() - middle).abs();
            assert!(error <= half_ulp(FloatType::F16, middle), "at {bits:#06x}");
        }
    }

    proptest! {
        /// Numbers around the midpoint of two values, down to the last bit of the f64.
        #[test]
        fn rounding_is_to_the_nearest(bits in 1u16..0x7bff, dtype in 0usize..2, off in -3i64..4) {
            let dtype = [FloatType::F16, FloatType::Bf16][dtype];
            let value = |bits: u16| f64::from(decode(dtype, &bits.to_le_bytes())[0]);
            let (low, high) = (value(bits), value(bits + 1));
            let middle = f64::midpoint(low, high);
            let x = f64::from_bits((middle.to_bits() as i64 + off) as u64);
            let even = bits + (bits & 1);
            let expected = match off {
                0 => even,
                1.. => bits + 1,
                _ => bits,
            };
            prop_assert_eq!(encode(dtype, [x]), expected.to_le_bytes(), "{:e}", x);
            let negative = encode(dtype, [-x]);
            prop_assert_eq!(negative, (expected | 0x8000).to_le_bytes(), "{:e}", -x);
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        for dtype in [FloatType::F16, FloatType::Bf16] {
            let one = |x: f64| decode(dtype, &encode(dtype, [x]))[0];
            assert_eq!(f64::from(one(max(dtype))), max(dtype));
            assert_eq!(one(1e300), f32::INFINITY);
            assert_eq!(one(-1e300), f32::NEG_INFINITY);
            assert!(one(f64::NAN).is_nan());
            assert_eq!(one(1e-300).to_bits(), 0);
            assert_eq!(one(-1e-300).to_bits(), (-0f32).to_bits());
        }
    }

    #[test]
    fn bytes_round_trip() {
        for dtype in FloatType::ALL {
            let bytes = encode(dtype, [1.5, -2.0]);
            assert_eq!(bytes.len(), 2 * dtype.bytes() as usize);
            assert_eq!(decode(dtype, &bytes), [1.5, -2.0]);
        }
    }
}
