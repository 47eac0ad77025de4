//! [`Owner`] through the crate `cust`.

use std::ffi::c_void;
use std::mem::ManuallyDrop;

use cust::context::Context;
use cust::device::Device;
use cust::error::{CudaError as CustError, CudaResult};
use cust::memory::DeviceBuffer;
use cust::stream::{Stream, StreamFlags};

use super::Owner;
use crate::error::{CudaCode, CudaError};

/// Contexts, streams and memory of `cust`.
pub(crate) enum ByCust {}

impl Owner for ByCust {
    type Context = Context;
    type Stream = Stream;
    type Memory = ManuallyDrop<DeviceBuffer<u8>>;

    fn retain(ordinal: u32) -> Result<Context, CudaError> {
        let device = check("cuDeviceGet", Device::get_device(ordinal))?;
        check("cuDevicePrimaryCtxRetain", Context::new(device))
    }

    fn context(context: &Context) -> *mut c_void {
        context.as_raw().cast()
    }

    fn create_stream() -> Result<Stream, CudaError> {
        check("cuStreamCreateWithPriority", Stream::new(StreamFlags::DEFAULT, None))
    }

    fn stream(stream: &Stream) -> *mut c_void {
        stream.as_inner().cast()
    }

    fn allocate(bytes: usize) -> Result<Self::Memory, CudaError> {
        // SAFETY: every bit pattern is a `u8`, and the contents are documented undefined.
        let memory = unsafe { DeviceBuffer::uninitialized(bytes) };
        check("cuMemAlloc", memory).map(ManuallyDrop::new)
    }

    fn address(memory: &Self::Memory) -> u64 {
        memory.as_device_ptr().as_raw()
    }

    fn free(memory: Self::Memory) -> Result<(), Self::Memory> {
        let result = DeviceBuffer::drop(ManuallyDrop::into_inner(memory));
        result.map_err(|(_, memory)| ManuallyDrop::new(memory))
    }
}

/// Turns a result of `cust` into a [`CudaError::Call`].
///
/// `cust`'s own `Display` is not used: it asks the driver for the text and fails where there is
/// none.
fn check<T>(call: &'static str, result: CudaResult<T>) -> Result<T, CudaError> {
    result.map_err(|error| CudaError::Call { call, code: CudaCode::new(code(error)) })
}

/// The driver's code behind an error of `cust`, which knows only the codes of CUDA 11.6.
fn code(error: CustError) -> u32 {
    match error {
        CustError::UnknownError => match cuda_lazy::last_error() {
            cuda_lazy::CUDA_SUCCESS => cuda_lazy::CUDA_ERROR_UNKNOWN,
            code => code,
        },
        known => known as u32,
    }
}
