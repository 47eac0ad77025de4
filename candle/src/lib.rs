//! NVFP4 and MXFP4 layers for [candle](candle_core): weights stay packed, four bits and a scale for each
//! block, and activations are f32, f16 or bf16, or made e4m3 before a product ([`Activations`]).
//!
//! | type | what |
//! | --- | --- |
//! | [`Engine`] | what computes: the reference on the CPU, the emulator, or with the feature `cuda` a GPU |
//! | [`Linear`] | `y = x W^T + b`, a `CustomOp1`; writes an existing `y` as an `InplaceOp2` |
//! | [`MoeLinear`] | the same with the matrix of each token's experts, a `CustomOp2` of tokens and ids |
//! | [`PackedBuilder`] | layers of a checkpoint in the layouts of ModelOpt, compressed-tensors, TorchAO and gpt-oss |
//! | [`models`] | whole decoders, Llama's kind, that generate text (feature `models`) |
//!
//! ```
//! use candle_core::{DType, Device, Module, Result, Tensor};
//! use nvfp4::tensor::Blocks;
//! use nvfp4::quantize::{TensorScale, quantize};
//! use nvfp4::{ScaleLayout, tensor::Dims};
//! use nvfp4_candle::{Engine, Linear};
//!
//! # fn main() -> Result<()> {
//! let values = vec![0.5; 24 * 64];
//! let dims = Dims::new(1, 24, 64).map_err(candle_core::Error::wrap)?;
//! let weight = quantize("w", &values, dims, TensorScale::FromAmax, ScaleLayout::Linear);
//! let weight = Blocks::Nvfp4(weight.map_err(candle_core::Error::wrap)?);
//! // On a GPU: `Engine::for_device(&Device::new_cuda(0)?, HalfType::Bf16)`.
//! let linear = Linear::new(&Engine::reference(), &weight, None)?;
//! let x = Tensor::ones((2, 5, 64), DType::F32, &Device::Cpu)?;
//! let y = linear.forward(&x.transpose(0, 1)?)?;
//! assert_eq!(y.dims(), [5, 2, 24]);
//! # Ok(())
//! # }
//! ```
//!
//! # In mistral.rs
//! Its newest crate, `mistralrs-quant` 0.8.1, is for candle 0.10, whose tensors are other types than those of candle 0.11.
//! The crate `candle/mistralrs` of the repository compiles these sources with candle 0.10 and makes [`Linear`] and [`MoeLinear`]
//! its `QuantMethod`s: `forward(a)`, and `gather_forward(a, indices)` as [`MoeLinear::gather_forward`], where `a` is
//! `[tokens, 1, K]` for the projections up and `[tokens, top-k, K]` for those down, and `indices` is `[tokens, top-k]`.
//!
//! # On a GPU
//! Work is queued on the stream of candle's device. `Device::new_cuda` uses each thread's own default
//! stream, so that workspaces and plans with memory are kept for each thread. Launches on a stream that is
//! being recorded into a graph are refused, because nothing would keep the memory that the graph uses;
//! `Engine::for_recorded_device` is the unsafe way to have them recorded.

mod builder;
#[cfg(feature = "cuda")]
mod cuda;
mod engine;
mod error;
#[cfg(feature = "models")]
mod graph;
mod linear;
mod memory;
mod mixture;
#[cfg(feature = "models")]
pub mod models;
mod moe;
#[cfg(feature = "cuda")]
mod results;
mod strided;
mod weights;

pub use builder::PackedBuilder;
pub use engine::{Activations, Engine};
pub use linear::Linear;
pub use mixture::MoeMlp;
pub use moe::MoeLinear;
pub use weights::{Gate, GateOrder};
