//! The parameter block of the sm_80 kernels.

use crate::gemm::GroupedParams;
use crate::gemm::fragments::params::{WarpParams, warp_blocks};

/// Parameter block of every sm_80 GEMM kernel. Activations are 16-bit floats, whose rows begin at multiples of 16 bytes.
/// Activations in e4m3 are decoded to bf16 before.
pub type Sm80Params = WarpParams<Sm80Own>;

/// Parameter block of the sm_80 kernels of grouped products, passed by value. Only the K steps of a tile count in the schedule,
/// and the walk is arbitrary.
pub type Sm80GroupedParams = GroupedParams<Sm80Params>;

/// The parameters that sm_80's kernels alone take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Sm80Own {
    /// 1, from which kernels make the powers of two that they multiply by: see
    /// [`HalfType::multipliers`](crate::HalfType::multipliers).
    pub one: u32,
    /// 0.
    pub reserved: u32,
}

warp_blocks!(Sm80Params, Sm80GroupedParams, Sm80Own { one, reserved });
