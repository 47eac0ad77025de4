//! An inference engine as the library meets it: a stream, memory and graphs that are not the library's.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_lazy::raw;
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::{Device, Kernels};

/// A node of a graph that is a kernel: `CUgraphNodeType`.
pub const KERNEL: u32 = 0;
/// A node that is a copy.
pub const MEMCPY: u32 = 1;

/// Opens the kernels of the GPU, for one test at a time, since allocations of any thread disturb a recording of the
/// kind below (the lock comes first so that it goes last). Without a GPU, the test is skipped.
pub fn gpu() -> Option<(MutexGuard<'static, ()>, Kernels)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Some((alone, crate::gpu()?))
}

/// Asserts that a call of the driver succeeded.
///
/// # Panics
/// If it did not.
pub fn ok(call: &str, code: u32) {
    assert_eq!(code, 0, "{call} returned {code}");
}

/// A graph that an [`Engine`] recorded.
#[derive(Clone, Copy)]
pub struct Graph(*mut c_void);

/// The resources of an engine: a stream in the primary context, memory, graphs.
pub struct Engine {
    /// The engine's stream.
    pub stream: *mut c_void,
    memory: Vec<u64>,
    graphs: Vec<Graph>,
}

impl Engine {
    /// Creates an engine with a stream that is ordered with no other.
    ///
    /// # Panics
    /// If the driver refuses a call; this holds for all functions below.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it needs a GPU")]
    pub fn new() -> Self {
        const NON_BLOCKING: u32 = 1;
        let (mut context, mut stream) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the driver is initialised, since a device is open; results are writable. The
        // context is retained until the process ends.
        unsafe {
            ok("retain", raw::cuDevicePrimaryCtxRetain(&mut context, 0));
            ok("bind", raw::cuCtxSetCurrent(context));
            ok("stream", raw::cuStreamCreateWithPriority(&mut stream, NON_BLOCKING, 0));
        }
        Self { stream, memory: Vec::new(), graphs: Vec::new() }
    }

    /// Allocates memory that belongs to the engine.
    pub fn alloc(&mut self, bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: the context is current and the result writable.
        ok("alloc", unsafe { raw::cuMemAlloc_v2(&mut address, bytes) });
        self.memory.push(address);
        address
    }

    /// Views the engine's memory as a buffer of `device`.
    pub fn view(&mut self, device: &Device, name: &str, bytes: usize) -> DeviceBuffer {
        let address = self.alloc(bytes);
        // SAFETY: allocated above, and freed after everything else.
        unsafe { DeviceBuffer::from_raw(device, name, address, bytes) }.expect("aligned")
    }

    /// Copies new activations, as the engine does it.
    pub fn copy(&self, to: u64, bytes: &[u8]) {
        // SAFETY: the caller names memory of the engine's with so many bytes; the source lives
        // until the copy is waited for.
        unsafe {
            let from = bytes.as_ptr().cast_mut().cast();
            ok("copy", raw::cuMemcpyHtoDAsync_v2(to, from, bytes.len(), self.stream));
            ok("wait", raw::cuStreamSynchronize(self.stream));
        }
    }

    /// Records `work` in the mode that refuses calls that wait or allocate, on any thread. Returns
    /// the graph with the types of its nodes.
    pub fn record(&mut self, work: impl FnOnce()) -> (Graph, Vec<u32>) {
        const GLOBAL: u32 = 0;
        let (mut graph, mut executable) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream is alive.
        ok("begin", unsafe { raw::cuStreamBeginCapture_v2(self.stream, GLOBAL) });
        work();
        let mut types = Vec::new();
        // SAFETY: stream and graph are alive, results are writable, and there is room for as many
        // nodes as the driver says there are.
        unsafe {
            ok("end", raw::cuStreamEndCapture(self.stream, &mut graph));
            let mut count = 0;
            ok("nodes", raw::cuGraphGetNodes(graph, ptr::null_mut(), &mut count));
            let mut nodes = vec![ptr::null_mut(); count];
            ok("nodes", raw::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
            for node in nodes {
                let mut kind = 0_u32;
                ok("type", raw::cuGraphNodeGetType(node, (&raw mut kind).cast()));
                types.push(kind);
            }
            ok("make", raw::cuGraphInstantiateWithFlags(&mut executable, graph, 0));
            ok("destroy", raw::cuGraphDestroy(graph));
        }
        self.graphs.push(Graph(executable));
        (Graph(executable), types)
    }

    /// Launches a graph without waiting.
    pub fn replay(&self, Graph(graph): Graph) {
        // SAFETY: the graph is one of `graphs`; what it uses is alive.
        ok("replay", unsafe { raw::cuGraphLaunch(graph, self.stream) });
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: nothing uses them any more; a failed test may leave errors, which are no news.
        unsafe {
            raw::cuStreamSynchronize(self.stream);
            for &Graph(graph) in &self.graphs {
                raw::cuGraphExecDestroy(graph);
            }
            for &address in &self.memory {
                raw::cuMemFree_v2(address);
            }
            raw::cuStreamDestroy_v2(self.stream);
        }
    }
}
