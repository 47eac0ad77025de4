//! The stream that a handle queues on, and who records it; calls that a recording would refuse.

use std::ffi::c_void;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use cuda_lazy::raw;

use super::error::{CudaError, check};

/// `CU_STREAM_PER_THREAD`: the handle of each thread's own default stream.
const PER_THREAD: usize = 2;

/// The stream on which a call of this thread queues. Equal values mean work in one order.
///
/// The handle `CU_STREAM_PER_THREAD` is another stream on each thread, so that its value has the
/// thread, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId {
    handle: usize,
    thread: Option<ThreadId>,
}

impl StreamId {
    /// The stream that `handle` is on this thread.
    pub(crate) fn here(handle: *mut c_void) -> Self {
        let handle = handle.addr();
        Self { handle, thread: (handle == PER_THREAD).then(|| thread::current().id()) }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.handle)?;
        self.thread.map_or(Ok(()), |thread| write!(f, " of {thread:?}"))
    }
}

/// A stream, or with the handle `CU_STREAM_PER_THREAD` the streams of all threads. All handles of a
/// GPU that queue on the same stream share one of these.
#[derive(Debug)]
pub(crate) struct Queue {
    handle: *mut c_void,
    /// The threads that record their stream into a graph by
    /// [`CudaDevice::capture`](super::CudaDevice::capture): one at most, unless each has its own.
    recorders: Mutex<Vec<ThreadId>>,
}

// SAFETY: the driver may be called with a stream's handle from every thread.
unsafe impl Send for Queue {}
// SAFETY: as above; nothing is written through the handle on the host.
unsafe impl Sync for Queue {}

/// The right to queue on a stream: while it lasts, no recording begins or ends.
pub(crate) type Turn<'a> = MutexGuard<'a, Vec<ThreadId>>;

impl Queue {
    pub(crate) fn new(handle: *mut c_void) -> Self {
        Self { handle, recorders: Mutex::default() }
    }

    /// The `CUstream`.
    pub(crate) fn handle(&self) -> *mut c_void {
        self.handle
    }

    /// Waits until the stream may be queued on. Work of another thread than the recording one would
    /// get into the recording, which knows nothing of the memory that it uses.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] while another thread records the stream.
    pub(crate) fn turn(&self, operation: &'static str) -> Result<Turn<'_>, CudaError> {
        let recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner);
        let own_stream = self.handle.addr() == PER_THREAD;
        if own_stream || recorders.iter().all(|recorder| *recorder == thread::current().id()) {
            return Ok(recorders);
        }
        Err(CudaError::BadArgument {
            operation,
            field: "the stream",
            required: "recorded by this thread, or by none".to_owned(),
            actual: "recorded by another".to_owned(),
        })
    }

    /// Whether this thread records the stream by [`begin`](Self::begin).
    pub(crate) fn is_recorded_here(recorders: &Turn<'_>) -> bool {
        recorders.contains(&thread::current().id())
    }

    /// Begins a recording by this thread.
    pub(crate) fn begin(&self) -> Result<(), CudaError> {
        /// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: this thread may not make calls that would wait
        /// for, or change, what is being recorded; other threads may.
        const THREAD_LOCAL: u32 = 1;
        let mut recorders = self.turn("recording a stream")?;
        // SAFETY: the stream is alive.
        check("cuStreamBeginCapture", unsafe {
            raw::cuStreamBeginCapture_v2(self.handle, THREAD_LOCAL)
        })?;
        recorders.push(thread::current().id());
        Ok(())
    }

    /// Ends this thread's recording; returns the graph.
    pub(crate) fn end(&self) -> Result<*mut c_void, CudaError> {
        let mut recorders = self.turn("recording a stream")?;
        recorders.retain(|recorder| *recorder != thread::current().id());
        let mut graph = std::ptr::null_mut();
        // SAFETY: `graph` is writable; the stream is being recorded.
        check("cuStreamEndCapture", unsafe { raw::cuStreamEndCapture(self.handle, &mut graph) })?;
        Ok(graph)
    }
}

/// While this value lives, the thread may allocate, free, copy and wait although it records a stream
/// of whatever handle. Without it the driver refuses such calls with 900 and destroys the recording.
pub(crate) struct Relaxed {
    before: u32,
}

impl Relaxed {
    /// Begins.
    pub(crate) fn enter() -> Result<Self, CudaError> {
        /// `CU_STREAM_CAPTURE_MODE_RELAXED`.
        const RELAXED: u32 = 2;
        let mut before = RELAXED;
        exchange(&mut before)?;
        Ok(Self { before })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // It was exchanged before, so that it can be exchanged again.
        let _ = exchange(&mut self.before);
    }
}

/// Exchanges what this thread may call while a stream is being recorded.
fn exchange(mode: &mut u32) -> Result<(), CudaError> {
    // SAFETY: `mode` is writable and holds a mode.
    check("cuThreadExchangeStreamCaptureMode", unsafe {
        raw::cuThreadExchangeStreamCaptureMode(mode)
    })
}
