//! The parameter block of the sm_120f kernels.

use crate::gemm::{Epilogue, GroupedParams, Problem, Schedule, Walk};
use crate::params::blocks;

/// Parameter block of every sm_120f GEMM kernel, passed by value. Pointers are device addresses.
///
/// | field | shape | layout |
/// |---|---|---|
/// | `activations` | `L` or 1 matrices of `[M, K]` codes, two of e2m1 to a byte, or one of e4m3 | at distances of `activation_stride` bytes (0: shared); rows begin at multiples of 16 bytes, those of e2m1 of 8 where K is an odd multiple of 16 |
/// | `scales` | the scales of blocks of e2m1, a byte each | linear, or 128x4 if `blocked`; at distances of `scale_stride` bytes |
/// | `weights` | `L` or 1 matrices | [`WeightLayout`](crate::gemm::fragments::WeightLayout), at distances of `weight_stride` bytes (0: shared), 128-byte aligned |
/// | `partials` | one place per CTA | the partial sums that it sends, [`Sm120Config::partial_bytes`](super::Sm120Config::partial_bytes) |
/// | `flags` | one word per CTA | not 0 once the CTA's partial sums are there; all 0 before and after a launch |
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Sm120Params {
    /// Codes of the activations.
    pub activations: u64,
    /// Bytes from one batch entry's codes to the next.
    pub activation_stride: u64,
    /// Scales of the activations.
    pub scales: u64,
    /// Bytes from one batch entry's scales to the next.
    pub scale_stride: u64,
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
    /// 1 if the epilogue [is plain](Epilogue::is_plain).
    pub plain: u32,
    /// 1 if the scales are in the 128x4 layout.
    pub blocked: u32,
    /// 1 if four scales of a row, from a multiple of four on, are at a multiple of four bytes.
    pub whole_words: u32,
    /// Scales from one batch entry's tokens to the next's, of activations in e4m3: they are in the place of row
    /// factors; 0 if entries share them.
    pub row_factor_stride: u32,
    /// The numbering of tiles: that of [`Sm120Config::tiles`](super::Sm120Config::tiles).
    pub walk: Walk,
}

/// Parameter block of the sm_120f kernels of grouped products, passed by value. Only the K steps of a tile count in
/// the schedule, and the walk is arbitrary.
pub type Sm120GroupedParams = GroupedParams<Sm120Params>;

blocks! {
    Sm120Params {
        activations, activation_stride, scales, scale_stride, weights, weight_stride, partials, flags, epilogue,
        problem, schedule, plain, blocked, whole_words, row_factor_stride, walk
    }
    Sm120GroupedParams { gemm, groups }
}
