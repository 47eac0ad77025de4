//! Choosing and opening what kernels run on: a GPU through the CUDA driver, or the emulator.

#[cfg(feature = "emulator")]
mod emulator;
mod found;
mod kept;
mod maps;
mod queue;
mod shared;
mod target;
mod tuning;

use std::ffi::c_void;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fp4_formats::arch::{PtxVersion, Targets};
use fp4_formats::tensor_map::{MapElement, TensorMap, TensorMapShape};
use fp4_formats::{Arch, Swizzle};
use nvfp4_manifest::Manifest;
#[cfg(feature = "emulator")]
use ptx_emu_core::Gpu;
use serde::Serialize;

#[cfg(feature = "emulator")]
pub use self::emulator::Emulator;
#[cfg(feature = "emulator")]
pub(crate) use self::emulator::lock;
pub(crate) use self::found::FoundKernel;
use self::kept::Kept;
use self::maps::Maps;
pub(crate) use self::queue::{AtOnce, Prepared, Queue};
pub use self::target::Target;
use self::tuning::Tuned;
#[cfg(feature = "capture")]
use crate::capture::Capture;
pub use crate::cuda::ResidentClusters;
use crate::cuda::{
    self, CudaDevice, CudaModule, DeviceInfo, DriverError, StreamId, TensorMapArguments,
};
pub use crate::error::DeviceError;
use crate::error::Result;
use crate::error::device::DEVICE_FORMS;
use crate::kernels::{KernelFiles, KernelSource, KernelsError};
pub use crate::launch::LaunchSpec;
use crate::modules::{CodeRequest, LoadedModule, Modules};
#[cfg(feature = "emulator")]
use crate::observe::LaunchObserver;
use crate::tune::{DeviceKey, Location, Tuning};

/// The requested device.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum DeviceRequest {
    /// A supported GPU if there is one, else, with the feature `emulator`, the emulated H200.
    #[default]
    Auto,
    /// The GPU with this ordinal.
    Cuda(u32),
    /// The emulator of this machine.
    #[cfg(feature = "emulator")]
    Emulator(Gpu),
}

impl DeviceRequest {
    /// The forms that it can be parsed from.
    pub const FORMS: &'static str = DEVICE_FORMS;
}

impl FromStr for DeviceRequest {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let request = match text.split_once(':') {
            None if text == "auto" => Some(Self::Auto),
            Some(("cuda", ordinal)) => ordinal.parse().ok().map(Self::Cuda),
            #[cfg(feature = "emulator")]
            Some(("emu", name)) => Gpu::by_name(name).map(Self::Emulator),
            _ => None,
        };
        request.ok_or_else(|| DeviceError::UnknownRequest { text: text.into() })
    }
}

impl fmt::Display for DeviceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            #[cfg(feature = "emulator")]
            Self::Emulator(gpu) => write!(f, "emu:{}", gpu.name),
        }
    }
}

/// The opened device, and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The device as it could be requested: `cuda:0`, `emu:h200`.
    pub device: String,
    /// The device in words.
    pub name: String,
    /// Architecture of the kernels it runs.
    pub arch: Arch,
    /// The reason for that architecture.
    pub code: String,
    /// The reason for the choice of the device.
    pub reason: String,
}

impl Choice {
    fn new(
        device: String,
        name: String,
        (arch, capability): (Arch, (u32, u32)),
        reason: String,
    ) -> Self {
        Self { device, name, arch, code: arch.reason(capability).to_string(), reason }
    }

    /// The same device, given the kernels of `arch`; its compute capability is `capability`.
    fn with_arch(&self, arch: Arch, capability: (u32, u32)) -> Self {
        Self { arch, code: arch.reason(capability).to_string(), ..self.clone() }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, name, arch, code, reason } = self;
        write!(f, "{device} ({name}, {arch}): {reason}")?;
        // Code for the GPU itself needs no explanation.
        if arch.is_portable() { write!(f, "; {arch} is {code}") } else { Ok(()) }
    }
}

/// Largest size of a grid in y (CUDA C++ Programming Guide, technical specifications).
pub const MAX_GRID_Y: usize = 65_535;

/// The properties of a device that plans depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Clusters that run at a time.
    pub clusters: ResidentClusters,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// The most bytes of shared memory that a CTA can ask for.
    pub shared_per_block: u32,
}

/// The machine that runs the kernels.
#[derive(Clone, Debug)]
pub enum Backend {
    /// A GPU.
    Cuda(CudaDevice),
    /// The emulator.
    #[cfg(feature = "emulator")]
    Emulator(Emulator),
}

/// An open device. Clones share it.
///
/// Launches, and copies and fills of buffers made from it, go to one stream in the order they are
/// given: its own, or the caller's ([`with_stream`](Self::with_stream)).
#[derive(Clone, Debug)]
pub struct Device {
    backend: Backend,
    choice: Choice,
    /// Whether the caller chose the target of the kernels.
    arch_asked: bool,
    #[cfg(feature = "capture")]
    capture: Option<Arc<Capture>>,
    allocations: Arc<AtomicUsize>,
    maps: Arc<Maps>,
}

impl Device {
    /// Opens what `request` asks for.
    ///
    /// # Errors
    /// [`DeviceError::Cuda`] where a GPU was asked for by number and there is no driver, no such
    /// GPU, or it is not supported. [`DeviceRequest::Auto`] falls back to the emulator and says
    /// why in [`choice`](Self::choice).
    pub fn open(request: &DeviceRequest) -> Result<Self> {
        match request {
            DeviceRequest::Cuda(ordinal) => Self::cuda(*ordinal, "asked for".into()),
            #[cfg(feature = "emulator")]
            DeviceRequest::Emulator(gpu) => Self::emulator(gpu.clone(), "asked for".into()),
            DeviceRequest::Auto => match first_supported() {
                Ok((ordinal, reason)) => Self::cuda(ordinal, reason),
                #[cfg(feature = "emulator")]
                Err(reason) => Self::emulator(Gpu::h200(), reason),
                #[cfg(not(feature = "emulator"))]
                Err(reason) => Err(DeviceError::NoGpu { reason }.into()),
            },
        }
    }

    /// The same device, whose kernels are those of another target that it runs: the portable ones on a GPU
    /// that has closer ones, for example.
    ///
    /// # Errors
    /// [`DeviceError::OtherTarget`] for a target whose code the device does not run.
    pub fn with_arch(mut self, arch: Arch) -> Result<Self> {
        let capability = self.compute_capability();
        if !arch.capabilities().contain(capability) {
            let device = self.choice.device.clone();
            return Err(DeviceError::OtherTarget { device, capability, arch }.into());
        }
        self.choice = self.choice.with_arch(arch, capability);
        self.arch_asked = true;
        Ok(self)
    }

    pub(crate) fn cuda(ordinal: u32, reason: String) -> Result<Self> {
        let device = CudaDevice::open(ordinal)?;
        let code = (device.arch(), device.info().compute_capability);
        let choice =
            Choice::new(format!("cuda:{ordinal}"), device.info().name.clone(), code, reason);
        Ok(Self::new(Backend::Cuda(device), choice))
    }

    fn new(backend: Backend, choice: Choice) -> Self {
        Self {
            backend,
            choice,
            arch_asked: false,
            #[cfg(feature = "capture")]
            capture: None,
            allocations: Arc::default(),
            maps: Arc::default(),
        }
    }

    /// The same GPU, whose launches, copies and fills go to the caller's `stream` (a `CUstream`;
    /// null is the legacy default stream). This is how an inference engine has its own work and
    /// ours in one order, and in one graph that it records:
    ///
    /// - Kernels come from [`kernels`](Self::kernels), or from those of another stream by
    ///   [`Kernels::with_stream`], which loads nothing. Their modules are loaded when an operation
    ///   ([`Gemm`](crate::gemm::Gemm) and the like) is made, or by [`Kernels::load`].
    /// - Buffers, weights and workspaces of any handle of the GPU can be given to a launch. Calls
    ///   of [`DeviceBuffer`](crate::buffer::DeviceBuffer) queue on, or wait for, the stream of the
    ///   handle that the buffer was made from; order between streams is the caller's business.
    ///   Uploads, and new workspaces, are complete when they return.
    /// - Launches only queue kernels (and one fill, where a largest magnitude is sought): they
    ///   allocate nothing and wait for nothing, and may be recorded.
    /// - Kernels may start before the work before them in the stream has ended, and wait for it
    ///   themselves, except that GEMMs read weights at once: a kernel or a copy of the caller's
    ///   that writes weights must have finished before the GEMM is launched, not only have been
    ///   queued. Later work in the stream needs no care.
    /// - Every call makes the GPU's primary context current on its thread and leaves it so.
    /// - A [`Workspace`](crate::gemm::Workspace) belongs to the stream that it is first used on.
    /// - `CU_STREAM_PER_THREAD` is the stream of the thread that calls. Objects with memory of their
    ///   own (workspaces, quantisers, [`MoeMemory`](crate::moe::MoeMemory)) then belong to the
    ///   thread that first launches with them. Work of several threads is in no order: one of them
    ///   reads what another computed only after that one has waited for it.
    ///
    /// # Errors
    /// [`DeviceError::NeedsGpu`] on the emulator, which has no streams: it runs each launch to its
    /// end. [`DeviceError::Cuda`] for a stream of another context than the GPU's primary one.
    ///
    /// # Safety
    /// * `stream` is null, the handle of the legacy default stream, or a stream that has not been
    ///   destroyed. It is not destroyed before the last call of what was made from this handle, nor
    ///   before that of a workspace that was used on it; dropping may come later.
    /// * If the caller records the stream into a graph, then what launches were given meanwhile is
    ///   kept as long as the graph may be replayed: buffers, weights, workspaces, and a handle of
    ///   the kernels. Freeing memory waits for work that runs, but cannot know what a graph will
    ///   run, and dropping the last handle unloads the kernels.
    pub unsafe fn with_stream(&self, stream: *mut c_void) -> Result<Self> {
        let gpu = self.gpu("launching on a stream of the caller's")?;
        // SAFETY: passed on to the caller.
        let gpu = unsafe { gpu.with_stream(stream)? };
        Ok(Self { backend: Backend::Cuda(gpu), ..self.clone() })
    }

    /// Returns the number of allocations of device memory by this handle and its clones: a check
    /// that a call allocates nothing.
    #[must_use]
    pub fn allocations(&self) -> usize {
        self.allocations.load(Ordering::Relaxed)
    }

    /// The stream that a call of this thread queues on; none on the emulator.
    #[must_use]
    pub fn stream_id(&self) -> Option<StreamId> {
        match &self.backend {
            Backend::Cuda(gpu) => Some(gpu.stream_id()),
            #[cfg(feature = "emulator")]
            Backend::Emulator(_) => None,
        }
    }

    /// The same device, whose work is queued on a handle of its GPU.
    pub(crate) fn on(&self, gpu: CudaDevice) -> Self {
        Self { backend: Backend::Cuda(gpu), ..self.clone() }
    }

    /// Waits until everything launched on the device's stream has ended.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub(crate) fn wait(&self) -> Result<(), DeviceError> {
        match &self.backend {
            Backend::Cuda(gpu) => Ok(gpu.synchronize()?),
            #[cfg(feature = "emulator")]
            Backend::Emulator(_) => Ok(()),
        }
    }

    pub(crate) fn count_allocation(&self) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the opened device, and why it was chosen.
    #[must_use]
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Returns the machine that runs the kernels.
    #[must_use]
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// The properties that plans depend on.
    #[must_use]
    pub fn properties(&self) -> DeviceProperties {
        match &self.backend {
            Backend::Cuda(device) => {
                let info = device.info();
                DeviceProperties {
                    sms: info.sms,
                    clusters: device.clusters(),
                    l2_bytes: info.l2_bytes,
                    shared_per_block: info.shared_per_block,
                }
            }
            #[cfg(feature = "emulator")]
            Backend::Emulator(emulator) => emulator.properties(),
        }
    }

    /// The GPU, for operations that only one can do.
    ///
    /// # Errors
    /// [`DeviceError::NeedsGpu`] on the emulator.
    #[cfg_attr(not(feature = "emulator"), allow(unused_variables))]
    pub fn gpu(&self, operation: &'static str) -> Result<&CudaDevice> {
        match &self.backend {
            Backend::Cuda(device) => Ok(device),
            #[cfg(feature = "emulator")]
            Backend::Emulator(_) => {
                let device = self.choice.device.clone();
                Err(DeviceError::NeedsGpu { operation, device }.into())
            }
        }
    }

    /// The map of a tensor at `address` for kernels of this device, encoded if it has not been before.
    ///
    /// # Errors
    /// [`DeviceError`] for what cannot be encoded.
    pub(crate) fn tensor_map(&self, shape: &TensorMapShape, address: u64) -> Result<TensorMap> {
        self.maps.get(shape, address, || self.encode_tensor_map(shape, address))
    }

    fn encode_tensor_map(&self, shape: &TensorMapShape, address: u64) -> Result<TensorMap> {
        /// `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`.
        const L2_256B: u32 = 3;
        let rank = shape.rank;
        let bytes = match &self.backend {
            Backend::Cuda(device) => device.encode_tensor_map(&TensorMapArguments {
                // `CUtensorMapDataType`.
                element: match shape.element {
                    // `CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B`.
                    MapElement::PaddedU4 => 14,
                    MapElement::U8 => 0,
                    MapElement::U16 => 1,
                    MapElement::U32 => 2,
                },
                address,
                dims: &shape.dims[..rank],
                strides: &shape.strides[..rank - 1],
                box_dims: &shape.box_dims[..rank],
                element_strides: &[1; 5][..rank],
                interleave: 0,
                // `CUtensorMapSwizzle`.
                swizzle: match shape.swizzle {
                    Swizzle::None => 0,
                    Swizzle::B32 => 1,
                    Swizzle::B64 => 2,
                    Swizzle::B128 => 3,
                },
                l2_promotion: L2_256B,
                fill: 0,
            })?,
            #[cfg(feature = "emulator")]
            Backend::Emulator(emulator) => emulator.encode_tensor_map(shape, address)?,
        };
        Ok(TensorMap::from_bytes(&bytes))
    }

    /// Finds the kernels for this device, see [`KernelFiles::find`] for `dir`, of the first
    /// architecture that it can run and that has kernels; and the device's tuning table if there is
    /// one, see [`crate::tune`]. A module is loaded when one of its kernels is first used, from the
    /// code that [`CODE_VARIABLE`](crate::modules::CODE_VARIABLE) asks for.
    ///
    /// # Errors
    /// [`KernelsError`] where there are none,
    /// [`DeviceError::UnknownCode`], [`DeviceError::OldDriver`].
    pub fn kernels(&self, dir: Option<&Path>) -> Result<Kernels> {
        self.kernels_as(dir, CodeRequest::from_environment()?)
    }

    /// [`kernels`](Self::kernels), given to a GPU as `code` says.
    ///
    /// # Errors
    /// [`KernelsError`] where there are none, [`DeviceError::OldDriver`].
    pub fn kernels_as(&self, dir: Option<&Path>, code: CodeRequest) -> Result<Kernels> {
        self.kernels_of(self.kernel_files(dir)?, code)
    }

    /// The kernels in `files`, see [`KernelFiles::from_ptx`].
    fn kernels_of(&self, files: KernelFiles, code: CodeRequest) -> Result<Kernels> {
        let arch = files.manifest().arch;
        self.require_driver(files.manifest())?;
        let choice = self.choice.with_arch(arch, self.compute_capability());
        let device = Self { choice, ..self.clone() };
        let machine_code = match &self.backend {
            Backend::Cuda(gpu) => {
                Some(gpu.info().compute_capability).filter(|_| code != CodeRequest::Ptx)
            }
            #[cfg(feature = "emulator")]
            Backend::Emulator(_) => None,
        };
        let key = DeviceKey::of(self, files.fingerprint(machine_code))?;
        let tuning = Tuning::at(&Location::find(&key.name));
        let tuned = Tuned::new(key, tuning);
        let modules = Arc::new(Modules::new(files, code));
        Ok(Kernels {
            device,
            modules,
            overlapping: arch.dependent_launches(),
            #[cfg(feature = "emulator")]
            observer: None,
            tuned,
            kept: Arc::default(),
        })
    }

    /// Checks that the driver loads the PTX of the kernels.
    fn require_driver(&self, manifest: &Manifest) -> Result<(), DeviceError> {
        let actual = match &self.backend {
            Backend::Cuda(gpu) => gpu.driver(),
            #[cfg(feature = "emulator")]
            Backend::Emulator(_) => return Ok(()),
        };
        // A version that is not known here is left to the driver.
        let version = PtxVersion::from_name(&manifest.ptx_version);
        let Some(required) = version.map(PtxVersion::driver).filter(|driver| actual < *driver)
        else {
            return Ok(());
        };
        let (device, capability) = (self.choice.device.clone(), self.compute_capability());
        let other = Arch::ALL.into_iter().find(|arch| {
            arch.capabilities().contain(capability) && arch.ptx_version().driver() <= actual
        });
        Err(DeviceError::OldDriver { device, arch: manifest.arch, required, actual, other })
    }

    /// The kernels of the first architecture that the device runs and that has kernels; else why the
    /// preferred one has none.
    fn kernel_files(&self, dir: Option<&Path>) -> Result<KernelFiles, KernelsError> {
        let preferred = KernelFiles::find(self.choice.arch, dir);
        let Err(KernelsError::NotFound { .. }) = preferred else { return preferred };
        if self.arch_asked {
            return preferred;
        }
        let others = Arch::of_capability(self.compute_capability());
        let mut found = others.map(|arch| KernelFiles::find(arch, dir));
        found
            .find(|found| !matches!(found, Err(KernelsError::NotFound { .. })))
            .unwrap_or(preferred)
    }

    /// The compute capability, major and minor.
    #[must_use]
    pub fn compute_capability(&self) -> (u32, u32) {
        match &self.backend {
            Backend::Cuda(gpu) => gpu.info().compute_capability,
            #[cfg(feature = "emulator")]
            Backend::Emulator(emulator) => emulator.gpu.compute_capability(),
        }
    }
}

/// The first supported GPU with the reason for it, or the reason why there is none.
fn first_supported() -> Result<(u32, String), String> {
    let driver = cuda::probe().map_err(|error| match error {
        // The loader's messages are long, and `doctor` shows them.
        DriverError::Missing { .. } => "no NVIDIA driver on this machine".into(),
        other => other.to_string(),
    })?;
    let supported = || driver.devices.iter().filter_map(|info| Some((info, info.arch()?)));
    let needed = |arch: Arch| arch.ptx_version().driver();
    let found = |devices: Vec<&DeviceInfo>| {
        devices.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    match (supported().find(|(_, arch)| driver.version >= needed(*arch)), supported().next()) {
        (Some((info, _)), _) => Ok((info.ordinal, "the first supported GPU".into())),
        (None, Some((_, arch))) => Err(format!(
            "the driver is for CUDA {}, code for {arch} needs one for CUDA {} or newer: {}",
            driver.version,
            needed(arch),
            found(supported().map(|(info, _)| info).collect())
        )),
        (None, None) => {
            let devices = found(driver.devices.iter().collect());
            Err(format!("no GPU with kernels ({Targets}) among {devices}"))
        }
    }
}

/// The kernels of a device, loaded as they are used. Clones share them.
#[derive(Clone)]
pub struct Kernels {
    device: Device,
    modules: Arc<Modules>,
    /// Whether launches may overlap at all.
    overlapping: bool,
    /// The observer of launches on the emulator.
    #[cfg(feature = "emulator")]
    observer: Option<Arc<dyn LaunchObserver>>,
    /// The table that planning looks up.
    tuned: Arc<Tuned>,
    /// Values that layers above keep.
    kept: Arc<Kept>,
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, modules, overlapping, .. } = self;
        let (device, files) = (&device.choice.device, modules.files().place());
        write!(f, "Kernels({device}, {files}, overlapping: {overlapping})")
    }
}

impl Kernels {
    /// The kernels of modules in PTX, instead of those that this library finds; see
    /// [`KernelFiles::from_ptx`].
    ///
    /// # Errors
    /// [`KernelsError::NotOurs`], also for an architecture that the device does not run, and
    /// [`KernelsError::OtherStamp`].
    ///
    /// # Safety
    /// On a GPU, kernels read and write device memory. Each must do what this library's kernel of
    /// the same name does, within the memory that its parameters name.
    pub unsafe fn from_ptx(
        device: &Device,
        texts: impl IntoIterator<Item = String>,
    ) -> Result<Self> {
        let files = KernelFiles::from_ptx(texts)?;
        let actual = files.manifest().arch;
        if !actual.capabilities().contain(device.compute_capability()) {
            let required = device.choice.arch.to_string();
            let actual = actual.to_string();
            return Err(KernelsError::NotOurs { field: "target", required, actual }.into());
        }
        device.kernels_of(files, CodeRequest::Ptx)
    }

    /// The device they are on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The same kernels, of which none starts before the one before it in the stream has ended,
    /// whatever [`LaunchSpec::overlaps`] says: to measure one launch alone.
    #[must_use]
    pub fn serial(self) -> Self {
        Self { overlapping: false, ..self }
    }

    /// The same kernels, launched on the caller's `stream`: see [`Device::with_stream`].
    ///
    /// # Errors
    /// The same as [`Device::with_stream`].
    ///
    /// # Safety
    /// The same as [`Device::with_stream`].
    pub unsafe fn with_stream(&self, stream: *mut c_void) -> Result<Self> {
        // SAFETY: passed on to the caller.
        let device = unsafe { self.device.with_stream(stream)? };
        Ok(Self { device, ..self.clone() })
    }

    /// The same kernels, launched by a handle of the same GPU.
    pub(crate) fn on(&self, gpu: CudaDevice) -> Self {
        Self { device: self.device.on(gpu), ..self.clone() }
    }

    /// The folder they are in; no path if they are in none.
    #[must_use]
    pub fn folder(&self) -> &Path {
        match self.modules.files().place() {
            KernelSource::Folder(folder) => folder,
            KernelSource::Program | KernelSource::Given(_) => Path::new(""),
        }
    }

    /// The modules, and where they are.
    #[must_use]
    pub fn files(&self) -> &KernelFiles {
        self.modules.files()
    }

    /// Loads the modules of these kernels, if they are not: a launch then loads nothing.
    ///
    /// # Errors
    /// [`KernelsError`] for a kernel that is not there,
    /// [`DeviceError`] where its module does not load.
    pub fn load<'a>(&self, entries: impl IntoIterator<Item = &'a str>) -> Result<()> {
        entries.into_iter().try_for_each(|entry| match &self.device.backend {
            Backend::Cuda(gpu) => self.modules.cuda(entry, gpu).map(drop),
            #[cfg(feature = "emulator")]
            Backend::Emulator(emulator) => self.modules.emulated(entry, &emulator.gpu).map(drop),
        })
    }

    /// Returns the modules that are loaded and their code, in the order of loading.
    #[must_use]
    pub fn loaded(&self) -> Vec<LoadedModule> {
        self.modules.loaded()
    }

    /// The module that has the kernel `entry` on the GPU, loaded if it is not.
    ///
    /// # Errors
    /// The same as [`load`](Self::load); [`DeviceError::NeedsGpu`] on the emulator.
    pub fn cuda(&self, operation: &'static str, entry: &str) -> Result<CudaModule> {
        self.modules.cuda(entry, self.device.gpu(operation)?)
    }

    /// Launches a kernel. A GPU only queues it (errors of the kernel show at the next copy or
    /// synchronisation); the emulator runs it to its end and tells the observer
    /// ([`with_observer`](Self::with_observer)).
    ///
    /// # Errors
    /// [`DeviceError`].
    ///
    /// # Safety
    /// On a GPU the kernel accesses memory through the addresses in `params`: they must be
    /// allocations of this device that are large enough for what the kernel does with them and
    /// stay alive until it has finished. (The emulator checks every access.)
    pub unsafe fn launch(&self, spec: &LaunchSpec<'_>) -> Result<()> {
        let code = self.code(spec.entry)?;
        // SAFETY: passed on to the caller.
        unsafe { self.launch_code(&code, spec) }
    }
}
