//! bf16 and bf16x2 arithmetic, and f32 arithmetic with bf16 operands: PTX ISA sections
//! 9.7.4 and 9.7.5. Values are `u16` bit patterns; `_x2` functions take two of them in
//! a `u32`. bf16 has neither `.ftz` nor `.sat`.
//!
//! `add` and `mul` run in f32, which has more than 2 * 8 + 2 bits. A product of 16
//! bits can lie below f32's last place of 2^-149, but then it is less than 2^-134,
//! half of bf16's smallest number, before and after f32's rounding. `fma` has its
//! exact product in f64 and rounds to odd on the way down.

use super::FloatFlags;
use super::half::select;
use super::round::{add_odd_f64, to_f32_odd};
use super::{MinMaxFlags, Rounding, map_halves, single};

/// The canonical NaN of bf16 results.
pub const NAN: u16 = 0x7fff;

const SIGN: u16 = 0x8000;
const INF: u16 = 0x7f80;

/// Whether `x` is NaN.
#[inline(always)]
pub const fn is_nan(x: u16) -> bool {
    x & !SIGN > INF
}

/// The value of `x`, exactly. NaN becomes the canonical NaN of f32.
#[inline(always)]
pub fn to_f32(x: u16) -> f32 {
    if is_nan(x) { single::NAN } else { f32::from_bits(u32::from(x) << 16) }
}

/// Rounds to nearest even. NaN becomes the canonical NaN.
#[inline(always)]
pub fn from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let odd = (bits >> 16) & 1;
    let code = (bits.wrapping_add(0x7fff + odd) >> 16) as u16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { NAN } else { code }
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

/// `add.rn.bf16`: `a + b`. Section 9.7.4.1.
#[inline]
pub fn add(a: u16, b: u16) -> u16 {
    from_f32(to_f32(a) + to_f32(b))
}

/// `sub.rn.bf16`: `a - b`. Section 9.7.4.2.
#[inline]
pub fn sub(a: u16, b: u16) -> u16 {
    from_f32(to_f32(a) - to_f32(b))
}

/// `mul.rn.bf16`: `a * b`. Section 9.7.4.3.
#[inline]
pub fn mul(a: u16, b: u16) -> u16 {
    from_f32(to_f32(a) * to_f32(b))
}

/// `fma.rn.bf16`: `a * b + c` with one rounding, then `.relu` if asked for. Section
/// 9.7.4.4.
#[inline]
pub fn fma(a: u16, b: u16, c: u16, with_relu: bool) -> u16 {
    let product = f64::from(to_f32(a)) * f64::from(to_f32(b));
    let d = from_f32(to_f32_odd(add_odd_f64(product, f64::from(to_f32(c)))));
    if with_relu { relu(d) } else { d }
}

/// `neg`. Section 9.7.4.5. NaN gives the canonical NaN.
#[inline]
pub fn neg(a: u16) -> u16 {
    if is_nan(a) { NAN } else { a ^ SIGN }
}

/// `abs`. Section 9.7.4.6. NaN gives the canonical NaN.
#[inline]
pub fn abs(a: u16) -> u16 {
    if is_nan(a) { NAN } else { a & !SIGN }
}

/// `min`. Section 9.7.4.7. `-0` is less than `+0`; `flags.ftz` does not apply.
#[inline]
pub fn min(a: u16, b: u16, flags: MinMaxFlags) -> u16 {
    select(a, b, flags, INF, |x, y| x.min(y))
}

/// `max`. Section 9.7.4.8. `-0` is less than `+0`; `flags.ftz` does not apply.
#[inline]
pub fn max(a: u16, b: u16, flags: MinMaxFlags) -> u16 {
    select(a, b, flags, INF, |x, y| x.max(y))
}

/// `add.bf16x2`.
#[inline]
pub fn add_x2(a: u32, b: u32) -> u32 {
    map_halves([a, b], |[a, b]| add(a, b))
}

/// `sub.bf16x2`.
#[inline]
pub fn sub_x2(a: u32, b: u32) -> u32 {
    map_halves([a, b], |[a, b]| sub(a, b))
}

/// `mul.bf16x2`.
#[inline]
pub fn mul_x2(a: u32, b: u32) -> u32 {
    map_halves([a, b], |[a, b]| mul(a, b))
}

/// `fma.rn.bf16x2`.
#[inline]
pub fn fma_x2(a: u32, b: u32, c: u32, with_relu: bool) -> u32 {
    map_halves([a, b, c], |[a, b, c]| fma(a, b, c, with_relu))
}

/// `neg.bf16x2`.
#[inline]
pub fn neg_x2(a: u32) -> u32 {
    map_halves([a], |[a]| neg(a))
}

/// `abs.bf16x2`.
#[inline]
pub fn abs_x2(a: u32) -> u32 {
    map_halves([a], |[a]| abs(a))
}

both_half_formats!("bf16");
