//! The parameter block of the sm_90a kernels.

use super::Sm90Config;
use crate::gemm::{Epilogue, GroupedParams, Problem, Schedule, Walk};
use crate::params::blocks;
use crate::tensor_map::{MapElement, TensorMap, TensorMapShape};
use crate::{Operand, Swizzle};

/// Parameter block of every sm_90a GEMM kernel, passed by value. Pointers are device
/// addresses.
///
/// | field | shape | layout |
/// |---|---|---|
/// | `activations` | tensor map | [`activations_map`] |
/// | `partials` | one place per CTA | the partial sums that it sends, [`Sm90Config::partial_bytes`](super::Sm90Config::partial_bytes); all 0 before and after a launch if [they are marked](super::Sm90Config::marks_partials) |
/// | `flags` | one word per CTA | not 0 once the CTA's partial sums are there; all 0 before and after a launch |
/// | `weights` | `L` or 1 matrices | [`WeightLayout`](crate::gemm::fragments::WeightLayout), at distances of `weight_stride` bytes (0: shared), 128-byte aligned |
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Sm90Params {
    /// Tensor map of the activations.
    pub activations: TensorMap,
    /// Repacked weights.
    pub weights: u64,
    /// Bytes from one batch entry's weights to the next.
    pub weight_stride: u64,
    /// Address of partial sums of tiles that several CTAs compute; 0 if each computes whole tiles.
    pub partials: u64,
    /// One flag per CTA: whether its partial sums are there.
    pub flags: u64,
    /// The epilogue.
    pub epilogue: Epilogue,
    /// Sizes.
    pub problem: Problem,
    /// The assignment of K steps and tiles to CTAs.
    pub schedule: Schedule,
    /// Distance of the row factors, which are the tokens' scales in e4m3, from one batch entry's to
    /// the next's; 0 for factors that all share. For other types, which always share them, 0.
    pub row_factor_stride: u32,
    /// 1 if [results are stored from registers](Sm90Config::stores_from_registers).
    pub from_registers: u32,
    /// 1 if the epilogue [is plain](Epilogue::is_plain).
    pub plain: u32,
    /// 1, from which kernels make the powers of two that they multiply by: see
    /// [`HalfType::multipliers`](crate::HalfType::multipliers).
    pub one: u32,
    /// The numbering of tiles: that of [`Sm90Config::tiles`].
    pub walk: Walk,
}

/// Parameter block of the sm_90a kernels of grouped products, passed by value. Only the K steps of a tile count in the schedule,
/// and the walk is arbitrary.
pub type Sm90GroupedParams = GroupedParams<Sm90Params>;

/// Makes the map of `[L, M, K]` activations, matrices at distances of `stride` bytes; 0 if all are
/// one. One copy brings a box: a row of the swizzle of a CTA's part of the tokens.
#[must_use]
pub const fn activations_map(
    config: &Sm90Config,
    problem: &Problem,
    stride: u64,
) -> TensorMapShape {
    let Problem { m, k, l, .. } = *problem;
    let element = match config.scheme.operand {
        Operand::Half(_) => MapElement::U16,
        Operand::E4m3 => MapElement::U8,
    };
    TensorMapShape {
        element,
        rank: 3,
        dims: [k as u64, m as u64, l as u64, 1, 1],
        strides: [config.scheme.operand.bytes() as u64 * k as u64, stride, 0, 0],
        box_dims: [config.box_columns(), config.box_tokens(), 1, 1, 1],
        swizzle: Swizzle::B128,
    }
}

blocks! {
    Sm90Params {
        activations, weights, weight_stride, partials, flags, epilogue, problem, schedule, row_factor_stride,
        from_registers, plain, one, walk
    }
    Sm90GroupedParams { gemm, groups }
}
