//! The resources of a device handle: the primary context, a stream, allocations.
//!
//! There are two implementations of one trait, and the feature `cust` chooses. With it, the crate
//! `cust` creates and releases these objects. Without it, the calls go straight to the table of
//! `cuda-lazy`, so that a dependent of this crate needs nothing when it is built. All other calls
//! of this crate go through that table in both cases.

#[cfg(feature = "cust")]
mod by_cust;
#[cfg(any(test, not(feature = "cust")))]
mod direct;

use std::ffi::c_void;
use std::fmt::Debug;

use super::error::CudaError;

/// Creates and releases what a device handle owns.
pub(crate) trait Owner {
    /// A reference to the primary context of a GPU, released when dropped.
    type Context: Debug + Send + Sync;
    /// A stream of the context that was current when it was created, destroyed when dropped. That
    /// context must be current then, too.
    type Stream: Debug + Send + Sync;
    /// Device memory of the context that was current when it was allocated. It is freed by
    /// [`free`](Owner::free) only, not when it is dropped.
    type Memory: Debug + Send + Sync;

    /// Retains the primary context of the GPU `ordinal`. The driver has been initialised.
    fn retain(ordinal: u32) -> Result<Self::Context, CudaError>;

    /// The `CUcontext`.
    fn context(context: &Self::Context) -> *mut c_void;

    /// Creates a stream that is ordered with the legacy default stream.
    fn create_stream() -> Result<Self::Stream, CudaError>;

    /// The `CUstream`.
    fn stream(stream: &Self::Stream) -> *mut c_void;

    /// Allocates `bytes` bytes; an empty allocation has the address 0.
    fn allocate(bytes: usize) -> Result<Self::Memory, CudaError>;

    /// The device address.
    fn address(memory: &Self::Memory) -> u64;

    /// Frees memory whose context is current, or returns it where the driver does not.
    fn free(memory: Self::Memory) -> Result<(), Self::Memory>;
}

/// The implementation that this build uses.
#[cfg(feature = "cust")]
pub(crate) type Chosen = by_cust::ByCust;
/// The implementation that this build uses.
#[cfg(not(feature = "cust"))]
pub(crate) type Chosen = direct::Direct;

/// [`Owner::Context`] of the chosen implementation.
pub(crate) type OwnedContext = <Chosen as Owner>::Context;
/// [`Owner::Stream`] of the chosen implementation.
pub(crate) type OwnedStream = <Chosen as Owner>::Stream;
/// [`Owner::Memory`] of the chosen implementation.
pub(crate) type OwnedMemory = <Chosen as Owner>::Memory;

#[cfg(test)]
mod tests {
    use super::*;

    /// Both implementations report a missing driver, device or context as a failed call.
    fn refuses_without_a_context<O: Owner>() {
        if cuda_lazy::library().is_ok() {
            return skipped::test("there is a driver");
        }
        let code = |error| match error {
            CudaError::Call { call, code } => (call, code.value),
            other => panic!("{other}"),
        };
        let stub = cuda_lazy::CUDA_ERROR_STUB_LIBRARY;
        assert_eq!(O::retain(0).map(|_| ()).map_err(code), Err(("cuDeviceGet", stub)));
        let stream = O::create_stream().map(|_| ()).map_err(code);
        assert_eq!(stream, Err(("cuStreamCreateWithPriority", stub)));
        assert_eq!(O::allocate(16).map(|_| ()).map_err(code), Err(("cuMemAlloc", stub)));
        let empty = O::allocate(0).expect("nothing is allocated");
        assert_eq!(O::address(&empty), 0);
        assert!(O::free(empty).is_ok());
    }

    #[test]
    fn direct_calls_refuse_without_a_context() {
        refuses_without_a_context::<direct::Direct>();
    }

    #[cfg(feature = "cust")]
    #[test]
    fn cust_refuses_without_a_context() {
        refuses_without_a_context::<by_cust::ByCust>();
    }
}
