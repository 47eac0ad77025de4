//! Bytes in device memory, on either backend.
//!
//! # Example
//! Where there is no GPU, this runs on the emulator.
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
//! // What a kernel is to write holds nothing yet: NaN on a GPU, on the emulator an error.
//! let y = DeviceBuffer::poisoned(&device, "y", 2)?;
//! assert!(y.read().map_or(true, |bytes| bytes == [0xff; 2]));
//! # Ok(())
//! # }
//! ```

use std::rc::Rc;

use crate::cuda::CudaMemory;
use crate::device::{Backend, Device, Emulator};
use crate::error::Result;

/// Alignment of every buffer, bytes: what the driver guarantees, and more than any kernel asks.
pub const ALIGNMENT: u64 = 256;

/// What a poisoned buffer holds on a GPU: 0xff in every byte is a NaN in f16, bf16 and f32.
const POISON: u8 = 0xff;

/// An allocation on a device, freed when dropped.
#[derive(Debug)]
pub struct DeviceBuffer {
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Shared with nothing but a capture of launches, which holds it weakly.
    Cuda(Rc<CudaMemory>),
    Emulator {
        emulator: Emulator,
        address: u64,
        len: usize,
    },
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Emulator { emulator, address, .. } = self {
            // The address came from `alloc` and is freed once, so there is no error to report.
            // While a panic unwinds out of a launch the memory is still borrowed.
            if let Ok(mut memory) = emulator.memory.try_borrow_mut() {
                let _ = memory.free(*address);
            }
        }
    }
}

impl Place {
    fn on_gpu(device: &Device, name: &str, memory: CudaMemory) -> Self {
        let memory = Rc::new(memory);
        if let Some(capture) = device.capture() {
            capture.made(name, &memory);
        }
        Self::Cuda(memory)
    }
}

impl DeviceBuffer {
    /// A copy of `bytes` (at least one) on the device. `name` appears in the emulator's
    /// diagnostics.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError), where memory runs out for one.
    pub fn upload(device: &Device, name: &str, bytes: &[u8]) -> Result<Self> {
        let place = match device.backend() {
            Backend::Cuda(gpu) => Place::on_gpu(device, name, gpu.upload(bytes)?),
            Backend::Emulator(emulator) => {
                let address = emulator.memory.borrow_mut().alloc_from(name, bytes)?;
                Place::Emulator { emulator: emulator.clone(), address, len: bytes.len() }
            }
        };
        Ok(Self { place })
    }

    /// `len` bytes (at least one) that hold no result: NaN on a GPU; on the emulator
    /// uninitialised, so that reading a byte which nothing wrote is an error.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError), where memory runs out for one.
    pub fn poisoned(device: &Device, name: &str, len: usize) -> Result<Self> {
        let place = match device.backend() {
            Backend::Cuda(gpu) => {
                let mut memory = gpu.alloc(len)?;
                memory.fill(POISON)?;
                Place::on_gpu(device, name, memory)
            }
            Backend::Emulator(emulator) => {
                let address = emulator.memory.borrow_mut().alloc(name, len as u64, ALIGNMENT)?;
                Place::Emulator { emulator: emulator.clone(), address, len }
            }
        };
        Ok(Self { place })
    }

    /// The device address.
    #[must_use]
    pub fn address(&self) -> u64 {
        match &self.place {
            Place::Cuda(memory) => memory.address(),
            Place::Emulator { address, .. } => *address,
        }
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.place {
            Place::Cuda(memory) => memory.len(),
            Place::Emulator { len, .. } => *len,
        }
    }

    /// Whether the size is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets every byte to `value`, in order with launches and without waiting for them; also while
    /// a CUDA graph is recorded.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn fill(&self, value: u8) -> Result<()> {
        match &self.place {
            Place::Cuda(memory) => memory.queue_fill(value)?,
            Place::Emulator { emulator, address, len } => {
                emulator.memory.borrow_mut().fill(*address, *len as u64, value)?;
            }
        }
        Ok(())
    }

    /// The whole contents, after everything launched before has finished.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError): on a GPU an error of a kernel launched
    /// before, on the emulator a byte that nothing wrote.
    pub fn read(&self) -> Result<Vec<u8>> {
        Ok(match &self.place {
            Place::Cuda(memory) => memory.to_vec()?,
            Place::Emulator { emulator, address, len } => {
                emulator.memory.borrow().read(*address, *len as u64)?
            }
        })
    }
}
