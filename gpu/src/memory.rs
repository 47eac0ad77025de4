//! Bytes in device memory.

use cuda_lazy::raw;

use super::device::CudaDevice;
use super::error::{CudaError, check};
use super::owned::{Chosen, OwnedMemory, Owner};

/// Bytes in device memory: an allocation, freed when dropped, or a view of memory that
/// belongs to another owner.
///
/// Copies are synchronous, and ordered after earlier launches on the stream of the device handle
/// that the memory was allocated with. Freeing waits for all streams.
#[derive(Debug)]
pub struct CudaMemory {
    address: u64,
    len: usize,
    /// The allocation, if this is not a view.
    owned: Option<OwnedMemory>,
    device: CudaDevice,
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        let Some(memory) = self.owned.take() else { return };
        // Without its context the allocation cannot be freed; it is leaked until the process
        // ends.
        if self.device.bind().is_ok() {
            let _ = Chosen::free(memory);
        }
    }
}

impl CudaMemory {
    pub(crate) fn new(device: &CudaDevice, bytes: usize) -> Result<Self, CudaError> {
        device.bind()?;
        let memory = Chosen::allocate(bytes)?;
        Ok(Self {
            address: Chosen::address(&memory),
            len: bytes,
            owned: Some(memory),
            device: device.clone(),
        })
    }

    /// A view of `len` bytes of device memory at `address` that belongs to another owner. It
    /// is not freed.
    ///
    /// # Safety
    /// * Kernels and copies of `device` may read and write the bytes until the view has been
    ///   dropped and all work on it has finished.
    /// * Other work on the bytes is ordered with the work of the device's stream.
    pub unsafe fn view(device: &CudaDevice, address: u64, len: usize) -> Self {
        Self { address, len, owned: None, device: device.clone() }
    }

    /// The device address; 0 for an empty allocation.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the size is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device it is on.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Copies `bytes` to `offset`, after all earlier launches, and waits for the copy.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] if they do not fit or the stream is being recorded,
    /// or a failed call.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        let operation = "write to device memory";
        let address = self.part(operation, offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        self.device.refuse_recording(operation)?;
        let source = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the range is within this memory, as checked, and the source is only
        // read, until the stream has been waited for below; the stream is alive.
        check("cuMemcpyHtoDAsync", unsafe {
            raw::cuMemcpyHtoDAsync_v2(address, source, bytes.len(), self.device.stream())
        })?;
        self.device.synchronize()
    }

    /// Copies from `offset` into all of `bytes`.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] if it reaches beyond the memory or the stream is being
    /// recorded, or a failed call, which also reports an error of an earlier kernel.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        let operation = "read from device memory";
        let address = self.part(operation, offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        self.device.refuse_recording(operation)?;
        let target = bytes.as_mut_ptr().cast();
        // SAFETY: the range is within this memory, as checked, and the target is written
        // until the stream has been waited for below; the stream is alive.
        check("cuMemcpyDtoHAsync", unsafe {
            raw::cuMemcpyDtoHAsync_v2(target, address, bytes.len(), self.device.stream())
        })?;
        self.device.synchronize()
    }

    /// The whole contents.
    ///
    /// # Errors
    /// The errors of [`CudaMemory::read`].
    pub fn to_vec(&self) -> Result<Vec<u8>, CudaError> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Sets every byte to `value` and waits.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] if the stream is being recorded, or a failed call.
    pub fn fill(&self, value: u8) -> Result<(), CudaError> {
        if self.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        self.device.refuse_recording("fill device memory")?;
        self.queue_fill(value)?;
        self.device.synchronize()
    }

    /// Queues a fill with `value`, in order with launches. It can be recorded into a graph.
    ///
    /// # Errors
    /// A failed call.
    pub fn queue_fill(&self, value: u8) -> Result<(), CudaError> {
        if self.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the range is this memory, which is freed only after the device has
        // finished with it; the stream is alive.
        check("cuMemsetD8Async", unsafe {
            raw::cuMemsetD8Async(self.address, value, self.len, self.device.stream())
        })
    }

    /// Queues a copy of all of `source`, which has the same size, in order with launches. It
    /// can be recorded into a graph.
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
        // SAFETY: both have this size and are freed only after the device has finished
        // with them; the stream is alive.
        check("cuMemcpyDtoDAsync", unsafe {
            raw::cuMemcpyDtoDAsync_v2(self.address, source.address, self.len, self.device.stream())
        })
    }

    /// The address of `len` bytes from `offset` on, all of them within this memory.
    fn part(&self, operation: &'static str, offset: usize, len: usize) -> Result<u64, CudaError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.address + offset as u64),
            _ => Err(CudaError::BadArgument {
                operation,
                field: "offset + length",
                required: format!("at most {} bytes", self.len()),
                actual: format!("{offset} + {len}"),
            }),
        }
    }
}
