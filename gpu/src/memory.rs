//! Bytes in device memory.

use cuda_lazy::raw;
use cust::memory::{CopyDestination, DeviceBuffer, DeviceSliceIndex};
use std::mem::ManuallyDrop;
use std::ops::Range;

use super::device::CudaDevice;
use super::error::{CudaError, check, check_cust};

/// An allocation in device memory, freed when dropped.
///
/// Copies are synchronous and come after all launches before them.
#[derive(Debug)]
pub struct CudaMemory {
    buffer: ManuallyDrop<DeviceBuffer<u8>>,
    device: CudaDevice,
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        // SAFETY: the buffer is not used again.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        // Without its context the allocation cannot be freed; leaking it until the
        // process ends is what remains.
        match self.device.bind() {
            Ok(()) => drop(buffer),
            Err(_) => std::mem::forget(buffer),
        }
    }
}

impl CudaMemory {
    pub(crate) fn new(device: &CudaDevice, bytes: usize) -> Result<Self, CudaError> {
        device.bind()?;
        // SAFETY: every bit pattern is a `u8`; contents are documented undefined.
        let buffer = unsafe { DeviceBuffer::uninitialized(bytes) };
        Ok(Self {
            buffer: ManuallyDrop::new(check_cust("cuMemAlloc", buffer)?),
            device: device.clone(),
        })
    }

    /// The device address; 0 for an empty allocation.
    pub fn address(&self) -> u64 {
        self.buffer.as_device_ptr().as_raw()
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether the size is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device it is on.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] if they do not fit, or a failed call.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        let range = self.range("write to device memory", offset, bytes.len())?;
        if range.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        let mut part = range.index(&self.buffer);
        check_cust("cuMemcpyHtoD", part.copy_from(bytes))
    }

    /// Copies from `offset` into all of `bytes`.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] if it reaches beyond the allocation, or a failed
    /// call; an error of a kernel launched before shows here.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        let range = self.range("read from device memory", offset, bytes.len())?;
        if range.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        let part = range.index(&self.buffer);
        check_cust("cuMemcpyDtoH", part.copy_to(bytes))
    }

    /// The whole contents.
    ///
    /// # Errors
    /// As [`CudaMemory::read`].
    pub fn to_vec(&self) -> Result<Vec<u8>, CudaError> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Sets every byte to `value`.
    ///
    /// # Errors
    /// A failed call.
    pub fn fill(&mut self, value: u8) -> Result<(), CudaError> {
        self.device.bind()?;
        check_cust("cuMemsetD8", self.buffer.set_8(value))
    }

    /// Queues setting every byte to `value`, in order with launches; can be recorded
    /// into a graph.
    ///
    /// # Errors
    /// A failed call.
    pub fn queue_fill(&self, value: u8) -> Result<(), CudaError> {
        if self.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the range is this allocation, which is freed only after the device
        // has finished with it; the stream is alive.
        check("cuMemsetD8Async", unsafe {
            raw::cuMemsetD8Async(
                self.address(),
                value,
                self.len(),
                self.device.stream().as_inner().cast(),
            )
        })
    }

    /// Queues copying all of `source`, which has the same size, in order with
    /// launches; can be recorded into a graph.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for another size, or a failed call.
    pub fn queue_copy(&self, source: &Self) -> Result<(), CudaError> {
        if source.len() != self.len() {
            return Err(CudaError::BadArgument {
                operation: "copy on the device",
                field: "bytes",
                required: self.len().to_string(),
                actual: source.len().to_string(),
            });
        }
        if self.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: both allocations have this size and are freed only after the device
        // has finished with them; the stream is alive.
        check("cuMemcpyDtoDAsync", unsafe {
            raw::cuMemcpyDtoDAsync_v2(
                self.address(),
                source.address(),
                self.len(),
                self.device.stream().as_inner().cast(),
            )
        })
    }

    fn range(
        &self,
        operation: &'static str,
        offset: usize,
        len: usize,
    ) -> Result<Range<usize>, CudaError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(offset..end),
            _ => Err(CudaError::BadArgument {
                operation,
                field: "offset + length",
                required: format!("at most {} bytes", self.len()),
                actual: format!("{offset} + {len}"),
            }),
        }
    }
}
