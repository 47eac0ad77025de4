//! Block-scaled 4-bit floating point (NVFP4, MXFP4) for LLM inference, on Hopper and Blackwell
//! GPUs or on an emulator of them.
//!
//! The same call runs the same PTX on a GPU through the CUDA driver or, where there is no GPU, on
//! the emulator. [`device::Device::open`] chooses one and gives the reason. A missing driver is a
//! typed result, never a panic.
//!
//! | module | topic |
//! | --- | --- |
//! | [`tensor`] | block-scaled matrices in host memory, checked at construction |
//! | [`quantize`], [`dequantize`] | to and from NVFP4 and MXFP4, each project's bytes by name, on the CPU and on a device |
//! | [`device`], [`buffer`] | what runs kernels, and its memory |
//! | [`kernels`], [`modules`] | where the compiled kernels are, and how they are loaded |
//! | [`gemv`] | batched matrix-vector products: plans, launches, and a layer of a checkpoint as a GEMV |
//! | [`gemm`] | matrix products with block-scaled weights: plans and launches |
//! | [`tune`] | measured choices of GEMM kernels |
//! | [`oracle`] | the f64 reference and the tolerance |
//! | [`mod@bench`] | one verified run of a shape, with times or counters |
//! | [`shape`], [`generate`], [`rng`] | shape strings, test inputs from a seed |
//! | [`checkpoint`] | safetensors files, whole models, and four projects' layouts of quantised weights |
//! | [`operands`] | operands of a GEMV or a GEMM in a safetensors file |
//! | [`floats`] | floats of several types as bytes |
//! | [`doctor`] | the driver, GPUs and kernels of this machine, and which of them will be used |
//! | [`cuda`] | the CUDA backend |
//! | [`error`] | the error types |
//!
//! # Example
//! Without a GPU, this runs on the emulator. The kernels are in the program, unless a folder is
//! named: see [`kernels::KernelFiles::find`].
//! ```
//! use nvfp4::ScaleLayout;
//! use nvfp4::device::{Device, DeviceRequest};
//! use nvfp4::gemv::{GemvOptions, gemv};
//! use nvfp4::quantize::{TensorScale, quantize};
//! use nvfp4::tensor::Dims;
//!
//! # fn main() -> nvfp4::error::Result<()> {
//! let device = Device::open(&DeviceRequest::Auto)?;
//! println!("{}", device.choice());
//! let kernels = device.kernels(None)?;
//!
//! let (scale, layout) = (TensorScale::FromAmax, ScaleLayout::Linear);
//! let weight = quantize("w", &[0.5; 64 * 256], Dims::new(1, 64, 256)?, scale, layout)?;
//! let input = quantize("x", &[1.0; 256], Dims::new(1, 1, 256)?, scale, layout)?;
//! let result = gemv(&kernels, &input, &weight, GemvOptions::default())?;
//! println!("{}", result.plan);
//! assert_eq!(result.values().len(), 64);
//! assert!(result.values().iter().all(|c| (c - 128.0).abs() < 0.25));
//! # Ok(())
//! # }
//! ```

pub mod bench;
pub mod buffer;
pub mod capture;
pub mod checkpoint;
pub mod dequantize;
pub mod device;
pub mod doctor;
pub mod error;
pub mod floats;
pub mod gemm;
pub mod gemv;
pub mod generate;
pub mod kernels;
pub mod modules;
pub mod moe;
pub mod operands;
pub mod oracle;
pub mod quantize;
pub mod rng;
pub mod shape;
pub mod tensor;
pub mod tune;

pub use nvfp4_cuda as cuda;

/// The contract crate, of which a dependent needs no entry of its own in its manifest.
pub use fp4_formats as formats;
/// The emulator.
pub use ptx_emu as emulator;

// What signatures of this crate are made of.
pub use error::{Error, ErrorKind, Result};
pub use fp4_formats::gemm::Split;
pub use fp4_formats::gemm::combine::Activation;
pub use fp4_formats::quantize::{Format, Recipe};
pub use fp4_formats::recipe::{AdaptiveRecipe, Mxfp4Recipe, Nvfp4Recipe};
pub use fp4_formats::{
    Arch, BlockFormat, Family, FloatType, HalfType, Mxfp4, Nvfp4, ScaleLayout, TensorFamily,
};
pub use ptx_emu::{Gpu, LaunchReport, Schedule};

/// What may be sent to other threads, and what may be shared with them.
const _: () = {
    const fn send<T: Send>() {}
    const fn sync<T: Sync>() {}
    send::<device::Device>();
    sync::<device::Device>();
    send::<device::Kernels>();
    sync::<device::Kernels>();
    send::<buffer::DeviceBuffer>();
    sync::<buffer::DeviceBuffer>();
    send::<gemm::DeviceWeights>();
    sync::<gemm::DeviceWeights>();
    send::<gemm::Gemm>();
    sync::<gemm::Gemm>();
    send::<gemm::GemmPlan>();
    sync::<gemm::GemmPlan>();
    send::<gemv::Gemv>();
    sync::<gemv::Gemv>();
    send::<gemv::GemvRun>();
    send::<quantize::device::Quantizer>();
    sync::<quantize::device::Quantizer>();
    send::<dequantize::Dequantizer>();
    sync::<dequantize::Dequantizer>();
    send::<gemm::Workspace>();
    send::<moe::MoeLayer>();
    send::<moe::MoeMemory>();
};

/// A workspace belongs to one thread at a time.
///
/// ```compile_fail
/// fn sync<T: Sync>() {}
/// sync::<nvfp4::gemm::Workspace>();
/// ```
#[cfg(doctest)]
struct WorkspacesAreNotShared;

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
