//! Errors of bundles.

use ptx_emu_core::tensor_map::TensorMapError;
use ptx_emu_core::{LaunchError, LoadError, MemoryError};
use std::io;
use std::path::PathBuf;

/// A bundle that cannot be read, written or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// A file that cannot be read.
    #[error("{}: cannot be read: {source}", .path.display())]
    Read {
        /// File.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file that cannot be written.
    #[error("{}: cannot be written: {source}", .path.display())]
    Write {
        /// File or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A description that is not JSON or lacks something.
    #[error("{}: {source}", .path.display())]
    Json {
        /// File.
        path: PathBuf,
        /// The reason, with line and column.
        source: serde_json::Error,
    },
    /// A field with a value that does not fit.
    #[error("{field}: required {required}, actual {actual}")]
    Field {
        /// Field, such as `memory[2].size`.
        field: String,
        /// The required value.
        required: String,
        /// The actual value.
        actual: String,
    },
    /// A tensor map that the driver would refuse.
    #[error("tensor_maps[{index}].{source}")]
    TensorMap {
        /// Place in the list.
        index: usize,
        /// The reason.
        source: TensorMapError,
    },
    /// The module is refused.
    #[error("{}: {source}", .path.display())]
    Load {
        /// File, or the name it would have.
        path: PathBuf,
        /// The reason.
        source: LoadError,
    },
    /// An allocation that does not fit.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The launch is refused, or the kernel did something wrong.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl BundleError {
    /// A field with a value that does not fit.
    pub fn field(
        field: impl Into<String>,
        required: impl Into<String>,
        actual: impl ToString,
    ) -> Self {
        Self::Field { field: field.into(), required: required.into(), actual: actual.to_string() }
    }

    /// Whether the kernel ran, and did something wrong.
    #[must_use]
    pub fn happened_while_running(&self) -> bool {
        matches!(self, Self::Launch(LaunchError::Diagnostic(_)))
    }
}
