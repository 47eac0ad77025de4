//! Errors of tuning tables.

use std::path::PathBuf;

use thiserror::Error;

/// Version of a tuning table's form.
pub const VERSION: u64 = 4;

/// Environment variable that names the file of the tuning table, or is `off`.
pub const VARIABLE: &str = "NVFP4_TUNE";

/// The reasons why a tuning table cannot be used or written. A tool reports them; a plan is made
/// without the table and gives the reason.
#[derive(Debug, Error)]
pub enum TuneError {
    /// The file cannot be read.
    #[error("cannot read the tuning table {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is too large for a table.
    #[error("{} is no tuning table: more than {most} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        most: u64,
    },
    /// The text is not JSON or not a table.
    #[error("{origin} is no tuning table: {reason}")]
    Malformed {
        /// The file, or another description of the text.
        origin: String,
        /// The expected text and its place.
        reason: String,
    },
    /// Another version of this project wrote it.
    #[error("{origin} is a tuning table of version {found}; this program has version {VERSION}")]
    Version {
        /// The file, or another description of the text.
        origin: String,
        /// Its version.
        found: u64,
    },
    /// The table was measured on another device, with another driver or other kernels.
    #[error("{origin} was measured with {field} `{found}`, here it is `{required}`")]
    Elsewhere {
        /// The file, or another description of the table.
        origin: String,
        /// The first field that differs.
        field: &'static str,
        /// Its value on this machine.
        required: String,
        /// Its value in the table.
        found: String,
    },
    /// An entry names a kernel that does not exist or does not take the problem.
    #[error("{origin}, entry for {problem}: {reason}")]
    Unsuitable {
        /// The file, or another description of the table.
        origin: String,
        /// The problem.
        problem: String,
        /// The error of planning.
        reason: String,
    },
    /// No candidate of a problem could be timed.
    #[error("none of the {candidates} candidates for {problem} could be timed: {reason}")]
    NothingTimed {
        /// The problem.
        problem: String,
        /// Number of candidates that were tried.
        candidates: usize,
        /// The error of the first of them.
        reason: String,
    },
    /// There is no file to write, because tables are switched off.
    #[error("{VARIABLE} is off; name the table to write")]
    Off,
    /// There is no file to write, because the system names no folder for caches.
    #[error("neither XDG_CACHE_HOME nor HOME names a folder; name the table to write")]
    NoCacheFolder,
}
