//! The exchange of rows between ranks.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::buffer::DeviceBuffer;
use crate::error::{Error, Result};

/// The way by which ranks exchange rows.
pub trait Transport {
    /// The rank of this end.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn ranks(&self) -> usize;

    /// Exchanges parts of `bytes` bytes: part `r` of `from` goes to rank `r`, and what rank `r` has for this one becomes
    /// part `r` of `to`. All ranks call it in the same order, with the same size. It comes after all work that was
    /// queued on the buffers' stream before, and before what is queued later.
    ///
    /// # Errors
    /// [`Error::Exchange`] where a rank ended or was too late, [`Error::Shape`] for buffers that are too small,
    /// [`DeviceError`](crate::device::DeviceError).
    fn exchange(&self, from: &DeviceBuffer, to: &DeviceBuffer, bytes: usize) -> Result<()>;
}

/// Checks that both buffers have a part for each rank.
///
/// # Errors
/// [`Error::Shape`].
pub(crate) fn check_parts(
    ranks: usize,
    [from, to]: [&DeviceBuffer; 2],
    bytes: usize,
) -> Result<()> {
    for (what, buffer) in [("bytes to send", from), ("bytes to receive", to)] {
        if ranks.checked_mul(bytes).is_none_or(|all| buffer.len() < all) {
            let required = format!("{bytes} for each of {ranks} ranks");
            return Err(Error::shape(what, required, buffer.len()));
        }
    }
    Ok(())
}

/// One of several ranks in one process, which exchange rows through the host's memory: for emulated devices. Each is
/// used by a thread of its own, because an exchange waits for the others. A rank that is dropped ends the others'
/// exchanges with an error.
#[derive(Debug)]
pub struct HostExchange {
    rank: usize,
    timeout: Duration,
    /// Ways to all ranks, and from all, the own one among them.
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

impl HostExchange {
    /// All of `ranks` ranks, which wait at most so long for each other.
    #[must_use]
    pub fn all(ranks: usize, timeout: Duration) -> Vec<Self> {
        let end = |rank| Self { rank, timeout, to: Vec::new(), from: Vec::new() };
        let mut ends: Vec<Self> = (0..ranks).map(end).collect();
        for sender in 0..ranks {
            for receiver in 0..ranks {
                let (to, from) = channel();
                ends[sender].to.push(to);
                ends[receiver].from.push(from);
            }
        }
        ends
    }

    fn failed(&self, with: usize, reason: &str) -> Error {
        Error::Exchange { rank: self.rank, with: format!("rank {with}"), reason: reason.into() }
    }
}

impl Transport for HostExchange {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.to.len()
    }

    fn exchange(&self, from: &DeviceBuffer, to: &DeviceBuffer, bytes: usize) -> Result<()> {
        check_parts(self.ranks(), [from, to], bytes)?;
        for (rank, way) in self.to.iter().enumerate() {
            let part = from.read_range(rank * bytes..(rank + 1) * bytes)?;
            way.send(part).map_err(|_| self.failed(rank, "it has ended"))?;
        }
        let mut all = to.read()?;
        for (rank, way) in self.from.iter().enumerate() {
            let part = way.recv_timeout(self.timeout).map_err(|error| match error {
                RecvTimeoutError::Timeout => {
                    self.failed(rank, &format!("nothing came within {:?}", self.timeout))
                }
                RecvTimeoutError::Disconnected => self.failed(rank, "it has ended"),
            })?;
            if part.len() != bytes {
                let reason = format!("{} bytes came in place of {bytes}", part.len());
                return Err(self.failed(rank, &reason));
            }
            all[rank * bytes..][..bytes].copy_from_slice(&part);
        }
        to.write(&all)
    }
}
