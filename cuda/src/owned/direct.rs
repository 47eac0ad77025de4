//! [`Owner`] by calls of the driver.

use std::ffi::c_void;
use std::ptr;

use cuda_lazy::{CUDA_SUCCESS, raw};

use super::Owner;
use crate::error::{CudaError, check};

/// Contexts, streams and memory as the driver's handles.
pub(crate) enum Direct {}

/// A retained primary context.
#[derive(Debug)]
pub(crate) struct Context {
    device: i32,
    handle: *mut c_void,
}

// SAFETY: the driver may be called with a context's handle from every thread.
unsafe impl Send for Context {}
// SAFETY: as above; nothing is written through the handle on the host.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was retained once for this value. A failure cannot be handled here;
        // the driver releases contexts with the process.
        unsafe { raw::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// An owned stream.
#[derive(Debug)]
pub(crate) struct Stream(*mut c_void);

// SAFETY: the driver may be called with a stream's handle from every thread.
unsafe impl Send for Stream {}
// SAFETY: as above; nothing is written through the handle on the host.
unsafe impl Sync for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: owned, and not used again. The driver defers the release until the stream's
        // work has finished.
        unsafe { raw::cuStreamDestroy_v2(self.0) };
    }
}

/// The address of an allocation.
#[derive(Debug)]
pub(crate) struct Memory(u64);

impl Owner for Direct {
    type Context = Context;
    type Stream = Stream;
    type Memory = Memory;

    fn retain(ordinal: u32) -> Result<Context, CudaError> {
        let mut device = 0;
        // SAFETY: `device` is writable; the driver checks the ordinal.
        check("cuDeviceGet", unsafe { raw::cuDeviceGet(&mut device, ordinal.cast_signed()) })?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is writable and the device was returned by the driver.
        check("cuDevicePrimaryCtxRetain", unsafe {
            raw::cuDevicePrimaryCtxRetain(&mut handle, device)
        })?;
        Ok(Context { device, handle })
    }

    fn context(context: &Context) -> *mut c_void {
        context.handle
    }

    fn create_stream() -> Result<Stream, CudaError> {
        const DEFAULT: u32 = 0;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is writable; flags and priority are the defaults.
        check("cuStreamCreateWithPriority", unsafe {
            raw::cuStreamCreateWithPriority(&mut handle, DEFAULT, 0)
        })?;
        Ok(Stream(handle))
    }

    fn stream(stream: &Stream) -> *mut c_void {
        stream.0
    }

    fn allocate(bytes: usize) -> Result<Memory, CudaError> {
        let mut address = 0;
        if bytes > 0 {
            // SAFETY: `address` is writable.
            check("cuMemAlloc", unsafe { raw::cuMemAlloc_v2(&mut address, bytes) })?;
        }
        Ok(Memory(address))
    }

    fn address(memory: &Memory) -> u64 {
        memory.0
    }

    fn free(memory: Memory) -> Result<(), Memory> {
        if memory.0 == 0 {
            return Ok(());
        }
        // SAFETY: the address came from `allocate` and is not used again after a success.
        match unsafe { raw::cuMemFree_v2(memory.0) } {
            CUDA_SUCCESS => Ok(()),
            _ => Err(memory),
        }
    }
}
