//! GEMM with block-scaled 4-bit weights on a device.
//!
//! `C[l, m, n] = alpha * ga * gb * row[m] * column[n] * sum_k A[l, m, k] B[l, n, k] + bias[n]`, for any
//! M, N and L of at least 1 and K a multiple of the block. The weights `B` are NVFP4 or MXFP4; the
//! activations `A` are in the same format (W4A4), or f16 or bf16 (W4A16; MXFP4 weights take bf16), or
//! e4m3 with a scale for each token (W4A8; weights of NVFP4 are folded to e4m3, which rounds them, and on
//! sm_90a those of MXFP4, too; on sm_80 all, and on sm_120f those of NVFP4, are multiplied exactly by activations that
//! are decoded to bf16).
//! The result is f16, bf16, f32, or NVFP4 with scales ([`Output`]).
//!
//! With [`GemmOptions::activation`] the result is `act(C)`. Gated ([`GatedWeights`],
//! [`GemmOptions::up`]), it is `act(C_gate) * C_up`, each with its own alpha, column factors and
//! bias, from one pass over the activations.
//!
//! | step | type |
//! | --- | --- |
//! | once per weight | [`Repacked`], [`DeviceWeights`]: rearranged for the kernels, on the device |
//! | once per shape | [`Gemm`]: checked and planned ([`plan_for`]: with what was measured, if anything was); knows its workspace, and where the matrices of a batch are ([`BatchStrides`]) |
//! | or once per set of products | [`MixedGemm`]: several products of any sizes in one launch, on buffers that it remembers |
//! | once per product | [`Gemm::launch`]: on buffers of the caller, allocates nothing and waits for nothing |
//!
//! [`gemm`] and [`gemm_gated`] do all three.
//!
//! # Example
//! On a machine without a GPU, this runs on the emulator. `None` in place of the folder looks
//! beside the program.
//! ```
//! use std::path::Path;
//!
//! use fp4_formats::ScaleLayout;
//! use nvfp4::device::{Device, DeviceRequest};
//! use nvfp4::gemm::{Activations, GemmOptions, gemm};
//! use nvfp4::quantize::{TensorScale, quantize};
//! use nvfp4::tensor::Dims;
//!
//! # fn main() -> nvfp4::error::Result<()> {
//! let device = Device::open(&DeviceRequest::Auto)?;
//! // Where `cargo xtask build-kernels` puts them.
//! let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
//! let (scale, layout) = (TensorScale::FromAmax, ScaleLayout::Linear);
//! let weight = quantize("w", &[0.5; 64 * 256], Dims::new(1, 64, 256)?, scale, layout)?;
//! let input = quantize("x", &[1.0; 3 * 256], Dims::new(1, 3, 256)?, scale, layout)?;
//! let options = GemmOptions::new().bias(vec![2.0; 64]);
//! let result = gemm(&kernels, &Activations::Blocks(&input), &weight, &options)?;
//! println!("{}", result.plan);
//! assert_eq!(result.values().len(), 3 * 64);
//! assert!(result.values().iter().all(|c| (c - 130.0).abs() < 0.25));
//! # Ok(())
//! # }
//! ```

mod activations;
mod buffers;
mod candidate;
mod check;
mod decoded;
pub(crate) mod described;
mod epilogue;
mod families;
mod family;
mod form;
mod fp8;
mod fragments;
mod gated;
mod grouped;
mod grouped_run;
mod groups;
mod mixed;
mod options;
mod output;
mod parts;
mod plan;
mod product;
mod remembered;
mod residual;
mod result;
mod run;
mod sm100;
mod sm120;
mod sm80;
mod sm90;
mod strides;
mod tokens;
mod tuned;
mod weights;

pub use activations::{Activations, Fp8Matrix, GemmActivations, HalfMatrix, RowScaled};
pub use buffers::{ActivationBuffers, Workspace};
pub use candidate::{Candidate, Reads};
pub use check::{check_gated, check_operands};
pub use epilogue::{
    Residual, Vectors, check_residual, check_vectors, group_options, scale_options,
};
pub use form::{WeightForm, folded_row, format_of};
pub use fp4_formats::gemm::{Activation, Adding};
pub use gated::{GatedWeights, Weights};
pub use grouped::{GroupBuffers, SettledCounts, group_offsets};
pub use grouped_run::GroupedRun;
pub use groups::{ChosenRows, Grouping};
pub use mixed::{MixedGemm, MixedProduct};
pub use options::{GemmOptions, GemmOverrides, UpOptions};
pub use output::Output;
pub use plan::{GemmPlan, Source, plan};
pub use product::Gemm;
pub use residual::ResidualValues;
pub use result::{GemmResult, ResultBuffers};
pub use run::{GemmRun, gemm, gemm_gated};
pub(crate) use sm100::{VectorOperands, VectorProduct, rates};
pub use strides::BatchStrides;
pub(crate) use tokens::TokenBuffers;
pub use tuned::{check_table, plan_for};
pub use weights::{DeviceWeights, Repacked};

pub use crate::plan::{ActivationInput, ActivationKind};
