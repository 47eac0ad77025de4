//! Why a tuning table cannot be used.

use std::path::PathBuf;

use thiserror::Error;

use super::{VARIABLE, VERSION};

/// What is wrong with a tuning table, or with where it should be. A tool reports it; a plan goes
/// without the table and says this as the reason.
#[derive(Debug, Error)]
pub enum TuneError {
    /// The file cannot be read.
    #[error("cannot read the tuning table {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is too large to be a table.
    #[error("{} is no tuning table: more than {most} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        most: u64,
    },
    /// The text is not JSON, or not a table.
    #[error("{origin} is no tuning table: {reason}")]
    Malformed {
        /// The file, or what the text is otherwise.
        origin: String,
        /// What was expected where.
        reason: String,
    },
    /// Another version of this project wrote it.
    #[error("{origin} is a tuning table of version {found}; this program has version {VERSION}")]
    Version {
        /// The file, or what the text is otherwise.
        origin: String,
        /// Its version.
        found: u64,
    },
    /// It was measured on another device, with another driver or other kernels.
    #[error("{origin} was measured with {field} `{found}`, here it is `{required}`")]
    Elsewhere {
        /// The file, or what the table is otherwise.
        origin: String,
        /// What differs first.
        field: &'static str,
        /// What the machine has.
        required: String,
        /// What the table has.
        found: String,
    },
    /// An entry names a kernel that does not exist or does not take the problem.
    #[error("{origin}, entry for {problem}: {reason}")]
    Unsuitable {
        /// The file, or what the table is otherwise.
        origin: String,
        /// The problem.
        problem: String,
        /// What planning said.
        reason: String,
    },
    /// No candidate of a problem could be timed.
    #[error("none of the {candidates} candidates for {problem} could be timed: {reason}")]
    NothingTimed {
        /// The problem.
        problem: String,
        /// Candidates that were tried.
        candidates: usize,
        /// Why the first of them was refused.
        reason: String,
    },
    /// Nowhere to write to: tables are switched off.
    #[error("{VARIABLE} is off; name the table to write")]
    Off,
    /// Nowhere to write to: the system names no folder for caches.
    #[error("neither XDG_CACHE_HOME nor HOME names a folder; name the table to write")]
    NoCacheFolder,
}
