//! Engines on the crate `cudarc`, candle for one: devices from its streams, operands from its slices.
//!
//! | of cudarc | here |
//! | --- | --- |
//! | `Arc<CudaStream>` | [`Device::from_cudarc`], [`Kernels::on_cudarc`]: work is queued on it, and it lives as long |
//! | `&CudaSlice`, `&CudaView` | [`read`]: a [`DeviceBuffer`] for launches within a closure |
//! | `&mut CudaSlice`, `&mut CudaViewMut` | [`write`](fn@write): the same for results |
//!
//! Any stream will do: the legacy default one, those that cudarc creates, and `CU_STREAM_PER_THREAD`,
//! which is the stream of candle's devices; [`Device::with_stream`] says what threads mean for it.
//! cudarc orders uses of a slice by events, its `SyncOnDrop`: a use is recorded behind what the closure
//! has queued. Only work on the device's stream may be given such a buffer, therefore.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use nvfp4::cudarc::{self, driver::{CudaContext, CudaSlice}};
//! use nvfp4::device::Device;
//! use nvfp4::gemm::{ActivationBuffers, DeviceWeights, Gemm, ResultBuffers, Vectors, Workspace};
//! use nvfp4::Result;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = CudaContext::new(0)?;
//! let device = Device::from_cudarc(&context.per_thread_stream())?;
//! let kernels = device.kernels(None)?;
//!
//! /// Queues `y = x weights^T`.
//! fn forward(
//!     (plan, weights, workspace): (&Gemm, &DeviceWeights, &Workspace),
//!     device: &Device,
//!     x: &CudaSlice<half::bf16>,
//!     y: &mut CudaSlice<half::bf16>,
//! ) -> Result<()> {
//!     cudarc::read(device, "x", x, |x| {
//!         cudarc::write(device, "y", y, |y| {
//!             let (x, y) = (ActivationBuffers::Halves(x), ResultBuffers::Floats(y));
//!             plan.launch(x, weights, y, Some(workspace), Vectors::default())
//!         })
//!     })
//! }
//! # Ok(())
//! # }
//! ```

use std::ffi::c_void;
use std::sync::Arc;

pub use ::cudarc::driver;
use driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop,
};
use half::{bf16, f16};

use crate::buffer::DeviceBuffer;
use crate::device::{Backend, Device, Kernels};
use crate::error::{Error, Result};

#[cfg(feature = "nccl")]
pub mod nccl;

impl Device {
    /// The GPU of one of cudarc's streams, with work queued on that stream, which the device keeps.
    ///
    /// While the stream is being recorded into a graph by cudarc, launches are refused: cudarc replays
    /// graphs by a safe call, but nothing keeps the memory of what was recorded. See
    /// [`recordable`](Self::recordable).
    ///
    /// # Errors
    /// [`DeviceError::Cuda`](crate::device::DeviceError::Cuda) for a GPU without kernels, and for a
    /// stream of another context than its primary one.
    pub fn from_cudarc(stream: &Arc<CudaStream>) -> Result<Self> {
        let ordinal = u32::try_from(stream.context().ordinal()).unwrap_or(u32::MAX);
        let handle: *mut c_void = stream.cu_stream().cast();
        // SAFETY: cudarc destroys a stream when the last of its owners is dropped, of which the device keeps one.
        unsafe { Self::shared_by(ordinal, handle, stream.clone()) }
    }

    /// The stream of cudarc's that work is queued on, if it is one.
    #[must_use]
    pub fn cudarc_stream(&self) -> Option<&CudaStream> {
        match self.backend() {
            Backend::Cuda(gpu) => gpu.stream_owner()?.downcast_ref(),
            #[cfg(feature = "emulator")]
            Backend::Emulator(_) => None,
        }
    }
}

impl Kernels {
    /// The same kernels, launched on one of cudarc's streams of their GPU: see
    /// [`Device::from_cudarc`]. Nothing is loaded again.
    ///
    /// # Errors
    /// The same as there; [`DeviceError::NeedsGpu`](crate::device::DeviceError::NeedsGpu) on the emulator.
    pub fn on_cudarc(&self, stream: &Arc<CudaStream>) -> Result<Self> {
        // SAFETY: as in `from_cudarc`.
        unsafe { self.shared_by(stream.cu_stream().cast(), stream.clone()) }
    }
}

mod sealed {
    //! A trait that nobody else implements: other owners of memory could have references of the
    //! host to it.

    use super::{CudaStream, SyncOnDrop};

    /// Memory of cudarc's.
    pub trait Memory {
        /// The stream that it was allocated on.
        fn home(&self) -> &CudaStream;
        /// Its size.
        fn len_bytes(&self) -> usize;
    }

    /// Memory that is read.
    pub trait Source: Memory {
        /// Its address for work on a stream, which waits for what writes it.
        fn to_read<'a>(&'a self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>);
    }

    /// Memory that is written.
    pub trait Target: Memory {
        /// Its address for work on a stream, which waits for what uses it.
        fn to_write<'a>(&'a mut self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>);
    }

    /// A type of which every bit pattern is a value.
    pub trait Plain {}
}

/// Types of elements that operands may have. Every bit pattern is a value of theirs.
pub trait Element: sealed::Plain {}

macro_rules! elements {
    ($($element:ty),*) => {
        $(impl sealed::Plain for $element {}
        impl Element for $element {})*
    };
}
elements!(u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32);

/// Memory that can be read: [`CudaSlice`], [`CudaView`], [`CudaViewMut`].
pub trait Source: sealed::Source {}
/// Memory that can be written: [`CudaSlice`], [`CudaViewMut`].
pub trait Target: sealed::Target {}

macro_rules! memory {
    ($($memory:ty),*) => {
        $(impl<T: Element> sealed::Memory for $memory {
            fn home(&self) -> &CudaStream {
                DeviceSlice::stream(self)
            }

            fn len_bytes(&self) -> usize {
                DeviceSlice::num_bytes(self)
            }
        }

        impl<T: Element> sealed::Source for $memory {
            fn to_read<'a>(&'a self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
                DevicePtr::device_ptr(self, stream)
            }
        }

        impl<T: Element> Source for $memory {})*
    };
}
memory!(CudaSlice<T>, CudaView<'_, T>, CudaViewMut<'_, T>);

macro_rules! targets {
    ($($memory:ty),*) => {
        $(impl<T: Element> sealed::Target for $memory {
            fn to_write<'a>(&'a mut self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
                DevicePtrMut::device_ptr_mut(self, stream)
            }
        }

        impl<T: Element> Target for $memory {})*
    };
}
targets!(CudaSlice<T>, CudaViewMut<'_, T>);

/// The stream of `device`, for memory of its context.
fn stream_for<'a>(device: &'a Device, name: &str, home: &CudaStream) -> Result<&'a CudaStream> {
    let elsewhere = |required: &str, actual: String| Error::WrongDevice {
        field: format!("memory of `{name}`"),
        required: required.into(),
        actual,
    };
    let Some(stream) = device.cudarc_stream() else {
        let actual = device.choice().device.clone();
        return Err(elsewhere("used on a device of one of cudarc's streams", actual));
    };
    let (context, found) = (stream.context(), home.context());
    if context.cu_ctx() != found.cu_ctx() {
        let required = format!("of the context of cuda:{}, as the kernels", context.ordinal());
        return Err(elsewhere(&required, format!("of one of cuda:{}", found.ordinal())));
    }
    Ok(stream)
}

/// Lends memory of cudarc's, which starts at a multiple of 16 bytes, to launches that `launch` queues
/// on the stream of `device`: after what cudarc knows to write it, and before what cudarc is told to do
/// with it later. Launches that write it, though it is lent to be read, are a mistake that nothing
/// reports.
///
/// # Errors
/// [`Error::WrongDevice`] for memory of another context, and for a device that is none of
/// [`Device::from_cudarc`]; as [`DeviceBuffer::from_raw`]; those of `launch`.
pub fn read<S: Source, R, E: From<Error>>(
    device: &Device,
    name: &str,
    source: &S,
    launch: impl FnOnce(&DeviceBuffer) -> Result<R, E>,
) -> Result<R, E> {
    let bytes = source.len_bytes();
    // Dropped last, so that the event is behind what was launched.
    let (address, _used) = source.to_read(stream_for(device, name, source.home())?);
    // SAFETY: the memory is borrowed until all that may use it is queued on the stream, and cudarc
    // frees it behind the event, or in the order of its stream where whoever turned events off
    // promised that this suffices.
    let buffer = unsafe { DeviceBuffer::lent(device, name, address, bytes)? };
    launch(&buffer)
}

/// [`read`] for memory that is written. Its earlier uses come before.
///
/// # Errors
/// The same as there.
pub fn write<T: Target, R, E: From<Error>>(
    device: &Device,
    name: &str,
    target: &mut T,
    launch: impl FnOnce(&DeviceBuffer) -> Result<R, E>,
) -> Result<R, E> {
    let (bytes, stream) = (target.len_bytes(), stream_for(device, name, target.home())?);
    let (address, _used) = target.to_write(stream);
    // SAFETY: as in `read`; every bit pattern is an element.
    let buffer = unsafe { DeviceBuffer::lent(device, name, address, bytes)? };
    launch(&buffer)
}
