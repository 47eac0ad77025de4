//! Recordings of a GPU's launches, to be repeated without the host.

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::WrapErr;
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, sys};
use candle_core::{Device, Result};

use crate::error::shape;

/// Launches of a GPU that were recorded.
///
/// It stays on the thread on which it was made: candle keeps the sizes of layouts that kernels read in memory of the thread.
pub(crate) struct Graph {
    #[cfg(feature = "cuda")]
    graph: CudaGraph,
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
                // Calls of other threads, allocations of other models for example, go on.
                let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                stream.begin_capture(mode).w()?;
                let result = work();
                let flags =
                    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                let ended = stream.end_capture(flags);
                result?;
                match ended.w()? {
                    Some(graph) => Ok(Self { graph }),
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
