//! Division without a division instruction, which GPUs do not have: by a number that is known
//! before the launch, it is a multiplication, an addition and a shift.

/// A divisor of numbers below [`Divisor::DIVIDENDS`].
///
/// With `s = ceil(log2(d))`, the quotient is `(umulhi(n, m) + n) >> s` for
/// `m = ceil(2^(32 + s) / d) - 2^32` (T. Granlund, P. Montgomery, *Division by Invariant Integers
/// using Multiplication*, 1994, figure 4.1); the sum does not overflow for these dividends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Divisor {
    pub(crate) value: u32,
    pub(crate) multiplier: u32,
    pub(crate) shift: u32,
}

impl Divisor {
    /// Dividends are below this, and divisors at most this.
    pub const DIVIDENDS: u32 = 1 << 31;

    /// The divisor `value`; `None` for 0 and for more than [`Divisor::DIVIDENDS`].
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        if value == 0 || value > Self::DIVIDENDS {
            return None;
        }
        Some(Self::of(value))
    }

    /// The divisor nearest to `value` that there is.
    #[must_use]
    pub const fn nearest(value: u32) -> Self {
        match value {
            0 => Self::of(1),
            1..=Self::DIVIDENDS => Self::of(value),
            _ => Self::of(Self::DIVIDENDS),
        }
    }

    /// 1, which changes nothing.
    pub const ONE: Self = Self::of(1);

    const fn of(value: u32) -> Self {
        let shift = value.next_power_of_two().trailing_zeros();
        let multiplier = (1u64 << (32 + shift)).div_ceil(value as u64) - (1 << 32);
        Self { value, multiplier: multiplier as u32, shift }
    }

    /// The divisor.
    #[inline(always)]
    #[must_use]
    pub const fn value(self) -> u32 {
        self.value
    }

    /// Quotient and remainder of a number below [`Divisor::DIVIDENDS`].
    #[inline(always)]
    #[must_use]
    pub const fn divide(self, number: u32) -> (u32, u32) {
        let high = (number as u64 * self.multiplier as u64) >> 32;
        let quotient = (high as u32).wrapping_add(number) >> (self.shift & 31);
        (quotient, number.wrapping_sub(quotient.wrapping_mul(self.value)))
    }

    /// Part `part` of as many even parts of `count` as the divisor: the first, and the one after
    /// the last. `count` times the divisor is below [`Divisor::DIVIDENDS`].
    #[inline(always)]
    #[must_use]
    pub const fn part(self, count: u32, part: u32) -> (u32, u32) {
        (self.divide(count * part).0, self.divide(count * (part + 1)).0)
    }

    /// The quotient, rounded up, of a number that is less than [`Divisor::DIVIDENDS`] with the
    /// divisor added.
    #[inline(always)]
    #[must_use]
    pub const fn div_ceil(self, number: u32) -> u32 {
        self.divide(number + (self.value - 1)).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_as_the_operator_does() {
        let largest = Divisor::DIVIDENDS - 1;
        let interesting = (0..31).flat_map(|bit| {
            let power = 1u32 << bit;
            [power - 1, power, power + 1, largest - power, power * 3 / 2]
        });
        let divisors = (1..300).chain(interesting.clone()).chain([largest, Divisor::DIVIDENDS]);
        for value in divisors.filter(|&value| value > 0) {
            let divisor = Divisor::new(value).unwrap();
            let near = (1..4u32).flat_map(|times| {
                let multiple = value.saturating_mul(times);
                [multiple.saturating_sub(1), multiple, multiple.saturating_add(1)]
            });
            let last = largest / value * value;
            let all = (0..300).chain(interesting.clone()).chain(near).chain([last, largest]);
            for number in all.chain([last.saturating_sub(1)]).filter(|&n| n <= largest) {
                let expected = (number / value, number % value);
                assert_eq!(divisor.divide(number), expected, "{number} / {value}");
                if number <= largest - value.min(largest) {
                    assert_eq!(divisor.div_ceil(number), number.div_ceil(value));
                }
            }
        }
    }

    #[test]
    fn divisors_that_do_not_exist() {
        assert_eq!(Divisor::new(0), None);
        assert_eq!(Divisor::new(Divisor::DIVIDENDS + 1), None);
        assert_eq!(Divisor::nearest(0).value(), 1);
        assert_eq!(Divisor::nearest(u32::MAX).value(), Divisor::DIVIDENDS);
    }
}
