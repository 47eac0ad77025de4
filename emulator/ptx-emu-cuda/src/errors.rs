//! Codes of errors. Driver and runtime number those alike that both have.

use std::ffi::CStr;

/// A `CUresult` or `cudaError_t`.
pub(crate) type Code = i32;

macro_rules! codes {
    ($($constant:ident = $code:literal, $driver:literal, $runtime:literal, $text:literal;)*) => {
        $(pub(crate) const $constant: Code = $code;)*

        /// Code, the driver's name, the runtime's name, meaning.
        const ALL: &[(Code, &CStr, &CStr, &CStr)] = &[$(($code, $driver, $runtime, $text)),*];
    };
}

codes! {
    SUCCESS = 0, c"CUDA_SUCCESS", c"cudaSuccess", c"no error";
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", c"cudaErrorInvalidValue", c"invalid argument";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"cudaErrorMemoryAllocation", c"out of memory";
    INVALID_CONFIGURATION = 9, c"cudaErrorInvalidConfiguration", c"cudaErrorInvalidConfiguration", c"invalid configuration argument";
    INVALID_SYMBOL = 13, c"cudaErrorInvalidSymbol", c"cudaErrorInvalidSymbol", c"invalid device symbol";
    INVALID_COPY_DIRECTION = 21, c"cudaErrorInvalidMemcpyDirection", c"cudaErrorInvalidMemcpyDirection", c"invalid copy direction for memcpy";
    MISSING_CONFIGURATION = 52, c"cudaErrorMissingConfiguration", c"cudaErrorMissingConfiguration", c"kernel launch without a configuration";
    INVALID_DEVICE_FUNCTION = 98, c"cudaErrorInvalidDeviceFunction", c"cudaErrorInvalidDeviceFunction", c"invalid device function";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"cudaErrorInvalidDevice", c"invalid device ordinal";
    INVALID_IMAGE = 200, c"CUDA_ERROR_INVALID_IMAGE", c"cudaErrorInvalidKernelImage", c"device kernel image is invalid";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"cudaErrorDeviceUninitialized", c"invalid device context";
    NO_BINARY_FOR_GPU = 209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"cudaErrorNoKernelImageForDevice", c"no kernel image is available for execution on the device";
    INVALID_PTX = 218, c"CUDA_ERROR_INVALID_PTX", c"cudaErrorInvalidPtx", c"a PTX compilation failed";
    FILE_NOT_FOUND = 301, c"CUDA_ERROR_FILE_NOT_FOUND", c"cudaErrorFileNotFound", c"file not found";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", c"cudaErrorInvalidResourceHandle", c"invalid resource handle";
    ILLEGAL_STATE = 401, c"CUDA_ERROR_ILLEGAL_STATE", c"cudaErrorIllegalState", c"the operation cannot be performed in the present state";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", c"cudaErrorSymbolNotFound", c"named symbol not found";
    ASSERT = 710, c"CUDA_ERROR_ASSERT", c"cudaErrorAssert", c"device-side assert triggered";
    LAUNCH_FAILED = 719, c"CUDA_ERROR_LAUNCH_FAILED", c"cudaErrorLaunchFailure", c"unspecified launch failure (ptx-emu printed what it found)";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", c"cudaErrorCooperativeLaunchTooLarge", c"too many blocks in cooperative launch";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"cudaErrorNotSupported", c"operation not supported (by ptx-emu, which printed what)";
    CAPTURE_UNSUPPORTED = 900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"cudaErrorStreamCaptureUnsupported", c"operation not permitted when stream is capturing";
    CAPTURE_UNMATCHED = 903, c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", c"cudaErrorStreamCaptureUnmatched", c"the capture was not begun in this stream";
    CAPTURE_UNJOINED = 904, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"cudaErrorStreamCaptureUnjoined", c"the capture was not joined to the stream in which it was begun";
    GRAPH_EXEC_UPDATE_FAILURE = 910, c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", c"cudaErrorGraphExecUpdateFailure", c"the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    INVALID_CLUSTER_SIZE = 912, c"CUDA_ERROR_INVALID_CLUSTER_SIZE", c"cudaErrorInvalidClusterSize", c"invalid cluster size";
}

/// The driver's name of a code, the runtime's, and what it means.
pub(crate) fn describe(code: Code) -> Option<(&'static CStr, &'static CStr, &'static CStr)> {
    let found = ALL.iter().find(|(number, ..)| *number == code)?;
    Some((found.1, found.2, found.3))
}

/// A function that does not do what it was called for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    /// The code that the call answers.
    pub(crate) code: Code,
    /// The message on standard error; nothing if empty.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// One that was reported before, or that a program asks for.
    pub(crate) const fn silent(code: Code) -> Self {
        Self { code, message: String::new() }
    }

    /// Something that is not modelled.
    pub(crate) fn not_modelled(what: &str) -> Self {
        Self::new(NOT_SUPPORTED, format!("{what} is not modelled"))
    }

    /// Says so on standard error.
    pub(crate) fn complain(&self, function: &str) {
        if !self.message.is_empty() {
            crate::report::complain(format_args!("{function}: {}", self.message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names() {
        let (driver, runtime, text) = describe(LAUNCH_FAILED).expect("known");
        assert_eq!(driver, c"CUDA_ERROR_LAUNCH_FAILED");
        assert_eq!(runtime, c"cudaErrorLaunchFailure");
        assert!(text.to_string_lossy().contains("ptx-emu"));
        assert_eq!(describe(-5), None);
        let mut codes: Vec<Code> = ALL.iter().map(|entry| entry.0).collect();
        codes.dedup();
        assert_eq!(codes.len(), ALL.len());
    }
}
