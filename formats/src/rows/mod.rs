//! Operations on rows, between the products of a layer: the contract of the kernels that read a matrix once, apply a
//! norm or a gated activation, rotate blocks, and write block-scaled, e4m3 or 16-bit elements.
//!
//! ```text
//! x                                     --+
//! RMSNorm or LayerNorm of x [+ residual] --+--> [rotation] --> NVFP4, MXFP4, e4m3 or 16 bits
//! act(gate) * up                        --+
//! ```
//!
//! Matrices are row-major and dense, `[M, K]`, of f16 or bf16. K is a multiple of [`CHUNK`] (of 32 for MXFP4) and at most
//! [`MAX_COLUMNS`]. A row of the input may be chosen by an index ([`RowsParams::index`]).
//!
//! # Arithmetic
//! f32, in the order of [`arithmetic`], which CPU and kernels share; no result depends on the number of rows, on the
//! other rows or on the launch. An f32 value is quantised: it is not rounded to 16 bits before.
//!
//! *Residual.* `x + residual` is rounded to the type of both before the norm, and the rounded sum is both the updated
//! residual and the input of the norm, as in vLLM's `fused_add_rms_norm` (`csrc/layernorm_kernels.cu`: the sum is a
//! 16-bit vector, whose squares are added). FlashInfer's `FusedAddRMSNormKernel` (`include/flashinfer/norm.cuh`) stores
//! the same residual, but its norm is of the f32 sum.
//!
//! *Norm.* vLLM rounds the normalised value to 16 bits before and after its product with the weight; FlashInfer rounds
//! once, behind the weight, as the 16-bit results here.
//!
//! *Values that are not finite.* The kernels for block-scaled results report the first of a row's values, after norm,
//! activation and rotation, that is not finite ([`QuantizeParams::errors`]). For e4m3 the token's scale and codes say it
//! ([`tokens`](crate::quantize::tokens)).

pub mod arithmetic;
mod config;
mod params;

pub use arithmetic::CHUNK;
pub use config::{ROWS, RowsConfig, RowsSink, RowsSource, rows_config};
pub use params::{Norm, Rotation, RowsParams};

#[cfg(doc)]
use crate::quantize::QuantizeParams;

/// Most columns of a matrix.
pub const MAX_COLUMNS: u32 = 1 << 16;
