//! NCCL through cudarc, for sums over devices, and the exchange of rows between them ([`NcclExchange`]).
//!
//! cudarc opens the library when it is first called, and panics if it is not there: [`find`] says so
//! before. The examples `tensor_parallel` and `expert_parallel` have a process for each GPU.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::time::{Duration, Instant};

use ::cudarc::nccl::{result, sys};

use super::driver::CudaStream;
pub use ::cudarc::nccl::result::NcclError;
pub use ::cudarc::nccl::{Comm, Id, ReduceOp};

use crate::buffer::DeviceBuffer;
use crate::device::{Device, DeviceError};
use crate::error::{Error, Result};
use crate::parallel::{Transport, check_parts};

/// The name that cudarc opens NCCL by.
const LIBRARY: &str = "libnccl.so";

/// Finds NCCL.
///
/// # Errors
/// [`DeviceError::NoLibrary`]. Packages often have it as `libnccl.so.2`, to which cudarc needs a link
/// called `libnccl.so`.
pub fn find() -> Result<()> {
    // SAFETY: loading NCCL initialises nothing but its own variables.
    unsafe { crate::cuda::probe_library(LIBRARY) }
        .map_err(|reason| DeviceError::NoLibrary { library: LIBRARY, reason }.into())
}

/// One of several ranks, a process for each, which exchange rows by NCCL: grouped sends and receives on the stream of its
/// device, the own part among them. After the first exchange, which opens the ways, exchanges may be recorded in a
/// graph.
///
/// Beginning and the first exchange wait for the other ranks as long as NCCL does. [`wait`](Self::wait) ends with an error
/// where a rank has ended since.
#[derive(Debug)]
pub struct NcclExchange {
    device: Device,
    /// Null once it was aborted.
    comm: Cell<sys::ncclComm_t>,
    rank: usize,
    ranks: usize,
}

/// Time between two looks at whether work is complete.
const POLL: Duration = Duration::from_micros(50);

impl NcclExchange {
    /// Begins as rank `rank` of `ranks`, which all have the identifier `id` of one of them. Work is queued on the stream
    /// of `device`, which is one of [`Device::from_cudarc`].
    ///
    /// # Errors
    /// [`Error::Shape`] for a rank that is not below their number, [`Error::WrongDevice`] for another device,
    /// [`Error::Exchange`], [`DeviceError::NoLibrary`].
    pub fn new(device: &Device, [rank, ranks]: [usize; 2], id: &Id) -> Result<Self> {
        find()?;
        let numbers = (c_int::try_from(rank), c_int::try_from(ranks));
        let (true, (Ok(of_rank), Ok(of_ranks))) = (rank < ranks, numbers) else {
            return Err(Error::shape("rank", format!("below {ranks}, the number of ranks"), rank));
        };
        let mut comm = ptr::null_mut();
        let new = |comm| Self { device: device.clone(), comm: Cell::new(comm), rank, ranks };
        let of = new(ptr::null_mut());
        of.stream()?;
        let id = sys::ncclUniqueId { internal: *id.internal() };
        // SAFETY: `comm` is writable, and the device's context is current.
        let made = unsafe { result::comm_init_rank(&raw mut comm, of_ranks, id, of_rank) };
        made.map_err(|error| of.failed("all", &error))?;
        Ok(new(comm))
    }

    /// The stream that exchanges are queued on, whose context becomes current.
    fn stream(&self) -> Result<&CudaStream> {
        let stream = self.device.cudarc_stream().ok_or_else(|| Error::WrongDevice {
            field: "exchange by NCCL".into(),
            required: "on a device of one of cudarc's streams".into(),
            actual: self.device.choice().device.clone(),
        })?;
        let bound = stream.context().bind_to_thread();
        bound.map_err(|error| self.lost("all", &format!("its context is lost: {error}")))?;
        Ok(stream)
    }

    fn lost(&self, with: &str, reason: &str) -> Error {
        Error::Exchange { rank: self.rank, with: with.into(), reason: reason.into() }
    }

    fn failed(&self, with: &str, error: &NcclError) -> Error {
        self.lost(with, &format!("{:?}", error.0))
    }

    /// The communicator.
    fn comm(&self) -> Result<sys::ncclComm_t> {
        let comm = self.comm.get();
        if comm.is_null() { Err(self.lost("all", "it was aborted")) } else { Ok(comm) }
    }

    /// Waits until all work that was queued on the stream is complete; if a rank has failed, or after `timeout`, ends all
    /// exchanges.
    ///
    /// # Errors
    /// [`Error::Exchange`]. Nothing can be exchanged then.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let (comm, stream) = (self.comm()?, self.stream()?);
        let driver = |error: super::driver::DriverError| self.lost("all", &error.to_string());
        let event = stream.record_event(None).map_err(driver)?;
        let begin = Instant::now();
        while !event.try_is_complete().map_err(driver)? {
            let mut state = sys::ncclResult_t::ncclSuccess;
            // SAFETY: the communicator is alive, and `state` writable.
            let asked = unsafe { sys::ncclCommGetAsyncError(comm, &raw mut state) };
            for found in [asked, state] {
                if let Err(error) = found.result() {
                    self.abort();
                    return Err(self.failed("all", &error));
                }
            }
            if begin.elapsed() > timeout {
                self.abort();
                return Err(self.lost("all", &format!("work was not complete within {timeout:?}")));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Ends all exchanges, also those that are queued.
    fn abort(&self) {
        let comm = self.comm.replace(ptr::null_mut());
        if !comm.is_null() {
            // SAFETY: the communicator is alive, and nobody has it any more.
            // An error leaves nothing to do: the process has lost its ranks in any case.
            let _ = unsafe { result::comm_abort(comm) };
        }
    }
}

impl Drop for NcclExchange {
    fn drop(&mut self) {
        self.abort();
    }
}

impl Transport for NcclExchange {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn exchange(&self, from: &DeviceBuffer, to: &DeviceBuffer, bytes: usize) -> Result<()> {
        check_parts(self.ranks, [from, to], bytes)?;
        let all = self.ranks * bytes;
        let from = from.checked_from("the parts to send", all, &self.device)?;
        let to = to.checked_from("the parts to receive", all, &self.device)?;
        let (comm, stream) = (self.comm()?, self.stream()?);
        let stream: sys::cudaStream_t = stream.cu_stream().cast();
        let of_all = |error: NcclError| self.failed("all", &error);
        result::group_start().map_err(of_all)?;
        let mut queued = Ok(());
        for (at, peer) in (0u64..).zip(0..self.ranks as c_int) {
            let place = at * bytes as u64;
            let (from, to) = ((from + place) as *const _, (to + place) as *mut _);
            let kind = sys::ncclDataType_t::ncclUint8;
            // SAFETY: both parts are in buffers of the device, which live until work that was queued on its stream is
            // complete, because freeing device memory waits for it; the communicator and the stream are alive.
            let both = unsafe {
                result::send(from, bytes, kind, peer, comm, stream)
                    .and_then(|_| result::recv(to, bytes, kind, peer, comm, stream))
            };
            queued = queued
                .and(both.map(drop).map_err(|error| self.failed(&format!("rank {peer}"), &error)));
        }
        // A group that was begun is ended in any case.
        let ended = result::group_end().map_err(of_all);
        queued.and(ended.map(drop))
    }
}
