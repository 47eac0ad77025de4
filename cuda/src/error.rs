//! Errors of the driver and of its use.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::ptr;

use cuda_lazy::{CUDA_SUCCESS, raw};

use super::CudaVersion;

/// A driver's result code with its name and meaning.
///
/// Displays as `CUDA_ERROR_INVALID_PTX (218): a PTX JIT compilation failed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaCode {
    /// The `CUresult`.
    pub value: u32,
    /// Its enumerator, or `unknown code` when the driver does not know it.
    pub name: String,
    /// The driver's description; may be empty.
    pub meaning: String,
}

impl CudaCode {
    /// Whether the context is lost with it, as after an error of a kernel: nothing runs in it any
    /// more, and all later calls fail.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        // CUDA Driver API, `CUresult`: those whose text says that the process must be terminated,
        // and a driver or a context that is gone.
        matches!(self.value, 4 | 46 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721)
    }

    /// Whether the driver refused the call because a stream is being recorded into a graph.
    #[must_use]
    pub fn is_of_recording(&self) -> bool {
        matches!(self.value, 900..=908)
    }

    /// A code with the name and description that the driver, if there is one, gives for it.
    pub(crate) fn new(value: u32) -> Self {
        let name = describe(value, raw::cuGetErrorName);
        let meaning = describe(value, raw::cuGetErrorString);
        Self {
            value,
            name: name.unwrap_or_else(|| "unknown code".to_owned()),
            meaning: meaning.unwrap_or_default(),
        }
    }
}

type Describe = unsafe fn(u32, *mut *const c_char) -> u32;

fn describe(value: u32, function: Describe) -> Option<String> {
    let mut text = ptr::null();
    // SAFETY: `text` is writable; the driver stores a static string or leaves it null.
    let code = unsafe { function(value, &mut text) };
    if code != CUDA_SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: the driver's strings are nul-terminated and static.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

impl fmt::Display for CudaCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.value)?;
        if !self.meaning.is_empty() {
            write!(f, ": {}", self.meaning)?;
        }
        Ok(())
    }
}

/// The reason why there is no usable driver on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// `libcuda.so.1` is not installed or does not load.
    #[error("no NVIDIA driver: {reason}")]
    Missing {
        /// The loader's messages.
        reason: String,
    },
    /// The driver loads the kernels of no target.
    #[error(
        "the NVIDIA driver is too old: it supports CUDA {found}, CUDA {needed} or newer is required"
    )]
    TooOld {
        /// The CUDA version the installed driver supports.
        found: CudaVersion,
        /// The oldest version that is accepted.
        needed: CudaVersion,
    },
    /// The driver is installed and does not start.
    #[error("the NVIDIA driver does not start: {call} returned {code}")]
    InitFailed {
        /// The driver function that failed.
        call: &'static str,
        /// The returned code.
        code: CudaCode,
    },
    /// The driver works and reports no GPU.
    #[error("the NVIDIA driver reports no GPU")]
    NoDevice,
}

/// A failed operation on a CUDA device.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CudaError {
    /// There is no usable driver.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The ordinal names no device.
    #[error("cuda:{ordinal} does not exist: the driver reports {count} device(s)")]
    NoSuchDevice {
        /// The ordinal asked for.
        ordinal: u32,
        /// The number of devices.
        count: usize,
    },
    /// There are no kernels for this GPU.
    #[error(
        "cuda:{ordinal} ({name}) has compute capability {}.{}; \
         there are kernels for {}",
        capability.0, capability.1, fp4_formats::arch::Targets
    )]
    UnsupportedDevice {
        /// The device's ordinal.
        ordinal: u32,
        /// Its product name.
        name: String,
        /// Its compute capability, major and minor.
        capability: (u32, u32),
    },
    /// A driver call failed. After an error of a kernel (an illegal address, a
    /// trap) every later call on the device fails with the same code.
    #[error("{call} returned {code}")]
    Call {
        /// The driver function.
        call: &'static str,
        /// The returned code.
        code: CudaCode,
    },
    /// The driver refused PTX or machine code.
    #[error("the driver refused the module with {code}{}{log}", if log.is_empty() { "" } else { "\n" })]
    Module {
        /// The code that `cuModuleLoadDataEx` returned.
        code: CudaCode,
        /// The compiler's error log; may be empty.
        log: String,
    },
    /// The module has no kernel of that name.
    #[error("no kernel {kernel:?} in the module; it has: {}", available.join(", "))]
    NoSuchKernel {
        /// The name asked for.
        kernel: String,
        /// The module's kernels, sorted.
        available: Vec<String>,
    },
    /// A launch that the device or the kernel does not accept.
    #[error("launch of {kernel}: {field} must be {required}, got {actual}")]
    BadLaunch {
        /// The kernel.
        kernel: String,
        /// The wrong part of the launch.
        field: &'static str,
        /// The requirement of the kernel or the device.
        required: String,
        /// The value in the launch.
        actual: String,
    },
    /// Device memory cannot be put where it must be.
    #[error(
        "{bytes} bytes of device memory at {address:#x}: the process uses addresses there already; \
         another process may have them free"
    )]
    AddressTaken {
        /// The address of the access.
        address: u64,
        /// Whole pages that were asked for, bytes.
        bytes: usize,
    },
    /// An argument of a memory, timing or library operation is out of range.
    #[error("{operation}: {field} must be {required}, got {actual}")]
    BadArgument {
        /// The operation.
        operation: &'static str,
        /// The argument.
        field: &'static str,
        /// The accepted values.
        required: String,
        /// The given value.
        actual: String,
    },
}

/// Turns a raw driver result into a [`CudaError::Call`].
pub(crate) fn check(call: &'static str, code: u32) -> Result<(), CudaError> {
    if code == CUDA_SUCCESS {
        return Ok(());
    }
    let code = CudaCode::new(code);
    Err(CudaError::Call { call, code })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_field_required_and_actual() {
        let error = CudaError::BadLaunch {
            kernel: "gemv".to_owned(),
            field: "params",
            required: "96 bytes".to_owned(),
            actual: "88 bytes".to_owned(),
        };
        let expected = "launch of gemv: params must be 96 bytes, got 88 bytes";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn codes_are_told_apart() {
        let code = |value| CudaCode { value, name: String::new(), meaning: String::new() };
        // An illegal address, a refusal in a recording, too little memory.
        let kinds =
            [700, 900, 2].map(|value| (code(value).is_sticky(), code(value).is_of_recording()));
        assert_eq!(kinds, [(true, false), (false, true), (false, false)]);
    }

    #[test]
    fn a_code_without_meaning_is_still_a_sentence() {
        let code =
            CudaCode { value: 4242, name: "unknown code".to_owned(), meaning: String::new() };
        assert_eq!(code.to_string(), "unknown code (4242)");
        let error = CudaError::Module { code, log: "line 3: syntax error".to_owned() };
        assert_eq!(
            error.to_string(),
            "the driver refused the module with unknown code (4242)\nline 3: syntax error"
        );
    }
}
