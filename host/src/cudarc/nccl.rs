//! NCCL through cudarc, for sums over devices.
//!
//! cudarc opens the library when it is first called, and panics if it is not there: [`find`] says so
//! before. The example `tensor_parallel` has a process for each GPU.

pub use ::cudarc::nccl::result::NcclError;
pub use ::cudarc::nccl::{Comm, Id, ReduceOp};

use crate::device::DeviceError;
use crate::error::Result;

/// The name that cudarc opens NCCL by.
const LIBRARY: &str = "libnccl.so";

/// Finds NCCL.
///
/// # Errors
/// [`DeviceError::NoLibrary`]. Packages often have it as `libnccl.so.2`, to which cudarc needs a link
/// called `libnccl.so`.
pub fn find() -> Result<()> {
    // SAFETY: loading NCCL initialises nothing but its own variables.
    unsafe { crate::cuda::probe_library(LIBRARY) }
        .map_err(|reason| DeviceError::NoLibrary { library: LIBRARY, reason }.into())
}
