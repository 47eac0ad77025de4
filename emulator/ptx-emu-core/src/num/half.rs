//! f16 and f16x2 arithmetic, and f32 arithmetic with f16 operands: PTX ISA sections
//! 9.7.4 and 9.7.5. Values are `u16` bit patterns; `_x2` functions take two of them in
//! a `u32`.
//!
//! Operations run in f32 and are rounded once more to f16. For `add` and `mul` that is
//! the correctly rounded result because f32 has at least 2 * 11 + 2 bits and f16's
//! subnormals are multiples of 2^-24; the product is even exact (22 bits, at least
//! 2^-48). `fma` adds the exact product with rounding to odd.

use std::hint::select_unpredictable;

use super::round::add_odd_f32;
use super::{FloatFlags, MinMaxFlags, Rounding, map_halves, single};

/// The canonical NaN of f16 results.
pub const NAN: u16 = 0x7fff;

const SIGN: u16 = 0x8000;
const INF: u16 = 0x7c00;
const ONE: u16 = 0x3c00;
const MIN_NORMAL: u16 = 0x0400;

/// Whether `x` is NaN.
#[inline(always)]
pub const fn is_nan(x: u16) -> bool {
    x & !SIGN > INF
}

/// The value of the f16 in the low half of `x`, which is zero above; NaN becomes some
/// NaN. Lanes stay 32 bits wide here and in [`narrow`], which is what vectorises.
#[inline(always)]
fn widen(x: u32) -> f32 {
    let sign = (x & 0x8000) << 16;
    let mag = x & 0x7fff;
    // With 224 added to its exponent field an infinity or NaN is one of f32 too; the
    // product takes 112 back from the exponent of numbers.
    let normal = f32::from_bits((mag << 13) + (224 << 23)) * f32::from_bits(15 << 23);
    // The last place of 0.5 is that of f16's subnormals.
    let tiny = f32::from_bits(mag | 0.5f32.to_bits()) - 0.5;
    let value = select_unpredictable(mag < 0x0400, tiny, normal);
    f32::from_bits(value.to_bits() | sign)
}

/// Rounds to nearest even into the low half; NaN becomes the canonical NaN.
#[inline(always)]
fn narrow(x: f32) -> u32 {
    let bits = x.to_bits();
    let sign = bits >> 16 & 0x8000;
    let mag = bits & 0x7fff_ffff;
    // 4 |x|; from 2^16 on the first product overflows, as it must in f16.
    let scaled = (f32::from_bits(mag) * f32::from_bits(239 << 23)) * f32::from_bits(17 << 23);
    // Added to 4 |x|, 2^15 times the leading bit of x, or of f16's smallest normal number, rounds
    // to the last place of f16. The significand then carries into the exponent field by itself.
    let lead = ((mag & 0x7f80_0000) as i32).max(113 << 23) as u32;
    let sum = (f32::from_bits(lead.wrapping_add(15 << 23)) + scaled).to_bits();
    let code = (sum >> 13 & 0x7c00) + (sum & 0x0fff);
    select_unpredictable(mag > 0x7f80_0000, u32::from(NAN), sign | code)
}

/// The value of `x`, exactly. NaN becomes the canonical NaN of f32.
#[inline(always)]
pub fn to_f32(x: u16) -> f32 {
    if is_nan(x) { single::NAN } else { widen(x.into()) }
}

/// Rounds to nearest even. NaN becomes the canonical NaN.
#[inline(always)]
pub fn from_f32(x: f32) -> u16 {
    narrow(x) as u16
}

/// Replaces a subnormal by a zero of the same sign, if `ftz`.
#[inline(always)]
pub fn flush(x: u16, ftz: bool) -> u16 {
    if ftz & (x & !SIGN < MIN_NORMAL) { x & SIGN } else { x }
}

/// `.sat`: clamps to `[+0, 1]`, NaN to `+0`.
#[inline(always)]
pub fn saturate(x: u16) -> u16 {
    if x & SIGN != 0 || is_nan(x) { 0 } else { x.min(ONE) }
}

/// `.relu`: a negative number or `-0` becomes `+0`; NaN stays the canonical NaN.
#[inline(always)]
pub fn relu(x: u16) -> u16 {
    if is_nan(x) {
        NAN
    } else if x & SIGN != 0 {
        0
    } else {
        x
    }
}

#[inline(always)]
fn operand(x: u32, flags: FloatFlags) -> f32 {
    let tiny = flags.ftz & (x & 0x7fff < u32::from(MIN_NORMAL));
    widen(if tiny { x & 0x8000 } else { x })
}

#[inline(always)]
fn finish(x: f32, flags: FloatFlags) -> u32 {
    // Below this, rounding to 11 bits does not reach the least normal number 2^-14:
    // `.ftz` looks at the result as if exponents had no end.
    const TINY: f32 = (1.0 - 1.0 / 4096.0) / 16384.0;
    let code = narrow(x);
    if flags == FloatFlags::NONE {
        return code;
    }
    let tiny = flags.ftz & (x.abs() < TINY);
    let code = if tiny { code as u16 & SIGN } else { code as u16 };
    u32::from(if flags.sat {
        saturate(code)
    } else if flags.relu {
        relu(code)
    } else {
        code
    })
}

/// Runs `f` on both halves of packed operands.
#[inline(always)]
fn map_x2<const N: usize>(ops: [u32; N], flags: FloatFlags, f: impl Fn([f32; N]) -> f32) -> u32 {
    let lo = finish(f(ops.map(|x| operand(x & 0xffff, flags))), flags);
    let hi = finish(f(ops.map(|x| operand(x >> 16, flags))), flags);
    lo | hi << 16
}

#[inline(always)]
fn map<const N: usize>(ops: [u16; N], flags: FloatFlags, f: impl Fn([f32; N]) -> f32) -> u16 {
    finish(f(ops.map(|x| operand(x.into(), flags))), flags) as u16
}

/// `add.rn.f16`: `a + b`. Section 9.7.4.1.
#[inline]
pub fn add(a: u16, b: u16, flags: FloatFlags) -> u16 {
    map([a, b], flags, |[a, b]| a + b)
}

/// `sub.rn.f16`: `a - b`. Section 9.7.4.2.
#[inline]
pub fn sub(a: u16, b: u16, flags: FloatFlags) -> u16 {
    map([a, b], flags, |[a, b]| a - b)
}

/// `mul.rn.f16`: `a * b`. Section 9.7.4.3.
#[inline]
pub fn mul(a: u16, b: u16, flags: FloatFlags) -> u16 {
    map([a, b], flags, |[a, b]| a * b)
}

/// `fma.rn.f16`: `a * b + c` with one rounding. Section 9.7.4.4.
#[inline]
pub fn fma(a: u16, b: u16, c: u16, flags: FloatFlags) -> u16 {
    map([a, b, c], flags, |[a, b, c]| add_odd_f32(a * b, c))
}

/// `add.f16x2`.
#[inline]
pub fn add_x2(a: u32, b: u32, flags: FloatFlags) -> u32 {
    map_x2([a, b], flags, |[a, b]| a + b)
}

/// `sub.f16x2`.
#[inline]
pub fn sub_x2(a: u32, b: u32, flags: FloatFlags) -> u32 {
    map_x2([a, b], flags, |[a, b]| a - b)
}

/// `mul.f16x2`.
#[inline]
pub fn mul_x2(a: u32, b: u32, flags: FloatFlags) -> u32 {
    map_x2([a, b], flags, |[a, b]| a * b)
}

/// `fma.rn.f16x2`.
#[inline]
pub fn fma_x2(a: u32, b: u32, c: u32, flags: FloatFlags) -> u32 {
    map_x2([a, b, c], flags, |[a, b, c]| add_odd_f32(a * b, c))
}

/// `neg`. Section 9.7.4.5. NaN gives the canonical NaN.
#[inline]
pub fn neg(a: u16, ftz: bool) -> u16 {
    if is_nan(a) { NAN } else { flush(a ^ SIGN, ftz) }
}

/// `abs`. Section 9.7.4.6. NaN gives the canonical NaN.
#[inline]
pub fn abs(a: u16, ftz: bool) -> u16 {
    if is_nan(a) { NAN } else { flush(a & !SIGN, ftz) }
}

/// `min`. Section 9.7.4.7. `-0` is less than `+0`.
#[inline]
pub fn min(a: u16, b: u16, flags: MinMaxFlags) -> u16 {
    let (a, b) = (flush(a, flags.ftz), flush(b, flags.ftz));
    select(a, b, flags, INF, |x, y| x.min(y))
}

/// `max`. Section 9.7.4.8. `-0` is less than `+0`.
#[inline]
pub fn max(a: u16, b: u16, flags: MinMaxFlags) -> u16 {
    let (a, b) = (flush(a, flags.ftz), flush(b, flags.ftz));
    select(a, b, flags, INF, |x, y| x.max(y))
}

/// `min` or `max` of two patterns of a 16-bit format whose infinity is `inf`; `order`
/// picks one of two keys that order like the numbers.
#[inline(always)]
pub(super) fn select(
    a: u16,
    b: u16,
    flags: MinMaxFlags,
    inf: u16,
    order: impl Fn(i16, i16) -> i16,
) -> u16 {
    let sign = (a ^ b) & SIGN;
    let (a, b) = if flags.abs { (a & !SIGN, b & !SIGN) } else { (a, b) };
    // Its own inverse: flips the magnitude of negative numbers.
    let key = |x: u16| (x ^ (((x as i16 >> 15) as u16) >> 1)) as i16;
    let d = match (a & !SIGN > inf, b & !SIGN > inf) {
        (false, false) => key(order(key(a), key(b)) as u16) as u16,
        (true, false) if !flags.nan => b,
        (false, true) if !flags.nan => a,
        _ => return NAN,
    };
    if flags.xorsign { (d & !SIGN) | sign } else { d }
}

/// `neg.f16x2`.
#[inline]
pub fn neg_x2(a: u32, ftz: bool) -> u32 {
    map_halves([a], |[a]| neg(a, ftz))
}

/// `abs.f16x2`.
#[inline]
pub fn abs_x2(a: u32, ftz: bool) -> u32 {
    map_halves([a], |[a]| abs(a, ftz))
}

both_half_formats!("f16");
