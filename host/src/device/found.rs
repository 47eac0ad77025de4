//! Kernels that are looked up once, when an operation is made, for any number of launches.

use std::fmt;
#[cfg(feature = "emulator")]
use std::sync::Arc;

use super::{Backend, Kernels, LaunchSpec};
use crate::cuda::PreparedLaunch;
use crate::cuda::{CudaKernel, CudaLaunch};
use crate::error::{Error, Result};

/// A kernel as the device of its [`Kernels`] has it. Clones share it.
#[derive(Clone)]
pub(crate) struct FoundKernel {
    name: &'static str,
    code: Code,
}

/// The code that is launched.
#[derive(Clone)]
pub(super) enum Code {
    Cuda(CudaKernel),
    #[cfg(feature = "emulator")]
    Emulated(Arc<ptx_emu_core::Module>),
}

impl FoundKernel {
    /// Its name in the PTX.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Debug for FoundKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FoundKernel({})", self.name)
    }
}

impl Kernels {
    /// Looks up a kernel, and loads its module if it is not.
    ///
    /// # Errors
    /// The same as [`load`](Self::load).
    pub(crate) fn find(&self, name: &'static str) -> Result<FoundKernel> {
        Ok(FoundKernel { name, code: self.code(name)? })
    }

    /// [`find`](Self::find) for each of several names.
    ///
    /// # Errors
    /// The same as there.
    pub(crate) fn find_all(
        &self,
        names: impl IntoIterator<Item = &'static str>,
    ) -> Result<Vec<FoundKernel>> {
        names.into_iter().map(|name| self.find(name)).collect()
    }

    pub(super) fn code(&self, name: &str) -> Result<Code> {
        Ok(match self.device.backend() {
            Backend::Cuda(gpu) => Code::Cuda(self.modules.cuda(name, gpu)?.find(name)?),
            #[cfg(feature = "emulator")]
            Backend::Emulator(emulator) => {
                Code::Emulated(self.modules.emulated(name, &emulator.gpu)?)
            }
        })
    }

    /// [`launch`](Self::launch) of a kernel that these [`Kernels`], or others of the same device,
    /// have found. The specification has its name.
    ///
    /// # Errors
    /// The same as [`launch`](Self::launch).
    ///
    /// # Safety
    /// The same as [`launch`](Self::launch).
    pub(crate) unsafe fn launch_found(
        &self,
        kernel: &FoundKernel,
        spec: &LaunchSpec<'_>,
    ) -> Result<()> {
        debug_assert_eq!(kernel.name, spec.entry);
        // SAFETY: passed on to the caller.
        unsafe { self.launch_code(&kernel.code, spec) }
    }

    /// Tells the observer of a launch, and launches.
    ///
    /// # Safety
    /// The same as [`launch`](Self::launch).
    pub(super) unsafe fn launch_code(&self, code: &Code, spec: &LaunchSpec<'_>) -> Result<()> {
        #[cfg(feature = "emulator")]
        if let Some(observer) = &self.observer {
            observer.launching(spec);
        }
        #[cfg(feature = "capture")]
        if let Some(capture) = self.device.capture() {
            // SAFETY: passed on to the caller.
            return unsafe { self.launch_captured(code, spec, capture) };
        }
        // SAFETY: passed on to the caller.
        unsafe { self.launch_only(code, spec) }
    }

    /// Launches without writing a bundle.
    ///
    /// # Safety
    /// The same as [`launch`](Self::launch).
    pub(super) unsafe fn launch_only(&self, code: &Code, spec: &LaunchSpec<'_>) -> Result<()> {
        match (code, self.device.backend()) {
            (Code::Cuda(kernel), Backend::Cuda(gpu)) => {
                // SAFETY: passed on to the caller.
                unsafe { kernel.launch(gpu, &self.cuda_launch(spec)) }.map_err(Error::from)
            }
            #[cfg(feature = "emulator")]
            (Code::Emulated(module), Backend::Emulator(emulator)) => {
                self.launch_emulated(module, emulator, spec)
            }
            // Only kernels of the same device are given here; if others were, these would be found.
            #[cfg(feature = "emulator")]
            (Code::Cuda(_), Backend::Emulator(_)) | (Code::Emulated(_), Backend::Cuda(_)) => {
                let code = self.code(spec.entry)?;
                // SAFETY: passed on to the caller.
                unsafe { self.launch_only(&code, spec) }
            }
        }
    }

    /// A checked launch, to measure what the driver's call takes.
    ///
    /// # Errors
    /// The same as [`launch`](Self::launch); [`DeviceError::NeedsGpu`](super::DeviceError::NeedsGpu).
    pub fn prepare(&self, spec: &LaunchSpec<'_>) -> Result<PreparedLaunch> {
        let gpu = self.device.gpu("preparing a launch")?;
        let kernel = self.modules.cuda(spec.entry, gpu)?.find(spec.entry)?;
        Ok(kernel.prepare(gpu, &self.cuda_launch(spec))?)
    }

    /// A launch as the driver's crate takes it.
    fn cuda_launch<'a>(&self, spec: &LaunchSpec<'a>) -> CudaLaunch<'a> {
        let &LaunchSpec { entry, grid, block, cluster, dynamic_shared, overlaps, params } = spec;
        let overlaps = overlaps && self.overlapping;
        CudaLaunch {
            entry,
            grid,
            block,
            cluster,
            dynamic_shared,
            overlaps,
            cooperative: false,
            params,
        }
    }
}
