//! GEMM with block-scaled 4-bit weights, `C[m, n] = factors * sum_k A[m, k] B[n, k] + bias[n]`.
//!
//! One skeleton an architecture; what happens to a sum on its way to memory is shared.

pub mod blocks;
pub mod epilogue;

#[cfg(gpu_tensor = "tcgen05")]
pub mod blackwell;
#[cfg(gpu_tensor = "wgmma")]
pub mod hopper;
