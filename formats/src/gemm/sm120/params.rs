//! The parameter block of the sm_120f kernels.

use crate::gemm::GroupedParams;
use crate::gemm::fragments::params::{WarpParams, warp_blocks};

/// Parameter block of every sm_120f GEMM kernel. Activations are codes, two of e2m1 to a byte, or one of e4m3; rows begin at
/// multiples of 16 bytes, those of e2m1 of 8 where K is an odd multiple of 16.
pub type Sm120Params = WarpParams<Sm120Own>;

/// Parameter block of the sm_120f kernels of grouped products, passed by value. Only the K steps of a tile count in
/// the schedule, and the walk is arbitrary.
pub type Sm120GroupedParams = GroupedParams<Sm120Params>;

/// The parameters that kernels of block-scaled products alone take: the scales of activations in blocks, a byte each.
/// Activations in e4m3 have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Sm120Own {
    /// Address of the scales.
    pub scales: u64,
    /// Bytes from one batch entry's scales to the next.
    pub scale_stride: u64,
    /// 1 if the scales are in the 128x4 layout, 0 if they are linear.
    pub blocked: u32,
    /// 1 if four scales of a row, from a multiple of four on, are at a multiple of four bytes.
    pub whole_words: u32,
}

warp_blocks!(
    Sm120Params,
    Sm120GroupedParams,
    Sm120Own { scales, scale_stride, blocked, whole_words }
);
