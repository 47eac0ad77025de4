//! An open GPU: its primary context, its stream, and a cache of modules.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::rc::Rc;

use cuda_lazy::raw;
use fp4_formats::gemm::ResidentClusters;
use fp4_formats::{Arch, TensorFamily};

use super::clusters;
use super::error::{CudaError, check};
use super::memory::CudaMemory;
use super::module::{CudaModule, LoadedModule};
use super::owned::{Chosen, OwnedContext, OwnedStream, Owner};
use super::probe::{DeviceInfo, probe};

/// A supported GPU, ready to allocate, load and launch. Clones share it.
///
/// All work is queued on one stream in the order of the calls: the device's own stream, or the
/// caller's ([`CudaDevice::with_stream`]). Copies wait for earlier launches; launches return
/// immediately.
#[derive(Debug, Clone)]
pub struct CudaDevice {
    inner: Rc<Inner>,
    /// The caller's stream, if work is not queued on the device's own.
    caller: Option<*mut c_void>,
}

// Fields are dropped in this order, and the context must be dropped last.
#[derive(Debug)]
struct Inner {
    modules: RefCell<HashMap<Vec<u8>, Rc<LoadedModule>>>,
    stream: OwnedStream,
    context: OwnedContext,
    info: DeviceInfo,
    arch: Arch,
    clusters: ResidentClusters,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Modules and the stream are released in the current context. A failure cannot be
        // handled here; the driver frees them with the process.
        let _ = bind(&self.context);
    }
}

fn bind(context: &OwnedContext) -> Result<(), CudaError> {
    // SAFETY: the handle is alive as long as `context`.
    check("cuCtxSetCurrent", unsafe { raw::cuCtxSetCurrent(Chosen::context(context)) })
}

impl CudaDevice {
    /// Opens device `ordinal`.
    ///
    /// # Errors
    /// [`CudaError::Driver`] from [`probe`], [`CudaError::NoSuchDevice`],
    /// [`CudaError::UnsupportedDevice`], or a failed call.
    pub fn open(ordinal: u32) -> Result<Self, CudaError> {
        let mut devices = probe()?.devices;
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
            TensorFamily::Wgmma => ResidentClusters::of_sms(info.sms),
            TensorFamily::Tcgen05 => clusters::resident(&info)?,
        };
        let inner = Inner { modules: RefCell::default(), stream, context, info, arch, clusters };
        Ok(Self { inner: Rc::new(inner), caller: None })
    }

    /// A handle of the same device whose launches, copies and fills are queued on the caller's
    /// `stream` (a `CUstream`; null is the legacy default stream). Modules are shared, and
    /// memory of either handle can be used with both.
    ///
    /// Every call makes the device's primary context current on its thread and leaves it
    /// current. The caller orders this stream with others. Memory is copied and filled on the
    /// stream of the handle that it was allocated with.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for a stream of another context than the device's
    /// primary one, or a failed call.
    ///
    /// # Safety
    /// `stream` is null, one of the driver's special handles, or a stream that has not
    /// been destroyed. It is not destroyed before the last call of this handle, its
    /// clones, and the modules, memory and graphs made from them, other than dropping
    /// them.
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
        Ok(Self { inner: self.inner.clone(), caller: Some(stream) })
    }

    /// Whether memory of `other` can be used with this handle, because both have the same context.
    pub fn shares_memory_with(&self, other: &Self) -> bool {
        self.context() == other.context()
    }

    /// The driver's description of the GPU.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// The architecture whose kernels it runs.
    pub fn arch(&self) -> Arch {
        self.inner.arch
    }

    /// How many clusters plans may count on: on GPUs with `tcgen05` what the driver says.
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
    /// `parameter_counts` says how many parameters each kernel has, by name; the driver is
    /// asked about those that it does not name. May be called while a stream is being
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
        parameter_counts: HashMap<String, usize>,
    ) -> Result<CudaModule, CudaError> {
        // SAFETY: passed on to the caller.
        self.load_once(cubin, || unsafe { LoadedModule::load(cubin, parameter_counts) })
    }

    fn load_once(
        &self,
        image: &[u8],
        load: impl FnOnce() -> Result<LoadedModule, CudaError>,
    ) -> Result<CudaModule, CudaError> {
        if let Some(loaded) = self.inner.modules.borrow().get(image) {
            return Ok(CudaModule::new(loaded.clone(), self.clone()));
        }
        self.bind()?;
        let loaded = Rc::new(load()?);
        let mut modules = self.inner.modules.borrow_mut();
        modules.insert(image.to_owned(), loaded.clone());
        drop(modules);
        Ok(CudaModule::new(loaded, self.clone()))
    }

    /// Waits until everything launched has finished.
    ///
    /// # Errors
    /// The first error of a launched kernel; the device is unusable afterwards.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the stream is alive.
        check("cuStreamSynchronize", unsafe { raw::cuStreamSynchronize(self.stream()) })
    }

    /// The stream on which launches are queued (a `CUstream`), for libraries that take one. It
    /// lives as long as this handle, or as the caller of [`with_stream`](Self::with_stream)
    /// guaranteed.
    pub fn stream(&self) -> *mut c_void {
        self.caller.unwrap_or(Chosen::stream(&self.inner.stream))
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
