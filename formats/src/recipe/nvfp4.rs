//! NVFP4: blocks of 16, each with an e4m3 scale, and one f32 parameter per tensor (or row).
//!
//! | recipe | parameter `p` of a tensor of maximum `a` | block scale `s` from maximum `b` | element | zero block |
//! | --- | --- | --- | --- | --- |
//! | TorchAo | `a / 2688` | `e4m3(clamp((b / 6) / p, 2^-6, 448))` | `x * ((1 / p) / s)` | 0x08 |
//! | TransformerEngine | `min(2688 / a, FLT_MAX)`, 1 if 0 | `e4m3(min(b * (p * (1/6)), 448))` | `x * min(1 / (s * (1 / p)), FLT_MAX)` | 0x00 |
//! | ModelOpt | `a / 2688` | `e4m3(clamp(b / (6 * p), 2^-9, 448))`, 1 for 0 | `x / (s * p)` | 0x38 |
//! | CompressedTensors | `2688 / a` | `e4m3(p * (b / 6))`, 0.125 for 0 | `x / (s / p)` | 0x20 |
//!
//! All recipes except TorchAo store a result that is zero as +0. A parameter of 1 is the
//! single-level form of TorchAo.

use super::{BlockScale, Convert, Rule};
use crate::{Nvfp4, e2m1, e4m3};

/// Smallest parameter of TorchAo's recipe, 2^-121. [`Nvfp4Recipe::tensor_parameter`] returns it if
/// the tensor's maximum leads to a smaller one, for which `(1 / p) / s` of a block with the
/// smallest scale would be infinite, and its product with zero NaN.
pub const MIN_TORCHAO_PARAMETER: f32 = f32::from_bits((127 - 121) << 23);

/// Smallest parameter of ModelOpt's recipe, 2^-140, for the same reason: with a smaller one the
/// smallest `s * p` would be zero, and zero divided by it NaN.
pub const MIN_MODELOPT_PARAMETER: f32 = f32::from_bits(1 << 9);

/// A project's quantiser for NVFP4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Nvfp4Recipe {
    /// TorchAO.
    #[default]
    TorchAo = 0,
    /// NVIDIA Transformer Engine.
    TransformerEngine = 1,
    /// NVIDIA ModelOpt.
    ModelOpt = 2,
    /// compressed-tensors (llm-compressor, vLLM).
    CompressedTensors = 3,
}

impl Nvfp4Recipe {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 4] =
        [Self::TorchAo, Self::TransformerEngine, Self::ModelOpt, Self::CompressedTensors];

    /// The name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TorchAo => "torchao",
            Self::TransformerEngine => "te",
            Self::ModelOpt => "modelopt",
            Self::CompressedTensors => "compressed-tensors",
        }
    }

    /// The recipe with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|recipe| recipe.name() == name)
    }

    /// The recipe with this code; [`TorchAo`](Self::TorchAo) for an unknown code.
    #[inline(always)]
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::TransformerEngine,
            2 => Self::ModelOpt,
            3 => Self::CompressedTensors,
            _ => Self::TorchAo,
        }
    }

    /// Whether the tensor parameter multiplies values when they are quantised, so that dequantising
    /// divides by it.
    #[must_use]
    pub const fn parameter_is_divisor(self) -> bool {
        matches!(self, Self::TransformerEngine | Self::CompressedTensors)
    }

    /// The tensor parameter for a largest magnitude, which is finite and not negative. It is
    /// positive and finite; see the table above. For maxima so small that the project's own
    /// parameter would turn zeros into NaN, it is the nearest parameter that does not.
    #[inline(always)]
    #[must_use]
    pub fn tensor_parameter(self, amax: f32) -> f32 {
        self.parameter_for(amax, Nvfp4::MAX_SCALED)
    }

    /// The same where the largest magnitude becomes `largest`, an element times a block scale.
    #[inline(always)]
    pub(super) fn parameter_for(self, amax: f32, largest: f32) -> f32 {
        match self {
            Self::TorchAo => (amax / largest).max(MIN_TORCHAO_PARAMETER),
            Self::ModelOpt => (amax / largest).max(MIN_MODELOPT_PARAMETER),
            Self::TransformerEngine | Self::CompressedTensors => {
                // The quotient is not zero even for the largest f32.
                (largest / amax).min(f32::MAX)
            }
        }
    }

    /// Whether results with `parameter` are finite for every finite input.
    #[must_use]
    pub fn accepts(self, parameter: f32) -> bool {
        let least = match self {
            Self::TorchAo => MIN_TORCHAO_PARAMETER,
            Self::ModelOpt => MIN_MODELOPT_PARAMETER,
            // 448 / p and 1 / p must be finite.
            Self::TransformerEngine | Self::CompressedTensors => MIN_DIVISOR,
        };
        parameter.is_finite() && parameter >= least
    }

    /// The multiplier of dequantised values: the parameter or, if it is a divisor, its reciprocal,
    /// rounded to f32.
    #[inline(always)]
    #[must_use]
    pub fn multiplier(self, parameter: f32) -> f32 {
        if self.parameter_is_divisor() { 1.0 / parameter } else { parameter }
    }
}

/// Smallest divisor, 2^-119: 448 divided by it is finite.
const MIN_DIVISOR: f32 = f32::from_bits((127 - 119) << 23);

/// A recipe with the parameter of a tensor, which all its blocks share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nvfp4Tensor {
    recipe: Nvfp4Recipe,
    /// The constant with which a block's scale is computed from its maximum: `p`, for
    /// TransformerEngine `p * (1/6)`, for ModelOpt `6 * p`.
    scale: f32,
    /// The constant with which the operand of elements is computed from a scale: `p`, or `1 / p`.
    element: f32,
}

impl Nvfp4Tensor {
    /// The recipe for a parameter that it [accepts](Nvfp4Recipe::accepts).
    #[inline(always)]
    #[must_use]
    pub fn new(recipe: Nvfp4Recipe, parameter: f32) -> Self {
        let (scale, element) = match recipe {
            Nvfp4Recipe::TorchAo => (parameter, 1.0 / parameter),
            Nvfp4Recipe::TransformerEngine => (parameter * (1.0 / e2m1::MAX), 1.0 / parameter),
            Nvfp4Recipe::ModelOpt => (e2m1::MAX * parameter, parameter),
            Nvfp4Recipe::CompressedTensors => (parameter, parameter),
        };
        Self { recipe, scale, element }
    }

    /// The two constants that follow from the parameter.
    #[inline(always)]
    #[must_use]
    pub fn numbers(&self) -> [f32; 2] {
        [self.scale, self.element]
    }

    /// The same from its [`numbers`](Self::numbers), which a kernel may keep instead of computing
    /// them again.
    #[inline(always)]
    #[must_use]
    pub fn from_numbers(recipe: Nvfp4Recipe, [scale, element]: [f32; 2]) -> Self {
        Self { recipe, scale, element }
    }

    /// The scale of a block with the largest magnitude `amax`; for NaN, the NaN code.
    #[inline(always)]
    #[must_use]
    pub fn block<C: Convert>(&self, amax: f32) -> BlockScale {
        match self.recipe {
            Nvfp4Recipe::TorchAo => {
                let wanted = C::quotient(C::quotient(amax, e2m1::MAX), self.scale);
                let byte = C::e4m3(wanted.clamp(e4m3::MIN_NORMAL, e4m3::MAX));
                let operand = C::quotient(self.element, C::e4m3_value(byte));
                BlockScale { byte, rule: Rule::Multiply, operand }
            }
            Nvfp4Recipe::TransformerEngine => {
                // The conversion saturates, which is the same as the recipe's minimum with 448.
                let byte = C::e4m3(amax * self.scale);
                let operand = (1.0 / (C::e4m3_value(byte) * self.element)).min(f32::MAX);
                BlockScale { byte, rule: Rule::MultiplyUnsignedZero, operand }
            }
            Nvfp4Recipe::ModelOpt => {
                let wanted = C::quotient(amax, self.scale);
                let wanted = if wanted == 0.0 { 1.0 } else { wanted };
                let byte = C::e4m3(wanted.clamp(e4m3::MIN_SUBNORMAL, e4m3::MAX));
                let operand = C::e4m3_value(byte) * self.element;
                BlockScale { byte, rule: Rule::DivideUnsignedZero, operand }
            }
            Nvfp4Recipe::CompressedTensors => {
                let byte = C::e4m3(self.scale * C::quotient(amax, e2m1::MAX));
                let byte = if byte == 0 { EIGHTH } else { byte };
                let operand = C::quotient(C::e4m3_value(byte), self.element);
                BlockScale { byte, rule: Rule::DivideUnsignedZero, operand }
            }
        }
    }
}

/// e4m3 code of 0.125, the epsilon of the type, which compressed-tensors stores for 0.
const EIGHTH: u8 = 0x20;

#[cfg(test)]
mod tests {
    use super::super::Software;
    use super::*;

    #[test]
    fn zero_blocks() {
        let bytes = [0x08, 0x00, 0x38, 0x20];
        for (recipe, byte) in Nvfp4Recipe::ALL.into_iter().zip(bytes) {
            let tensor = Nvfp4Tensor::new(recipe, recipe.tensor_parameter(100.0));
            let block = tensor.block::<Software>(0.0);
            assert_eq!(block.byte, byte, "{recipe:?}");
            assert_eq!(block.codes::<Software>([0.0; 8]), 0, "{recipe:?}");
            let negative = if recipe == Nvfp4Recipe::TorchAo { 0x8888_8888 } else { 0 };
            assert_eq!(block.codes::<Software>([-0.0; 8]), negative, "{recipe:?}");
        }
    }

    /// Operands are finite for the smallest and largest parameters and maxima.
    #[test]
    fn nothing_is_nan_at_the_edges() {
        let maxima = [0.0, f32::from_bits(1), 1e-40, f32::MIN_POSITIVE, 1.0, f32::MAX];
        for recipe in Nvfp4Recipe::ALL {
            for amax in maxima {
                let parameter = recipe.tensor_parameter(amax);
                assert!(recipe.accepts(parameter), "{recipe:?}, tensor maximum {amax:e}");
                assert!(recipe.accepts(recipe.multiplier(parameter)) || parameter > 1e38);
                for block in maxima {
                    let scale = Nvfp4Tensor::new(recipe, parameter).block::<Software>(block);
                    let what = format_args!("{recipe:?}, {amax:e}, {block:e}: {scale:?}");
                    assert!(e4m3::is_unsigned_finite(scale.byte), "{what}");
                    assert!(scale.operand.is_finite(), "{what}");
                    assert!(
                        scale.rule != Rule::DivideUnsignedZero || scale.operand > 0.0,
                        "{what}"
                    );
                }
            }
        }
    }

    #[test]
    fn names_and_codes_go_both_ways() {
        for recipe in Nvfp4Recipe::ALL {
            assert_eq!(Nvfp4Recipe::from_name(recipe.name()), Some(recipe));
            assert_eq!(Nvfp4Recipe::from_code(recipe as u32), recipe);
        }
        assert_eq!(Nvfp4Recipe::from_name("TorchAo"), None);
    }
}
