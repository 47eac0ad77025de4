//! GEMM with block-scaled 4-bit weights, `C[m, n] = factors * sum_k A[m, k] B[n, k] + bias[n]`.
//!
//! Each architecture has its own main loop. They share the context of a role ([`cta`]), the [walk] over
//! tiles, the [work list](work), the table of a grouped product's problems ([`groups`]), the table of
//! mixed products ([`mixed`]), the [fix-up](fix_up) of stream-K with its [`flags`], and the epilogue.

pub mod cta;
#[cfg(any(gpu_tensor = "mma_sync", gpu_tensor = "mma_sync_scaled", gpu_tensor = "wgmma"))]
pub mod decoded;
pub mod entries;
pub mod epilogue;
pub mod fix_up;
pub mod flags;
pub mod groups;
pub mod mixed;
#[cfg(any(gpu_tensor = "mma_sync", gpu_tensor = "mma_sync_scaled", gpu_tensor = "wgmma"))]
pub mod store;
pub mod walk;
#[cfg(any(gpu_tensor = "mma_sync", gpu_tensor = "mma_sync_scaled"))]
pub mod warps;
pub mod work;

#[cfg(gpu_tensor = "tcgen05")]
pub mod sm100;
#[cfg(gpu_tensor = "mma_sync_scaled")]
pub mod sm120;
#[cfg(any(gpu_tensor = "mma_sync", gpu_tensor = "mma_sync_scaled"))]
pub mod sm80;
#[cfg(gpu_tensor = "wgmma")]
pub mod sm90;
