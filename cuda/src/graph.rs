//! Recording launches into a graph, replaying it, timing it.
//!
//! A graph of any number of kernels is launched with one call, so the host does not influence the
//! measurement. The time of a replay divided by the number of its launches is the time of a
//! launch, including the gap between two dependent kernels.

use std::ffi::c_void;
use std::ptr;

use cuda_lazy::raw;

use super::device::CudaDevice;
use super::error::{CudaError, check};
use super::times::Times;

/// Recorded work, ready to be replayed on the device's stream.
#[derive(Debug)]
pub struct CudaGraph {
    executable: *mut c_void,
    nodes: usize,
    device: CudaDevice,
}

// SAFETY: the driver may be called with a graph's handle from every thread, though from one at a time:
// the type is not `Sync`.
unsafe impl Send for CudaGraph {}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the handle is this graph's and not used again. The driver
            // defers the release until a running replay has finished.
            unsafe { raw::cuGraphExecDestroy(self.executable) };
        }
    }
}

/// Ends the recording if the closure fails or panics. Otherwise the stream would refuse every
/// other use.
struct Recording<'a> {
    device: &'a CudaDevice,
    open: bool,
}

impl Recording<'_> {
    fn finish(&mut self) -> Result<Template, CudaError> {
        self.open = false;
        self.device.bind()?;
        self.device.queue().end().map(Template)
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if self.open {
            let _ = self.finish();
        }
    }
}

/// A recorded graph before it is made executable.
struct Template(*mut c_void);

impl Drop for Template {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: owned, and not used again.
            unsafe { raw::cuGraphDestroy(self.0) };
        }
    }
}

/// An event on a device's stream.
struct Mark(*mut c_void);

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: owned, and not used again.
        unsafe { raw::cuEventDestroy_v2(self.0) };
    }
}

impl Mark {
    /// Records an event on the stream of `device`, whose context is current.
    fn record(device: &CudaDevice) -> Result<Self, CudaError> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is writable; no flags ask for anything else.
        check("cuEventCreate", unsafe { raw::cuEventCreate(&mut event, 0) })?;
        let mark = Self(event);
        // SAFETY: event and stream are alive.
        check("cuEventRecord", unsafe { raw::cuEventRecord(mark.0, device.stream()) })?;
        Ok(mark)
    }

    /// Time between two completed events.
    fn milliseconds_since(&self, earlier: &Self) -> Result<f64, CudaError> {
        let mut elapsed = 0.0;
        // SAFETY: `elapsed` is writable and both events are alive.
        check("cuEventElapsedTime", unsafe {
            raw::cuEventElapsedTime(&mut elapsed, earlier.0, self.0)
        })?;
        Ok(f64::from(elapsed))
    }
}

impl CudaDevice {
    /// Records what `record` launches on the device's stream, without running it.
    ///
    /// Only launches, queued fills and queued copies can be recorded. Inside `record`, other copies
    /// on the device's stream and waits for it fail. Modules and kernels should have been used
    /// before, so that nothing is compiled during the recording. Meanwhile other threads can queue
    /// nothing on the stream.
    ///
    /// # Errors
    /// The error of `record`, or a failed call.
    pub fn capture<E>(&self, record: impl FnOnce() -> Result<(), E>) -> Result<CudaGraph, E>
    where
        E: From<CudaError>,
    {
        self.bind()?;
        self.queue().begin()?;
        let mut recording = Recording { device: self, open: true };
        record()?;
        let template = recording.finish()?;

        let mut nodes = 0;
        // SAFETY: with no array to fill, the driver stores the number of nodes.
        check("cuGraphGetNodes", unsafe {
            raw::cuGraphGetNodes(template.0, ptr::null_mut(), &mut nodes)
        })?;
        let mut executable = ptr::null_mut();
        // SAFETY: `executable` is writable and the graph complete.
        check("cuGraphInstantiateWithFlags", unsafe {
            raw::cuGraphInstantiateWithFlags(&mut executable, template.0, 0)
        })?;
        let graph = CudaGraph { executable, nodes, device: self.clone() };
        // SAFETY: graph and stream are alive.
        check("cuGraphUpload", unsafe { raw::cuGraphUpload(graph.executable, self.stream()) })?;
        Ok(graph)
    }
}

impl CudaGraph {
    /// The number of recorded nodes, one per launch.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Queues one replay on the device's stream and returns without waiting.
    ///
    /// # Errors
    /// A failed call.
    ///
    /// # Safety
    /// The obligations of [`CudaModule::launch`](super::CudaModule::launch) hold for every launch
    /// in the graph; the memory and the modules that they use are alive.
    pub unsafe fn replay(&self) -> Result<(), CudaError> {
        self.device.bind()?;
        let _turn = self.device.turn("replaying a graph")?;
        // SAFETY: graph and stream are alive; the caller guarantees memory and modules.
        check("cuGraphLaunch", unsafe { raw::cuGraphLaunch(self.executable, self.device.stream()) })
    }

    /// Times `replays` replays after `warmup` untimed ones (at least one) and
    /// divides each by `launches`, the number of equal pieces of work in the graph.
    ///
    /// All replays are queued after the untimed ones, each between two events, so
    /// that the GPU never waits for the host. The time of a replay is that of the GPU and
    /// includes the gap between two graphs.
    ///
    /// To measure with cold caches, record launches over enough distinct inputs:
    /// see [`rotation`](super::rotation).
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] if `replays` or `launches` is zero, or a failed
    /// call.
    ///
    /// # Safety
    /// The obligations of [`CudaGraph::replay`] hold.
    pub unsafe fn time(
        &self,
        launches: usize,
        warmup: usize,
        replays: usize,
    ) -> Result<Times, CudaError> {
        for (field, actual) in [("launches", launches), ("replays", replays)] {
            if actual == 0 {
                return Err(CudaError::BadArgument {
                    operation: "timing a graph",
                    field,
                    required: "at least 1".to_owned(),
                    actual: actual.to_string(),
                });
            }
        }
        self.device.bind()?;
        for _ in 0..warmup.max(1) {
            // SAFETY: the caller guarantees the obligations of `replay`.
            unsafe { self.replay()? };
        }
        let mut marks = vec![Mark::record(&self.device)?];
        for _ in 0..replays {
            // SAFETY: the caller guarantees the obligations of `replay`.
            unsafe { self.replay()? };
            marks.push(Mark::record(&self.device)?);
        }
        self.device.synchronize()?;

        let seconds =
            |pair: &[Mark]| Ok(pair[1].milliseconds_since(&pair[0])? * 1e-3 / launches as f64);
        let all = marks.windows(2).map(seconds).collect::<Result<_, CudaError>>()?;
        Times::new(all).ok_or_else(|| CudaError::BadArgument {
            operation: "timing a graph",
            field: "replays",
            required: "at least 1".to_owned(),
            actual: replays.to_string(),
        })
    }
}
