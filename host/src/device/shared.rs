//! Devices on streams of other libraries.

use std::ffi::c_void;
use std::sync::Arc;

use super::{Backend, Device, Kernels};
use crate::error::Result;

impl Device {
    /// The GPU `ordinal`, with work queued on `stream` (a `CUstream`) of another library's, in the GPU's primary context.
    /// The device, and all that is made from it, keeps `owner`, and with it the stream: no order of dropping is wrong.
    /// [`with_stream`](Self::with_stream) says what engines may rely on.
    ///
    /// | crate | `ordinal` | `stream` | `owner` |
    /// | --- | --- | --- | --- |
    /// | `cudarc` | `stream.context().ordinal()` | `stream.cu_stream()` | the `Arc<CudaStream>`; the feature `cudarc` has this as a safe call, `Device::from_cudarc` |
    /// | NVIDIA's `cuda-core` 0.5 | `stream.device().ordinal()` | `stream.cu_stream()` | the `Arc<Stream>` |
    ///
    /// There is no adapter for `cuda-core`: its bindings are made of the headers of a CUDA toolkit of version 13 when they
    /// are compiled, so that this library would not build on a machine without one.
    ///
    /// While the stream is being recorded into a graph, launches are refused, because nothing keeps the memory of what is
    /// recorded; see [`recordable`](Self::recordable).
    ///
    /// ```no_run
    /// use std::ffi::c_void;
    /// use std::sync::Arc;
    ///
    /// use nvfp4::device::Device;
    ///
    /// /// Another library's stream, which it destroys when the last owner is dropped.
    /// struct Stream(*mut c_void);
    /// # unsafe impl Send for Stream {}
    /// # unsafe impl Sync for Stream {}
    ///
    /// # fn main() -> nvfp4::Result<()> {
    /// # let stream = Arc::new(Stream(std::ptr::null_mut()));
    /// // SAFETY: the stream is destroyed when its last owner is dropped.
    /// let device = unsafe { Device::shared_by(0, stream.0, stream.clone())? };
    /// let kernels = device.kernels(None)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::Cuda`](super::DeviceError::Cuda) for a GPU that there is not or without kernels, and for a stream of
    /// another context than its primary one.
    ///
    /// # Safety
    /// `stream` is null, the handle of a default stream, or a stream that is not destroyed before `owner` is dropped.
    pub unsafe fn shared_by<T: Send + Sync + 'static>(
        ordinal: u32,
        stream: *mut c_void,
        owner: Arc<T>,
    ) -> Result<Self> {
        let device = Self::cuda(ordinal, "the caller's stream is on it".into())?;
        let gpu = device.gpu("another library's streams")?;
        // SAFETY: passed on to the caller.
        let gpu = unsafe { gpu.with_owned_stream(stream, owner)? };
        Ok(device.on(gpu))
    }

    /// The same device, whose work may be recorded by the owner of its stream.
    ///
    /// # Safety
    /// Returns a handle whose launches keep their operands, weights, workspaces and kernels as long
    /// as the graph may be replayed that is recorded with them.
    #[must_use]
    pub unsafe fn recordable(&self) -> Self {
        match self.backend() {
            // SAFETY: passed on to the caller.
            Backend::Cuda(gpu) => self.on(unsafe { gpu.clone().recordable() }),
            #[cfg(feature = "emulator")]
            Backend::Emulator(_) => self.clone(),
        }
    }
}

impl Kernels {
    /// The same kernels, launched on a stream of another library's on their GPU: see [`Device::shared_by`]. Nothing is
    /// loaded again.
    ///
    /// # Errors
    /// The same as there; [`DeviceError::NeedsGpu`](super::DeviceError::NeedsGpu) on the emulator.
    ///
    /// # Safety
    /// The same as there.
    pub unsafe fn shared_by<T: Send + Sync + 'static>(
        &self,
        stream: *mut c_void,
        owner: Arc<T>,
    ) -> Result<Self> {
        let gpu = self.device().gpu("launching on a stream of another library's")?;
        // SAFETY: passed on to the caller.
        let gpu = unsafe { gpu.with_owned_stream(stream, owner)? };
        Ok(self.on(gpu))
    }

    /// The same kernels on a [recordable](Device::recordable) device.
    ///
    /// # Safety
    /// The same as there.
    #[must_use]
    pub unsafe fn recordable(&self) -> Self {
        match self.device().backend() {
            // SAFETY: passed on to the caller.
            Backend::Cuda(gpu) => self.on(unsafe { gpu.clone().recordable() }),
            #[cfg(feature = "emulator")]
            Backend::Emulator(_) => self.clone(),
        }
    }
}
