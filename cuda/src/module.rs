//! Modules: PTX text compiled by the driver, or machine code; and the limits of their kernels.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cuda_lazy::{CUDA_SUCCESS, raw};

use super::device::CudaDevice;
use super::error::{CudaCode, CudaError, check};
use super::parameters::{DeclaredParameters, KernelParameter, Parameters, declared_parameters};
use super::queue::Relaxed;

/// A module on a device. Clones share it.
#[derive(Debug, Clone)]
pub struct CudaModule {
    // Dropped before `device`, because the module may be the last user of the context.
    loaded: Arc<LoadedModule>,
    device: CudaDevice,
}

/// The resources and limits of a kernel as compiled by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelLimits {
    /// Registers per thread.
    pub registers: u32,
    /// Most threads per block, from the kernel's `.maxntid` or `.reqntid` or from its registers.
    pub max_threads: u32,
    /// Static shared memory, bytes.
    pub static_shared: u32,
    /// Local memory (stack frame and spills) per thread, bytes.
    pub local: u32,
    /// Bytes that [`CudaLaunch::params`](super::CudaLaunch::params) must have.
    pub param_bytes: usize,
    /// The cluster shape fixed by `.reqnctapercluster`, if any.
    pub cluster: Option<[u32; 3]>,
}

impl CudaModule {
    pub(crate) fn new(loaded: Arc<LoadedModule>, device: CudaDevice) -> Self {
        Self { loaded, device }
    }

    /// The same module, launched on the stream of `device`, another handle of its GPU.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for a handle of another GPU.
    pub fn on(&self, device: &CudaDevice) -> Result<Self, CudaError> {
        self.require_on(device)?;
        Ok(Self { loaded: self.loaded.clone(), device: device.clone() })
    }

    /// Checks that `device` is a handle of its GPU.
    pub(crate) fn require_on(&self, device: &CudaDevice) -> Result<(), CudaError> {
        if self.device.shares_memory_with(device) {
            return Ok(());
        }
        Err(CudaError::BadArgument {
            operation: "launching kernels",
            field: "the device",
            required: format!("cuda:{}, where they were loaded", self.device.info().ordinal),
            actual: format!("cuda:{}", device.info().ordinal),
        })
    }

    /// The device it was compiled for.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The names of the module's kernels, sorted.
    ///
    /// # Errors
    /// A failed call.
    pub fn kernels(&self) -> Result<Vec<String>, CudaError> {
        self.device.bind()?;
        self.loaded.kernels()
    }

    /// The limits of one kernel.
    ///
    /// # Errors
    /// [`CudaError::NoSuchKernel`] or a failed call.
    pub fn limits(&self, kernel: &str) -> Result<KernelLimits, CudaError> {
        Ok(self.kernel(kernel)?.limits)
    }

    /// The offsets and sizes of one kernel's parameters, in order.
    ///
    /// # Errors
    /// [`CudaError::NoSuchKernel`] or a failed call.
    pub fn parameters(&self, kernel: &str) -> Result<Vec<KernelParameter>, CudaError> {
        Ok(self.kernel(kernel)?.parameters.0.clone())
    }

    /// The number of blocks of `threads` threads and `dynamic_shared` bytes of dynamic shared
    /// memory that a multiprocessor holds at once.
    ///
    /// # Errors
    /// [`CudaError::NoSuchKernel`] or a failed call.
    pub fn blocks_per_sm(
        &self,
        kernel: &str,
        threads: u32,
        dynamic_shared: u32,
    ) -> Result<u32, CudaError> {
        let kernel = self.kernel(kernel)?;
        kernel.allow_dynamic_shared(dynamic_shared)?;
        let mut blocks = 0;
        // SAFETY: `blocks` is writable; the function is alive with its module.
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", unsafe {
            raw::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                kernel.function,
                i32::try_from(threads).unwrap_or(i32::MAX),
                dynamic_shared as usize,
            )
        })?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// A kernel, found once for any number of launches.
    ///
    /// # Errors
    /// [`CudaError::NoSuchKernel`] or a failed call.
    pub fn find(&self, name: &str) -> Result<CudaKernel, CudaError> {
        Ok(CudaKernel { kernel: self.kernel(name)?, module: self.clone() })
    }

    /// The kernel's handle and limits, with the context made current.
    pub(crate) fn kernel(&self, name: &str) -> Result<Arc<Kernel>, CudaError> {
        self.device.bind()?;
        self.loaded.kernel(name)
    }
}

/// A kernel of a module, for launches that look up nothing. Clones share it.
#[derive(Debug, Clone)]
pub struct CudaKernel {
    pub(crate) kernel: Arc<Kernel>,
    /// Keeps the function, and the context that it is in.
    pub(crate) module: CudaModule,
}

impl CudaKernel {
    /// Its limits.
    #[must_use]
    pub fn limits(&self) -> KernelLimits {
        self.kernel.limits
    }
}

/// The module without the device, which caches it.
#[derive(Debug)]
pub(crate) struct LoadedModule {
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
    declared: HashMap<String, DeclaredParameters>,
    handle: *mut c_void,
}

// SAFETY: the driver may be called with a module's handle from every thread.
unsafe impl Send for LoadedModule {}
// SAFETY: as above; nothing is written through the handle on the host.
unsafe impl Sync for LoadedModule {}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        // SAFETY: the handle is this module's and not used again. The device's cache holds the
        // module until it is dropped, and makes the context current before.
        unsafe { raw::cuModuleUnload(self.handle) };
    }
}

/// `CUjit_option` (CUDA Driver API, Data types).
const CU_JIT_ERROR_LOG_BUFFER: u32 = 5;
const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: u32 = 6;
const LOG_BYTES: usize = 16 << 10;
const CUDA_ERROR_INVALID_VALUE: u32 = 1;
const CUDA_ERROR_NOT_FOUND: u32 = 500;

/// The first bytes of an ELF file.
const ELF: &[u8] = b"\x7fELF";

/// Loads an image in the current context. Loading a module queues nothing on a stream that is being recorded.
///
/// # Safety
/// `image` is PTX with a nul behind it, or a whole ELF file.
unsafe fn load(image: *const c_void) -> Result<*mut c_void, CudaError> {
    let mut log = vec![0_u8; LOG_BYTES];
    let mut options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // Values that fit a pointer are passed in its place.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(LOG_BYTES)];
    let mut handle = ptr::null_mut();
    let relaxed = Relaxed::enter()?;
    // SAFETY: the image is as the caller promises and only read, the log has the size
    // stated, and there are as many options as values.
    let code = unsafe {
        raw::cuModuleLoadDataEx(
            &mut handle,
            image.cast_mut(),
            options.len() as u32,
            options.as_mut_ptr().cast(),
            values.as_mut_ptr(),
        )
    };
    drop(relaxed);
    if code == CUDA_SUCCESS {
        return Ok(handle);
    }
    let end = log.iter().position(|&byte| byte == 0);
    let log = String::from_utf8_lossy(&log[..end.unwrap_or(LOG_BYTES)]);
    Err(CudaError::Module { code: CudaCode::new(code), log: log.trim_end().to_owned() })
}

impl LoadedModule {
    /// Compiles in the current context.
    pub(crate) fn compile(ptx: &str) -> Result<Self, CudaError> {
        let text = CString::new(ptx).map_err(|error| CudaError::BadArgument {
            operation: "loading PTX",
            field: "text",
            required: "free of nul characters".to_owned(),
            actual: format!("one at byte {}", error.nul_position()),
        })?;
        // SAFETY: the text is nul-terminated.
        let handle = unsafe { load(text.as_ptr().cast())? };
        Ok(Self { kernels: Mutex::default(), declared: declared_parameters(ptx), handle })
    }

    /// Loads machine code in the current context.
    ///
    /// # Safety
    /// The same as [`CudaDevice::load_cubin`].
    pub(crate) unsafe fn load(
        cubin: &[u8],
        declared: HashMap<String, DeclaredParameters>,
    ) -> Result<Self, CudaError> {
        if !cubin.starts_with(ELF) {
            return Err(CudaError::BadArgument {
                operation: "loading machine code",
                field: "file",
                required: "an ELF file".to_owned(),
                actual: format!("{:02x?}", &cubin[..cubin.len().min(ELF.len())]),
            });
        }
        // SAFETY: the file is complete: the lengths in it are those of `cubin`.
        let handle = unsafe { load(cubin.as_ptr().cast())? };
        Ok(Self { kernels: Mutex::default(), declared, handle })
    }

    pub(crate) fn kernel(&self, name: &str) -> Result<Arc<Kernel>, CudaError> {
        let mut known = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = known.get(name) {
            return Ok(kernel.clone());
        }
        let missing = || {
            // Drivers before CUDA 12.4 list no kernels.
            let available = self.kernels().unwrap_or_default();
            CudaError::NoSuchKernel { kernel: name.to_owned(), available }
        };
        let Ok(symbol) = CString::new(name) else {
            return Err(missing());
        };
        let mut function = ptr::null_mut();
        // SAFETY: `function` is writable and the module is loaded.
        match unsafe { raw::cuModuleGetFunction(&mut function, self.handle, symbol.as_ptr()) } {
            CUDA_ERROR_NOT_FOUND => return Err(missing()),
            code => check("cuModuleGetFunction", code)?,
        }
        let declared = self.declared.get(name).copied();
        let kernel = Arc::new(Kernel::new(function, declared)?);
        known.insert(name.to_owned(), kernel.clone());
        Ok(kernel)
    }

    fn kernels(&self) -> Result<Vec<String>, CudaError> {
        let module = self.handle;
        let mut count = 0;
        // SAFETY: `count` is writable and the module is loaded.
        check("cuModuleGetFunctionCount", unsafe {
            raw::cuModuleGetFunctionCount(&mut count, module)
        })?;
        let mut functions = vec![ptr::null_mut(); count as usize];
        // SAFETY: there is room for `count` handles.
        check("cuModuleEnumerateFunctions", unsafe {
            raw::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module)
        })?;
        let mut names = Vec::with_capacity(functions.len());
        for function in functions {
            let mut name = ptr::null();
            // SAFETY: `name` is writable; the handle was just enumerated.
            check("cuFuncGetName", unsafe { raw::cuFuncGetName(&mut name, function) })?;
            if !name.is_null() {
                // SAFETY: a nul-terminated string that lives as long as the module.
                names.push(unsafe { CStr::from_ptr(name) }.to_string_lossy().into());
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// A kernel of a loaded module.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) function: *mut c_void,
    pub(crate) limits: KernelLimits,
    pub(crate) parameters: Parameters,
    raised: Raised,
}

/// Limits that the driver was told to raise for a kernel. The lock is held while the driver is told, so
/// that no smaller value replaces a larger one; values are stored when it has been told, so that
/// launches which need no more take no lock.
#[derive(Debug)]
struct Raised {
    telling: Mutex<()>,
    dynamic_shared: AtomicU32,
    large_clusters: AtomicBool,
}

// SAFETY: the driver may be called with a function's handle from every thread, and its module is kept
// by whoever has the kernel.
unsafe impl Send for Kernel {}
// SAFETY: as above; nothing is written through the handle on the host.
unsafe impl Sync for Kernel {}

/// `CUfunction_attribute` (CUDA Driver API, Execution control).
#[repr(u32)]
#[derive(Clone, Copy)]
enum Attribute {
    MaxThreadsPerBlock = 0,
    SharedSizeBytes = 1,
    LocalSizeBytes = 3,
    NumRegs = 4,
    MaxDynamicSharedSizeBytes = 8,
    PreferredSharedMemoryCarveout = 9,
    RequiredClusterWidth = 11,
    RequiredClusterHeight = 12,
    RequiredClusterDepth = 13,
    NonPortableClusterSizeAllowed = 14,
}

/// Shared memory, static and dynamic, that needs no opt-in (CUDA C++ Programming Guide, compute
/// capability 9.x).
const DEFAULT_SHARED: u32 = 48 << 10;

impl Kernel {
    fn new(function: *mut c_void, declared: Option<DeclaredParameters>) -> Result<Self, CudaError> {
        let ask = |attribute: Attribute| -> (u32, u32) {
            let mut value = 0;
            // SAFETY: `value` is writable and the function's module is loaded.
            let code = unsafe { raw::cuFuncGetAttribute(&mut value, attribute as u32, function) };
            (code, u32::try_from(value).unwrap_or(0))
        };
        let get = |attribute: Attribute| -> Result<u32, CudaError> {
            let (code, value) = ask(attribute);
            check("cuFuncGetAttribute", code).map(|()| value)
        };
        // A driver before CUDA 11.8 knows no clusters, and none of its kernels has one.
        let of_clusters = |attribute: Attribute| -> Result<u32, CudaError> {
            match ask(attribute) {
                (CUDA_ERROR_INVALID_VALUE, _) => Ok(0),
                (code, value) => check("cuFuncGetAttribute", code).map(|()| value),
            }
        };
        let cluster = [
            of_clusters(Attribute::RequiredClusterWidth)?,
            of_clusters(Attribute::RequiredClusterHeight)?,
            of_clusters(Attribute::RequiredClusterDepth)?,
        ];
        let parameters = Parameters::of(function, declared)?;
        let limits = KernelLimits {
            registers: get(Attribute::NumRegs)?,
            max_threads: get(Attribute::MaxThreadsPerBlock)?,
            static_shared: get(Attribute::SharedSizeBytes)?,
            local: get(Attribute::LocalSizeBytes)?,
            param_bytes: parameters.bytes(),
            cluster: (cluster[0] > 0).then(|| cluster.map(|size| size.max(1))),
        };
        Ok(Self {
            function,
            limits,
            parameters,
            raised: Raised {
                telling: Mutex::default(),
                dynamic_shared: DEFAULT_SHARED.saturating_sub(limits.static_shared).into(),
                large_clusters: false.into(),
            },
        })
    }

    /// Raises the kernel's limit of dynamic shared memory to at least `bytes`.
    pub(crate) fn allow_dynamic_shared(&self, bytes: u32) -> Result<(), CudaError> {
        let Raised { telling, dynamic_shared, .. } = &self.raised;
        let suffices = || bytes <= dynamic_shared.load(Ordering::Acquire);
        if suffices() {
            return Ok(());
        }
        let _telling = telling.lock().unwrap_or_else(PoisonError::into_inner);
        if !suffices() {
            self.set(Attribute::MaxDynamicSharedSizeBytes, bytes)?;
            // In per cent. The driver's default may allow fewer blocks than fit.
            self.set(Attribute::PreferredSharedMemoryCarveout, 100)?;
            dynamic_shared.store(bytes, Ordering::Release);
        }
        Ok(())
    }

    /// Lets the kernel run in clusters of more than 8 blocks.
    pub(crate) fn allow_large_clusters(&self) -> Result<(), CudaError> {
        let Raised { telling, large_clusters, .. } = &self.raised;
        if large_clusters.load(Ordering::Acquire) {
            return Ok(());
        }
        let _telling = telling.lock().unwrap_or_else(PoisonError::into_inner);
        if !large_clusters.load(Ordering::Acquire) {
            self.set(Attribute::NonPortableClusterSizeAllowed, 1)?;
            large_clusters.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn set(&self, attribute: Attribute, value: u32) -> Result<(), CudaError> {
        let value = i32::try_from(value).unwrap_or(i32::MAX);
        // SAFETY: the function's module is loaded.
        check("cuFuncSetAttribute", unsafe {
            raw::cuFuncSetAttribute(self.function, attribute as u32, value)
        })
    }
}
