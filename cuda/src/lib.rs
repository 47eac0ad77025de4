//! CUDA at run time: driver, device, memory, modules, launches, graphs.
//!
//! The crate `cuda-lazy` opens `libcuda.so.1` on first use and forwards calls to it. Building this
//! crate therefore needs neither CUDA nor a variable, a program with it starts on a machine
//! without a driver, and [`probe`] reports what is installed.
//!
//! With the feature `cust`, contexts, streams and memory are those of the crate `cust`, which
//! links against `cuda-lazy`'s symbols. Its build needs `CUDA_LIBRARY_PATH` to name
//! `cuda-lazy`'s folder; this workspace's `.cargo/config.toml` does.
//!
//! | file | topic |
//! | --- | --- |
//! | `error` | [`CudaError`], [`CudaCode`]: which call failed, with the driver's code by name |
//! | `probe` | [`probe`]: the driver and its devices, or why there are none |
//! | `resident` | [`ResidentClusters`]: how many clusters a machine runs at a time |
//! | `clusters` | the same of a GPU, as the driver says |
//! | `device` | [`CudaDevice`]: context, stream (its own or the caller's), cache of modules |
//! | `memory` | [`CudaMemory`]: bytes on the device, allocated or the caller's |
//! | `fixed` | device memory at addresses of the caller's |
//! | `owned` | context, stream and memory, through `cust` or directly |
//! | `queue` | the stream of a handle, and who records it |
//! | `module` | [`CudaModule`]: PTX text compiled by the driver; [`CudaKernel`]: one of its kernels, with its limits |
//! | `parameters` | the offsets of a kernel's parameters |
//! | `launch` | [`CudaLaunch`]: checked launches, clusters, dynamic shared memory |
//! | `run` | [`run_ptx`]: runs PTX text once, on buffers of bytes |
//! | `graph` | [`CudaGraph`]: recorded launches, replayed and timed |
//! | `tensor_map` | [`CudaDevice::encode_tensor_map`] |
//! | `times` | [`Times`]: median and percentiles |
//! | `ceiling` | [`CudaDevice::time_reads`]: the bandwidth of the memory |
//! | `cublas` | [`Cublas`], [`CublasLt`]: f16 and e4m3 products to compare with |
//!
//! # Threads
//!
//! Devices, memory and modules are `Send` and `Sync`; graphs are `Send`. While a thread records a
//! stream by [`CudaDevice::capture`], calls of others that would queue on it are refused. Allocating,
//! freeing and copying do not disturb a recording of another stream.

mod ceiling;
mod clusters;
mod cublas;
mod device;
mod error;
mod fixed;
mod graph;
mod launch;
mod memory;
mod module;
mod owned;
mod parameters;
mod probe;
mod queue;
mod resident;
mod run;
mod tensor_map;
mod times;

pub use ceiling::{ProductRate, ReadRate, rotation};
pub use cublas::{
    CUBLAS_PATH_VARIABLE, Cublas, CublasError, CublasLt, CublasShape, E4m3Product, E4m3Sums,
};
pub use device::CudaDevice;
pub use error::{CudaCode, CudaError, DriverError};
pub use graph::CudaGraph;
pub use launch::{CudaLaunch, PreparedLaunch};
pub use memory::CudaMemory;
pub use module::{CudaKernel, CudaModule, KernelLimits};
pub use parameters::{DeclaredParameters, KernelParameter, declared_parameters};
pub use probe::{CudaVersion, DeviceInfo, DriverInfo, MIN_DRIVER, driver_file, probe};
pub use queue::StreamId;
pub use resident::ResidentClusters;
pub use run::{PtxBuffer, PtxLaunch, run_ptx};
pub use tensor_map::{TENSOR_MAP_BYTES, TensorMapArguments};
pub use times::Times;

/// Opens a library as a program would that uses it later, and closes it again.
///
/// # Errors
/// The loader's message.
///
/// # Safety
/// The library's initialisation does nothing that this program must not do.
pub unsafe fn probe_library(name: &str) -> Result<(), String> {
    // SAFETY: passed on to the caller.
    unsafe { libloading::Library::new(name) }.map(drop).map_err(|error| {
        // The error says that it failed, its source why.
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })
}

/// Types that may be sent to other threads, and types that threads may share.
#[cfg(test)]
mod threads {
    use super::*;

    const fn send<T: Send>() {}
    const fn sync<T: Sync>() {}

    const _: () = {
        send::<CudaDevice>();
        sync::<CudaDevice>();
        send::<CudaMemory>();
        sync::<CudaMemory>();
        send::<CudaModule>();
        sync::<CudaModule>();
        send::<CudaGraph>();
    };
}
