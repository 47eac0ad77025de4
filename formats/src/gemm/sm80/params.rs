//! The parameter block of the sm_80 kernels.

use crate::gemm::{Epilogue, GroupedParams, Problem, Schedule, Walk};
use crate::params::blocks;

/// Parameter block of every sm_80 GEMM kernel, passed by value. Pointers are device addresses.
///
/// | field | shape | layout |
/// |---|---|---|
/// | `activations` | `L` or 1 matrices of `[M, K]` 16-bit floats | at distances of `activation_stride` bytes (0: shared); rows begin at multiples of 16 bytes |
/// | `weights` | `L` or 1 matrices | [`WeightLayout`](crate::gemm::fragments::WeightLayout), at distances of `weight_stride` bytes (0: shared), 128-byte aligned |
/// | `partials` | one place per CTA | the partial sums that it sends, [`Sm80Config::partial_bytes`](super::Sm80Config::partial_bytes) |
/// | `flags` | one word per CTA | not 0 once the CTA's partial sums are there; all 0 before and after a launch |
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Sm80Params {
    /// Activations.
    pub activations: u64,
    /// Bytes from one batch entry's activations to the next.
    pub activation_stride: u64,
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
    /// Row factors from one batch entry's tokens to the next's; 0 if they share them. Kernels of bf16 activations have
    /// use for it: those in e4m3 are decoded to it, and have scales of tokens in the place of row factors.
    pub row_factor_stride: u32,
    /// 1 if the epilogue [is plain](Epilogue::is_plain).
    pub plain: u32,
    /// 1, from which kernels make the powers of two that they multiply by: see
    /// [`HalfType::multipliers`](crate::HalfType::multipliers).
    pub one: u32,
    /// 0.
    pub reserved: u32,
    /// The numbering of tiles: that of [`Sm80Config::tiles`](super::Sm80Config::tiles).
    pub walk: Walk,
}

/// Parameter block of the sm_80 kernels of grouped products, passed by value. Only the K steps of a tile count in the schedule,
/// and the walk is arbitrary.
pub type Sm80GroupedParams = GroupedParams<Sm80Params>;

blocks! {
    Sm80Params {
        activations, activation_stride, weights, weight_stride, partials, flags, epilogue, problem, schedule,
        row_factor_stride, plain, one, reserved, walk
    }
    Sm80GroupedParams { gemm, groups }
}
