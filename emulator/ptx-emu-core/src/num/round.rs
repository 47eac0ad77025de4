//! One exact rounding from a significand and exponent to any binary format.
//!
//! Everything that has no faster way goes through [`Value`] and [`Format::encode`]:
//! conversions with a directed rounding, to and from integers, to 8-, 6- and 4-bit
//! formats, and stochastic rounding.

use super::Rounding;

/// The use of a format's largest codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Specials {
    /// The largest exponent is infinity and NaN.
    Ieee,
    /// Only the all-ones code is NaN; no infinity (e4m3).
    NanOnly,
    /// Every code is a number (e2m1, e2m3, e3m2).
    None,
}

/// A binary floating-point format with a sign bit, `exp_bits` and `man_bits`, and the
/// bias `2^(exp_bits - 1) - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub exp_bits: u32,
    pub man_bits: u32,
    pub specials: Specials,
}

impl Format {
    pub const F16: Self = Self::new(5, 10, Specials::Ieee);
    pub const BF16: Self = Self::new(8, 7, Specials::Ieee);
    /// tf32 without the 13 zero bits that pad it to 32.
    pub const TF32: Self = Self::new(8, 10, Specials::Ieee);
    pub const F32: Self = Self::new(8, 23, Specials::Ieee);
    pub const F64: Self = Self::new(11, 52, Specials::Ieee);

    pub const fn new(exp_bits: u32, man_bits: u32, specials: Specials) -> Self {
        Self { exp_bits, man_bits, specials }
    }

    const fn bias(self) -> i32 {
        (1 << (self.exp_bits - 1)) - 1
    }

    /// Exponent of the smallest normal number.
    const fn min_exp(self) -> i32 {
        1 - self.bias()
    }

    pub const fn sign_bit(self) -> u64 {
        1 << (self.exp_bits + self.man_bits)
    }

    const fn infinity(self) -> u64 {
        ((1 << self.exp_bits) - 1) << self.man_bits
    }

    /// The number 1.
    pub const fn one(self) -> u64 {
        (self.bias() as u64) << self.man_bits
    }

    /// Largest finite magnitude.
    pub const fn max_finite(self) -> u64 {
        match self.specials {
            Specials::Ieee => self.infinity() - 1,
            Specials::NanOnly => self.sign_bit() - 2,
            Specials::None => self.sign_bit() - 1,
        }
    }

    /// Canonical NaN: all bits but the sign. A format without NaN has its largest
    /// number there, which is what `cvt` turns NaN into.
    pub const fn nan(self) -> u64 {
        self.sign_bit() - 1
    }

    /// Splits `bits` (upper bits ignored) into an exact value.
    #[inline]
    pub fn decode(self, bits: u64) -> Value {
        let sign = bits & self.sign_bit() != 0;
        let mag = bits & (self.sign_bit() - 1);
        let man = mag & ((1 << self.man_bits) - 1);
        let exp = (mag >> self.man_bits) as i32;
        let class = match self.specials {
            Specials::Ieee if mag > self.infinity() => Class::Nan,
            Specials::Ieee if mag == self.infinity() => Class::Inf,
            Specials::NanOnly if mag == self.nan() => Class::Nan,
            _ => Class::Finite,
        };
        let hidden = u64::from(exp != 0) << self.man_bits;
        Value {
            sign,
            class,
            sig: man | hidden,
            exp: exp.max(1) - self.bias() - self.man_bits as i32,
        }
    }

    /// Rounds `v` once into this format.
    ///
    /// `saturate` is `.satfinite`: infinities and overflows become the largest finite
    /// number of the same sign. A format without infinity saturates always when it
    /// has no NaN either, and turns infinities and overflows into NaN when it has.
    #[inline]
    pub fn encode(self, v: Value, step: Step, saturate: bool) -> u64 {
        let sign = if v.sign { self.sign_bit() } else { 0 };
        let too_large = |to_infinity: bool| {
            let code = match self.specials {
                _ if saturate || !to_infinity => self.max_finite(),
                Specials::Ieee => self.infinity(),
                Specials::NanOnly => self.nan(),
                Specials::None => self.max_finite(),
            };
            sign | code
        };
        match v.class {
            Class::Nan => return self.nan(),
            Class::Inf => return too_large(true),
            Class::Finite if v.sig == 0 => return sign,
            Class::Finite => {}
        }
        // Exponent of the leading bit, then of the last bit that is kept.
        let lead = v.exp + v.sig.ilog2() as i32;
        let lead = lead.max(self.min_exp());
        let shift = lead - self.man_bits as i32 - v.exp;
        let man = if shift <= 0 {
            v.sig << -shift
        } else {
            // The significand has 64 bits: beyond a shift of 127 nothing changes.
            let shift = shift.min(127) as u32;
            let wide = u128::from(v.sig);
            let kept = (wide >> shift) as u64;
            let rest = wide & ((1 << shift) - 1);
            kept + u64::from(step.rounds_up(v.sign, kept & 1 != 0, rest, shift))
        };
        // A carry out of the significand moves into the exponent field by itself.
        let code = (((lead - self.min_exp()) as u64) << self.man_bits) + man;
        if code > self.max_finite() { too_large(step.overflows(v.sign)) } else { sign | code }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Finite,
    Inf,
    Nan,
}

/// An exact number `±sig * 2^exp`, an infinity or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub sign: bool,
    pub class: Class,
    /// Zero for a zero; meaningless when `class` is not finite.
    pub sig: u64,
    pub exp: i32,
}

impl Value {
    pub const fn integer(sign: bool, magnitude: u64) -> Self {
        Self { sign, class: Class::Finite, sig: magnitude, exp: 0 }
    }

    pub const fn is_nan(self) -> bool {
        matches!(self.class, Class::Nan)
    }

    /// Rounds the magnitude to an integer; `None` if it needs more than 64 bits or is
    /// not finite.
    pub fn to_integer(self, rounding: Rounding) -> Option<u64> {
        match self.class {
            Class::Finite if self.sig == 0 => Some(0),
            Class::Finite if self.exp >= 0 => {
                (self.exp as u32 <= self.sig.leading_zeros()).then(|| self.sig << self.exp)
            }
            Class::Finite => {
                let shift = self.exp.unsigned_abs().min(127);
                let wide = u128::from(self.sig);
                let kept = (wide >> shift) as u64;
                let rest = wide & ((1 << shift) - 1);
                let up = Step::Mode(rounding).rounds_up(self.sign, kept & 1 != 0, rest, shift);
                kept.checked_add(u64::from(up))
            }
            Class::Inf | Class::Nan => None,
        }
    }
}

/// The decision of the discarded bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Mode(Rounding),
    /// `.rs`: the magnitude is truncated after `bits`, a fraction of `width` bits, was
    /// added right below the last kept bit.
    Stochastic {
        bits: u32,
        width: u32,
    },
}

impl Step {
    /// Whether the magnitude goes up, when `rest` of `shift` bits is discarded.
    #[inline]
    fn rounds_up(self, sign: bool, odd: bool, rest: u128, shift: u32) -> bool {
        let half = 1u128 << (shift - 1);
        match self {
            Step::Mode(Rounding::Rn) => rest > half || (rest == half && odd),
            Step::Mode(Rounding::Rna) => rest >= half,
            Step::Mode(Rounding::Rz) => false,
            Step::Mode(Rounding::Rm) => sign && rest != 0,
            Step::Mode(Rounding::Rp) => !sign && rest != 0,
            Step::Stochastic { bits, width } => {
                let bits = u128::from(bits);
                let bits =
                    if shift >= width { bits << (shift - width) } else { bits >> (width - shift) };
                rest + bits >= 1 << shift
            }
        }
    }

    /// Whether a magnitude beyond the largest finite number becomes infinite.
    const fn overflows(self, sign: bool) -> bool {
        match self {
            Step::Mode(Rounding::Rn | Rounding::Rna) | Step::Stochastic { .. } => true,
            Step::Mode(Rounding::Rz) => false,
            Step::Mode(Rounding::Rm) => sign,
            Step::Mode(Rounding::Rp) => !sign,
        }
    }
}

/// `a + b`, rounded to odd: truncated, with the last bit set if that lost anything.
///
/// A result so rounded can be rounded again, in any mode, to a format of at least two
/// bits less as if it were exact (Boldo and Melquiond, "Emulation of FMA and correctly
/// rounded sums", 2008). The sum must not overflow or come near it.
#[inline(always)]
pub(super) fn add_odd_f64(a: f64, b: f64) -> f64 {
    let sum = a + b;
    // Knuth's TwoSum: `err` is exactly what the addition lost.
    let b_part = sum - a;
    let err = (a - (sum - b_part)) + (b - b_part);
    // Not `err != 0.0`: infinities make `err` NaN.
    let lost = u64::from(err.abs() > 0.0);
    let bits = sum.to_bits();
    let rounded_away = (bits ^ err.to_bits()) >> 63;
    f64::from_bits((bits - (lost & rounded_away)) | lost)
}

/// Adds in f32 as [`add_odd_f64`] does.
#[inline(always)]
pub(super) fn add_odd_f32(a: f32, b: f32) -> f32 {
    let sum = a + b;
    let b_part = sum - a;
    let err = (a - (sum - b_part)) + (b - b_part);
    let lost = u32::from(err.abs() > 0.0);
    let bits = sum.to_bits();
    let rounded_away = (bits ^ err.to_bits()) >> 31;
    f32::from_bits((bits - (lost & rounded_away)) | lost)
}

/// Rounds to f32, to odd; finite values beyond the range become the largest finite
/// number. NaN stays some NaN.
#[inline(always)]
pub(super) fn to_f32_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    let lost = u32::from((back < x) | (back > x));
    let rounded_away = u32::from(back.abs() > x.abs());
    f32::from_bits((near.to_bits() - (lost & rounded_away)) | lost)
}

/// Rounds to f32 in any mode. NaN stays some NaN.
#[inline(always)]
pub(super) fn to_f32(x: f64, rounding: Rounding) -> f32 {
    let near = x as f32;
    let negative = x.is_sign_negative();
    let away = match rounding {
        Rounding::Rn => return near,
        Rounding::Rz => false,
        Rounding::Rm => negative,
        Rounding::Rp => !negative,
        Rounding::Rna => {
            return f32::from_bits(Format::F32.encode(
                Format::F64.decode(x.to_bits()),
                Step::Mode(Rounding::Rna),
                false,
            ) as u32);
        }
    };
    let back = f64::from(near).abs();
    let bits = near.to_bits();
    let bits = match away {
        true => bits + u32::from(back < x.abs()),
        false => bits - u32::from(back > x.abs()),
    };
    f32::from_bits(bits)
}

/// The sum of two zeros of any sign, or of two numbers that cancel exactly: IEEE 754
/// section 6.3.
#[inline(always)]
pub(super) fn zero_sum_is_negative(a_negative: bool, b_negative: bool, rounding: Rounding) -> bool {
    match rounding {
        Rounding::Rm => a_negative | b_negative,
        _ => a_negative & b_negative,
    }
}
