//! Objects that belong to the stream that they are first used on.

use std::cell::RefCell;

use crate::cuda::{CudaDevice, StreamId};
use crate::device::{Backend, Device};
use crate::error::{Error, Result};

/// The stream that something was first used on; on the emulator none ever.
///
/// It keeps the handle, so that a stream of the library's own lives as long. Threads do not share it:
/// launches of two threads on one workspace would mingle.
#[derive(Debug, Default)]
pub(crate) struct FirstStream(RefCell<Option<(CudaDevice, StreamId)>>);

impl FirstStream {
    /// The stream that this thread queues on with a handle.
    pub fn of(gpu: Option<&CudaDevice>) -> Self {
        Self(RefCell::new(gpu.map(|gpu| (gpu.clone(), gpu.stream_id()))))
    }

    /// Makes it the stream that this thread queues on with `device`, unless it is one already.
    ///
    /// # Errors
    /// [`Error::Shape`] where it is another. The message calls what belongs to it `what`.
    pub fn require(&self, what: &str, device: &Device) -> Result<()> {
        #[cfg_attr(not(feature = "emulator"), allow(irrefutable_let_patterns))]
        let Backend::Cuda(gpu) = device.backend() else { return Ok(()) };
        self.here(what, gpu, |_| ())
    }

    /// [`require`](Self::require) for a handle; returns the one that it was first used with.
    pub fn handle_here(&self, what: &str, gpu: &CudaDevice) -> Result<CudaDevice> {
        self.here(what, gpu, CudaDevice::clone)
    }

    /// Calls `take` with the handle that the object was first used with.
    fn here<T>(
        &self,
        what: &str,
        gpu: &CudaDevice,
        take: impl FnOnce(&CudaDevice) -> T,
    ) -> Result<T> {
        let mut first = self.0.borrow_mut();
        let here = gpu.stream_id();
        let (handle, id) = first.get_or_insert_with(|| (gpu.clone(), here));
        if handle.shares_memory_with(gpu) && *id == here {
            return Ok(take(handle));
        }
        let field = format!("the {what}'s stream");
        Err(Error::shape(field, format!("{here}, as the launch's"), *id))
    }

    /// The handle that it was first used with, if this thread queues on that stream with it.
    ///
    /// # Errors
    /// [`Error::Shape`] where another thread's stream is meant.
    pub fn handle_or(&self, what: &str, gpu: &CudaDevice) -> Result<CudaDevice> {
        let first = self.0.borrow().as_ref().map(|(handle, _)| handle.clone());
        self.handle_here(what, &first.unwrap_or_else(|| gpu.clone()))
    }
}
