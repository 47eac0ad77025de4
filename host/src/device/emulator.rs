//! The emulator as a device.

use std::fmt;
#[cfg(feature = "capture")]
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fp4_formats::tensor_map::{MapElement, TensorMapShape};
use fp4_formats::{Arch, Swizzle};
use ptx_emu_core::tensor_map::{self, ElementType, L2Promotion, TENSOR_MAP_BYTES};
use ptx_emu_core::{Checks, GlobalMemory, Gpu, Schedule};

#[cfg(feature = "capture")]
use super::found::Code;
use super::{Backend, Choice, Device, DeviceError, DeviceProperties, Kernels, LaunchSpec};
#[cfg(feature = "capture")]
use crate::capture::Capture;
use crate::cuda::ResidentClusters;
#[cfg(feature = "capture")]
use crate::error::Error;
use crate::error::Result;
use crate::observe::{LaunchObserver, Reports};

/// An emulated GPU: a machine description and its memory. Clones share the memory.
#[derive(Clone)]
pub struct Emulator {
    /// The machine.
    pub gpu: Gpu,
    /// The order in which it interleaves.
    pub schedule: Schedule,
    pub(crate) memory: Arc<Mutex<GlobalMemory>>,
}

impl Emulator {
    pub(super) fn properties(&self) -> DeviceProperties {
        let gpu = &self.gpu;
        DeviceProperties {
            sms: gpu.sms,
            clusters: ResidentClusters::new(
                ResidentClusters::SIZES.map(|size| gpu.resident_clusters(size, 1)),
            ),
            l2_bytes: gpu.l2_bytes,
            shared_per_block: gpu.shared_per_cta,
        }
    }

    pub(super) fn encode_tensor_map(
        &self,
        shape: &TensorMapShape,
        address: u64,
    ) -> Result<[u8; TENSOR_MAP_BYTES]> {
        let element = match shape.element {
            MapElement::PaddedU4 => ElementType::U4Align16,
            MapElement::U8 => ElementType::U8,
            MapElement::U16 => ElementType::U16,
            MapElement::U32 => ElementType::U32,
        };
        let rank = shape.rank;
        let map = tensor_map::TensorMap {
            swizzle: match shape.swizzle {
                Swizzle::None => tensor_map::Swizzle::None,
                Swizzle::B32 => tensor_map::Swizzle::B32,
                Swizzle::B64 => tensor_map::Swizzle::B64,
                Swizzle::B128 => tensor_map::Swizzle::B128,
            },
            l2_promotion: L2Promotion::B256,
            ..tensor_map::TensorMap::tiled(
                element,
                address,
                &shape.dims[..rank],
                &shape.strides[..rank - 1],
                &shape.box_dims[..rank],
            )
        };
        Ok(map.encode_for(&self.gpu)?)
    }

    /// The memory. A launch has it for itself until it ends.
    pub(crate) fn memory(&self) -> MutexGuard<'_, GlobalMemory> {
        lock(&self.memory)
    }
}

/// The memory of an emulated device, whatever happened to a thread that had it.
pub(crate) fn lock(memory: &Mutex<GlobalMemory>) -> MutexGuard<'_, GlobalMemory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Emulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The memory is megabytes that nobody wants to see.
        let Self { gpu, schedule, .. } = self;
        write!(f, "Emulator({}, {schedule:?})", gpu.name)
    }
}

impl Device {
    pub(super) fn emulator(gpu: Gpu, reason: String) -> Result<Self> {
        let capability = gpu.compute_capability();
        let Some(arch) = Arch::of_capability(capability).next() else {
            let machine = gpu.name.into();
            return Err(DeviceError::UnsupportedMachine { machine, capability }.into());
        };
        let name = format!("emulated {}", gpu.name.to_uppercase());
        let choice = Choice::new(format!("emu:{}", gpu.name), name, (arch, capability), reason);
        let memory = Arc::new(Mutex::new(GlobalMemory::new()));
        let emulator = Emulator { gpu, schedule: Schedule::default(), memory };
        Ok(Self::new(Backend::Emulator(emulator), choice))
    }

    /// The same device with another schedule. A GPU has none of its own choosing, and stays as
    /// it is.
    #[must_use]
    pub fn with_schedule(mut self, schedule: Schedule) -> Self {
        if let Backend::Emulator(emulator) = &mut self.backend {
            emulator.schedule = schedule;
        }
        self
    }

    /// The same device, which writes every launch from now on as a bundle in a folder.
    #[cfg(feature = "capture")]
    #[must_use]
    pub fn with_capture(mut self, folder: &Path) -> Self {
        self.capture = Some(Capture::new(folder));
        self
    }

    /// The memory, where a device is emulated.
    #[cfg(feature = "capture")]
    fn emulated_memory(&self) -> Option<MutexGuard<'_, GlobalMemory>> {
        match &self.backend {
            Backend::Cuda(_) => None,
            Backend::Emulator(emulator) => Some(emulator.memory()),
        }
    }

    /// Returns the writer of launches as bundles, if there is one.
    #[cfg(feature = "capture")]
    #[must_use]
    pub fn capture(&self) -> Option<&Capture> {
        self.capture.as_deref()
    }
}

impl Kernels {
    /// The same kernels, of whose launches on the emulator `observer` is told, instead of another.
    #[must_use]
    pub fn with_observer(&self, observer: Arc<dyn LaunchObserver>) -> Self {
        Self { observer: Some(observer), ..self.clone() }
    }

    /// The same kernels, and the reports of all launches with them and with what is made from them.
    /// There are none on a GPU.
    #[must_use]
    pub fn observed(&self) -> (Self, Reports) {
        let reports = Reports::default();
        (self.with_observer(Arc::new(reports.clone())), reports)
    }

    /// Runs a kernel to its end, and tells the observer.
    pub(super) fn launch_emulated(
        &self,
        module: &ptx_emu_core::Module,
        emulator: &Emulator,
        spec: &LaunchSpec<'_>,
    ) -> Result<()> {
        let &LaunchSpec { entry, grid, block, cluster, dynamic_shared, params, .. } = spec;
        let launch = ptx_emu_core::Launch {
            entry,
            grid,
            block,
            cluster,
            dynamic_shared,
            params,
            schedule: emulator.schedule,
            threads: None,
            instruction_limit: None,
            checks: Checks::default(),
        };
        let report = module.launch(&mut emulator.memory(), &launch)?;
        if let Some(observer) = &self.observer {
            observer.launched(&report);
        }
        Ok(())
    }

    /// Launches and writes a bundle.
    ///
    /// # Safety
    /// The same as [`launch`](Self::launch).
    #[cfg(feature = "capture")]
    pub(super) unsafe fn launch_captured(
        &self,
        code: &Code,
        spec: &LaunchSpec<'_>,
        capture: &Capture,
    ) -> Result<()> {
        let before = capture.before(self.device.emulated_memory().as_deref())?;
        // SAFETY: passed on to the caller.
        let result = unsafe { self.launch_only(code, spec) };
        // A kernel that went wrong is worth a bundle too, without outputs.
        let launched = match &result {
            Ok(()) => true,
            Err(Error::Device(error)) if error.happened_while_running() => false,
            Err(_) => return result,
        };
        let files = self.modules.files();
        let ptx = files.ptx(&files.module_of(spec.entry)?)?;
        let memory = self.device.emulated_memory();
        capture.after(memory.as_deref(), ptx, spec, before, launched)?;
        result
    }
}
