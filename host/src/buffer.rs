//! Bytes in device memory, on either backend.
//!
//! # Example
//! Without a GPU, this runs on the emulator.
//! ```
//! use nvfp4::buffer::DeviceBuffer;
//! use nvfp4::device::{Device, DeviceRequest};
//!
//! # fn main() -> nvfp4::error::Result<()> {
//! let device = Device::open(&DeviceRequest::Auto)?;
//! let x = DeviceBuffer::upload(&device, "x", &[1, 2, 3])?;
//! assert_eq!(x.read()?, [1, 2, 3]);
//! x.fill(7)?;
//! assert_eq!(x.read()?, [7; 3]);
//!
//! // A buffer for a result is not initialised: it holds NaN on a GPU; on the emulator, reading it
//! // is an error.
//! let y = DeviceBuffer::poisoned(&device, "y", 2)?;
//! assert!(y.read().map_or(true, |bytes| bytes == [0xff; 2]));
//! # Ok(())
//! # }
//! ```

use std::ops::Range;
use std::sync::Arc;
#[cfg(feature = "emulator")]
use std::sync::Mutex;

#[cfg(feature = "emulator")]
use ptx_emu_core::{GlobalMemory, MemoryError};

use crate::cuda::{CudaDevice, CudaMemory};
#[cfg(feature = "emulator")]
use crate::device::lock;
use crate::device::{Backend, Device};
use crate::error::{Error, Result};

/// Alignment of every allocation, bytes, which the driver guarantees and which suffices for all
/// kernels.
pub const ALIGNMENT: u64 = 256;

/// Alignment of every view, bytes: the widest access of the kernels.
pub const VIEW_ALIGNMENT: u64 = 16;

/// The bytes of a poisoned buffer on a GPU: elements of 0xff bytes are NaN in f16, bf16 and f32.
const POISON: u8 = 0xff;

/// Device memory: an allocation, freed when dropped, or a view of memory that belongs to another
/// owner ([`from_raw`](Self::from_raw)).
///
/// Copies and fills of a buffer are ordered with launches on the stream of the [`Device`] that it
/// was allocated with.
#[derive(Debug)]
pub struct DeviceBuffer {
    place: Memory,
}

#[derive(Debug)]
enum Memory {
    /// Shared only with a capture of launches, which has a weak reference.
    Cuda(Arc<CudaMemory>),
    #[cfg(feature = "emulator")]
    Emulator {
        memory: Arc<Mutex<GlobalMemory>>,
        address: u64,
        len: usize,
        /// Whether the memory is freed with the buffer.
        owned: bool,
    },
}

#[cfg(feature = "emulator")]
impl Drop for Memory {
    fn drop(&mut self) {
        if let Self::Emulator { memory, address, owned: true, .. } = self {
            // The address came from `alloc` and is freed once, so there is no error to report.
            let _ = lock(memory).free(*address);
        }
    }
}

impl Memory {
    fn on_gpu(device: &Device, name: &str, memory: CudaMemory) -> Self {
        let memory = Arc::new(memory);
        #[cfg(feature = "capture")]
        if let Some(capture) = device.capture() {
            capture.made(name, &memory);
        }
        #[cfg(not(feature = "capture"))]
        let _ = (device, name);
        Self::Cuda(memory)
    }
}

impl DeviceBuffer {
    /// A copy of `bytes` (at least one) on the device. `name` appears in the emulator's
    /// diagnostics.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError), for example if memory is exhausted.
    pub fn upload(device: &Device, name: &str, bytes: &[u8]) -> Result<Self> {
        let place = match device.backend() {
            Backend::Cuda(gpu) => Memory::on_gpu(device, name, gpu.upload(bytes)?),
            #[cfg(feature = "emulator")]
            Backend::Emulator(emulator) => {
                let address = emulator.memory().alloc_from(name, bytes)?;
                Memory::Emulator {
                    memory: emulator.memory.clone(),
                    address,
                    len: bytes.len(),
                    owned: true,
                }
            }
        };
        device.count_allocation();
        Ok(Self { place })
    }

    /// `len` bytes (at least one) for a result. On a GPU they hold NaN. On the emulator they are
    /// uninitialised, so that reading a byte before it is written is an error.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError), for example if memory is exhausted.
    pub fn poisoned(device: &Device, name: &str, len: usize) -> Result<Self> {
        Self::filled(device, name, len, None)
    }

    /// `len` zero bytes (at least one).
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError), for example if memory is exhausted.
    pub fn zeroed(device: &Device, name: &str, len: usize) -> Result<Self> {
        Self::filled(device, name, len, Some(0))
    }

    fn filled(device: &Device, name: &str, len: usize, value: Option<u8>) -> Result<Self> {
        let place = match device.backend() {
            Backend::Cuda(gpu) => {
                let memory = gpu.alloc(len)?;
                memory.fill(value.unwrap_or(POISON))?;
                Memory::on_gpu(device, name, memory)
            }
            #[cfg(feature = "emulator")]
            Backend::Emulator(emulator) => {
                let mut memory = emulator.memory();
                let address = memory.alloc(name, len as u64, ALIGNMENT)?;
                if let Some(value) = value {
                    memory.fill(address, len as u64, value)?;
                }
                Memory::Emulator { memory: emulator.memory.clone(), address, len, owned: true }
            }
        };
        device.count_allocation();
        Ok(Self { place })
    }

    /// A view of `len` bytes (at least one) at `address`, a multiple of [`VIEW_ALIGNMENT`], that
    /// belong to another owner: an engine's tensor, or a part of another buffer. Dropping the view
    /// does not free them.
    ///
    /// # Errors
    /// [`Error::Shape`] for another alignment or no bytes; on the emulator
    /// [`DeviceError`](crate::device::DeviceError) if the bytes are not all in one allocation.
    ///
    /// # Safety
    /// On a GPU:
    /// * The bytes are memory of the device's context that kernels may read and write. This holds
    ///   until the view has been dropped, all work that was given the view has finished, and no
    ///   graph in which that work was recorded is replayed again.
    /// * Other work on the bytes is ordered with the device's stream.
    ///
    /// (The emulator checks every access.)
    pub unsafe fn from_raw(device: &Device, name: &str, address: u64, len: usize) -> Result<Self> {
        if address == 0 || !address.is_multiple_of(VIEW_ALIGNMENT) {
            let required = format!("a multiple of {VIEW_ALIGNMENT}, not 0");
            return Err(Error::shape(
                format!("address of `{name}`"),
                required,
                format!("{address:#x}"),
            ));
        }
        if len == 0 {
            return Err(Error::shape(format!("bytes of `{name}`"), "at least 1", len));
        }
        let place = match device.backend() {
            Backend::Cuda(gpu) => {
                // SAFETY: the caller guarantees the memory and the order of other work on it.
                let memory = unsafe { CudaMemory::view(gpu, address, len) };
                Memory::on_gpu(device, name, memory)
            }
            #[cfg(feature = "emulator")]
            Backend::Emulator(emulator) => {
                let bytes = len as u64;
                let inside = emulator.memory().allocations().any(|(_, start, size)| {
                    let before = address.checked_sub(start);
                    before.is_some_and(|before| before <= size && bytes <= size - before)
                });
                if !inside {
                    return Err(MemoryError::OutOfBounds { addr: address, bytes }.into());
                }
                Memory::Emulator { memory: emulator.memory.clone(), address, len, owned: false }
            }
        };
        Ok(Self { place })
    }

    /// [`from_raw`](Self::from_raw) of memory whose owner knows of work on the stream of `device`
    /// only: launches on another are refused.
    ///
    /// # Errors
    /// The same as there.
    ///
    /// # Safety
    /// The same as there.
    #[cfg(feature = "cudarc")]
    pub(crate) unsafe fn lent(
        device: &Device,
        name: &str,
        address: u64,
        len: usize,
    ) -> Result<Self> {
        // SAFETY: passed on to the caller.
        let view = unsafe { Self::from_raw(device, name, address, len)? };
        #[cfg_attr(not(feature = "emulator"), allow(irrefutable_let_patterns))]
        let Backend::Cuda(gpu) = device.backend() else { return Ok(view) };
        // SAFETY: as above.
        let memory = unsafe { CudaMemory::view_for_stream(gpu, address, len) };
        Ok(Self { place: Memory::on_gpu(device, name, memory) })
    }

    /// The address, if the buffer has exactly `bytes` bytes that kernels of `device` can use.
    /// Errors name it `what`.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub(crate) fn checked(&self, what: &str, bytes: usize, device: &Device) -> Result<u64> {
        if self.len() != bytes {
            return Err(Error::shape(format!("bytes of {what}"), bytes.to_string(), self.len()));
        }
        self.require_on(what, device)?;
        Ok(self.address())
    }

    /// [`checked`](Self::checked) for at least `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub(crate) fn checked_from(&self, what: &str, bytes: usize, device: &Device) -> Result<u64> {
        if self.len() < bytes {
            let required = format!("at least {bytes}");
            return Err(Error::shape(format!("bytes of {what}"), required, self.len()));
        }
        self.require_on(what, device)?;
        Ok(self.address())
    }

    /// Checks that kernels of `device` can use the memory. Errors name it `what`.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub(crate) fn require_on(&self, what: &str, device: &Device) -> Result<()> {
        let found = match (&self.place, device.backend()) {
            (Memory::Cuda(memory), Backend::Cuda(gpu)) => {
                if memory.device().shares_memory_with(gpu) {
                    if memory.is_for_stream_of(gpu) {
                        return Ok(());
                    }
                    let field = format!("stream of {what}");
                    let required = format!("{}, as the kernels", gpu.stream_id());
                    let actual = memory.device().stream_id().to_string();
                    return Err(Error::WrongDevice { field, required, actual });
                }
                format!("on cuda:{}", memory.device().info().ordinal)
            }
            #[cfg(feature = "emulator")]
            (Memory::Emulator { memory, .. }, Backend::Emulator(emulator)) => {
                if Arc::ptr_eq(memory, &emulator.memory) {
                    return Ok(());
                }
                "on another emulated device".into()
            }
            #[cfg(feature = "emulator")]
            (Memory::Cuda(memory), Backend::Emulator(_)) => {
                format!("on cuda:{}", memory.device().info().ordinal)
            }
            #[cfg(feature = "emulator")]
            (Memory::Emulator { .. }, Backend::Cuda(_)) => "on an emulated device".into(),
        };
        let required = format!("on {}, as the kernels", device.choice().device);
        Err(Error::WrongDevice { field: format!("memory of {what}"), required, actual: found })
    }

    /// The GPU's handle that it was made from; none on the emulator.
    pub(crate) fn gpu(&self) -> Option<&CudaDevice> {
        match &self.place {
            Memory::Cuda(memory) => Some(memory.device()),
            #[cfg(feature = "emulator")]
            Memory::Emulator { .. } => None,
        }
    }

    /// The device address.
    #[must_use]
    pub fn address(&self) -> u64 {
        match &self.place {
            Memory::Cuda(memory) => memory.address(),
            #[cfg(feature = "emulator")]
            Memory::Emulator { address, .. } => *address,
        }
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.place {
            Memory::Cuda(memory) => memory.len(),
            #[cfg(feature = "emulator")]
            Memory::Emulator { len, .. } => *len,
        }
    }

    /// Whether the size is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets every byte to `value`, in order with launches and without waiting. It may be called
    /// while a CUDA graph is recorded.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn fill(&self, value: u8) -> Result<()> {
        match &self.place {
            Memory::Cuda(memory) => memory.queue_fill(value)?,
            #[cfg(feature = "emulator")]
            Memory::Emulator { memory, address, len, .. } => {
                lock(memory).fill(*address, *len as u64, value)?;
            }
        }
        Ok(())
    }

    /// [`fill`](Self::fill) on the stream of another handle of the GPU.
    pub(crate) fn fill_on(&self, stream: &CudaDevice, value: u8) -> Result<()> {
        match &self.place {
            Memory::Cuda(memory) => Ok(memory.queue_fill_on(stream, value)?),
            #[cfg(feature = "emulator")]
            Memory::Emulator { .. } => self.fill(value),
        }
    }

    /// Replaces the whole contents, after all earlier launches, and waits for the copy. A graph
    /// that was recorded with this buffer uses the new bytes in its next replay. It may not be
    /// called while a graph is being recorded.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of bytes, [`DeviceError`](crate::device::DeviceError).
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.len() {
            let required = format!("{}, the buffer's", self.len());
            return Err(Error::shape("bytes to write", required, bytes.len()));
        }
        match &self.place {
            Memory::Cuda(memory) => memory.write(0, bytes)?,
            #[cfg(feature = "emulator")]
            Memory::Emulator { memory, address, .. } => {
                lock(memory).write(*address, bytes)?;
            }
        }
        Ok(())
    }

    /// The bytes in `range`, as far as there are so many, after all earlier launches; the rest need not be written.
    ///
    /// # Errors
    /// The same as [`read`](Self::read).
    pub fn read_range(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        Ok(match &self.place {
            Memory::Cuda(memory) => {
                let mut bytes = memory.to_vec()?;
                bytes.truncate(end);
                bytes.split_off(start)
            }
            #[cfg(feature = "emulator")]
            Memory::Emulator { memory, address, .. } => {
                lock(memory).read(*address + start as u64, (end - start) as u64)?
            }
        })
    }

    /// The whole contents, after all earlier launches.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError): on a GPU also an error of an earlier kernel, on
    /// the emulator also a byte that was not written.
    pub fn read(&self) -> Result<Vec<u8>> {
        self.read_range(0..self.len())
    }
}
