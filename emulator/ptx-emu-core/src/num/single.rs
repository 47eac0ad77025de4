//! f32 and f32x2 arithmetic: PTX ISA sections 9.7.3.3 to 9.7.3.17.
//!
//! Rounded `.rn` results come from the host's IEEE arithmetic. Directed roundings and
//! `fma` go through f64, where the product of two f32 is exact and a sum is rounded to
//! odd, so the final rounding to f32 is the only one that counts.

use super::round::{add_odd_f64, to_f32, zero_sum_is_negative};
use super::{FloatFlags, MinMaxFlags, Rounding};

/// The canonical NaN of f32 results.
pub const NAN: f32 = f32::from_bits(0x7fff_ffff);

const SIGN: u32 = 0x8000_0000;
const MIN_NORMAL: u32 = 0x0080_0000;
/// The least normal number.
const LEAST: f64 = f32::from_bits(MIN_NORMAL) as f64;

/// Replaces a subnormal by a zero of the same sign, if `ftz`.
#[inline(always)]
pub fn flush(x: f32, ftz: bool) -> f32 {
    let bits = x.to_bits();
    if ftz & ((bits & !SIGN) < MIN_NORMAL) { f32::from_bits(bits & SIGN) } else { x }
}

/// NaN made the canonical one. The comparison is one of integers because the compiler
/// may take any NaN of a floating-point operation for any other.
#[inline(always)]
fn canonical(x: f32) -> f32 {
    if x.to_bits() & !SIGN > f32::INFINITY.to_bits() { NAN } else { x }
}

/// `.ftz` of a result: a zero where `exact`, rounded to 24 bits as if exponents had no
/// end, is less than the least normal number. `rounded`, which is `exact` rounded to
/// f32, may be that number then. `exact` may be rounded to odd.
#[inline(always)]
pub(super) fn flush_result(rounded: f32, exact: f64, rounding: Rounding, ftz: bool) -> f32 {
    let size = exact.abs();
    let away = match rounding {
        Rounding::Rm => exact < 0.0,
        Rounding::Rp => exact > 0.0,
        _ => false,
    };
    // The number of 24 bits below the least normal one, and the middle between them,
    // which is rounded to even and so to the latter.
    const BELOW: f64 = LEAST - LEAST / (1 << 24) as f64;
    const MIDDLE: f64 = LEAST - LEAST / (1 << 25) as f64;
    let tiny = match rounding {
        Rounding::Rn | Rounding::Rna => size < MIDDLE,
        _ if away => size <= BELOW,
        _ => size < LEAST,
    };
    if ftz & tiny { f32::from_bits(rounded.to_bits() & SIGN) } else { rounded }
}

/// `.sat`: clamps to `[+0, 1]`, NaN to `+0`.
#[inline(always)]
pub fn saturate(x: f32) -> f32 {
    // A comparison with NaN is false, and so is `-0 > 0`.
    let x = if x > 0.0 { x } else { 0.0 };
    if x > 1.0 { 1.0 } else { x }
}

#[inline(always)]
pub(super) fn finish(x: f32, flags: FloatFlags) -> f32 {
    let x = flush(canonical(x), flags.ftz);
    if flags.sat {
        saturate(x)
    } else if flags.relu && (x < 0.0 || x.to_bits() == SIGN) {
        0.0
    } else {
        x
    }
}

/// `add`: `a + b`. Section 9.7.3.3.
#[inline]
pub fn add(a: f32, b: f32, rounding: Rounding, flags: FloatFlags) -> f32 {
    let (a, b) = (flush(a, flags.ftz), flush(b, flags.ftz));
    let sum = match rounding {
        Rounding::Rn => a + b,
        _ => directed_sum(f64::from(a), f64::from(b), rounding),
    };
    finish(sum, flags)
}

/// `sub`: `a - b`. Section 9.7.3.4.
#[inline]
pub fn sub(a: f32, b: f32, rounding: Rounding, flags: FloatFlags) -> f32 {
    add(a, -b, rounding, flags)
}

/// `mul`: `a * b`. Section 9.7.3.5.
#[inline]
pub fn mul(a: f32, b: f32, rounding: Rounding, flags: FloatFlags) -> f32 {
    let (a, b) = (flush(a, flags.ftz), flush(b, flags.ftz));
    if rounding == Rounding::Rn && !flags.ftz {
        return finish(a * b, flags);
    }
    let exact = f64::from(a) * f64::from(b);
    let product = to_f32(exact, rounding);
    finish(flush_result(product, exact, rounding, flags.ftz), flags)
}

/// `fma` (and `mad.f32` of sm_20 and later): `a * b + c` with one rounding. Section
/// 9.7.3.6.
#[inline]
pub fn fma(a: f32, b: f32, c: f32, rounding: Rounding, flags: FloatFlags) -> f32 {
    let (a, b, c) = (flush(a, flags.ftz), flush(b, flags.ftz), flush(c, flags.ftz));
    // Exact: 24 + 24 bits, and exponents well inside f64's.
    let product = f64::from(a) * f64::from(b);
    let exact = add_odd_f64(product, f64::from(c));
    let sum = match rounding {
        Rounding::Rn => exact as f32,
        _ => directed_sum(product, f64::from(c), rounding),
    };
    finish(flush_result(sum, exact, rounding, flags.ftz), flags)
}

/// `fma.rn` without other modifiers by the host's own instruction. The same as [`fma`], and slow where the host has none.
#[inline(always)]
#[must_use]
pub fn fused(a: f32, b: f32, c: f32) -> f32 {
    canonical(a.mul_add(b, c))
}

#[inline]
fn directed_sum(a: f64, b: f64, rounding: Rounding) -> f32 {
    let sum = add_odd_f64(a, b);
    if sum == 0.0 {
        let negative = zero_sum_is_negative(a.is_sign_negative(), b.is_sign_negative(), rounding);
        return if negative { -0.0 } else { 0.0 };
    }
    to_f32(sum, rounding)
}

/// `div.rn`, `.rz`, `.rm`, `.rp`: `a / b`. Section 9.7.3.8.
#[inline]
pub fn div(a: f32, b: f32, rounding: Rounding, flags: FloatFlags) -> f32 {
    let (a, b) = (flush(a, flags.ftz), flush(b, flags.ftz));
    let exact = f64::from(a) / f64::from(b);
    let quotient = match rounding {
        Rounding::Rn => a / b,
        // Significands of 24 bits: a quotient that is not a boundary m of 25 bits
        // differs from it by |a - m b| / b >= 2^-24 units of a - m b, that is by more
        // than 2^-50 of its size. An f64 quotient is on the same side of m.
        _ => to_f32(exact, rounding),
    };
    finish(flush_result(quotient, exact, rounding, flags.ftz), flags)
}

/// `rcp.rn`, `.rz`, `.rm`, `.rp`: `1 / a`. Section 9.7.3.13.
#[inline]
pub fn rcp(a: f32, rounding: Rounding, flags: FloatFlags) -> f32 {
    div(1.0, a, rounding, flags)
}

/// `sqrt.rn`, `.rz`, `.rm`, `.rp`. Section 9.7.3.15.
#[inline]
pub fn sqrt(a: f32, rounding: Rounding, flags: FloatFlags) -> f32 {
    let a = flush(a, flags.ftz);
    let root = match rounding {
        Rounding::Rn => a.sqrt(),
        // The square of a boundary of 25 bits has 50: as in `div`, the f64 root is on
        // the right side of it.
        _ => to_f32(f64::from(a).sqrt(), rounding),
    };
    finish(root, flags)
}

/// `neg`. Section 9.7.3.10. NaN gives the canonical NaN.
#[inline]
pub fn neg(a: f32, ftz: bool) -> f32 {
    flush(canonical(-a), ftz)
}

/// `abs`. Section 9.7.3.9. NaN gives the canonical NaN.
#[inline]
pub fn abs(a: f32, ftz: bool) -> f32 {
    flush(canonical(a.abs()), ftz)
}

/// `min`. Section 9.7.3.11. `-0` is less than `+0`.
#[inline]
pub fn min(a: f32, b: f32, flags: MinMaxFlags) -> f32 {
    let order = |x: f32, y: f32| if below(x, y) { x } else { y };
    select(a, b, flags, order)
}

/// `max`. Section 9.7.3.12. `-0` is less than `+0`.
#[inline]
pub fn max(a: f32, b: f32, flags: MinMaxFlags) -> f32 {
    let order = |x: f32, y: f32| if below(x, y) { y } else { x };
    select(a, b, flags, order)
}

/// `min` of three operands (sm_100 and later).
#[inline]
pub fn min3(a: f32, b: f32, c: f32, flags: MinMaxFlags) -> f32 {
    min(min(a, b, flags), c, flags)
}

/// `max` of three operands (sm_100 and later).
#[inline]
pub fn max3(a: f32, b: f32, c: f32, flags: MinMaxFlags) -> f32 {
    max(max(a, b, flags), c, flags)
}

/// Total order of numbers, `-0` below `+0`. NaN operands give an arbitrary answer.
#[inline(always)]
fn below(x: f32, y: f32) -> bool {
    // Flipping the magnitude bits of negative numbers makes the patterns ordered as
    // signed integers.
    let key = |v: f32| {
        let bits = v.to_bits() as i32;
        bits ^ (((bits >> 31) as u32) >> 1) as i32
    };
    key(x) < key(y)
}

#[inline(always)]
fn select(a: f32, b: f32, flags: MinMaxFlags, order: impl Fn(f32, f32) -> f32) -> f32 {
    let (a, b) = (flush(a, flags.ftz), flush(b, flags.ftz));
    let sign = (a.to_bits() ^ b.to_bits()) & SIGN;
    let (a, b) = if flags.abs { (a.abs(), b.abs()) } else { (a, b) };
    let d = match (a.is_nan(), b.is_nan()) {
        (false, false) => order(a, b),
        (true, false) if !flags.nan => b,
        (false, true) if !flags.nan => a,
        _ => return NAN,
    };
    if flags.xorsign { f32::from_bits((d.to_bits() & !SIGN) | sign) } else { d }
}

/// Applies `f` to the corresponding f32 halves of packed `.f32x2` operands.
#[inline(always)]
fn map_x2<const N: usize>(ops: [u64; N], f: impl Fn([f32; N]) -> f32) -> u64 {
    let lo = f(ops.map(|x| f32::from_bits(x as u32)));
    let hi = f(ops.map(|x| f32::from_bits((x >> 32) as u32)));
    u64::from(lo.to_bits()) | u64::from(hi.to_bits()) << 32
}

/// `add.f32x2` (sm_100 and later).
#[inline]
pub fn add_x2(a: u64, b: u64, rounding: Rounding, flags: FloatFlags) -> u64 {
    map_x2([a, b], |[a, b]| add(a, b, rounding, flags))
}

/// `sub.f32x2` (sm_100 and later).
#[inline]
pub fn sub_x2(a: u64, b: u64, rounding: Rounding, flags: FloatFlags) -> u64 {
    map_x2([a, b], |[a, b]| sub(a, b, rounding, flags))
}

/// `mul.f32x2` (sm_100 and later).
#[inline]
pub fn mul_x2(a: u64, b: u64, rounding: Rounding, flags: FloatFlags) -> u64 {
    map_x2([a, b], |[a, b]| mul(a, b, rounding, flags))
}

/// `fma.f32x2` (sm_100 and later).
#[inline]
pub fn fma_x2(a: u64, b: u64, c: u64, rounding: Rounding, flags: FloatFlags) -> u64 {
    map_x2([a, b, c], |[a, b, c]| fma(a, b, c, rounding, flags))
}

#[cfg(test)]
mod tests {
    use super::{FloatFlags, Rounding, fma, fused};

    /// The host's instruction gives what the sum in f64 does, for all kinds of numbers.
    #[test]
    fn fused_is_fma() {
        let special = [
            0,
            1,
            0x007f_ffff,
            0x0080_0000,
            0x3f80_0000,
            0x3f80_0001,
            0x7f7f_ffff,
            0x7f80_0000,
            0x7fc0_0001,
            0x7f80_0001,
        ];
        let mut state = 1u64;
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bits = (state >> 32) as u32;
            match bits & 7 {
                0 => special[(bits >> 8) as usize % special.len()] | bits & 1 << 31,
                // Numbers of like sizes, so that sums cancel.
                1..=4 => bits & 0x81ff_ffff | 0x3e00_0000,
                _ => bits,
            }
        };
        for _ in 0..200_000 {
            let [a, b, c] = std::array::from_fn(|_| f32::from_bits(number()));
            let c = if number() & 3 == 0 { -(a * b) } else { c };
            let exact = fma(a, b, c, Rounding::Rn, FloatFlags::NONE);
            assert_eq!(fused(a, b, c).to_bits(), exact.to_bits(), "{a:e} * {b:e} + {c:e}");
        }
    }
}
