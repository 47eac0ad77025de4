//! [`Convert`] on the device.

use super::e2m1;
use super::input::Input;
use crate::floats;
use core::marker::PhantomData;
use cuda_std::ptx::{convert, float};
use fp4_formats::recipe::{Convert, Reciprocal};

/// The device's conversions, for elements of `I` of any magnitude.
pub struct AnyRange<I>(PhantomData<I>);

/// The device's conversions, for blocks whose largest magnitude is
/// [moderate](is_moderate), of tensors whose parameter is: no step of a division
/// overflows or loses a digit, so that none needs checks.
pub struct Moderate<I>(PhantomData<I>);

/// 2^-40.
pub const LEAST_MODERATE: f32 = f32::from_bits((127 - 40) << 23);
/// 2^40.
pub const LARGEST_MODERATE: f32 = f32::from_bits((127 + 40) << 23);

/// Whether a number is from 2^-40 to 2^40.
#[inline(always)]
pub fn is_moderate(value: f32) -> bool {
    // One comparison of integers, which NaN fails.
    const LEAST: u32 = LEAST_MODERATE.to_bits();
    value.to_bits().wrapping_sub(LEAST) <= const { LARGEST_MODERATE.to_bits() - LEAST }
}

impl<I: Input> Moderate<I> {
    /// Whether no product with a factor of at least [`LEAST_FACTOR`](Self::LEAST_FACTOR) is taken for
    /// zero. The smallest f32 is so small that factors above 1 would be needed.
    const NEVER_VANISHES: bool = I::SMALLEST > SMALLEST;
    /// Half of it, times the smallest element, is not zero.
    const LEAST_FACTOR: f32 = SMALLEST / I::SMALLEST * 2.0;
    /// Up to this divisor no element is so small that its quotient is zero.
    const LARGEST_DIVISOR: f32 = if I::SMALLEST > SMALLEST { 16384.0 } else { 1.0 };
}

/// The conversions that do not depend on magnitudes.
macro_rules! device_conversions {
    () => {
        #[inline(always)]
        fn e4m3(value: f32) -> u8 {
            floats::e4m3_of_floats(0.0, value) as u8
        }

        #[inline(always)]
        fn e4m3_value(code: u8) -> f32 {
            convert::cvt_f32_f16(floats::halves_of_e4m3(u16::from(code)) as u16)
        }

        #[inline(always)]
        fn prepare(values: [f32; 8]) -> [f32; 8] {
            e2m1::prepare(values)
        }

        #[inline(always)]
        fn round(prepared: [f32; 8]) -> u32 {
            e2m1::round(prepared)
        }
    };
}

impl<I: Input> Convert for AnyRange<I> {
    device_conversions!();
}

impl<I: Input> Convert for Moderate<I> {
    device_conversions!();

    /// A reciprocal of full precision and a quotient with one correction, which
    /// round correctly if nothing underflows. It is the hardware's algorithm for a division,
    /// without its checks.
    #[inline(always)]
    fn quotient(a: f32, b: f32) -> f32 {
        let reciprocal = reciprocal(b);
        let first = a * reciprocal;
        let remainder = float::fma_rn_f32(float::neg_f32(first), b, a);
        float::fma_rn_f32(remainder, reciprocal, first)
    }

    #[inline(always)]
    fn products(values: [f32; 8], factor: f32, unsigned_zero: bool) -> [f32; 8] {
        if unsigned_zero && Self::NEVER_VANISHES {
            e2m1::unsigned_products(values, factor)
        } else {
            e2m1::products(values, factor, unsigned_zero)
        }
    }

    #[inline(always)]
    fn multiplies(factor: f32) -> bool {
        !Self::NEVER_VANISHES || factor >= Self::LEAST_FACTOR
    }

    #[inline(always)]
    fn scaled(values: [f32; 8], factor: f32) -> u32 {
        e2m1::scaled(values, factor)
    }

    #[inline(always)]
    fn divides(divisor: f32, amax: f32) -> bool {
        let reciprocal = reciprocal(divisor);
        divisor >= LEAST_DIVISOR
            && divisor <= Self::LARGEST_DIVISOR
            && Reciprocal::suits(divisor)
            && amax * reciprocal <= LARGEST_QUOTIENT
    }

    #[inline(always)]
    fn quotients(values: [f32; 8], divisor: f32) -> [f32; 8] {
        e2m1::quotients(values, divisor, reciprocal(divisor))
    }
}

/// Divisors and their reciprocals between which, and their inverse, no step of a quotient
/// overflows or loses a digit that matters.
const LEAST_DIVISOR: f32 = f32::from_bits((127 - 64) << 23);
/// Largest quotient of a block for the same reason, 2^64.
const LARGEST_QUOTIENT: f32 = f32::from_bits((127 + 64) << 23);
/// The smallest magnitude above zero.
const SMALLEST: f32 = f32::from_bits(1);

/// The nearest number to the reciprocal of `b`, if neither is near the ends of f32's range: the
/// hardware's algorithm, without its checks.
#[inline(always)]
fn reciprocal(b: f32) -> f32 {
    let first = float::rcp_approx_ftz_f32(b);
    let error = float::fma_rn_f32(float::neg_f32(b), first, 1.0);
    float::fma_rn_f32(first, error, first)
}
