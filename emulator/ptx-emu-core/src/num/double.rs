//! f64 arithmetic: PTX ISA sections 9.7.3.3 to 9.7.3.17.
//!
//! NaN: a NaN operand, made quiet, else `0xfff8000000000000` for an invalid operation. Several NaN
//! operands follow an H200: the first one of a division, else `b`, then `c`, then `a`. f64 has
//! neither `.ftz` nor `.sat`.

use rustc_apfloat::ieee::Double;
use rustc_apfloat::{Float, Round, StatusAnd};

use super::Rounding;

/// Result of an invalid operation.
pub const NAN: f64 = f64::from_bits(0xfff8_0000_0000_0000);

const QUIET: u64 = 0x0008_0000_0000_0000;

/// `result`, or the NaN that it is for these operands, in the order in which a NaN
/// among them is taken.
#[inline(always)]
fn finish<const N: usize>(result: f64, operands: [f64; N]) -> f64 {
    if !result.is_nan() {
        return result;
    }
    match operands.into_iter().find(|x| x.is_nan()) {
        Some(x) => f64::from_bits(x.to_bits() | QUIET),
        None => NAN,
    }
}

fn round_mode(rounding: Rounding) -> Round {
    match rounding {
        Rounding::Rn => Round::NearestTiesToEven,
        Rounding::Rz => Round::TowardZero,
        Rounding::Rm => Round::TowardNegative,
        Rounding::Rp => Round::TowardPositive,
        Rounding::Rna => Round::NearestTiesToAway,
    }
}

fn soft<const N: usize>(
    operands: [f64; N],
    rounding: Rounding,
    f: impl Fn([Double; N], Round) -> StatusAnd<Double>,
) -> f64 {
    let soft = operands.map(|x| Double::from_bits(u128::from(x.to_bits())));
    f64::from_bits(f(soft, round_mode(rounding)).value.to_bits() as u64)
}

/// `add`: `a + b`. Section 9.7.3.3.
#[inline]
pub fn add(a: f64, b: f64, rounding: Rounding) -> f64 {
    let sum = match rounding {
        Rounding::Rn => a + b,
        _ => soft([a, b], rounding, |[a, b], r| a.add_r(b, r)),
    };
    finish(sum, [b, a])
}

/// `sub`: `a - b`. Section 9.7.3.4.
#[inline]
pub fn sub(a: f64, b: f64, rounding: Rounding) -> f64 {
    let difference = match rounding {
        Rounding::Rn => a - b,
        _ => soft([a, b], rounding, |[a, b], r| a.sub_r(b, r)),
    };
    finish(difference, [b, a])
}

/// `mul`: `a * b`. Section 9.7.3.5.
#[inline]
pub fn mul(a: f64, b: f64, rounding: Rounding) -> f64 {
    let product = match rounding {
        Rounding::Rn => a * b,
        _ => soft([a, b], rounding, |[a, b], r| a.mul_r(b, r)),
    };
    finish(product, [b, a])
}

/// `fma`, `mad`: `a * b + c` with one rounding. Sections 9.7.3.6 and 9.7.3.7.
#[inline]
pub fn fma(a: f64, b: f64, c: f64, rounding: Rounding) -> f64 {
    let sum = match rounding {
        Rounding::Rn => a.mul_add(b, c),
        _ => soft([a, b, c], rounding, |[a, b, c], r| a.mul_add_r(b, c, r)),
    };
    finish(sum, [b, c, a])
}

/// `div`: `a / b`. Section 9.7.3.8.
#[inline]
pub fn div(a: f64, b: f64, rounding: Rounding) -> f64 {
    let quotient = match rounding {
        Rounding::Rn => a / b,
        _ => soft([a, b], rounding, |[a, b], r| a.div_r(b, r)),
    };
    finish(quotient, [a, b])
}

/// `rcp`: `1 / a`. Section 9.7.3.13.
#[inline]
pub fn rcp(a: f64, rounding: Rounding) -> f64 {
    div(1.0, a, rounding)
}

/// `sqrt`. Section 9.7.3.15.
#[inline]
pub fn sqrt(a: f64, rounding: Rounding) -> f64 {
    let root = a.sqrt();
    if rounding == Rounding::Rn || !(root > 0.0 && root.is_finite()) {
        return finish(root, [a]);
    }
    // An even scaling keeps the residual, which has the size of the root's last place
    // squared, away from the subnormals.
    let (scaled, scaled_root) =
        if a < 2f64.powi(-900) { (a * 2f64.powi(200), root * 2f64.powi(100)) } else { (a, root) };
    // The residual of a rounded root is representable, so its sign is exact.
    let residual = scaled_root.mul_add(-scaled_root, scaled);
    let bits = root.to_bits();
    // A root is never half-way between two f64, so `.rna` is `.rn`.
    f64::from_bits(match rounding {
        Rounding::Rz | Rounding::Rm => bits - u64::from(residual < 0.0),
        Rounding::Rp => bits + u64::from(residual > 0.0),
        Rounding::Rn | Rounding::Rna => bits,
    })
}

/// `neg`. Section 9.7.3.10. NaN keeps its sign.
#[inline]
pub fn neg(a: f64) -> f64 {
    finish(-a, [a])
}

/// `abs`. Section 9.7.3.9. NaN keeps its sign.
#[inline]
pub fn abs(a: f64) -> f64 {
    finish(a.abs(), [a])
}

/// `atom.add.f64` and `red.add.f64` in global memory: [`add`], but a NaN operand stays
/// as it is, signalling or not.
#[inline]
pub fn add_in_memory(a: f64, b: f64) -> f64 {
    match [b, a].into_iter().find(|x| x.is_nan()) {
        Some(nan) => nan,
        None => add(a, b, Rounding::Rn),
    }
}

/// `min`. Section 9.7.3.11. A NaN operand loses; `-0` is less than `+0`.
#[inline]
pub fn min(a: f64, b: f64) -> f64 {
    select(a, b, |x, y| if x.total_cmp(&y).is_lt() { x } else { y })
}

/// `max`. Section 9.7.3.12. A NaN operand loses; `-0` is less than `+0`.
#[inline]
pub fn max(a: f64, b: f64) -> f64 {
    select(a, b, |x, y| if x.total_cmp(&y).is_lt() { y } else { x })
}

#[inline(always)]
fn select(a: f64, b: f64, order: impl Fn(f64, f64) -> f64) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => order(a, b),
        (true, false) => b,
        (false, true) => a,
        (true, true) => finish(b, [b, a]),
    }
}
