//! The values that threads may share, and the order of their work. There is nothing but this page
//! here.
//!
//! | value | `Send` | `Sync` | why |
//! | --- | --- | --- | --- |
//! | [`Device`](crate::device::Device), [`Kernels`](crate::device::Kernels), [`DeviceBuffer`](crate::buffer::DeviceBuffer), [`DeviceWeights`](crate::gemm::DeviceWeights) of products and [of GEMVs](crate::gemv::DeviceWeights) | yes | yes | the driver takes calls of every thread; the emulator's memory has a lock |
//! | plans: [`Gemm`](crate::gemm::Gemm), [`Gemv`](crate::gemv::Gemv), [`Quantizer`](crate::quantize::device::Quantizer), [`Dequantizer`](crate::dequantize::Dequantizer) | yes | yes | a launch queues all of its kernels before another thread's launch of the same plan |
//! | [`Workspace`](crate::gemm::Workspace), [`MixedGemm`](crate::gemm::MixedGemm), [`MoeLayer`](crate::moe::MoeLayer), [`MoeMemory`](crate::moe::MoeMemory) | yes | no | the kernels of two threads' launches would mingle in it |
//! | [`CudaGraph`](crate::cuda::CudaGraph) | yes | no | the driver wants one thread at a time |
//!
//! The compiler refuses what the table does not allow. `docs/CONTRACTS.md` in the repository says what a
//! caller promises where a function is `unsafe`.
//!
//! # One model, several threads
//! Weights are uploaded once and plans are made once. Each thread has activations, results and a
//! workspace of its own. All of this queues on one stream, in the order of the calls: a launch queues
//! its kernels together, and never between those of another thread's launch.
//!
//! ```
//! use nvfp4::buffer::DeviceBuffer;
//! use nvfp4::device::{Device, DeviceRequest};
//! use nvfp4::gemm::{
//!     ActivationBuffers, ActivationKind, Gemm, GemmOptions, HalfMatrix, Repacked, ResultBuffers,
//!     Vectors, Workspace,
//! };
//! use nvfp4::quantize::{TensorScale, quantize};
//! use nvfp4::tensor::Dims;
//! use nvfp4::{HalfType, Result, ScaleLayout};
//!
//! const KIND: ActivationKind = ActivationKind::Halves(HalfType::F16);
//! const M: usize = 2;
//! const N: usize = 32;
//! const K: usize = 64;
//!
//! # fn main() -> Result<()> {
//! let device = Device::open(&DeviceRequest::Auto)?;
//! let kernels = device.kernels(None)?;
//! let (scale, layout) = (TensorScale::FromAmax, ScaleLayout::Linear);
//! let weight = quantize("w", &[0.5; N * K], Dims::new(1, N, K)?, scale, layout)?;
//! let weights = Repacked::for_device(&device, &weight, KIND)?.upload(&device)?;
//! let plan = Gemm::new(&kernels, &weights, [1, M], KIND, &GemmOptions::default())?;
//!
//! let answer = &|x: f32| -> Result<Vec<u8>> {
//!     let x = HalfMatrix::round("x", Dims::new(1, M, K)?, HalfType::F16, &[x; M * K])?;
//!     let x = DeviceBuffer::upload(&device, "x", x.bytes())?;
//!     let out = DeviceBuffer::upload(&device, "c", &[0; M * N * 2])?;
//!     let workspace = Workspace::new(&device, plan.workspace_bytes())?;
//!     let (a, c) = (ActivationBuffers::Halves(&x), ResultBuffers::Floats(&out));
//!     plan.launch(a, &weights, c, Some(&workspace), Vectors::default())?;
//!     out.read()
//! };
//! std::thread::scope(|scope| {
//!     let threads = [1.0, 2.0].map(|x| scope.spawn(move || answer(x)));
//!     for thread in threads {
//!         assert_eq!(thread.join().expect("no panic")?.len(), M * N * 2);
//!     }
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # Several streams
//! [`Kernels::with_stream`](crate::device::Kernels::with_stream) gives handles that queue on a stream of
//! the caller's and share the loaded modules; with the feature `cudarc`, so does `Kernels::on_cudarc`.
//! Streams run side by side, and nothing here orders them:
//!
//! - A buffer that one stream writes and another reads needs an event of the caller's between them.
//! - A [`Workspace`](crate::gemm::Workspace) belongs to the stream that it is first used on. A launch on
//!   another is an error, as the kernels of two streams would mingle in it.
//! - The token counts of a grouped product ([`GroupBuffers`](crate::gemm::GroupBuffers)) are read while
//!   it runs. Who writes them on another stream waits first, as for any operand.
//! - `CU_STREAM_PER_THREAD`, the stream of candle's devices, is another stream on each thread: what has
//!   memory of its own then belongs to the thread that first launches with it.
//!
//! # Recording a graph
//! Launches allocate nothing and wait for nothing, so that a thread can record them
//! ([`CudaDevice::capture`](crate::cuda::CudaDevice::capture), or the engine's own recording). Meanwhile
//! that thread may copy, allocate and free on other streams, and calls of other threads that would queue on
//! the recorded stream are errors. A [`CudaGraph`](crate::cuda::CudaGraph) is replayed by one thread at a time.
//!
//! # The emulator
//! It has no streams: each launch runs to its end before the call returns, and has the device's memory
//! for itself until then. Threads that launch at once take turns, and a buffer that another thread drops is
//! freed after the launch.
