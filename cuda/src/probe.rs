//! The driver of the machine, its version, and its GPUs.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::{Path, PathBuf};

use cuda_lazy::{CUDA_ERROR_STUB_LIBRARY, CUDA_SUCCESS, raw};
use fp4_formats::Arch;
pub use fp4_formats::arch::CudaVersion;
use serde::Serialize;

use super::error::{CudaCode, CudaError, DriverError, check};

/// The oldest driver that loads the kernels of any target: those of the portable one. Kernels of other
/// targets need a newer one, see [`PtxVersion::driver`](fp4_formats::arch::PtxVersion::driver).
pub const MIN_DRIVER: CudaVersion = Arch::Sm80.ptx_version().driver();

/// Converts `cuDriverGetVersion`'s number, `1000 * major + 10 * minor`.
fn version_of(number: u32) -> CudaVersion {
    CudaVersion { major: number / 1000, minor: number % 1000 / 10 }
}

/// A working driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriverInfo {
    /// The library that was opened.
    pub library: String,
    /// The newest CUDA version it supports.
    pub version: CudaVersion,
    /// Its GPUs by ordinal, supported or not; never empty.
    pub devices: Vec<DeviceInfo>,
}

/// A GPU as the driver describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// The driver's number for it (`cuda:N`).
    pub ordinal: u32,
    /// Product name, e.g. `NVIDIA H200`.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Level-2 cache, bytes.
    pub l2_bytes: u64,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Width of the memory interface, bits. Zero if the driver does not report it.
    pub memory_bus_bits: u32,
    /// Peak SM clock, kHz. Zero if the driver does not report it.
    pub clock_khz: u32,
    /// Peak memory clock, kHz. Zero if the driver does not report it.
    pub memory_clock_khz: u32,
    /// Largest shared memory of a block with opt-in, bytes.
    pub shared_per_block: u32,
}

impl DeviceInfo {
    /// The architecture whose kernels this GPU is given, the preferred one of them
    /// ([`Arch::of_capability`]), or `None` if it is not supported.
    pub fn arch(&self) -> Option<Arch> {
        Arch::of_capability(self.compute_capability).next()
    }

    /// The architecture, or the error that names this GPU.
    pub(crate) fn supported(&self) -> Result<Arch, CudaError> {
        self.arch().ok_or_else(|| CudaError::UnsupportedDevice {
            ordinal: self.ordinal,
            name: self.name.clone(),
            capability: self.compute_capability,
        })
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compute_capability;
        write!(
            f,
            "cuda:{} {}, compute capability {major}.{minor}, {} SMs, {} MiB L2, {} MiB",
            self.ordinal,
            self.name,
            self.sms,
            self.l2_bytes >> 20,
            self.memory_bytes >> 20,
        )
    }
}

/// Starts the driver and lists its devices.
///
/// The first call opens `libcuda.so.1`; a failure is remembered.
///
/// # Errors
/// [`DriverError::Missing`], [`DriverError::TooOld`], [`DriverError::InitFailed`]
/// or [`DriverError::NoDevice`], in this order of checks.
pub fn probe() -> Result<DriverInfo, DriverError> {
    let library =
        cuda_lazy::library().map_err(|error| DriverError::Missing { reason: error.to_string() })?;

    let mut number = 0;
    // SAFETY: `number` is writable. The version can be asked for before cuInit.
    let code = unsafe { raw::cuDriverGetVersion(&mut number) };
    started("cuDriverGetVersion", code)?;
    let version = version_of(u32::try_from(number).unwrap_or(0));
    if version < MIN_DRIVER {
        return Err(DriverError::TooOld { found: version, needed: MIN_DRIVER });
    }

    // SAFETY: cuInit has no precondition and may be called again.
    started("cuInit", unsafe { raw::cuInit(0) })?;
    let mut count = 0;
    // SAFETY: `count` is writable.
    started("cuDeviceGetCount", unsafe { raw::cuDeviceGetCount(&mut count) })?;
    let count = u32::try_from(count).unwrap_or(0);
    let devices =
        (0..count).map(describe).collect::<Result<Vec<_>, _>>().map_err(|error| match error {
            CudaError::Call { call, code } => DriverError::InitFailed { call, code },
            _ => DriverError::NoDevice,
        })?;
    if devices.is_empty() {
        return Err(DriverError::NoDevice);
    }
    Ok(DriverInfo { library: library.path().to_owned(), version, devices })
}

/// The file of the driver's library, which is opened for it.
///
/// # Errors
/// [`DriverError::Missing`].
pub fn driver_file() -> Result<PathBuf, DriverError> {
    let missing = |reason: String| DriverError::Missing { reason };
    cuda_lazy::library().map_err(|error| missing(error.to_string()))?;
    // Each line ends with the file that is mapped there.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    let mut found = files.map(Path::new).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("libcuda.so"))
    });
    let unnamed = || missing("libcuda.so.1 is open, and no file of that name mapped".to_owned());
    found.next().map(Path::to_owned).ok_or_else(unnamed)
}

fn started(call: &'static str, code: u32) -> Result<(), DriverError> {
    match code {
        CUDA_SUCCESS => Ok(()),
        CUDA_ERROR_NO_DEVICE => Err(DriverError::NoDevice),
        // A build image may carry NVIDIA's link-time stub under the real name.
        CUDA_ERROR_STUB_LIBRARY => Err(DriverError::Missing {
            reason: "libcuda.so.1 is the CUDA toolkit's stub library".to_owned(),
        }),
        _ => Err(DriverError::InitFailed { call, code: CudaCode::new(code) }),
    }
}

const CUDA_ERROR_NO_DEVICE: u32 = 100;

/// `CUdevice_attribute` (CUDA Driver API, Data types used by CUDA driver).
#[repr(u32)]
#[derive(Clone, Copy)]
enum Attribute {
    ClockRate = 13,
    MultiprocessorCount = 16,
    MemoryClockRate = 36,
    GlobalMemoryBusWidth = 37,
    L2CacheSize = 38,
    ComputeCapabilityMajor = 75,
    ComputeCapabilityMinor = 76,
    MaxSharedMemoryPerBlockOptin = 97,
}

fn describe(ordinal: u32) -> Result<DeviceInfo, CudaError> {
    let mut handle = 0;
    // SAFETY: `handle` is writable and the driver is initialised.
    check("cuDeviceGet", unsafe { raw::cuDeviceGet(&mut handle, ordinal.cast_signed()) })?;

    let mut name = [0 as c_char; 256];
    // SAFETY: `name` has room for the length given, the nul included.
    check("cuDeviceGetName", unsafe {
        raw::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, handle)
    })?;
    // SAFETY: the last element is never written, so there is a nul.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };

    let mut memory = 0;
    // SAFETY: `memory` is writable.
    check("cuDeviceTotalMem", unsafe { raw::cuDeviceTotalMem_v2(&mut memory, handle) })?;

    let attribute = |attribute: Attribute| -> Result<u32, CudaError> {
        let mut value = 0;
        // SAFETY: `value` is writable and `handle` came from cuDeviceGet.
        check("cuDeviceGetAttribute", unsafe {
            raw::cuDeviceGetAttribute(&mut value, attribute as u32, handle)
        })?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    Ok(DeviceInfo {
        ordinal,
        name: name.to_string_lossy().into_owned(),
        compute_capability: (
            attribute(Attribute::ComputeCapabilityMajor)?,
            attribute(Attribute::ComputeCapabilityMinor)?,
        ),
        sms: attribute(Attribute::MultiprocessorCount)?,
        l2_bytes: attribute(Attribute::L2CacheSize)?.into(),
        memory_bytes: memory as u64,
        // Informational, and drivers may drop it, so its absence is not an error.
        memory_bus_bits: attribute(Attribute::GlobalMemoryBusWidth).unwrap_or(0),
        clock_khz: attribute(Attribute::ClockRate).unwrap_or(0),
        memory_clock_khz: attribute(Attribute::MemoryClockRate).unwrap_or(0),
        shared_per_block: attribute(Attribute::MaxSharedMemoryPerBlockOptin)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let version = version_of(13020);
        assert_eq!(version.to_string(), "13.2");
        assert!(version > MIN_DRIVER);
        assert!(version_of(11030) < MIN_DRIVER);
        assert_eq!(version_of(11040), MIN_DRIVER);
        let needed = Arch::ALL.map(|arch| arch.ptx_version().driver());
        assert_eq!(needed.into_iter().min(), Some(MIN_DRIVER));
    }

    #[test]
    fn architectures_are_exact() {
        let device = |major, minor| DeviceInfo {
            ordinal: 0,
            name: "GPU".to_owned(),
            compute_capability: (major, minor),
            sms: 1,
            l2_bytes: 1 << 20,
            memory_bytes: 1 << 30,
            memory_bus_bits: 64,
            clock_khz: 0,
            memory_clock_khz: 0,
            shared_per_block: 0,
        };
        assert_eq!(device(9, 0).arch(), Some(Arch::Sm90a));
        assert_eq!(device(10, 0).arch(), Some(Arch::Sm100a));
        assert_eq!(device(10, 3).arch(), Some(Arch::Sm100f));
        assert_eq!(device(12, 0).arch(), Some(Arch::Sm120f));
        assert_eq!(device(12, 1).arch(), Some(Arch::Sm120f));
        for (major, minor) in [(8, 0), (8, 9), (10, 1), (12, 2)] {
            assert_eq!(device(major, minor).arch(), Some(Arch::Sm80), "{major}.{minor}");
        }
        for (major, minor) in [(7, 0), (7, 5)] {
            let device = device(major, minor);
            assert_eq!(device.arch(), None, "{device}");
            let error = device.supported().map_err(|error| error.to_string());
            let expected = format!(
                "cuda:0 (GPU) has compute capability {major}.{minor}; \
                 there are kernels for sm_90a (9.0), sm_100a (10.0), sm_100f (10.0, 10.3), \
                 sm_120f (12.0, 12.1) and sm_80 (8.0 and later)"
            );
            assert_eq!(error, Err(expected));
        }
    }
}
