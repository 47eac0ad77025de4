//! The parameter block of kernels whose warps multiply by `mma.sync` and all do the same.

use crate::gemm::{Epilogue, Problem, Schedule, Walk};

/// Parameter block of such a kernel, passed by value; `T` is what kernels for other tensor cores do not take. Pointers are
/// device addresses.
///
/// | field | shape | layout |
/// |---|---|---|
/// | `activations` | `L` or 1 matrices of `[M, K]` | at distances of `activation_stride` bytes (0: shared) |
/// | `weights` | `L` or 1 matrices | [`WeightLayout`](super::WeightLayout), at distances of `weight_stride` bytes (0: shared), 128-byte aligned |
/// | `partials` | one place per CTA | the partial sums that it sends, of the size that its configuration says |
/// | `flags` | one word per CTA | not 0 once the CTA's partial sums are there; all 0 before and after a launch |
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct WarpParams<T> {
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
    /// Row factors from one batch entry's tokens to the next's; 0 if they share them. Only kernels of dense and batched
    /// products look at it whose activations may be in e4m3: these have scales of tokens in the place of row factors.
    pub row_factor_stride: u32,
    /// 1 if the epilogue [is plain](Epilogue::is_plain).
    pub plain: u32,
    /// The parameters of these tensor cores alone.
    pub own: T,
    /// The numbering of tiles: that of the configuration.
    pub walk: Walk,
}

/// Makes blocks of the parameters of some tensor cores: of `$Own`, with its fields, of [`WarpParams`] with it, and of those
/// of grouped products.
macro_rules! warp_blocks {
    ($Params:ident, $Grouped:ident, $Own:ident { $($field:ident),* }) => {
        $crate::params::blocks! {
            $Own { $($field),* }
            $Params {
                activations, activation_stride, weights, weight_stride, partials, flags, epilogue, problem,
                schedule, row_factor_stride, plain, own, walk
            }
            $Grouped { gemm, groups }
        }
    };
}
pub(in crate::gemm) use warp_blocks;
