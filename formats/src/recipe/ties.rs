//! Where an element may be multiplied by a reciprocal instead of divided.
//!
//! A code depends only on which side of each tie of e2m1 a quotient is. Let `q` be the quotient
//! `x / d`, rounded, and `y` the product of `x` and the reciprocal of `d`, both rounded. `q` is off
//! by a relative error of at most 2^-24, `y` by at most 2^-23 and something of second order. If
//! `x / d` is further than that from a tie `t`, both are on the same side of it. That is so for every
//! `x` of few digits if the product `t d` is not near any number of so few digits, which the low
//! bits of its mantissa show.

/// The ties of e2m1, but for powers of two: 1/4; 5/4, 5/2 and 5; 3/4; 7/4 and 7/2.
const TIES: [f32; 4] = [1.0, 1.25, 1.5, 1.75];

/// Units in the last place of a product of the divisor and a tie within which a quotient may be near
/// the tie: 2^-23 of the product are less than two of them, and the product is off by half of one.
const NEAR: u32 = 3;

/// Digits of an f32's mantissa, the implied one included.
const DIGITS: u32 = f32::MANTISSA_DIGITS;

/// Whether the codes of quotients by `divisor`, of numbers of at most `digits` binary digits, are
/// those of products with its reciprocal, if nothing overflows or underflows. No statement is made
/// by `false`.
#[inline(always)]
#[must_use]
pub fn are_far(divisor: f32, digits: u32) -> bool {
    if digits >= DIGITS {
        return false;
    }
    // The digits that a number of so few does not have, at the top of a word, and as far up as
    // `NEAR` takes them.
    let rest = 32 - (DIGITS - digits);
    let mut nearest = u32::MAX;
    for tie in TIES {
        nearest = nearest.min(((divisor * tie).to_bits() << rest).wrapping_add(NEAR << rest));
    }
    nearest > (2 * NEAR) << rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e2m1;

    /// Numbers of `digits` digits around each tie times `divisor`.
    fn around(divisor: f32, digits: u32) -> impl Iterator<Item = f32> {
        let ties = (0..7u8).map(|code| (e2m1::decode(code) + e2m1::decode(code + 1)) / 2.0);
        let unit = 1u32 << (DIGITS - digits);
        ties.flat_map(move |tie| {
            let below = (divisor * tie).to_bits() / unit * unit;
            [-1, 0, 1, 2].map(|i: i32| f32::from_bits(below.wrapping_add_signed(i * unit as i32)))
        })
    }

    /// The first number whose codes differ.
    fn different(divisor: f32, digits: u32) -> Option<f32> {
        let reciprocal = 1.0 / divisor;
        around(divisor, digits).find(|x| e2m1::encode(x / divisor) != e2m1::encode(x * reciprocal))
    }

    /// Divisors near which a tie is for numbers of `digits` digits, up to eight units in the last
    /// place from it, and others.
    fn divisors(digits: u32) -> impl Iterator<Item = f32> {
        let near = (0..1u32 << (digits - 1)).flat_map(move |mantissa| {
            let number = f32::from_bits(127 << 23 | mantissa << (DIGITS - digits));
            TIES.into_iter().flat_map(move |tie| {
                (-8i32..=8)
                    .map(move |i| f32::from_bits((number / tie).to_bits().wrapping_add_signed(i)))
            })
        });
        let others = (0..1 << 16)
            .map(|i: u32| f32::from_bits(127 << 23 | i.wrapping_mul(0x9e37_79b9) & 0x7f_ffff));
        near.chain(others)
    }

    #[test]
    fn products_have_the_codes_of_quotients() {
        for digits in [8, 11] {
            let [mut far, mut needed] = [0, 0];
            for divisor in divisors(digits) {
                let different = different(divisor, digits);
                if are_far(divisor, digits) {
                    far += 1;
                    assert_eq!(different, None, "{divisor:e}, {digits} digits");
                } else if different.is_some() {
                    needed += 1;
                }
            }
            assert!(far > 1 << 16, "{digits} digits: {far} divisors are far from ties");
            assert!(needed > 100, "{digits} digits: {needed} divisors need a quotient");
        }
    }

    #[test]
    fn most_divisors_are_far_from_ties() {
        for (digits, least) in [(8, 0.995), (11, 0.98), (24, 0.0)] {
            let random = (0..1 << 16u32).map(|i: u32| i.wrapping_mul(0x9e37_79b9) & 0x7f_ffff);
            let far = random.filter(|&bits| are_far(f32::from_bits(127 << 23 | bits), digits));
            let share = far.count() as f64 / f64::from(1 << 16);
            assert!(share >= least, "{digits} digits: {share}");
        }
        assert!(!are_far(0.75, 8) && !are_far(448.0, 11));
    }
}
