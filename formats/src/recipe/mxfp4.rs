//! MXFP4: blocks of 32, each with a power of two as its scale.
//!
//! Let `e` be the unbiased exponent field of the block's maximum `b` (-127 for
//! subnormals). The byte `s + 127` is the scale `2^s`:
//!
//! | recipe | `s` | infinite `b` |
//! | --- | --- | --- |
//! | Floor | `e - 2` | 255 |
//! | Ceil | `e - 2`, one more if `b` is not a power of two | 255 |
//! | Even | Floor of `b` rounded to one mantissa bit, halves up; 255 if that is infinite | 255 |
//! | Rceil | least power of two not below `b * (1/6)` | 255 |
//! | Floor018, Ceil018, Even018 | as above, without the 255 | 253 |
//! | Rceil018 | `ceil(log2(b / 6))`, the logarithm rounded to f32 | 254 |
//! | ModelOpt | as Rceil018 | - |
//! | CompressedTensors | Even; 1 if the rounded maximum is infinite, and zero codes | - |
//!
//! `s` is at least -127. An element is multiplied by `2^-s`, which is exact,
//! so it does not matter whether a project writes a product or a quotient. TorchAO 0.18.0 differs
//! for blocks with byte 0: it divides by 2^-126, and with RCEIL by 1, which gives
//! zeros. ModelOpt rounds ties down and stores zero as -0; CompressedTensors
//! stores zero as +0.

use super::{BlockScale, Rule};
use crate::{e2m1, ue8m0};

/// A project's quantiser for MXFP4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Mxfp4Recipe {
    /// TorchAO main, FLOOR; also the OCP MX specification's.
    #[default]
    Floor = 0,
    /// TorchAO main, CEIL.
    Ceil = 1,
    /// TorchAO main, EVEN.
    Even = 2,
    /// TorchAO main, RCEIL.
    Rceil = 3,
    /// TorchAO 0.18.0, FLOOR.
    Floor018 = 4,
    /// TorchAO 0.18.0, CEIL.
    Ceil018 = 5,
    /// TorchAO 0.18.0, EVEN.
    Even018 = 6,
    /// TorchAO 0.18.0, RCEIL.
    Rceil018 = 7,
    /// NVIDIA ModelOpt.
    ModelOpt = 8,
    /// compressed-tensors.
    CompressedTensors = 9,
}

impl Mxfp4Recipe {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 10] = [
        Self::Floor,
        Self::Ceil,
        Self::Even,
        Self::Rceil,
        Self::Floor018,
        Self::Ceil018,
        Self::Even018,
        Self::Rceil018,
        Self::ModelOpt,
        Self::CompressedTensors,
    ];

    /// The name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Ceil => "ceil",
            Self::Even => "even",
            Self::Rceil => "rceil",
            Self::Floor018 => "floor-0.18",
            Self::Ceil018 => "ceil-0.18",
            Self::Even018 => "even-0.18",
            Self::Rceil018 => "rceil-0.18",
            Self::ModelOpt => "modelopt",
            Self::CompressedTensors => "compressed-tensors",
        }
    }

    /// The recipe with this name; `torchao` is [`Floor`](Self::Floor), its default.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "torchao" {
            return Some(Self::Floor);
        }
        Self::ALL.into_iter().find(|recipe| recipe.name() == name)
    }

    /// The recipe with this code; [`Floor`](Self::Floor) for an unknown code.
    #[inline(always)]
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Ceil,
            2 => Self::Even,
            3 => Self::Rceil,
            4 => Self::Floor018,
            5 => Self::Ceil018,
            6 => Self::Even018,
            7 => Self::Rceil018,
            8 => Self::ModelOpt,
            9 => Self::CompressedTensors,
            _ => Self::Floor,
        }
    }

    /// The scale of a block with the largest magnitude `amax`; for NaN, the NaN code.
    #[inline(always)]
    #[must_use]
    pub fn block(self, amax: f32) -> BlockScale {
        self.steps().block(amax, Mxfp4Steps::round_up)
    }

    /// The recipe with the constants by which a scale is computed from a maximum.
    #[inline(always)]
    #[must_use]
    pub fn steps(self) -> Mxfp4Steps {
        // Conditions instead of a `match`, which the compiler would turn into tables in memory.
        let carry = if matches!(self, Self::Ceil | Self::Ceil018) {
            MANTISSA
        } else if matches!(self, Self::Even | Self::Even018 | Self::CompressedTensors) {
            HALF_MANTISSA_BIT
        } else {
            0
        };
        let operand_of_zero = if matches!(self, Self::Rceil018) {
            1.0
        } else if matches!(self, Self::Floor018 | Self::Ceil018 | Self::Even018) {
            reciprocal(1)
        } else {
            reciprocal(0)
        };
        Mxfp4Steps { recipe: self, carry, operand_of_zero }
    }

    /// The operation on an element.
    #[inline(always)]
    const fn rule(self) -> Rule {
        match self {
            Self::Floor
            | Self::Ceil
            | Self::Even
            | Self::Rceil
            | Self::Floor018
            | Self::Ceil018
            | Self::Even018
            | Self::Rceil018 => Rule::Scale,
            Self::ModelOpt => Rule::MultiplyTiesDown,
            Self::CompressedTensors => Rule::MultiplyUnsignedZero,
        }
    }
}

/// A recipe with the constants in which the recipes differ, which a kernel computes once instead
/// of for each block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mxfp4Steps {
    recipe: Mxfp4Recipe,
    /// Added to the maximum's bits: a carry out of the mantissa rounds the exponent up.
    carry: u32,
    /// The multiplier of elements in blocks with byte 0.
    operand_of_zero: f32,
}

impl Mxfp4Steps {
    /// Maxima below this have a finite scale in every recipe.
    pub const LARGE: f32 = f32::MAX / 2.0;

    /// Whether the recipe only multiplies elements by a power of two.
    #[inline(always)]
    #[must_use]
    pub const fn scales_only(&self) -> bool {
        matches!(self.recipe.rule(), Rule::Scale)
    }

    /// The scale of a block with the largest magnitude `amax`; for NaN, the NaN code. `round_up`
    /// computes the same as [`Self::round_up`], perhaps by a conversion in hardware.
    #[inline(always)]
    #[must_use]
    pub fn block(&self, amax: f32, round_up: impl Fn(f32) -> u32) -> BlockScale {
        self.completed(self.block_below_large(amax, round_up), amax)
    }

    /// The same as [`block`](Self::block), for recipes that [scale only](Self::scales_only) and
    /// maxima below [`LARGE`](Self::LARGE).
    #[inline(always)]
    #[must_use]
    pub fn block_below_large(&self, amax: f32, round_up: impl Fn(f32) -> u32) -> BlockScale {
        let byte = match self.recipe {
            Mxfp4Recipe::Rceil => round_up(amax * (1.0 / e2m1::MAX)),
            Mxfp4Recipe::Rceil018 | Mxfp4Recipe::ModelOpt => ceil_of_rounded_log2(amax / e2m1::MAX),
            Mxfp4Recipe::Floor
            | Mxfp4Recipe::Floor018
            | Mxfp4Recipe::Ceil
            | Mxfp4Recipe::Ceil018
            | Mxfp4Recipe::Even
            | Mxfp4Recipe::Even018
            | Mxfp4Recipe::CompressedTensors => below_two(exponent(self.rounded(amax))),
        };
        // No byte is so large here that its reciprocal is subnormal.
        let reciprocal = f32::from_bits(LARGEST_RECIPROCAL.wrapping_sub(byte << 23));
        let operand = if byte == 0 { self.operand_of_zero } else { reciprocal };
        BlockScale { byte: byte as u8, rule: Rule::Scale, operand }
    }

    /// The same as [`block`](Self::block), given the result of
    /// [`block_below_large`](Self::block_below_large) for the same maximum.
    #[inline(always)]
    #[must_use]
    pub fn completed(&self, scale: BlockScale, amax: f32) -> BlockScale {
        let (bits, rounded) = (amax.to_bits(), self.rounded(amax));
        let infinite = match self.recipe {
            Mxfp4Recipe::Even => rounded >= EXPONENT,
            Mxfp4Recipe::Floor | Mxfp4Recipe::Ceil | Mxfp4Recipe::Rceil => bits >= EXPONENT,
            Mxfp4Recipe::Floor018
            | Mxfp4Recipe::Ceil018
            | Mxfp4Recipe::Even018
            | Mxfp4Recipe::Rceil018
            | Mxfp4Recipe::ModelOpt
            | Mxfp4Recipe::CompressedTensors => bits > EXPONENT,
        };
        let byte = if infinite { u32::from(ue8m0::NAN) } else { u32::from(scale.byte) };
        let operand = if byte == 0 { self.operand_of_zero } else { reciprocal(byte) };
        let rule = self.recipe.rule();
        let lost = matches!(self.recipe, Mxfp4Recipe::CompressedTensors)
            && rounded >= EXPONENT
            && bits < EXPONENT;
        if lost {
            BlockScale { byte: ONE, rule, operand: 0.0 }
        } else {
            BlockScale { byte: byte as u8, rule, operand }
        }
    }

    /// The code of the least power of two not below `x`, which is not NaN, not negative, and so
    /// small that there is such a code.
    #[inline(always)]
    #[must_use]
    pub const fn round_up(x: f32) -> u32 {
        let bits = x.to_bits();
        // Byte 0 is 2^-127, half the subnormal range.
        let floor = if exponent(bits) == 0 { 1 << 22 } else { 0 };
        exponent(bits) + (bits & MANTISSA > floor) as u32
    }

    /// The bits of a maximum with its exponent rounded up according to the recipe.
    #[inline(always)]
    fn rounded(&self, amax: f32) -> u32 {
        amax.to_bits().wrapping_add(self.carry)
    }
}

/// The exponent field of an f32.
const EXPONENT: u32 = 0x7f80_0000;
/// Its mantissa field.
const MANTISSA: u32 = 0x007f_ffff;
/// Half of e2m1's mantissa bit.
const HALF_MANTISSA_BIT: u32 = 1 << 21;
/// ue8m0 code of 1.
const ONE: u8 = 127;

#[inline(always)]
const fn exponent(bits: u32) -> u32 {
    (bits & EXPONENT) >> 23
}

/// Subtracts 2, the exponent of e2m1's largest power of two; at least 0.
#[inline(always)]
const fn below_two(exponent: u32) -> u32 {
    exponent.saturating_sub(2)
}

/// Bits of 2^127, the reciprocal of the scale of byte 0.
const LARGEST_RECIPROCAL: u32 = 254 << 23;

/// 2^(127 - byte), NaN for 255.
#[inline(always)]
fn reciprocal(byte: u32) -> f32 {
    f32::from_bits(match byte {
        255 => 0x7fff_ffff,
        254 => 0x0040_0000,
        _ => LARGEST_RECIPROCAL - (byte << 23),
    })
}

/// `max(ceil(l), -127) + 127` and at most 254, where `l` is log2 of `x` correctly
/// rounded to f32.
///
/// Rounding matters only just above a power of two: log2 of `2^n (1 + m 2^-23)`
/// is `n + m 2^-23 / ln 2`, and rounds to `n` if the excess is less than half the
/// distance of adjacent f32, which is 2^-23 times the largest power of two not above `|n|`.
#[inline(always)]
fn ceil_of_rounded_log2(x: f32) -> u32 {
    let bits = x.to_bits();
    let (field, mantissa) = (exponent(bits), bits & MANTISSA);
    if field == 255 {
        return u32::from(ue8m0::MAX_CODE);
    }
    if field == 0 {
        // From 2^-127 on, the mantissa counts steps of 2^-22 times 2^-127.
        return u32::from(mantissa > (1 << 22) + LARGEST_LOST_STEP);
    }
    let n = field as i32 - 127;
    // From a negative power of two towards zero, the distance is half as large.
    let magnitude = if n < 0 { !n } else { n } as u32;
    // Mantissas within half the distance: 2^(p-1) ln 2 with p = floor(log2 |n|), at most 22.18.
    // They are 22, 11, 5, 2, 1 for p = 6, 5, 4, 3, 2, and 0 for smaller p.
    let lost = 22 >> (magnitude.leading_zeros() - 25);
    field + u32::from(mantissa > lost)
}

/// The same as `lost` in [`ceil_of_rounded_log2`], for steps of 2^-22 times 2^-127.
const LARGEST_LOST_STEP: u32 = 11;

#[cfg(test)]
mod tests {
    use super::super::Software;
    use super::*;
    extern crate std;

    #[test]
    fn names_and_codes_go_both_ways() {
        for recipe in Mxfp4Recipe::ALL {
            assert_eq!(Mxfp4Recipe::from_name(recipe.name()), Some(recipe));
            assert_eq!(Mxfp4Recipe::from_code(recipe as u32), recipe);
        }
        assert_eq!(Mxfp4Recipe::from_name("torchao"), Some(Mxfp4Recipe::Floor));
        assert_eq!(Mxfp4Recipe::from_name("te"), None);
    }

    /// Numbers around every power of two, compared with the logarithm in f64.
    #[test]
    fn rounded_logarithm() {
        for field in 0..255u32 {
            let mantissas = (0..64).chain([1 << 21, (1 << 22) - 1, 1 << 22]);
            let near_half = (1 << 22)..(1 << 22) + 64;
            for mantissa in mantissas.chain(near_half).chain([MANTISSA - 1, MANTISSA]) {
                let x = f32::from_bits(field << 23 | mantissa);
                let log = f64::from(x).log2() as f32;
                let expected = (log.ceil().max(-127.0) + 127.0) as u32;
                let got = ceil_of_rounded_log2(x);
                assert_eq!(got, expected, "{x:e} ({:#010x})", x.to_bits());
            }
        }
    }

    #[test]
    fn short_way_to_a_scale_is_the_same() {
        for recipe in Mxfp4Recipe::ALL.into_iter().filter(|r| r.steps().scales_only()) {
            for field in 0..=253u32 {
                let middle = (1 << 21) - 2..(1 << 21) + 2;
                for mantissa in (0..16).chain(middle).chain([1 << 22, 3 << 21, MANTISSA]) {
                    let amax = f32::from_bits(field << 23 | mantissa);
                    if amax < Mxfp4Steps::LARGE {
                        let short = recipe.steps().block_below_large(amax, Mxfp4Steps::round_up);
                        assert_eq!(short, recipe.block(amax), "{recipe:?} {amax:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn infinite_and_nan_maxima() {
        let byte = |recipe: Mxfp4Recipe, amax: f32| recipe.block(amax).byte;
        for recipe in Mxfp4Recipe::ALL {
            assert_eq!(byte(recipe, f32::NAN), 255, "{recipe:?}");
        }
        for (at, expected) in [255, 255, 255, 255, 253, 253, 253, 254].into_iter().enumerate() {
            let recipe = Mxfp4Recipe::ALL[at];
            assert_eq!(byte(recipe, f32::INFINITY), expected, "{recipe:?}");
        }
    }

    #[test]
    fn compressed_tensors_loses_blocks_of_the_largest_maxima() {
        let block = Mxfp4Recipe::CompressedTensors.block(f32::MAX);
        assert_eq!(block.byte, ONE);
        assert_eq!(block.codes::<Software>([f32::MAX, -f32::MAX, 0., 0., 0., 0., 0., 0.]), 0);
    }
}
