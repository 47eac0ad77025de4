//! An open GPU: its primary context, its stream, and a cache of modules.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cuda_lazy::{CUDA_SUCCESS, raw};
use fp4_formats::{Arch, TensorFamily};

use super::clusters;
use super::error::{CudaError, check};
use super::memory::CudaMemory;
use super::module::{CudaModule, LoadedModule};
use super::owned::{Chosen, OwnedContext, OwnedMemory, OwnedStream, Owner};
use super::parameters::DeclaredParameters;
use super::probe::{CudaVersion, DeviceInfo, DriverInfo, probe};
use super::queue::{Queue, Relaxed, StreamId, Turn};
use super::resident::ResidentClusters;

/// A supported GPU, ready to allocate, load and launch. Clones share it.
///
/// All work is queued on one stream in the order of the calls: the device's own stream, or the
/// caller's ([`CudaDevice::with_stream`]). Copies wait for earlier launches; launches return
/// immediately. Handles may be used on several threads. One stream runs its work in the order of
/// the calls; while one thread records the stream into a graph, calls of all others are refused.
#[derive(Debug, Clone)]
pub struct CudaDevice {
    inner: Arc<Inner>,
    queue: Arc<Queue>,
    lent: Option<Lent>,
}

/// A handle that keeps the caller's stream alive.
#[derive(Debug, Clone)]
struct Lent {
    owner: Arc<dyn Any + Send + Sync>,
    /// Whether work may be queued while the caller records the stream into a graph.
    recordable: bool,
}

/// A module by the image that it is loaded from; nothing until it is loaded.
type Loading = Arc<Mutex<Option<Arc<LoadedModule>>>>;

// Fields are dropped in this order, and the context must be dropped last.
#[derive(Debug)]
struct Inner {
    modules: Mutex<HashMap<Vec<u8>, Loading>>,
    /// The queues of the handles, by their streams.
    queues: Mutex<HashMap<usize, Weak<Queue>>>,
    /// Memory that the driver did not free when it was asked to.
    unfreed: Mutex<Vec<OwnedMemory>>,
    stream: OwnedStream,
    context: OwnedContext,
    info: DeviceInfo,
    driver: CudaVersion,
    arch: Arch,
    clusters: ResidentClusters,
}

/// A lock whose contents are right even if a thread panicked while it held it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// The queue of a stream.
    fn queue(&self, stream: *mut c_void) -> Arc<Queue> {
        let mut queues = lock(&self.queues);
        queues.retain(|_, queue| queue.strong_count() > 0);
        if let Some(known) = queues.get(&stream.addr()).and_then(Weak::upgrade) {
            return known;
        }
        let queue = Arc::new(Queue::new(stream));
        queues.insert(stream.addr(), Arc::downgrade(&queue));
        queue
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Modules and the stream are released in the current context. A failure cannot be
        // handled here; the driver frees them with the process.
        let _ = bind(&self.context);
        let unfreed = self.unfreed.get_mut().unwrap_or_else(PoisonError::into_inner);
        for memory in unfreed.drain(..) {
            let _ = Chosen::free(memory);
        }
    }
}

/// Makes a context current, unless it is: to ask costs less.
fn bind(context: &OwnedContext) -> Result<(), CudaError> {
    let (wanted, mut current) = (Chosen::context(context), ptr::null_mut());
    // SAFETY: `current` is writable.
    let asked = unsafe { raw::cuCtxGetCurrent(&mut current) };
    if asked == CUDA_SUCCESS && current == wanted {
        return Ok(());
    }
    // SAFETY: the handle is alive as long as `context`.
    check("cuCtxSetCurrent", unsafe { raw::cuCtxSetCurrent(wanted) })
}

impl CudaDevice {
    /// Opens device `ordinal`.
    ///
    /// # Errors
    /// [`CudaError::Driver`] from [`probe`], [`CudaError::NoSuchDevice`],
    /// [`CudaError::UnsupportedDevice`], or a failed call.
    pub fn open(ordinal: u32) -> Result<Self, CudaError> {
        let DriverInfo { version, mut devices, library: _ } = probe()?;
        let count = devices.len();
        if ordinal as usize >= count {
            return Err(CudaError::NoSuchDevice { ordinal, count });
        }
        let info = devices.swap_remove(ordinal as usize);
        let arch = info.supported()?;
        let context = Chosen::retain(ordinal)?;
        bind(&context)?;
        let stream = Chosen::create_stream()?;
        let clusters = match arch.tensor() {
            // The plans of its kernels have a table of their own, and the driver's compiler takes
            // longer to start than a kernel to be loaded.
            TensorFamily::MmaSync | TensorFamily::MmaSyncScaled | TensorFamily::Wgmma => {
                ResidentClusters::of_sms(info.sms)
            }
            TensorFamily::Tcgen05 => clusters::resident(&info)?,
        };
        let inner = Arc::new(Inner {
            modules: Mutex::default(),
            queues: Mutex::default(),
            unfreed: Mutex::default(),
            stream,
            context,
            info,
            driver: version,
            arch,
            clusters,
        });
        let queue = inner.queue(Chosen::stream(&inner.stream));
        Ok(Self { inner, queue, lent: None })
    }

    /// A handle of the same device whose launches, copies and fills are queued on the caller's
    /// `stream` (a `CUstream`; null is the legacy default stream). Modules are shared, and
    /// memory of either handle can be used with both.
    ///
    /// With `CU_STREAM_PER_THREAD` a call queues on the stream of its thread, and what is to happen
    /// in order is called by one thread, or ordered by the caller ([`stream_id`](Self::stream_id)).
    ///
    /// Every call makes the device's primary context current on its thread and leaves it
    /// current. The caller orders this stream with others. Memory is copied and filled on the
    /// stream of the handle that it was allocated with.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for a stream of another context than the device's
    /// primary one; or a failed call.
    ///
    /// # Safety
    /// * `stream` is null, the handle of the legacy default stream, or a stream that has not been
    ///   destroyed. It is not destroyed before the last call of this handle, its clones, and the
    ///   modules, memory and graphs made from them, other than dropping them.
    /// * If the caller records the stream into its own graph, then everything that was queued
    ///   meanwhile stays valid as long as the graph may be replayed: memory is not freed, modules
    ///   are not unloaded (a handle of this GPU is kept). Freeing waits for what runs, but does not
    ///   know what a graph will run.
    pub unsafe fn with_stream(&self, stream: *mut c_void) -> Result<Self, CudaError> {
        self.bind()?;
        let mut context = ptr::null_mut();
        // SAFETY: `context` is writable, and the caller guarantees that the stream is alive.
        check("cuStreamGetCtx", unsafe { raw::cuStreamGetCtx(stream, &mut context) })?;
        if context != self.context() {
            return Err(CudaError::BadArgument {
                operation: "launching on a stream of the caller's",
                field: "the stream's context",
                required: format!("the primary one of cuda:{}", self.info().ordinal),
                actual: "another".to_owned(),
            });
        }
        Ok(Self { inner: self.inner.clone(), queue: self.inner.queue(stream), lent: None })
    }

    /// [`with_stream`](Self::with_stream) of a stream that lives as long as `owner`, which this
    /// handle and all that is made from it keep. Nothing can be queued while somebody else than
    /// [`capture`](Self::capture) records the stream, unless the handle is made
    /// [`recordable`](Self::recordable).
    ///
    /// # Errors
    /// The same as [`with_stream`](Self::with_stream).
    ///
    /// # Safety
    /// `stream` is a stream until `owner` is dropped.
    pub unsafe fn with_owned_stream(
        &self,
        stream: *mut c_void,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, CudaError> {
        // SAFETY: the caller says that the stream is alive as long as its owner, which the handle
        // keeps; and no graph of the caller's gets this handle's work.
        let device = unsafe { self.with_stream(stream)? };
        Ok(Self { lent: Some(Lent { owner, recordable: false }), ..device })
    }

    /// The same handle, which may queue while the owner of its stream records it.
    ///
    /// # Safety
    /// Work that is queued meanwhile stays valid as long as the graph may be replayed, as for
    /// [`with_stream`](Self::with_stream).
    #[must_use]
    pub unsafe fn recordable(mut self) -> Self {
        if let Some(lent) = &mut self.lent {
            lent.recordable = true;
        }
        self
    }

    /// The owner of a stream that was [given with one](Self::with_owned_stream).
    #[must_use]
    pub fn stream_owner(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.lent.as_ref().map(|lent| &lent.owner)
    }

    /// The stream that a call of this thread queues on.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        StreamId::here(self.stream())
    }

    /// Whether memory of `other` can be used with this handle, because both have the same context.
    pub fn shares_memory_with(&self, other: &Self) -> bool {
        self.context() == other.context()
    }

    /// Whether work that this thread gives to both handles is queued on one stream.
    pub fn shares_stream_with(&self, other: &Self) -> bool {
        self.shares_memory_with(other) && self.stream() == other.stream()
    }

    /// The driver's description of the GPU.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// The newest CUDA version that the driver supports.
    pub fn driver(&self) -> CudaVersion {
        self.inner.driver
    }

    /// The architecture whose kernels it is given, where no other is asked for.
    pub fn arch(&self) -> Arch {
        self.inner.arch
    }

    /// Returns the number of clusters that plans may count on: on GPUs with `tcgen05` the driver's.
    pub fn clusters(&self) -> ResidentClusters {
        self.inner.clusters
    }

    /// Asks the driver how many clusters run at a time whose blocks each take a multiprocessor.
    ///
    /// # Errors
    /// A failed call.
    pub fn query_clusters(&self) -> Result<ResidentClusters, CudaError> {
        self.bind()?;
        clusters::resident(self.info())
    }

    /// Allocates `bytes` of device memory, contents undefined, aligned to at least
    /// 256 bytes. Zero bytes is an allocation without an address.
    ///
    /// # Errors
    /// A failed call, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn alloc(&self, bytes: usize) -> Result<CudaMemory, CudaError> {
        CudaMemory::new(self, bytes)
    }

    /// Allocates device memory with a copy of `bytes` in it.
    ///
    /// # Errors
    /// A failed call.
    pub fn upload(&self, bytes: &[u8]) -> Result<CudaMemory, CudaError> {
        let memory = self.alloc(bytes.len())?;
        memory.write(0, bytes)?;
        Ok(memory)
    }

    /// Free and total device memory, bytes.
    ///
    /// # Errors
    /// A failed call.
    pub fn memory_info(&self) -> Result<(u64, u64), CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are writable and the context is current.
        check("cuMemGetInfo", unsafe { raw::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Compiles PTX text for this GPU, or returns the module compiled before from
    /// the same text. May be called while a stream is being recorded into a graph.
    ///
    /// # Errors
    /// [`CudaError::Module`] with the compiler's log, [`CudaError::BadArgument`] for
    /// text with a nul in it.
    pub fn load(&self, ptx: &str) -> Result<CudaModule, CudaError> {
        self.load_once(ptx.as_bytes(), || LoadedModule::compile(ptx))
    }

    /// Loads machine code, or returns the module loaded before from the same bytes.
    /// `declared` has the parameters of kernels by name; the driver is asked about those that it does
    /// not name. May be called while a stream is being
    /// recorded into a graph.
    ///
    /// # Errors
    /// [`CudaError::Module`] where the driver does not take it: it is for another GPU, or for a
    /// newer driver. [`CudaError::BadArgument`] for bytes that are no ELF file.
    ///
    /// # Safety
    /// `cubin` is a whole file as an assembler wrote it: the driver uses the lengths that it
    /// finds in it.
    pub unsafe fn load_cubin(
        &self,
        cubin: &[u8],
        declared: HashMap<String, DeclaredParameters>,
    ) -> Result<CudaModule, CudaError> {
        // SAFETY: passed on to the caller.
        self.load_once(cubin, || unsafe { LoadedModule::load(cubin, declared) })
    }

    fn load_once(
        &self,
        image: &[u8],
        load: impl FnOnce() -> Result<LoadedModule, CudaError>,
    ) -> Result<CudaModule, CudaError> {
        let loading = lock(&self.inner.modules).entry(image.to_owned()).or_default().clone();
        // Other modules can be loaded meanwhile, and this one is loaded once.
        let mut loading = lock(&loading);
        let loaded = match &*loading {
            Some(loaded) => loaded.clone(),
            None => {
                self.bind()?;
                loading.insert(Arc::new(load()?)).clone()
            }
        };
        Ok(CudaModule::new(loaded, self.clone()))
    }

    /// Waits until everything launched has finished.
    ///
    /// # Errors
    /// The first error of a launched kernel, after which the device is unusable;
    /// [`CudaError::BadArgument`] while the stream is being recorded.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        self.refuse_recording("waiting for the stream")?;
        let _relaxed = Relaxed::enter()?;
        self.wait()
    }

    /// Waits for the stream, where [`Relaxed`] allows it.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is alive.
        check("cuStreamSynchronize", unsafe { raw::cuStreamSynchronize(self.stream()) })
    }

    /// The stream on which launches are queued (a `CUstream`), for libraries that take one. It
    /// lives as long as this handle, or as the caller of [`with_stream`](Self::with_stream)
    /// guaranteed.
    pub fn stream(&self) -> *mut c_void {
        self.queue.handle()
    }

    /// The right to queue on the stream.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] while another thread records it, or the owner of a stream that is
    /// not [`recordable`](Self::recordable).
    pub(crate) fn turn(&self, operation: &'static str) -> Result<Turn<'_>, CudaError> {
        let turn = self.queue.turn(operation)?;
        // A graph that the stream's owner records knows nothing of the memory that work here uses.
        let unknown = self.lent.as_ref().is_some_and(|lent| !lent.recordable);
        if unknown && !Queue::is_recorded_here(&turn) {
            self.refuse_recording(operation)?;
        }
        Ok(turn)
    }

    /// The stream with its recorder.
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Frees memory of the device's context. Memory that the driver does not free is kept and tried
    /// again by the next allocation.
    pub(crate) fn free(&self, memory: OwnedMemory) {
        lock(&self.inner.unfreed).push(memory);
        self.free_what_is_left();
    }

    /// Frees what could not be freed before.
    pub(crate) fn free_what_is_left(&self) {
        let mut unfreed = lock(&self.inner.unfreed);
        if unfreed.is_empty() || self.bind().is_err() {
            return;
        }
        if let Ok(_relaxed) = Relaxed::enter() {
            *unfreed = unfreed.drain(..).filter_map(|memory| Chosen::free(memory).err()).collect();
        }
    }

    /// Refuses an operation while the stream is being recorded into a graph, because it would
    /// wait, or because the graph would contain host addresses.
    pub(crate) fn refuse_recording(&self, operation: &'static str) -> Result<(), CudaError> {
        const NONE: u32 = 0;
        let mut status = NONE;
        // SAFETY: `status` is writable and the stream alive.
        check("cuStreamIsCapturing", unsafe {
            raw::cuStreamIsCapturing(self.stream(), &mut status)
        })?;
        if status == NONE {
            return Ok(());
        }
        Err(CudaError::BadArgument {
            operation,
            field: "the stream",
            required: "outside of a recording into a graph".to_owned(),
            actual: "inside one".to_owned(),
        })
    }

    fn context(&self) -> *mut c_void {
        Chosen::context(&self.inner.context)
    }

    /// Makes the device's context current on this thread.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        bind(&self.inner.context)
    }
}
