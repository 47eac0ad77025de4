//! Bytes in device memory.

use std::ffi::c_void;

use cuda_lazy::raw;

use super::device::CudaDevice;
use super::error::{CudaError, check};
use super::owned::{Chosen, OwnedMemory, Owner};
use super::queue::Relaxed;

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
    /// Whether only the device handle's stream may use it.
    of_one_stream: bool,
    device: CudaDevice,
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        if let Some(memory) = self.owned.take() {
            self.device.free(memory);
        }
    }
}

impl CudaMemory {
    pub(crate) fn new(device: &CudaDevice, bytes: usize) -> Result<Self, CudaError> {
        device.free_what_is_left();
        device.bind()?;
        let _relaxed = Relaxed::enter()?;
        let memory = Chosen::allocate(bytes)?;
        Ok(Self {
            address: Chosen::address(&memory),
            len: bytes,
            owned: Some(memory),
            of_one_stream: false,
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
        Self { address, len, owned: None, of_one_stream: false, device: device.clone() }
    }

    /// A [`view`](Self::view) that only work on the stream of `device` may be given, because its
    /// owner knows of no other.
    ///
    /// # Safety
    /// The same as [`view`](Self::view).
    pub unsafe fn view_for_stream(device: &CudaDevice, address: u64, len: usize) -> Self {
        // SAFETY: passed on to the caller.
        let mut view = unsafe { Self::view(device, address, len) };
        view.of_one_stream = true;
        view
    }

    /// Whether work on the stream of `device` may use it, which is on its GPU.
    #[must_use]
    pub fn is_for_stream_of(&self, device: &CudaDevice) -> bool {
        !self.of_one_stream || self.device.shares_stream_with(device)
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
        let source = bytes.as_ptr().cast_mut().cast();
        self.copy_and_wait(operation, |stream| {
            // SAFETY: the range is within this memory, as checked, and the source is only
            // read, until the stream has been waited for; the stream is alive.
            check("cuMemcpyHtoDAsync", unsafe {
                raw::cuMemcpyHtoDAsync_v2(address, source, bytes.len(), stream)
            })
        })
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
        let (target, len) = (bytes.as_mut_ptr().cast(), bytes.len());
        self.copy_and_wait(operation, |stream| {
            // SAFETY: the range is within this memory, as checked, and the target is written
            // until the stream has been waited for; the stream is alive.
            check("cuMemcpyDtoHAsync", unsafe {
                raw::cuMemcpyDtoHAsync_v2(target, address, len, stream)
            })
        })
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
        self.queue_fill_on(&self.device, value)
    }

    /// [`queue_fill`](Self::queue_fill) on the stream of another handle of the GPU.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for a handle of another GPU, or a failed call.
    pub fn queue_fill_on(&self, device: &CudaDevice, value: u8) -> Result<(), CudaError> {
        let operation = "fill device memory";
        self.require_on(device, operation, "the stream")?;
        if self.is_empty() {
            return Ok(());
        }
        device.bind()?;
        let _turn = device.turn(operation)?;
        // SAFETY: the range is this memory, which is freed only after the device has
        // finished with it; the stream is alive.
        check("cuMemsetD8Async", unsafe {
            raw::cuMemsetD8Async(self.address, value, self.len, device.stream())
        })
    }

    /// Queues a copy of all of `source`, which has the same size and is on the same device, in
    /// order with launches. It can be recorded into a graph.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for another size or device, or a failed call.
    pub fn queue_copy(&self, source: &Self) -> Result<(), CudaError> {
        if source.len() != self.len() {
            return Err(CudaError::BadArgument {
                operation: "copy on the device",
                field: "bytes",
                required: self.len().to_string(),
                actual: source.len().to_string(),
            });
        }
        self.require_on(&source.device, "copy on the device", "the source")?;
        if self.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        let _turn = self.device.turn("copy on the device")?;
        // SAFETY: both have this size and are freed only after the device has finished
        // with them; the stream is alive.
        check("cuMemcpyDtoDAsync", unsafe {
            raw::cuMemcpyDtoDAsync_v2(self.address, source.address, self.len, self.device.stream())
        })
    }

    /// Checks that a handle is one of this memory's GPU.
    fn require_on(
        &self,
        device: &CudaDevice,
        operation: &'static str,
        field: &'static str,
    ) -> Result<(), CudaError> {
        if self.device.shares_memory_with(device) {
            return Ok(());
        }
        Err(CudaError::BadArgument {
            operation,
            field,
            required: format!("on cuda:{}", self.device.info().ordinal),
            actual: format!("on cuda:{}", device.info().ordinal),
        })
    }

    /// Queues a copy between host and device on the stream, and waits until it has ended.
    ///
    /// The copy uses memory of the host that the caller lends for this call only. If the driver
    /// refuses to wait for the stream because something is being recorded, the call waits for all
    /// of the device's work; if the driver refuses that as well, the process ends, because nothing
    /// can say when the copy has. After any other failure nothing runs any more.
    fn copy_and_wait(
        &self,
        operation: &'static str,
        copy: impl FnOnce(*mut c_void) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.device.bind()?;
        let turn = self.device.turn(operation)?;
        self.device.refuse_recording(operation)?;
        let _relaxed = Relaxed::enter()?;
        copy(self.device.stream())?;
        drop(turn);
        match self.device.wait() {
            Err(CudaError::Call { code, .. }) if code.is_of_recording() => {
                // SAFETY: the context is current.
                let all = check("cuCtxSynchronize", unsafe { raw::cuCtxSynchronize() });
                match all {
                    Err(CudaError::Call { code, .. }) if code.is_of_recording() => {
                        std::process::abort()
                    }
                    other => other,
                }
            }
            other => other,
        }
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
