//! Recordings of a GPU's launches, to be repeated without the host.

use std::marker::PhantomData;
#[cfg(feature = "cuda")]
use std::sync::Arc;

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::WrapErr;
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, CudaStream, sys};
use candle_core::{Device, Result};

use crate::error::shape;
#[cfg(feature = "cuda")]
use crate::results;

/// Findings of a rehearsal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rehearsed {
    /// Bytes of the results, in the order in which they are made.
    #[cfg(feature = "cuda")]
    sizes: Vec<usize>,
}

/// Launches of a GPU that were recorded.
///
/// It stays on the thread on which it was made, whose stream its launches are on.
pub(crate) struct Graph {
    #[cfg(feature = "cuda")]
    graph: CudaGraph,
    #[cfg(not(feature = "cuda"))]
    never: std::convert::Infallible,
    /// Candle keeps the sizes of layouts, which kernels read, in memory of the thread.
    _of_thread: PhantomData<*const ()>,
}

impl Graph {
    /// Whether launches of the device can be recorded: those on each thread's own default stream, which no other thread queues
    /// work on meanwhile.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "no device has launches"))]
    pub fn is_possible_on(device: &Device) -> bool {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(gpu) = device {
            let stream = gpu.cuda_stream();
            let own = stream.context().per_thread_stream();
            // Operations that are followed by events wait for some that are not recorded.
            return stream.cu_stream() == own.cu_stream()
                && !stream.context().is_managing_stream_synchronization();
        }
        false
    }

    /// Runs `work`, so that a recording of the same work finds all that it needs on the GPU. Returns what the recording has to
    /// know of it.
    pub fn rehearse(device: &Device, work: impl FnOnce() -> Result<()>) -> Result<Rehearsed> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(gpu) => {
                let _kept = gpu.enable_cuda_graph_htod_cache();
                let (result, sizes) = results::rehearse(work);
                result.map(|()| Rehearsed { sizes })
            }
            _ => work().map(|()| Rehearsed::default()),
        }
    }

    /// Records the launches of `work`, none of which runs.
    ///
    /// # Errors
    /// The errors of `work`, which must not wait for the GPU or upload what a [rehearsal](Self::rehearse) did not; for devices
    /// on which it is [not possible](Self::is_possible_on).
    ///
    /// # Safety
    /// Memory that `work` uses and did not allocate is kept as long as the graph, and nothing that it allocates on candle's
    /// stream outlives it.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "nothing is recorded"))]
    pub unsafe fn record(
        device: &Device,
        rehearsed: &Rehearsed,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(gpu) if Self::is_possible_on(device) => {
                let _kept = gpu.enable_cuda_graph_htod_cache();
                let capture = Capture::begin(gpu.cuda_stream())?;
                results::record(gpu, &rehearsed.sizes, work)?;
                match capture.end()? {
                    Some(graph) => Ok(Self { graph, _of_thread: PhantomData }),
                    None => Err(shape("a recording", "with launches", "empty")),
                }
            }
            other => {
                let required = "a GPU's, on the thread's own stream";
                Err(shape("the device of a recording", required, other.location()))
            }
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

/// A stream that is being recorded, until it is dropped.
#[cfg(feature = "cuda")]
struct Capture(Arc<CudaStream>);

#[cfg(feature = "cuda")]
impl Capture {
    fn begin(stream: Arc<CudaStream>) -> Result<Self> {
        // Calls of other threads, allocations of other models for example, go on.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).w()?;
        Ok(Self(stream))
    }

    /// The recording, or nothing if there were no launches.
    fn end(self) -> Result<Option<CudaGraph>> {
        // An error of freeing in a recording that has failed, without which the recording would not end.
        let freed = self.0.context().check_err();
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.0.end_capture(flags).w()?;
        freed.w()?;
        Ok(graph)
    }
}

#[cfg(feature = "cuda")]
impl Drop for Capture {
    /// Ends a recording that has failed: nothing could run on the stream otherwise.
    fn drop(&mut self) {
        use candle_core::cuda_backend::cudarc::driver::result;

        let none = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        if self.0.capture_status() == Ok(none) {
            return;
        }
        // SAFETY: the stream is being recorded since `begin`.
        if let Ok(graph) = unsafe { result::stream::end_capture(self.0.cu_stream()) }
            && !graph.is_null()
        {
            // SAFETY: the graph was made by the call before, and nobody else has it. If it stays, memory is lost and nothing else.
            let _ = unsafe { result::graph::destroy(graph) };
        }
        // Errors of what was freed meanwhile would be those of the next call.
        let _ = self.0.context().check_err();
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
