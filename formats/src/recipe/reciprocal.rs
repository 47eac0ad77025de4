//! Quotients of many numbers by one, in two operations each.

/// The reciprocal of a divisor as a sum of two numbers, of which the second is below zero.
///
/// The sum is off by a relative error of some 2^-48, which leaves a [quotient](Self::times) little
/// more error than the last rounding's half of a unit. That is enough to be on the correctly rounded
/// quotient's side of each tie of e2m1, whatever the mantissas, unless the divisor's is one of the
/// last three ([`suits`](Self::suits)): `quotients_of_all_mantissas` in
/// `tests/quantize/arithmetic.rs` tries them all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reciprocal {
    high: f32,
    low: f32,
}

impl Reciprocal {
    /// The reciprocal of `divisor`, which is positive, from the nearest number to it; `fma` is the
    /// fused multiply-add. Both are well within the range of normal numbers.
    #[inline(always)]
    #[must_use]
    pub fn new(divisor: f32, nearest: f32, fma: impl Fn(f32, f32, f32) -> f32) -> Self {
        // Above the reciprocal, so that what remains is below zero.
        let high = f32::from_bits(nearest.to_bits() + 1);
        Self { high, low: fma(-divisor, high, 1.0) * nearest }
    }

    /// Whether quotients by `divisor` have the codes of correctly rounded ones.
    #[inline(always)]
    #[must_use]
    pub const fn suits(divisor: f32) -> bool {
        const MANTISSA: u32 = f32::MANTISSA_DIGITS - 1;
        const AT_TOP: u32 = u32::BITS - MANTISSA;
        divisor.to_bits() << AT_TOP < 0x7f_fffd << AT_TOP
    }

    /// `x` by the divisor. A zero becomes +0 because `low` is below zero: the summands of +0 are +0
    /// and -0, and so are those of -0.
    #[inline(always)]
    #[must_use]
    pub fn times(self, x: f32, fma: impl Fn(f32, f32, f32) -> f32) -> f32 {
        fma(x, self.high, x * self.low)
    }
}
