//! The errors of this crate as types. Each variant has the field, the requirement and the value
//! found, so that a program can print it or act on it.

pub(crate) mod device;
pub(crate) mod tune;

use std::fmt;
use std::path::PathBuf;

use fp4_formats::SizeOverflow;
use thiserror::Error;

use crate::kernels::KernelsError;
pub use device::DeviceError;
pub use tune::TuneError;

/// Position of an element in a batch of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Batch entry.
    pub batch: usize,
    /// Row of that entry's matrix.
    pub row: usize,
    /// Column; for a scale, the block along K.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}, {}]", self.batch, self.row, self.column)
    }
}

/// Any error of this crate. `Debug` is the message, too, so that a `main` that returns this error prints
/// it.
#[derive(Error)]
#[non_exhaustive]
pub enum Error {
    /// A size, length or shape does not fit the operation.
    #[error("{field} must be {required}, but is {actual}")]
    Shape {
        /// The checked field, with the tensor's name if there is one.
        field: String,
        /// The condition.
        required: String,
        /// The value found.
        actual: String,
    },
    /// An operand is in the memory of another device than the kernels.
    #[error("{field} must be {required}, but is {actual}")]
    WrongDevice {
        /// The operand.
        field: String,
        /// The required place.
        required: String,
        /// The actual place.
        actual: String,
    },
    /// A scalar (a tensor's global scale, alpha) is not usable.
    #[error("{field} must be {required}, but is {actual:e}")]
    Scalar {
        /// The checked field.
        field: String,
        /// The condition.
        required: &'static str,
        /// The value found.
        actual: f64,
    },
    /// A value to be quantised is an infinity or a NaN.
    #[error("`{tensor}` has {value} at {index}; only finite values can be quantised")]
    NonFinite {
        /// The tensor's name.
        tensor: String,
        /// Position of the first such value: batch, row, column.
        index: Position,
        /// The value.
        value: f32,
    },
    /// A value to be quantised on a device is an infinity or a NaN.
    #[error("`{tensor}` has an infinity or a NaN at {index}; only finite values can be quantised")]
    NonFiniteAt {
        /// The tensor's name.
        tensor: String,
        /// Position of the first such value: batch, row, column.
        index: Position,
    },
    /// A block scale is NaN.
    #[error(
        "`{tensor}` has a scale that is not finite (byte {byte:#04x}) at {index} (batch, row, block)"
    )]
    ScaleNotFinite {
        /// The tensor's name.
        tensor: String,
        /// Position of the first such scale: batch, row, block.
        index: Position,
        /// The byte.
        byte: u8,
    },
    /// A block scale has its sign bit set, although the format's scales are unsigned.
    #[error(
        "`{tensor}` has a scale with its sign bit set (byte {byte:#04x}) at {index} (batch, row, block); scales are unsigned"
    )]
    ScaleNegative {
        /// The tensor's name.
        tensor: String,
        /// Position of the first such scale: batch, row, block.
        index: Position,
        /// The byte.
        byte: u8,
    },
    /// A size that does not fit the machine's or the kernel's integers.
    #[error("{what}: {detail}")]
    Overflow {
        /// The object whose size overflows.
        what: String,
        /// The sizes that overflow.
        detail: String,
    },
    /// A rank has more rows for another one than the capacity.
    #[error("rank {from} has {rows} rows for rank {to}, but the capacity is {capacity}")]
    Capacity {
        /// The rank that has them.
        from: usize,
        /// The rank of the experts.
        to: usize,
        /// The most rows of a launch.
        rows: usize,
        /// The capacity.
        capacity: usize,
    },
    /// Ranks could not exchange rows.
    #[error("rank {rank} cannot exchange rows with {with}: {reason}")]
    Exchange {
        /// This rank.
        rank: usize,
        /// The other one, or all.
        with: String,
        /// The reason.
        reason: String,
    },
    /// There is not enough memory.
    #[error("{what} needs {bytes} bytes, which this machine cannot provide")]
    Memory {
        /// The object to be allocated.
        what: String,
        /// Its size.
        bytes: usize,
    },
    /// No PTX was found.
    #[error(transparent)]
    Kernels(#[from] KernelsError),
    /// No device could be opened, or one failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A tuning table could not be used or written.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// A result that was expected to be correct is wrong.
    #[error("{what} differs from the oracle's by more than its bound")]
    Wrong {
        /// The result.
        what: String,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// `read`, `write`, ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The kind of an error, for a program that acts on it. [`enum@Error`] has the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is wrong: a size, a scalar, a shape string, a value that cannot be quantised.
    InvalidArgument,
    /// The request is possible, but this machine, this build or this device lacks something: a
    /// driver, a GPU, kernels.
    Unsupported,
    /// An operand is on another device.
    WrongDevice,
    /// A size does not fit the integers of the machine or the kernel.
    Overflow,
    /// There is not enough memory, on the host or on the device.
    OutOfMemory,
    /// A call of the driver failed, or a kernel did.
    Driver,
    /// Ranks could not exchange rows: one ended or was too late.
    Exchange,
    /// A checkpoint cannot be used: an error of the crate `nvfp4-checkpoint`.
    Checkpoint,
    /// A file cannot be read or written, a tuning table among them.
    File,
    /// A result is wrong.
    Wrong,
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Shape { .. }
            | Self::Scalar { .. }
            | Self::Capacity { .. }
            | Self::NonFinite { .. }
            | Self::NonFiniteAt { .. }
            | Self::ScaleNotFinite { .. }
            | Self::ScaleNegative { .. } => ErrorKind::InvalidArgument,
            Self::WrongDevice { .. } => ErrorKind::WrongDevice,
            Self::Overflow { .. } => ErrorKind::Overflow,
            Self::Memory { .. } => ErrorKind::OutOfMemory,
            Self::Kernels(_) => ErrorKind::Unsupported,
            Self::Device(error) => error.kind(),
            Self::Tune(_) | Self::Io { .. } => ErrorKind::File,
            Self::Exchange { .. } => ErrorKind::Exchange,
            Self::Wrong { .. } => ErrorKind::Wrong,
        }
    }

    /// An [`Error::Shape`] from printable values.
    #[must_use]
    pub fn shape(
        field: impl Into<String>,
        required: impl Into<String>,
        actual: impl fmt::Display,
    ) -> Self {
        Self::Shape { field: field.into(), required: required.into(), actual: actual.to_string() }
    }

    /// A size overflow in `what`.
    #[must_use]
    pub fn overflow(what: impl Into<String>, source: SizeOverflow) -> Self {
        Self::Overflow { what: what.into(), detail: source.to_string() }
    }

    /// The exit code with which a program should end: 1 if a kernel ran and failed or its result is
    /// wrong, 2 for bad input or if there is nothing to run on.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Wrong { .. } | Self::Exchange { .. } => 1,
            Self::Device(error) if error.happened_while_running() => 1,
            _ => 2,
        }
    }
}

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Checks that `bytes` more bytes can be allocated in total.
///
/// # Errors
/// [`Error::Memory`].
pub fn require_memory(what: &str, bytes: u64) -> Result<()> {
    if available_memory().is_none_or(|available| bytes <= available) {
        return Ok(());
    }
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    Err(Error::Memory { what: what.into(), bytes })
}

/// An empty vector with room for `len` elements, or a typed error if there is not enough memory.
///
/// # Errors
/// [`Error::Memory`].
pub fn reserve<T>(what: &str, len: usize) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    let bytes = len.saturating_mul(size_of::<T>());
    require_memory(what, bytes as u64)?;
    if vector.try_reserve_exact(len).is_err() {
        return Err(Error::Memory { what: what.into(), bytes });
    }
    Ok(vector)
}

/// A vector of `len` copies of `value`, or a typed error.
///
/// # Errors
/// [`Error::Memory`].
pub fn filled<T: Clone>(what: &str, len: usize, value: T) -> Result<Vec<T>> {
    drop(reserve::<T>(what, len)?);
    // Zeros are the system's pages, which the threads that fill them touch first; `resize` would write them on one thread.
    Ok(vec![value; len])
}

/// Bytes that can be allocated without swapping, if the system reports them. Linux overcommits
/// memory, so allocations do not fail reliably.
fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{CudaCode, CudaError};

    #[test]
    fn kinds_say_what_happened() {
        let call = |value| {
            let code = CudaCode { value, name: String::new(), meaning: String::new() };
            Error::from(CudaError::Call { call: "cuMemAlloc", code })
        };
        let needs = DeviceError::NeedsGpu { operation: "timing", device: "emu:h200".into() };
        let elsewhere = ["memory of `x`", "on cuda:0", "on cuda:1"].map(String::from);
        let [field, required, actual] = elsewhere;
        let kinds = [
            (Error::shape("K", "a multiple of 16", 3), ErrorKind::InvalidArgument),
            (Error::WrongDevice { field, required, actual }, ErrorKind::WrongDevice),
            (call(2), ErrorKind::OutOfMemory),
            (call(700), ErrorKind::Driver),
            (needs.into(), ErrorKind::Unsupported),
            (Error::Memory { what: "x".into(), bytes: 1 }, ErrorKind::OutOfMemory),
        ];
        for (error, kind) in kinds {
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(format!("{error:?}"), error.to_string(), "what `main` prints");
        }
    }
}
