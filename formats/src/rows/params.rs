//! Parameter block, passed by value. Addresses are device addresses.

use crate::Divisor;
use crate::gemm::Combine;
use crate::params::blocks;
use crate::quantize::QuantizeParams;

#[cfg(doc)]
use super::{RowsConfig, RowsSink};
#[cfg(doc)]
use crate::moe::NOWHERE;
#[cfg(doc)]
use crate::quantize::ScaleSource;

/// The norm of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Norm {
    /// No norm.
    #[default]
    None = 0,
    /// Division by the root of the mean of squares.
    Rms = 1,
    /// Subtraction of the mean, then division by the root of the variance.
    Layer = 2,
}

/// A rotation of each 16 elements of a row ([`rotated`](super::arithmetic::rotated)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rotation {
    /// Elements that are negated before: bit `i` for element `i` of each 16.
    pub signs: u16,
}

impl Rotation {
    /// Set in the word of a rotation, so that 0 is none.
    const IS: u32 = 1 << 16;

    /// The value of [`RowsParams::rotation`].
    #[must_use]
    pub const fn word(rotation: Option<Self>) -> u32 {
        match rotation {
            Some(Self { signs }) => Self::IS | signs as u32,
            None => 0,
        }
    }
}

/// Parameter block of every kernel.
///
/// | field | shape | type |
/// |---|---|---|
/// | `quantize.input`, `quantize.up` | `[M, K]`, or for a gathered `input` as many rows as `index` names | the configuration's; 16-byte aligned |
/// | `residual_out` | `[M, K]` | the same |
/// | `weight`, `bias` | `[K]` | the same |
/// | `index` | `[M]` | u32 |
/// | `quantize.codes` | `[M, K/2]` bytes, `[M, K]` e4m3, or `[M, K]` of the configuration's type | 16-byte aligned |
/// | `multipliers` | `[M]` | f32 |
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct RowsParams {
    /// Input, shape, results and recipe. `up` is the factor of a gated input; otherwise the residual, or 0 for none.
    /// `source` is [`ScaleSource::Given`] or [`ScaleSource::RowAmax`]; `tensor`, `depth` and `element` are ignored.
    pub quantize: QuantizeParams,
    /// Sums of input and residual. It may be the residual's place. 0 where there is none.
    pub residual_out: u64,
    /// Numbers of the input's rows that the rows are made of, each times the [divisor](Self::index_divisor);
    /// [`NOWHERE`] makes a row of zeros. 0 for none: the input's rows in order. Not with a residual.
    pub index: u64,
    /// Weights of the norm; 0 without one.
    pub weight: u64,
    /// Addends behind the weights of [`Norm::Layer`]; 0 for none.
    pub bias: u64,
    /// Factors by which the rows' products are multiplied: the recipe's multiplier of the row's parameter, or
    /// the scale of a row of e4m3, which is always written; 0 if it is not.
    pub multipliers: u64,
    /// The divisor of [`index`](Self::index).
    pub index_divisor: Divisor,
    /// A [`Norm`].
    pub norm: u32,
    /// The addend of the mean of squares.
    pub epsilon: f32,
    /// The word of a [`Rotation`].
    pub rotation: u32,
    /// The activation of a gated input.
    pub combine: Combine,
}

impl RowsParams {
    /// The signs of the rotation, if there is one.
    #[inline(always)]
    #[must_use]
    pub const fn rotation(&self) -> Option<u32> {
        if self.rotation == 0 { None } else { Some(self.rotation) }
    }
}

blocks! {
    RowsParams {
        quantize, residual_out, index, weight, bias, multipliers, index_divisor, norm, epsilon, rotation, combine
    }
}
