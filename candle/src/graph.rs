//! Recordings of a GPU's launches, to be repeated without the host.

#[cfg(feature = "cuda")]
use std::sync::Arc;

use candle_core::{Device, Result};

#[cfg(feature = "cuda")]
use candle_core::CudaDevice;
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::WrapErr;
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::cudarc::cublas::{CudaBlas, sys as blas};
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::cudarc::driver::{
    CudaGraph, CudaSlice, CudaStream, DevicePtrMut, sys,
};

use crate::error::shape;

/// Launches of a GPU that were recorded.
///
/// It stays on the thread on which it was made: candle keeps the sizes of layouts that kernels read in memory of the thread.
pub(crate) struct Graph {
    #[cfg(feature = "cuda")]
    graph: CudaGraph,
    /// Memory that recorded products of cuBLAS use, dropped behind the graph.
    #[cfg(feature = "cuda")]
    _workspace: CudaSlice<u8>,
    #[cfg(not(feature = "cuda"))]
    never: std::convert::Infallible,
}

impl Graph {
    /// Whether launches of the device can be recorded.
    pub fn is_possible_on(device: &Device) -> bool {
        cfg!(feature = "cuda") && device.is_cuda()
    }

    /// Runs `work` for its results, so that a recording of the same work finds all that it needs on the GPU.
    pub fn rehearse<R>(device: &Device, work: impl FnOnce() -> Result<R>) -> Result<R> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(gpu) => {
                let _kept = gpu.enable_cuda_graph_htod_cache();
                work()
            }
            _ => work(),
        }
    }

    /// Records the launches of `work`, none of which runs.
    ///
    /// # Errors
    /// The errors of `work`, which must not wait for the GPU or upload what a [rehearsal](Self::rehearse) did not; where
    /// launches are on several streams; and for other devices than GPUs.
    ///
    /// # Safety
    /// Memory that `work` uses and did not allocate is kept as long as the graph.
    #[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
    pub unsafe fn record(device: &Device, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(gpu) => {
                let stream = gpu.cuda_stream();
                if stream.context().is_managing_stream_synchronization() {
                    let required = "all on one stream, or not followed by events";
                    return Err(shape("candle's operations", required, "followed by events"));
                }
                let _kept = gpu.enable_cuda_graph_htod_cache();
                let lent = LentWorkspace::new(gpu)?;
                // Calls of other threads, allocations of other models for example, go on.
                let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                stream.begin_capture(mode).w()?;
                let result = work();
                let flags =
                    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                let ended = stream.end_capture(flags);
                result?;
                match ended.w()? {
                    Some(graph) => Ok(Self { graph, _workspace: lent.take_back()? }),
                    None => Err(shape("a recording", "with launches", "empty")),
                }
            }
            other => Err(shape("the device of a recording", "a GPU", other.location())),
        }
    }

    /// Queues the launches again.
    pub fn replay(&self) -> Result<()> {
        #[cfg(feature = "cuda")]
        {
            self.graph.launch().w()
        }
        #[cfg(not(feature = "cuda"))]
        match self.never {}
    }
}

/// Memory lent to cuBLAS. Without it each recorded product allocates and frees its own 32 MiB in every replay, which takes
/// 0.1 ms.
#[cfg(feature = "cuda")]
struct LentWorkspace {
    memory: Option<CudaSlice<u8>>,
    blas: Arc<CudaBlas>,
    stream: Arc<CudaStream>,
}

#[cfg(feature = "cuda")]
impl LentWorkspace {
    /// What cuBLAS recommends for Hopper, the most of all GPUs.
    const BYTES: usize = 32 << 20;

    fn new(gpu: &CudaDevice) -> Result<Self> {
        let (blas, stream) = (gpu.cublas_handle(), gpu.cuda_stream());
        // SAFETY: a workspace may have any contents.
        let mut memory = unsafe { gpu.alloc::<u8>(Self::BYTES)? };
        let address = {
            let (address, _used) = memory.device_ptr_mut(&stream);
            address as *mut std::ffi::c_void
        };
        // SAFETY: the memory is there until `take_back` or dropping takes it from the handle; recorded products refer to it,
        // and the graph keeps it.
        let status = unsafe { blas::cublasSetWorkspace_v2(*blas.handle(), address, Self::BYTES) };
        status.result().w()?;
        Ok(Self { memory: Some(memory), blas, stream })
    }

    /// The memory, which cuBLAS no longer uses for calls to come.
    fn take_back(mut self) -> Result<CudaSlice<u8>> {
        self.reset()?;
        self.memory.take().ok_or_else(|| shape("the workspace", "lent", "taken back"))
    }

    /// Setting the stream sets the handle's own workspace.
    fn reset(&self) -> Result<()> {
        let stream = self.stream.cu_stream() as blas::cudaStream_t;
        // SAFETY: it is the stream that the handle has.
        unsafe { blas::cublasSetStream_v2(*self.blas.handle(), stream) }.result().w()
    }
}

#[cfg(feature = "cuda")]
impl Drop for LentWorkspace {
    fn drop(&mut self) {
        if self.memory.is_some() && self.reset().is_err() {
            // The handle still refers to it.
            std::mem::forget(self.memory.take());
        }
    }
}

/// Refuses a stream that another owner records: the memory of what it records would not be kept.
pub(crate) fn refuse_recording(device: &Device) -> Result<()> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(gpu) => {
            let status = gpu.cuda_stream().capture_status().w()?;
            if status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
                return Ok(());
            }
            Err(shape("the stream", "not being recorded into a graph", "recorded"))
        }
        _ => Ok(()),
    }
}
