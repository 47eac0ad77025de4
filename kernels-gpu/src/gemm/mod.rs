//! GEMM with block-scaled 4-bit weights, `C[m, n] = factors * sum_k A[m, k] B[n, k] + bias[n]`.
//!
//! One skeleton an architecture; what happens to a sum on its way to memory is shared.

pub mod blocks;
pub mod epilogue;

#[cfg(gpu_arch = "sm_100a")]
pub mod blackwell;
#[cfg(gpu_arch = "sm_90a")]
pub mod hopper;
