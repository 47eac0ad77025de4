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
//! | [`rows`] | norm, gated activation, rotation and quantisation in one kernel |
//! | [`attention`] | attention of one token of each text, with what is before and behind it, in one kernel |
//! | [`device`], [`buffer`] | what runs kernels, and its memory |
//! | [`kernels`], [`modules`] | where the compiled kernels are, and how they are loaded |
//! | [`plan`] | cost models, and choices of kernels by them |
//! | [`gemv`] | batched matrix-vector products: plans and launches |
//! | [`gemm`] | matrix products with block-scaled weights: plans and launches |
//! | [`parallel`] | parts of weights for several devices |
//! | [`threads`] | what threads may share, streams, and recordings |
//! | [`tune`] | measured choices of GEMM kernels |
//! | [`moe`] | mixtures of experts |
//! | [`shape`] | sizes of products |
//! | [`mod@supports`] | whether there are kernels for an operation, without a device |
//! | [`observe`] | what the emulator reports of launches |
//! | [`floats`] | floats of several types as bytes |
//! | [`whole`] | files that appear complete or not at all |
//! | [`cuda`] | the CUDA backend |
//! | [`error`] | the error types |
//!
//! | feature | default | what it adds |
//! | --- | --- | --- |
//! | `emulator` | yes | devices without a GPU, [`observe`] |
//! | `capture` | no | [`capture`]: launches as bundles that the program `ptx-emu` replays |
//! | `embed` | yes | compiled kernels in the program, of [`mod@gemv`] and [`quantize`]; without it all are read from a folder |
//! | `embed-gemm` | no | those of [`gemm`], too |
//! | `embed-moe` | no | those of [`moe`] and grouped products, too |
//! | `cudarc` | no | devices from streams of the crate `cudarc`, operands from its slices |
//! | `nccl` | no | NCCL's all-reduce through `cudarc` |
//! | `cust` | no | contexts, streams and memory through the crate `cust`, whose build needs a variable |
//!
//! | architecture | kernels | where results and times come from |
//! | --- | --- | --- |
//! | sm_90a (H100, H200) | all | results on the emulator and on H200; times on H200 |
//! | sm_100a, sm_100f (B200, B300) | all | results on the emulator; no times |
//! | sm_120f (RTX 50, RTX PRO 6000, DGX Spark) | all | results of products on the emulator; no times |
//!
//! [`threads`] says what may be shared by threads, and `docs/CONTRACTS.md` in the repository what calls
//! check and what remains `unsafe`.
//!
//! # One call
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
//!
//! # A layer of an engine
//! Weights are repacked once. A plan is made once for a number of tokens, and launched on the
//! engine's stream and memory, also while the engine records a graph; a launch allocates nothing and
//! waits for nothing.
//! ```no_run
//! use nvfp4::buffer::DeviceBuffer;
//! use nvfp4::device::Kernels;
//! use nvfp4::gemm::{
//!     ActivationBuffers, ActivationKind, DeviceWeights, Gemm, GemmOptions, Repacked, ResultBuffers,
//!     Vectors, Workspace,
//! };
//! use nvfp4::tensor::BlockScaled;
//! use nvfp4::{HalfType, Nvfp4, Result};
//!
//! const KIND: ActivationKind = ActivationKind::Halves(HalfType::Bf16);
//!
//! struct Linear {
//!     weights: DeviceWeights,
//!     plan: Gemm,
//!     workspace: Workspace,
//! }
//!
//! impl Linear {
//!     /// `kernels` are those of the engine's stream: `kernels.with_stream(stream)`.
//!     fn new(kernels: &Kernels, weight: &BlockScaled<Nvfp4>, tokens: usize) -> Result<Self> {
//!         let device = kernels.device();
//!         let weights = Repacked::for_device(device, weight, KIND)?.upload(device)?;
//!         let options = GemmOptions::default();
//!         let plan = Gemm::new(kernels, &weights, [1, tokens], KIND, &options)?;
//!         let workspace = Workspace::new(device, plan.workspace_bytes())?;
//!         Ok(Self { weights, plan, workspace })
//!     }
//!
//!     /// # Safety
//!     /// As [`DeviceBuffer::from_raw`] for both tensors.
//!     unsafe fn forward(&self, kernels: &Kernels, x: (u64, usize), y: (u64, usize)) -> Result<()> {
//!         let device = kernels.device();
//!         // SAFETY: passed on to the caller.
//!         let [x, y] = unsafe {
//!             [
//!                 DeviceBuffer::from_raw(device, "x", x.0, x.1)?,
//!                 DeviceBuffer::from_raw(device, "y", y.0, y.1)?,
//!             ]
//!         };
//!         let (x, y) = (ActivationBuffers::Halves(&x), ResultBuffers::Floats(&y));
//!         self.plan.launch(x, &self.weights, y, Some(&self.workspace), Vectors::default())?;
//!         Ok(())
//!     }
//! }
//! ```
//!
//! # A block of an engine
//! Between two products stands one launch of [`rows`]. Before the first it adds the residual, normalises and quantises; the
//! product's epilogue may activate, and then it only quantises. The scales of rows, found in the same pass, are part of the
//! activations of the product behind it.
//! ```no_run
//! use nvfp4::buffer::DeviceBuffer;
//! use nvfp4::device::Kernels;
//! use nvfp4::gemm::{
//!     ActivationBuffers, DeviceWeights, Gemm, ResultBuffers, Vectors, Workspace,
//! };
//! use nvfp4::quantize::{QuantizeOptions, Recipe, TensorScale};
//! use nvfp4::rows::{Operands, Results, Rows, RowsOptions, Source};
//! use nvfp4::{Activation, HalfType, Nvfp4Recipe, Result, ScaleLayout};
//!
//! /// A product, planned for block-scaled activations with 128x4 scales.
//! struct Linear {
//!     weights: DeviceWeights,
//!     plan: Gemm,
//!     workspace: Workspace,
//! }
//!
//! impl Linear {
//!     fn forward(&self, made: &Rows, y: &DeviceBuffer) -> Result<()> {
//!         let x = ActivationBuffers::from(made.outputs());
//!         let (y, vectors) = (ResultBuffers::Floats(y), Vectors::default());
//!         self.plan.launch(x, &self.weights, y, Some(&self.workspace), vectors)?;
//!         Ok(())
//!     }
//! }
//!
//! struct FeedForward {
//!     norm: Rows,
//!     activation: Rows,
//!     linears: [Linear; 3],
//! }
//!
//! impl FeedForward {
//!     fn new(kernels: &Kernels, tokens: usize, sizes: [usize; 2], linears: [Linear; 3]) -> Result<Self> {
//!         let recipe = Recipe::Nvfp4(Nvfp4Recipe::TorchAo);
//!         let blocks = QuantizeOptions::new(recipe).layout(ScaleLayout::Blocked128x4);
//!         let results = Results::Blocks(blocks.scale(TensorScale::PerRow));
//!         let rows = |source: Source, columns: usize| {
//!             let options = RowsOptions::new(source, results);
//!             Rows::new(kernels, tokens, columns, HalfType::Bf16, &options)
//!         };
//!         let norm = rows(Source::RmsNorm { epsilon: 1e-6, residual: true }, sizes[0])?;
//!         let activation = rows(Source::Gated(Activation::Silu), sizes[1])?;
//!         Ok(Self { norm, activation, linears })
//!     }
//!
//!     /// Adds `x` to the residual `stream` in its place; `y` is added to it by the next block. `inner` are the gate and what
//!     /// it multiplies.
//!     fn forward(
//!         &self,
//!         [x, stream, weight]: [&DeviceBuffer; 3],
//!         inner: [&DeviceBuffer; 2],
//!         y: &DeviceBuffer,
//!     ) -> Result<()> {
//!         self.norm.launch(&Operands::normed(x, weight).residual(stream))?;
//!         self.linears[0].forward(&self.norm, inner[0])?;
//!         self.linears[1].forward(&self.norm, inner[1])?;
//!         self.activation.launch(&Operands::gated(inner[0], inner[1]))?;
//!         self.linears[2].forward(&self.activation, y)
//!     }
//! }
//! ```
//!
//! # Checkpoints, and the laboratory
//! The crate `nvfp4-checkpoint` reads safetensors files and whole models, in four projects' layouts of
//! quantised weights, and quantises, converts and verifies them. The crate `nvfp4-lab` has the f64 oracle, test
//! inputs from a seed, verified and timed runs, and the program `nvfp4`.

pub mod attention;
pub mod buffer;
#[cfg(feature = "capture")]
pub mod capture;
#[cfg(feature = "cudarc")]
pub mod cudarc;
pub mod dequantize;
pub mod device;
pub mod error;
pub mod floats;
pub mod gemm;
pub mod gemv;
pub mod kernels;
mod launch;
pub mod modules;
pub mod moe;
#[cfg(feature = "emulator")]
pub mod observe;
pub mod parallel;
pub mod plan;
pub mod quantize;
pub mod rows;
mod setters;
pub mod shape;
mod stream;
pub mod supports;
pub mod tensor;
pub mod threads;
pub mod tune;
pub mod whole;

pub use nvfp4_cuda as cuda;

/// The contract crate, of which a dependent needs no entry of its own in its manifest.
pub use fp4_formats as formats;
/// The emulator.
#[cfg(feature = "emulator")]
pub use ptx_emu_core as emulator;

// Types in the signatures of this crate.
pub use error::{Error, ErrorKind, Result};
pub use fp4_formats::gemm::Split;
pub use fp4_formats::gemm::combine::Activation;
pub use fp4_formats::quantize::{Format, Recipe};
pub use fp4_formats::recipe::{AdaptiveRecipe, Mxfp4Recipe, Nvfp4Recipe};
pub use fp4_formats::{
    Arch, BlockFormat, Family, FloatType, HalfType, Mxfp4, Nvfp4, ScaleLayout, TensorFamily,
};
#[cfg(feature = "emulator")]
pub use observe::{LaunchObserver, Reports};
#[cfg(feature = "emulator")]
pub use ptx_emu_core::{Gpu, LaunchReport, Schedule};
pub use supports::supports;

/// Types that may be sent to other threads, and types that threads may share.
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
    send::<gemv::DeviceWeights>();
    sync::<gemv::DeviceWeights>();
    send::<quantize::device::Quantizer>();
    sync::<quantize::device::Quantizer>();
    send::<rows::Rows>();
    sync::<rows::Rows>();
    send::<dequantize::Dequantizer>();
    sync::<dequantize::Dequantizer>();
    send::<gemm::Workspace>();
    send::<gemm::MixedGemm<'_>>();
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
