//! The quantisers of other projects for NVFP4 and MXFP4, bit for bit. The CPU reference and the
//! kernels compile the same code.
//!
//! A recipe consists of two functions. The first computes a block's scale from the block's
//! largest magnitude ([`Nvfp4Tensor::block`], [`Mxfp4Recipe::block`]) or from all its elements
//! ([`AdaptiveTensor::block`]), the second the codes of eight elements from the scale
//! ([`BlockScale::codes`]). All arithmetic is f32. Each operation
//! rounds to nearest even, in exactly the written order, without fused multiply-adds and without
//! reciprocals in place of divisions. Conversions and quotients, for which architectures have
//! different instructions, are in [`Convert`], whose implementations agree with [`Software`] in
//! every bit.
//!
//! | recipe | project, version | function that it reproduces |
//! | --- | --- | --- |
//! | [`Nvfp4Recipe::TorchAo`] | torchao 0.18.0 and main at 36027d82 | `nvfp4_quantize` |
//! | [`Nvfp4Recipe::TransformerEngine`] | TransformerEngine at d0067d0d | `NVFP4QuantizerRef`, 1 x 16 |
//! | [`Nvfp4Recipe::ModelOpt`] | nvidia-modelopt 0.47.0 | `NVFP4QTensor.quantize` |
//! | [`Nvfp4Recipe::CompressedTensors`] | compressed-tensors 0.20.0 | `NVFP4PackedCompressor` |
//! | [`AdaptiveRecipe::TransformerEngine`] and three more | transformer-engine 2.20.2 | `NVFP4QuantizerRef`, 1 x 16, `nvfp4_use_4over6` |
//! | [`AdaptiveRecipe::ModelOpt`] | nvidia-modelopt 0.47.0 | `NVFP4_FOUR_OVER_SIX_CFG`, then `NVFP4QTensor.quantize` |
//! | [`Mxfp4Recipe::Floor`] and three more | torchao main at 36027d82 | `to_mx` |
//! | [`Mxfp4Recipe::Floor018`] and three more | torchao 0.18.0 | `to_mx` |
//! | [`Mxfp4Recipe::ModelOpt`] | nvidia-modelopt 0.47.0 | `MXFP4QTensor.quantize` |
//! | [`Mxfp4Recipe::CompressedTensors`] | compressed-tensors 0.20.0 | `MXFP4PackedCompressor` |
//!
//! Elements of f16 and bf16 are converted to f32 first, which is exact. For a project that
//! computes in the input's type (compressed-tensors does, from the maximum to the quotient), the
//! bytes are equal for f32 input only.
//!
//! For input that is not finite, the projects are inconsistent, and there is no code for it.
//! Callers report it ([`crate::quantize::NO_ERROR`]), and the codes of such a block are not
//! specified. The scale byte of a block with an infinite or NaN maximum is that of the project.

/// An expression for each index. In kernels the arrays must stay in registers. A loop over one array guarantees that; iterators over
/// several arrays do not, nor do closures, which the compiler may make functions of their own.
macro_rules! groups {
    ($i:ident => $group:expr) => {{
        let mut values = [[0.0; 8]; GROUPS];
        for ($i, values) in values.iter_mut().enumerate() {
            *values = $group;
        }
        values
    }};
}

mod adaptive;
mod mxfp4;
mod nvfp4;
mod reciprocal;

pub use adaptive::{AdaptiveRecipe, AdaptiveTensor, Candidate};
pub use mxfp4::{Mxfp4Recipe, Mxfp4Steps};
pub use nvfp4::{MIN_MODELOPT_PARAMETER, MIN_TORCHAO_PARAMETER, Nvfp4Recipe, Nvfp4Tensor};
pub use reciprocal::Reciprocal;

use crate::{e2m1, e4m3, pack};

/// The operations for which architectures have different instructions.
///
/// Every implementation gives the same codes as [`Software`] for all inputs that are not NaN.
pub trait Convert {
    /// The same as [`e4m3::encode`].
    fn e4m3(value: f32) -> u8;

    /// The same as [`e4m3::decode`].
    fn e4m3_value(code: u8) -> f32;

    /// `a / b`, rounded to nearest even; `b` is not zero.
    #[inline(always)]
    fn quotient(a: f32, b: f32) -> f32 {
        a / b
    }

    /// The form in which [`round`](Self::round) takes these numbers: unchanged, or each multiplied
    /// by the same constant.
    #[inline(always)]
    fn prepare(values: [f32; 8]) -> [f32; 8] {
        values
    }

    /// The codes, as of [`e2m1::encode`], of [prepared](Self::prepare) numbers; element `i` in
    /// bits `4 i ..`.
    fn round(prepared: [f32; 8]) -> u32;

    /// The prepared products with `factor`, which is positive and finite. With `unsigned_zero`, a
    /// product that is zero becomes +0.
    #[inline(always)]
    fn products(values: [f32; 8], factor: f32, unsigned_zero: bool) -> [f32; 8] {
        // Adding zero changes -0 to +0 and nothing else.
        Self::prepare(if unsigned_zero {
            each(values, |x| x * factor + 0.0)
        } else {
            each(values, |x| x * factor)
        })
    }

    /// Whether [`products`](Self::products) with `factor`, which is positive and finite, and with
    /// `unsigned_zero` are exact for all elements.
    #[inline(always)]
    fn multiplies(factor: f32) -> bool {
        let _ = factor;
        true
    }

    /// The codes of the products with `factor`, a positive power of two. A zero keeps its sign.
    #[inline(always)]
    fn scaled(values: [f32; 8], factor: f32) -> u32 {
        Self::round(Self::products(values, factor, false))
    }

    /// Whether [`quotients`](Self::quotients) by `divisor`, which is positive and finite,
    /// are exact for all elements of a block of largest magnitude `amax`.
    #[inline(always)]
    fn divides(divisor: f32, amax: f32) -> bool {
        let _ = (divisor, amax);
        true
    }

    /// The prepared quotients by `divisor`, of a block for which [`divides`](Self::divides) is
    /// true. A quotient that is zero becomes +0.
    #[inline(always)]
    fn quotients(values: [f32; 8], divisor: f32) -> [f32; 8] {
        Self::prepare(each(values, |x| x / divisor + 0.0))
    }
}

/// The reference implementation of [`Convert`].
#[derive(Clone, Copy, Debug)]
pub struct Software;

impl Convert for Software {
    fn e4m3(value: f32) -> u8 {
        e4m3::encode(value)
    }

    fn e4m3_value(code: u8) -> f32 {
        e4m3::decode(code)
    }

    fn round(values: [f32; 8]) -> u32 {
        pack::eight(values.map(e2m1::encode))
    }
}

/// The operation on an element before it is rounded to e2m1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Multiply; the sign is kept, even of a zero.
    Multiply,
    /// Multiply by a power of two; the sign is kept, even of a zero.
    Scale,
    /// Multiply; a product that is zero is stored as +0.
    MultiplyUnsignedZero,
    /// Divide; a quotient that is zero is stored as +0.
    DivideUnsignedZero,
    /// Multiply; ties round to the smaller magnitude; a product that is zero is stored as -0.
    MultiplyTiesDown,
}

/// The scale of a block, and the operation on its elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockScale {
    /// The scale's code: e4m3 or ue8m0.
    pub byte: u8,
    rule: Rule,
    operand: f32,
}

impl BlockScale {
    /// The scale 0, with which all codes are 0.
    pub const ZERO: Self = Self { byte: 0, rule: Rule::MultiplyUnsignedZero, operand: 0.0 };

    /// The same scale, and the same codes by a `C` whose [`Convert::scaled`] is the one that the trait
    /// provides, where the rule is `Rule::Scale`: for code that quantises to either format and has
    /// one way to do so.
    #[inline(always)]
    #[must_use]
    pub const fn as_product(self) -> Self {
        match self.rule {
            Rule::Scale => Self { rule: Rule::Multiply, ..self },
            Rule::Multiply
            | Rule::MultiplyUnsignedZero
            | Rule::DivideUnsignedZero
            | Rule::MultiplyTiesDown => self,
        }
    }

    /// Whether [`codes`](Self::codes) by `C` are exact for all elements of the block, whose
    /// largest magnitude is `amax`.
    #[inline(always)]
    #[must_use]
    pub fn suits<C: Convert>(&self, amax: f32) -> bool {
        match self.rule {
            Rule::DivideUnsignedZero => C::divides(self.operand, amax),
            Rule::MultiplyUnsignedZero => C::multiplies(self.operand),
            Rule::Multiply | Rule::Scale | Rule::MultiplyTiesDown => true,
        }
    }

    /// The codes of eight elements of the block, element `i` in bits `4 i ..`.
    #[inline(always)]
    #[must_use]
    pub fn codes<C: Convert>(&self, values: [f32; 8]) -> u32 {
        self.group_codes::<C, 1>(|_| values)[0]
    }

    /// The codes of groups of eight elements of the block; the same as [`codes`](Self::codes) of
    /// each.
    #[inline(always)]
    #[must_use]
    pub fn group_codes<C: Convert, const GROUPS: usize>(
        &self,
        group: impl Fn(usize) -> [f32; 8],
    ) -> [u32; GROUPS] {
        let mut codes = [0; GROUPS];
        if matches!(self.rule, Rule::Scale) {
            for (i, codes) in codes.iter_mut().enumerate() {
                *codes = C::scaled(group(i), self.operand);
            }
        } else {
            let prepared: [_; GROUPS] = self.prepared::<C, GROUPS>(group);
            for (i, codes) in codes.iter_mut().enumerate() {
                *codes = C::round(prepared[i]);
            }
        }
        codes
    }

    /// The input of [`Convert::round`] for groups of eight elements. There is one branch for all
    /// groups, so that their arithmetic overlaps; the rounding is the same for all operations.
    #[inline(always)]
    #[must_use]
    pub fn prepared<C: Convert, const GROUPS: usize>(
        &self,
        group: impl Fn(usize) -> [f32; 8],
    ) -> [[f32; 8]; GROUPS] {
        let operand = self.operand;
        match self.rule {
            Rule::Multiply | Rule::Scale => groups!(i => C::products(group(i), operand, false)),
            Rule::MultiplyUnsignedZero => groups!(i => C::products(group(i), operand, true)),
            Rule::DivideUnsignedZero => groups!(i => C::quotients(group(i), operand)),
            Rule::MultiplyTiesDown => {
                groups!(i => C::prepare(each(group(i), |x| ties_down(x * operand))))
            }
        }
    }
}

/// `f` of every element. In kernels the array must stay in registers, which a loop over it
/// guarantees, unlike `map`.
#[inline(always)]
fn each(mut values: [f32; 8], f: impl Fn(f32) -> f32) -> [f32; 8] {
    for value in &mut values {
        *value = f(*value);
    }
    values
}

/// A value whose rounding to nearest even equals the rounding of `y` with ties to the smaller
/// magnitude; -0 if `y` is zero.
#[inline(always)]
fn ties_down(y: f32) -> f32 {
    let magnitude = y.abs();
    // Only these of the seven ties round up to an even code. There are no branches, because kernels
    // compute this for each element.
    let up = (magnitude == 0.75) | (magnitude == 1.75) | (magnitude == 3.5);
    let zero = u32::from(magnitude == 0.0) << 31;
    f32::from_bits((y.to_bits() - u32::from(up)) | zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_down_moves_the_ties_only() {
        for code in 0..7u8 {
            let middle = (e2m1::decode(code) + e2m1::decode(code + 1)) / 2.0;
            assert_eq!(e2m1::encode(ties_down(middle)), code, "tie above code {code}");
            assert_eq!(e2m1::encode(ties_down(-middle)), 8 | code, "tie below code -{code}");
            assert_eq!(e2m1::encode(ties_down(middle.next_up())), code + 1, "above {middle}");
            assert_eq!(e2m1::encode(ties_down(middle.next_down())), code, "below {middle}");
        }
        assert_eq!(e2m1::encode(ties_down(0.0)), 8);
        assert_eq!(e2m1::encode(ties_down(-0.0)), 8);
        assert_eq!(e2m1::encode(ties_down(0.1)), 0);
    }

    #[test]
    fn eight_codes_stand_in_order() {
        let values = [0.0, 0.5, 1.0, 1.5, -2.0, -3.0, -4.0, -6.0];
        assert_eq!(Software::round(values), 0xfedc_3210);
    }
}
