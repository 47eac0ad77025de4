//! Errors of devices.

use fp4_formats::Arch;
use fp4_formats::Family;
use fp4_formats::arch::CudaVersion;
#[cfg(feature = "emulator")]
use fp4_formats::arch::Targets;
#[cfg(feature = "capture")]
use ptx_emu_bundle::BundleError;
#[cfg(feature = "emulator")]
use ptx_emu_core::{LaunchError, LoadError, MemoryError, tensor_map::TensorMapError};

use super::{Error, ErrorKind};
use crate::cuda::CudaError;
use crate::kernels::CODE_VARIABLE;

/// Forms of a request for a device.
pub(crate) const DEVICE_FORMS: &str = if cfg!(feature = "emulator") {
    "auto, cuda:N, emu:a100, emu:rtx3090, emu:rtx4090, emu:l40s, emu:h200, emu:b200, emu:b300, emu:rtx5090, \
     emu:rtx-pro-6000, emu:dgx-spark"
} else {
    "auto, cuda:N"
};

/// Says which target's code would run instead.
fn instead(other: Option<Arch>) -> String {
    other.map_or_else(String::new, |arch| {
        format!("; code for {arch} runs with it (`Device::with_arch`, `--arch {arch}`)")
    })
}

/// The failure of a call that speaks about the problem's size (CUDA Driver API, `CUresult`).
const CUDA_ERROR_OUT_OF_MEMORY: u32 = 2;

/// The reason why no device could be opened, or how one failed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The request is none of the known forms.
    #[error("unknown device `{text}`; known: {}", DEVICE_FORMS)]
    UnknownRequest {
        /// The request.
        text: String,
    },
    /// The driver or a GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The emulator cannot load the kernels.
    #[cfg(feature = "emulator")]
    #[error("the emulator cannot load the kernels: {0}")]
    Load(#[from] LoadError),
    /// The emulator stopped a kernel.
    #[cfg(feature = "emulator")]
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The emulator's memory.
    #[cfg(feature = "emulator")]
    #[error("emulated memory: {0}")]
    Memory(#[from] MemoryError),
    /// A launch that cannot be written as a bundle.
    #[cfg(feature = "capture")]
    #[error("capture: {0}")]
    Capture(#[source] Box<BundleError>),
    /// A tensor map that cannot be encoded.
    #[cfg(feature = "emulator")]
    #[error("tensor map: {0}")]
    TensorMap(#[from] TensorMapError),
    /// A described machine without kernels.
    #[cfg(feature = "emulator")]
    #[error(
        "emulated {machine}: compute capability {}.{}; there are kernels for {}",
        capability.0, capability.1, Targets
    )]
    UnsupportedMachine {
        /// Its name.
        machine: String,
        /// Its compute capability, major and minor.
        capability: (u32, u32),
    },
    /// The code of a target that the device does not run.
    #[error(
        "{device} has compute capability {}.{}, which runs no code for {arch} ({})",
        capability.0, capability.1, arch.capabilities()
    )]
    OtherTarget {
        /// The device.
        device: String,
        /// Its compute capability, major and minor.
        capability: (u32, u32),
        /// The target that was asked for.
        arch: Arch,
    },
    /// A request for a kind of code that is none of the known ones.
    #[error("{CODE_VARIABLE} must be auto, ptx or cubin, got `{text}`")]
    UnknownCode {
        /// The request.
        text: String,
    },
    /// The driver is too old for the code of a target.
    #[error(
        "{device} would run code for {arch}, whose PTX needs a driver for CUDA {required} or newer, got \
         one for CUDA {actual}{}", instead(*other)
    )]
    OldDriver {
        /// The device.
        device: String,
        /// The target.
        arch: Arch,
        /// The oldest driver that loads its PTX.
        required: CudaVersion,
        /// The newest CUDA version that the installed driver supports.
        actual: CudaVersion,
        /// A target whose code the GPU runs with this driver, on request.
        other: Option<Arch>,
    },
    /// Machine code was asked for, and there is none that the GPU loads.
    #[error(
        "there is no machine code of {family} for compute capability {}.{}: {CODE_VARIABLE}=cubin asks \
         for it, and `cargo xtask build-kernels --check` makes it", capability.0, capability.1
    )]
    NoMachineCode {
        /// The kernels.
        family: Family,
        /// The GPU's compute capability, major and minor.
        capability: (u32, u32),
    },
    /// There is no supported GPU, and this build has no emulator.
    #[error(
        "no GPU: {reason}; the emulator is a feature of the crate nvfp4 that this program lacks"
    )]
    NoGpu {
        /// The reason why there is none.
        reason: String,
    },
    /// A library that is opened when it is first used is not on this machine.
    #[error("{library} is not on this machine: {reason}")]
    NoLibrary {
        /// Its name.
        library: &'static str,
        /// The loader's message.
        reason: String,
    },
    /// The operation needs a GPU, and the device is the emulator.
    #[error("{operation} needs a GPU; the device is {device}")]
    NeedsGpu {
        /// The operation.
        operation: &'static str,
        /// The device.
        device: String,
    },
}

impl DeviceError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownRequest { .. } | Self::UnknownCode { .. } => ErrorKind::InvalidArgument,
            #[cfg(feature = "emulator")]
            Self::TensorMap(_) => ErrorKind::InvalidArgument,
            Self::NoMachineCode { .. }
            | Self::OldDriver { .. }
            | Self::NeedsGpu { .. }
            | Self::NoGpu { .. } => ErrorKind::Unsupported,
            #[cfg(feature = "emulator")]
            Self::UnsupportedMachine { .. } | Self::Load(_) => ErrorKind::Unsupported,
            Self::NoLibrary { .. } | Self::OtherTarget { .. } => ErrorKind::Unsupported,
            Self::Cuda(error) => match error {
                CudaError::Driver(_)
                | CudaError::NoSuchDevice { .. }
                | CudaError::UnsupportedDevice { .. } => ErrorKind::Unsupported,
                CudaError::Call { code, .. } if code.value == CUDA_ERROR_OUT_OF_MEMORY => {
                    ErrorKind::OutOfMemory
                }
                CudaError::BadLaunch { .. } | CudaError::BadArgument { .. } => {
                    ErrorKind::InvalidArgument
                }
                CudaError::Call { .. }
                | CudaError::Module { .. }
                | CudaError::AddressTaken { .. }
                | CudaError::NoSuchKernel { .. } => ErrorKind::Driver,
            },
            #[cfg(feature = "emulator")]
            Self::Launch(_) | Self::Memory(_) => ErrorKind::Driver,
            #[cfg(feature = "capture")]
            Self::Capture(_) => ErrorKind::File,
        }
    }

    /// Whether a kernel had been launched: such an error speaks about the kernel, not about the
    /// input or the machine.
    #[must_use]
    pub fn happened_while_running(&self) -> bool {
        match self {
            Self::Cuda(CudaError::Call { code, .. }) => {
                code.value != CUDA_ERROR_OUT_OF_MEMORY && !code.is_of_recording()
            }
            #[cfg(feature = "emulator")]
            Self::Launch(error) => matches!(error, LaunchError::Diagnostic(_)),
            #[cfg(feature = "emulator")]
            Self::Memory(error) => matches!(error, MemoryError::Uninitialised { .. }),
            #[cfg(feature = "emulator")]
            Self::Load(_) | Self::TensorMap(_) | Self::UnsupportedMachine { .. } => false,
            #[cfg(feature = "capture")]
            Self::Capture(_) => false,
            Self::Cuda(_)
            | Self::UnknownRequest { .. }
            | Self::UnknownCode { .. }
            | Self::OtherTarget { .. }
            | Self::OldDriver { .. }
            | Self::NoMachineCode { .. }
            | Self::NoGpu { .. }
            | Self::NoLibrary { .. }
            | Self::NeedsGpu { .. } => false,
        }
    }
}

macro_rules! from_device_error {
    ($($source:ty),*) => {
        $(impl From<$source> for Error {
            fn from(error: $source) -> Self {
                Self::Device(error.into())
            }
        })*
    };
}
from_device_error!(CudaError);
#[cfg(feature = "emulator")]
from_device_error!(LoadError, LaunchError, MemoryError, TensorMapError);
