//! Approximate instructions: `div.approx`, `div.full`, `rcp`, `sqrt`, `rsqrt`, `sin`,
//! `cos`, `lg2`, `ex2`, `tanh` (PTX ISA sections 9.7.3.8 to 9.7.3.22, 9.7.4.9, 9.7.4.10).
//!
//! PTX bounds the error of these instructions and fixes their special cases, not their
//! bits. Results here are computed in f64 with an error below 2^-50 and rounded to
//! nearest, so they are inside every documented bound and rarely equal the
//! hardware's in the last places: code that passes here with a tolerance tighter than
//! the bound may fail on hardware. Only `+`, `-`, `*`, `/` and square roots of f64 are
//! used, so that every host gives the same bits. `sin` and `cos` stay accurate for any
//! argument, where hardware loses accuracy outside of `[-pi, pi]`.

use super::single::{NAN, flush};
use super::{FloatFlags, Rounding, bfloat, double, half, map_halves, single};

fn finish(x: f64, ftz: bool) -> f32 {
    let x = x as f32;
    // By its bits: the compiler may take any NaN for any other.
    let nan = x.to_bits() & 0x7fff_ffff > f32::INFINITY.to_bits();
    if nan { NAN } else { flush(x, ftz) }
}

/// `div.approx.f32`: at most 2 ulp for `2^-126 <= |b| <= 2^126`. For larger finite `|b|`
/// the result is a zero, or NaN if `a` is infinite. Section 9.7.3.8.
#[inline]
pub fn div_approx(a: f32, b: f32, ftz: bool) -> f32 {
    let (a, b) = (flush(a, ftz), flush(b, ftz));
    let beyond = b.is_finite() && b.abs() > f32::from_bits(0x7e80_0000);
    // The hardware multiplies by a reciprocal, which is flushed to zero there.
    let quotient = if beyond { a * (0f32).copysign(b) } else { a / b };
    finish(f64::from(quotient), ftz)
}

/// `div.full.f32`: at most 2 ulp in the full range. Section 9.7.3.8.
#[inline]
pub fn div_full(a: f32, b: f32, ftz: bool) -> f32 {
    single::div(a, b, Rounding::Rn, FloatFlags { ftz, ..FloatFlags::NONE })
}

/// `rcp.approx.f32`: at most 1 ulp. Section 9.7.3.13.
#[inline]
pub fn rcp(a: f32, ftz: bool) -> f32 {
    div_full(1.0, a, ftz)
}

/// `sqrt.approx.f32`: maximum relative error 2^-23. Section 9.7.3.15.
#[inline]
pub fn sqrt(a: f32, ftz: bool) -> f32 {
    single::sqrt(a, Rounding::Rn, FloatFlags { ftz, ..FloatFlags::NONE })
}

/// `rsqrt.approx.f32`: maximum relative error 2^-22.9; `-0` gives `-inf`. Section
/// 9.7.3.16.
#[inline]
pub fn rsqrt(a: f32, ftz: bool) -> f32 {
    finish(1.0 / f64::from(flush(a, ftz)).sqrt(), ftz)
}

/// `rcp.approx.ftz.f64`: reads and writes the upper 32 bits only, the lower ones are
/// zero; subnormal operands and results count as zero. Section 9.7.3.14.
#[inline]
pub fn rcp_f64(a: f64) -> f64 {
    upper_result(flush_f64(double::rcp(flush_f64(upper_half(a)), Rounding::Rn)))
}

/// `rsqrt.approx.f64` and, with `ftz`, `rsqrt.approx.ftz.f64`, which reads and writes
/// the upper 32 bits only and takes subnormals for zero. Sections 9.7.3.16 and 9.7.3.17.
#[inline]
pub fn rsqrt_f64(a: f64, ftz: bool) -> f64 {
    let root = |a: f64| double::rcp(double::sqrt(a, Rounding::Rn), Rounding::Rn);
    if ftz { upper_result(root(flush_f64(upper_half(a)))) } else { root(a) }
}

/// Drops the lower 32 bits. A NaN whose payload was there becomes an infinity.
fn upper_half(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & 0xffff_ffff_0000_0000)
}

/// The upper half of a result, whose NaN is that of f32.
fn upper_result(x: f64) -> f64 {
    if x.is_nan() { f64::from_bits(u64::from(NAN.to_bits()) << 32) } else { upper_half(x) }
}

fn flush_f64(x: f64) -> f64 {
    if x.is_subnormal() { (0f64).copysign(x) } else { x }
}

/// `ex2.approx.f32`: 2 to the power `a`; at most 2 ulp. Section 9.7.3.21.
#[inline]
pub fn ex2(a: f32, ftz: bool) -> f32 {
    finish(exp2(f64::from(flush(a, ftz))), ftz)
}

/// `lg2.approx.f32`: logarithm to base 2. Negative numbers give NaN, zeros `-inf`.
/// Section 9.7.3.20.
#[inline]
pub fn lg2(a: f32, ftz: bool) -> f32 {
    let a = flush(a, ftz);
    let log = if a.is_nan() || a < 0.0 {
        f64::NAN
    } else if a == 0.0 {
        f64::NEG_INFINITY
    } else if a == f32::INFINITY {
        f64::INFINITY
    } else {
        log2(f64::from(a))
    };
    finish(log, ftz)
}

/// `sin.approx.f32`, `a` in radians. Infinities give NaN. Section 9.7.3.18.
#[inline]
pub fn sin(a: f32, ftz: bool) -> f32 {
    let a = flush(a, ftz);
    let Some((quadrant, r)) = reduce(a.abs()) else { return NAN };
    finish(sin_quadrant(quadrant, r) * f64::from((1f32).copysign(a)), ftz)
}

/// `cos.approx.f32`, `a` in radians. Infinities give NaN. Section 9.7.3.19.
#[inline]
pub fn cos(a: f32, ftz: bool) -> f32 {
    let Some((quadrant, r)) = reduce(flush(a, ftz).abs()) else { return NAN };
    finish(sin_quadrant(quadrant + 1, r), ftz)
}

/// `tanh.approx.f32`: maximum relative error 2^-11. Section 9.7.3.22.
#[inline]
pub fn tanh(a: f32) -> f32 {
    finish(hyperbolic_tangent(f64::from(a)), false)
}

/// `ex2.approx.f16`. Section 9.7.4.10.
#[inline]
pub fn ex2_f16(a: u16) -> u16 {
    half::from_f32(ex2(half::to_f32(a), false))
}

/// `ex2.approx.f16x2`.
#[inline]
pub fn ex2_f16x2(a: u32) -> u32 {
    map_halves([a], |[a]| ex2_f16(a))
}

/// `ex2.approx.ftz.bf16`: subnormal operands and results become zero. Section 9.7.4.10.
#[inline]
pub fn ex2_bf16(a: u16) -> u16 {
    // bf16 and f32 have the same exponents, so what is subnormal is so in both.
    bfloat::from_f32(ex2(bfloat::to_f32(a), true))
}

/// `ex2.approx.ftz.bf16x2`.
#[inline]
pub fn ex2_bf16x2(a: u32) -> u32 {
    map_halves([a], |[a]| ex2_bf16(a))
}

/// `tanh.approx.f16`. Section 9.7.4.9.
#[inline]
pub fn tanh_f16(a: u16) -> u16 {
    half::from_f32(tanh(half::to_f32(a)))
}

/// `tanh.approx.f16x2`.
#[inline]
pub fn tanh_f16x2(a: u32) -> u32 {
    map_halves([a], |[a]| tanh_f16(a))
}

/// `tanh.approx.bf16`. Section 9.7.4.9.
#[inline]
pub fn tanh_bf16(a: u16) -> u16 {
    bfloat::from_f32(tanh(bfloat::to_f32(a)))
}

/// `tanh.approx.bf16x2`.
#[inline]
pub fn tanh_bf16x2(a: u32) -> u32 {
    map_halves([a], |[a]| tanh_bf16(a))
}

/// Evaluates a polynomial, lowest coefficient first.
#[inline(always)]
fn horner<const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
    coefficients.into_iter().rev().fold(0.0, |sum, c| sum * x + c)
}

/// 2^x, or what f32 makes the same of outside of [-200, 200].
fn exp2(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let x = x.clamp(-200.0, 200.0);
    // Adding 1.5 * 2^52 leaves the nearest integer in the low bits.
    const SHIFTER: f64 = 6_755_399_441_055_744.0;
    let nearest = (x + SHIFTER) - SHIFTER;
    let r = (x - nearest) * std::f64::consts::LN_2;
    // e^r for |r| < 0.35 by its series; the next term is below 2^-57.
    let mut factorial = 1.0;
    let series: [f64; 14] = std::array::from_fn(|i| {
        factorial *= (i as f64).max(1.0);
        1.0 / factorial
    });
    let scale = f64::from_bits(((nearest as i64 + 1023) as u64) << 52);
    horner(r, series) * scale
}

/// Logarithm to base 2 of a positive, finite, normal number.
fn log2(x: f64) -> f64 {
    let bits = x.to_bits();
    // x = 2^exponent * m, with m from sqrt(1/2) to sqrt(2).
    let offset = bits.wrapping_sub(std::f64::consts::FRAC_1_SQRT_2.to_bits());
    let exponent = (offset as i64) >> 52;
    let m = f64::from_bits(bits.wrapping_sub((exponent << 52) as u64));
    // ln m = 2 artanh((m - 1) / (m + 1)); |s| < 0.172, the next term is below 2^-61.
    let s = (m - 1.0) / (m + 1.0);
    let series: [f64; 12] = std::array::from_fn(|i| 1.0 / (2 * i + 1) as f64);
    exponent as f64 + 2.0 * std::f64::consts::LOG2_E * s * horner(s * s, series)
}

/// `x = quadrant * pi/2 + r` with `|r| <= pi/4`, modulo 2 pi, for `x >= 0`; `None` for
/// infinities and NaN.
///
/// The multiple of 2/pi is exact to 2^-76: `x` times a window of 102 bits of 2/pi that
/// leaves out whole turns (Payne and Hanek).
fn reduce(x: f32) -> Option<(u32, f64)> {
    if !x.is_finite() {
        return None;
    }
    if x <= std::f32::consts::FRAC_PI_4 {
        return Some((0, f64::from(x)));
    }
    /// The first 256 bits of 2/pi after the binary point.
    const TWO_OVER_PI: [u128; 2] =
        [0xa2f9836e_4e441529_fc2757d1_f534ddc0, 0xdb629599_3c439041_fe5163ab_debbc561];
    const FRACTION: u32 = 100;
    let bits = x.to_bits();
    let significand = u128::from(bits & 0x007f_ffff | 0x0080_0000);
    let exp = (bits >> 23) as i32 - 150;
    // Keep the bits of 2/pi down to 2^-(exp + 100): at least 76 and at most 204.
    let drop = (256 - FRACTION as i32 - exp) as u32;
    let [hi, lo] = TWO_OVER_PI;
    let window = if drop >= 128 { hi >> (drop - 128) } else { hi << (128 - drop) | lo >> drop };
    let turn = (1u128 << (FRACTION + 2)) - 1;
    let product = (significand * (window & turn)) & turn;
    let quadrant = (product + (1 << (FRACTION - 1))) >> FRACTION;
    let fraction = product as i128 - (quadrant << FRACTION) as i128;
    let r = fraction as f64 * (std::f64::consts::FRAC_PI_2 / (1u128 << FRACTION) as f64);
    Some((quadrant as u32, r))
}

/// `sin(quadrant * pi/2 + r)` for `|r| <= pi/4`.
fn sin_quadrant(quadrant: u32, r: f64) -> f64 {
    let odd = quadrant & 1;
    // Series of sin(r) / r or cos(r) in -r^2; the next term is below 2^-63.
    let mut factorial = 1.0;
    let series: [f64; 10] = std::array::from_fn(|i| {
        if i > 0 {
            let n = 2 * i as u32;
            factorial *= f64::from(n) * f64::from(if odd == 1 { n - 1 } else { n + 1 });
        }
        1.0 / factorial
    });
    let value = horner(-(r * r), series) * if odd == 1 { 1.0 } else { r };
    if quadrant & 2 == 0 { value } else { -value }
}

fn hyperbolic_tangent(x: f64) -> f64 {
    let size = x.abs();
    let tanh = if size < 1.0 {
        // Lambert's continued fraction x / (1 + x^2 / (3 + x^2 / (5 + ...))).
        let square = x * x;
        size / (0..10).rev().fold(21.0, |tail, k| f64::from(2 * k + 1) + square / tail)
    } else {
        1.0 - 2.0 / (exp2(2.0 * std::f64::consts::LOG2_E * size) + 1.0)
    };
    tanh.copysign(x)
}
