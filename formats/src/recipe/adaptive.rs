//! NVFP4 with adaptive block scaling ("four over six"): each block is quantised twice, with the
//! scale that puts its largest magnitude on 6 and with one that puts it on 4, and the result with
//! the smaller error is stored. Between 4 and 6 e2m1 has no value, so that a block with elements
//! just below its largest magnitude is often nearer with 4.
//!
//! With `a` the tensor's maximum, `b` the block's, `B` the bound of block scales (256 leaves room
//! for scales that are half as large again, 448 uses the whole range of e4m3) and `c` 1 for six and
//! 1.5 for four:
//!
//! | | Transformer Engine | ModelOpt |
//! | --- | --- | --- |
//! | parameter `p` | `min(6 B / a, FLT_MAX)` | `a / 1536` |
//! | block scale `s` | `e4m3(min((b / 6) * p * c, 448))` | `e4m3(clamp((w * 256) / (a / 6), 2^-9, 448))`, `w = (b * c) / 6`, 1 for 0 |
//! | element | `x * min(1 / (s * (1 / p)), FLT_MAX)` | `x / (s * p)` |
//! | value `v` for the error | `((code * s) * a) / (6 B)` | `q(x / f) * f`, `f = e4m3(min(w' * k, 448)) * (1 / k)` |
//! | error | sum of `abs(v - x)` or of `(v - x)^2` | sum of `(v - x)^2` |
//!
//! ModelOpt chooses by the error of its simulated quantisation, before the scales are stored:
//! `k = 448 / ((a * 1.75) / 6)`, where a divisor of at most 2^-24 counts as 1, and `w' = (b * c) / 6`.
//! Errors are summed from the first element to the last. Four is chosen only if its error is less.
//!
//! A parameter that is given instead of computed stands for the maximum `6 B / p`, or `1536 p`.

use super::{BlockScale, Convert, Nvfp4Recipe, Rule};
use crate::{e2m1, e4m3};

/// A project's quantiser for NVFP4 with adaptive block scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AdaptiveRecipe {
    /// Transformer Engine: bound 256, mean absolute error, its defaults.
    TransformerEngine = 0,
    /// Transformer Engine: bound 256, mean squared error.
    TransformerEngineMse = 1,
    /// Transformer Engine: bound 448, mean absolute error.
    TransformerEngine448 = 2,
    /// Transformer Engine: bound 448, mean squared error.
    TransformerEngine448Mse = 3,
    /// ModelOpt: bound 256, mean squared error, which is all it has.
    ModelOpt = 4,
}

impl AdaptiveRecipe {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 5] = [
        Self::TransformerEngine,
        Self::TransformerEngineMse,
        Self::TransformerEngine448,
        Self::TransformerEngine448Mse,
        Self::ModelOpt,
    ];

    /// The name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TransformerEngine => "te-4over6",
            Self::TransformerEngineMse => "te-4over6-mse",
            Self::TransformerEngine448 => "te-4over6-448",
            Self::TransformerEngine448Mse => "te-4over6-448-mse",
            Self::ModelOpt => "modelopt-4over6",
        }
    }

    /// The recipe with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|recipe| recipe.name() == name)
    }

    /// The recipe with this code; [`TransformerEngine`](Self::TransformerEngine) for an unknown
    /// code.
    #[inline(always)]
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::TransformerEngineMse,
            2 => Self::TransformerEngine448,
            3 => Self::TransformerEngine448Mse,
            4 => Self::ModelOpt,
            _ => Self::TransformerEngine,
        }
    }

    /// The same project's recipe without adaptive scaling, which has the same kind of parameter.
    #[inline(always)]
    #[must_use]
    pub const fn project(self) -> Nvfp4Recipe {
        match self {
            Self::TransformerEngine
            | Self::TransformerEngineMse
            | Self::TransformerEngine448
            | Self::TransformerEngine448Mse => Nvfp4Recipe::TransformerEngine,
            Self::ModelOpt => Nvfp4Recipe::ModelOpt,
        }
    }

    /// The bound of block scales that put the largest magnitude on 6.
    #[inline(always)]
    const fn bound(self) -> f32 {
        match self {
            Self::TransformerEngine448 | Self::TransformerEngine448Mse => e4m3::MAX,
            Self::TransformerEngine | Self::TransformerEngineMse | Self::ModelOpt => 256.0,
        }
    }

    /// Whether errors are squared.
    #[inline(always)]
    const fn squares(self) -> bool {
        match self {
            Self::TransformerEngine | Self::TransformerEngine448 => false,
            Self::TransformerEngineMse | Self::TransformerEngine448Mse | Self::ModelOpt => true,
        }
    }

    /// The tensor parameter for a largest magnitude, as [`Nvfp4Recipe::tensor_parameter`].
    #[inline(always)]
    #[must_use]
    pub fn tensor_parameter(self, amax: f32) -> f32 {
        self.project().parameter_for(amax, e2m1::MAX * self.bound())
    }

    /// The largest magnitude that a given parameter stands for.
    #[inline(always)]
    #[must_use]
    pub fn tensor_maximum(self, parameter: f32) -> f32 {
        let largest = e2m1::MAX * self.bound();
        let amax = if self.project().parameter_is_divisor() {
            largest / parameter
        } else {
            largest * parameter
        };
        amax.min(f32::MAX)
    }
}

/// A recipe with what the blocks of a tensor share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveTensor {
    recipe: AdaptiveRecipe,
    parameter: f32,
    amax: f32,
}

/// The values of e4m3 that ModelOpt's simulation uses more of than are stored: 448 / 256.
const HEADROOM: f32 = e4m3::MAX / 256.0;
/// Up to here ModelOpt's simulation takes a maximum for zero, 2^-24.
const SIMULATED_ZERO: f32 = f32::from_bits((127 - 24) << 23);
/// Scales that put the largest magnitude on 4 are larger by this.
const SIX_OVER_FOUR: f32 = 1.5;

/// One of the two ways to quantise a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The stored scale.
    pub scale: BlockScale,
    /// Gives the codes whose error counts.
    pub tried: BlockScale,
    /// The factor between those codes and values, for [`AdaptiveTensor::add_errors`].
    pub factor: f32,
}

impl AdaptiveTensor {
    /// The recipe for a parameter that the project [accepts](Nvfp4Recipe::accepts) and the
    /// tensor's largest magnitude.
    #[inline(always)]
    #[must_use]
    pub fn new(recipe: AdaptiveRecipe, parameter: f32, amax: f32) -> Self {
        Self { recipe, parameter, amax }
    }

    /// A way to quantise a block of largest magnitude `amax`: with it on 4, or on 6.
    #[inline(always)]
    #[must_use]
    pub fn candidate<C: Convert>(&self, amax: f32, on_four: bool) -> Candidate {
        let enlarged = if on_four { SIX_OVER_FOUR } else { 1.0 };
        match self.recipe.project() {
            Nvfp4Recipe::ModelOpt => {
                let exact = C::quotient(amax * enlarged, e2m1::MAX);
                let nonzero = if exact == 0.0 { 1.0 } else { exact };
                let largest = C::quotient(self.amax, e2m1::MAX);
                let wanted = C::quotient(nonzero * self.recipe.bound(), largest);
                let byte = C::e4m3(wanted.clamp(e4m3::MIN_SUBNORMAL, e4m3::MAX));
                let operand = C::e4m3_value(byte) * self.parameter;
                let scale = BlockScale { byte, rule: Rule::DivideUnsignedZero, operand };

                let simulated = C::quotient(self.amax * HEADROOM, e2m1::MAX);
                let simulated = if simulated <= SIMULATED_ZERO { 1.0 } else { simulated };
                let up = C::quotient(e4m3::MAX, simulated);
                let byte = C::e4m3(exact * up);
                let factor = C::e4m3_value(byte) * C::quotient(1.0, up);
                let factor = if factor.is_finite() { factor } else { 1.0 };
                let operand = if factor == 0.0 { 1.0 } else { factor };
                Candidate { scale, tried: BlockScale { operand, ..scale }, factor }
            }
            Nvfp4Recipe::TransformerEngine
            | Nvfp4Recipe::TorchAo
            | Nvfp4Recipe::CompressedTensors => {
                let wanted = C::quotient(amax, e2m1::MAX) * self.parameter * enlarged;
                // The conversion saturates, which is the same as the recipe's minimum with 448.
                let byte = C::e4m3(wanted);
                let factor = C::e4m3_value(byte);
                let down = C::quotient(1.0, self.parameter);
                let operand = C::quotient(1.0, factor * down).min(f32::MAX);
                let scale = BlockScale { byte, rule: Rule::MultiplyUnsignedZero, operand };
                Candidate { scale, tried: scale, factor }
            }
        }
    }

    /// The sum of errors `sum`, which starts at 0, with those of eight more elements of the block,
    /// of which a candidate's [`tried`](Candidate::tried) gives these codes.
    #[inline(always)]
    #[must_use]
    pub fn add_errors<C: Convert>(
        &self,
        factor: f32,
        codes: u32,
        values: [f32; 8],
        mut sum: f32,
    ) -> f32 {
        let squares = self.recipe.squares();
        let in_parts = matches!(self.recipe.project(), Nvfp4Recipe::TransformerEngine);
        let whole = e2m1::MAX * self.recipe.bound();
        for (i, x) in values.iter().enumerate() {
            let mut value = e2m1::decode_arithmetically(codes >> (4 * i)) * factor;
            if in_parts {
                value = C::quotient(value * self.amax, whole);
            }
            let error = value - x;
            sum += if squares { error * error } else { error.abs() };
        }
        sum
    }

    /// The better way to quantise a block, whose elements are groups of eight.
    #[must_use]
    pub fn block<C: Convert>(&self, groups: &[[f32; 8]]) -> BlockScale {
        let amax = groups.as_flattened().iter().fold(0f32, |max, x| max.max(x.abs()));
        let ways = [false, true].map(|on_four| {
            let Candidate { scale, tried, factor } = self.candidate::<C>(amax, on_four);
            let add = |sum, values: &[f32; 8]| {
                self.add_errors::<C>(factor, tried.codes::<C>(*values), *values, sum)
            };
            (scale, groups.iter().fold(0.0, add))
        });
        let [(on_six, error_on_six), (on_four, error_on_four)] = ways;
        if error_on_four < error_on_six { on_four } else { on_six }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Software;
    use super::*;

    #[test]
    fn names_and_codes_go_both_ways() {
        for recipe in AdaptiveRecipe::ALL {
            assert_eq!(AdaptiveRecipe::from_name(recipe.name()), Some(recipe));
            assert_eq!(AdaptiveRecipe::from_code(recipe as u32), recipe);
        }
        assert_eq!(AdaptiveRecipe::from_name("te"), None);
    }

    /// A block that e2m1 has no values for if its maximum is on 6 has them if it is on 4.
    #[test]
    fn the_nearer_of_both_is_taken() {
        for recipe in AdaptiveRecipe::ALL {
            // Scales of the block are exact, on 4 and on 6.
            let amax = if recipe.bound() == e4m3::MAX { 7.0 } else { 8.0 };
            let tensor = AdaptiveTensor::new(recipe, recipe.tensor_parameter(amax), amax);
            let by_four = [[4.0, 3.0, 3.0, 2.0, -4.0, 1.5, 0.5, 1.0]; 2];
            let by_six = [[4.0, 4.0 / 3.0, 2.0, 1.0, -4.0, 8.0 / 3.0, 2.0, 1.0]; 2];
            let [four, six] = [by_four, by_six].map(|groups| tensor.block::<Software>(&groups));
            assert!(e4m3::decode(four.byte) > e4m3::decode(six.byte) * 1.4, "{recipe:?}");
            // 4, 3, 3, 2, -4, 1.5, 0.5 and 1 exactly.
            assert_eq!(four.codes::<Software>(by_four[0]), 0x213e_4556, "{recipe:?}");
        }
    }

    /// Operands are finite for the smallest and largest parameters and maxima.
    #[test]
    fn nothing_is_nan_at_the_edges() {
        let maxima = [0.0, f32::from_bits(1), 1e-40, f32::MIN_POSITIVE, 1e-8, 1.0, 1e38, f32::MAX];
        for recipe in AdaptiveRecipe::ALL {
            for amax in maxima {
                let parameter = recipe.tensor_parameter(amax);
                assert!(recipe.project().accepts(parameter), "{recipe:?}, tensor maximum {amax:e}");
                assert!(recipe.tensor_maximum(parameter).is_finite());
                for block in maxima {
                    for on_four in [false, true] {
                        let tensor = AdaptiveTensor::new(recipe, parameter, amax);
                        let way = tensor.candidate::<Software>(block, on_four);
                        let what = format_args!("{recipe:?}, {amax:e}, {block:e}: {way:?}");
                        assert!(e4m3::is_unsigned_finite(way.scale.byte), "{what}");
                        for scale in [way.scale, way.tried] {
                            assert!(scale.operand.is_finite() && scale.operand > 0.0, "{what}");
                        }
                    }
                }
            }
        }
    }
}
