//! NVFP4 and MXFP4 layers as quantised layers of mistral.rs, `mistralrs_quant::QuantMethod`s.
//!
//! | type | what |
//! | --- | --- |
//! | [`PackedLinear`] | [`Linear`] as `forward` |
//! | [`PackedExperts`] | [`MoeLinear`] as `gather_forward` |
//! | [`PackedBuilder`], [`Engine`], [`Gate`] | those of the crate `nvfp4-candle` |
//!
//! `mistralrs-quant` 0.8.1 is on candle 0.10, and `nvfp4-candle` on candle 0.11, whose tensors are other types. This crate
//! compiles the adapter's sources with candle 0.10, so that both have one kind of tensor.
//!
//! ```
//! use std::sync::Arc;
//!
//! use candle_core::{DType, Device, Result, Tensor};
//! use mistralrs_quant::QuantMethod;
//! use nvfp4::quantize::{TensorScale, quantize};
//! use nvfp4::tensor::{Blocks, Dims};
//! use nvfp4::ScaleLayout;
//! use nvfp4_mistralrs::{Engine, Linear, PackedLinear};
//!
//! # fn main() -> Result<()> {
//! let values = vec![0.5; 24 * 64];
//! let dims = Dims::new(1, 24, 64).map_err(candle_core::Error::wrap)?;
//! let weight = quantize("w", &values, dims, TensorScale::FromAmax, ScaleLayout::Linear);
//! let weight = Blocks::Nvfp4(weight.map_err(candle_core::Error::wrap)?);
//! let linear = Linear::new(&Engine::reference(), &weight, None)?;
//! let layer: Arc<dyn QuantMethod> = Arc::new(PackedLinear::new(linear));
//! let x = Tensor::ones((2, 5, 64), DType::F32, &Device::Cpu)?;
//! assert_eq!(layer.forward(&x)?.dims(), [2, 5, 24]);
//! # Ok(())
//! # }
//! ```

#[path = "../../src/builder.rs"]
mod builder;
#[cfg(feature = "cuda")]
#[path = "../../src/cuda.rs"]
mod cuda;
#[path = "../../src/engine.rs"]
mod engine;
#[path = "../../src/error.rs"]
mod error;
#[path = "../../src/linear.rs"]
mod linear;
#[path = "../../src/memory.rs"]
mod memory;
mod method;
#[path = "../../src/mixture.rs"]
mod mixture;
#[path = "../../src/moe.rs"]
mod moe;
#[cfg(feature = "cuda")]
#[path = "../../src/results.rs"]
mod results;
#[path = "../../src/strided.rs"]
mod strided;
#[path = "../../src/weights.rs"]
mod weights;

pub use builder::PackedBuilder;
pub use engine::{Activations, Engine};
pub use linear::Linear;
pub use method::{PackedExperts, PackedLinear};
pub use mixture::MoeMlp;
pub use moe::MoeLinear;
pub use weights::{Gate, GateOrder};
