//! Errors that end a run without a result.

use ptx_emu::coverage::{ParseCoverageError, ParseExplanationsError, ReadReachedError};
use ptx_emu::{LaunchError, LoadError, MemoryError};
use std::io;
use std::path::PathBuf;

/// A failed command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// A file that cannot be read.
    #[error("{}: cannot be read: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A program or a library where text belongs.
    #[error(
        "{}: required text, such as PTX, actual other bytes; `ptx-emu exec` runs a program, and CUDA's \
         `cuobjdump -ptx` shows the PTX in it",
        .path.display()
    )]
    NotText { path: PathBuf },
    /// An argument file that is not JSON.
    #[error("{}: not JSON: {source}", .path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    /// A module that is refused.
    #[error("{}: {source}", .path.display())]
    Load { path: PathBuf, source: LoadError },
    /// A module that is not PTX, with the line in question.
    #[error("{}:{rendered}", .path.display())]
    Syntax { path: PathBuf, rendered: String },
    /// A kernel that the module lacks.
    #[error("entry: required {required}, actual `{actual}`")]
    Entry { required: String, actual: String },
    /// An argument that does not fit its parameter.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// Too few or too many arguments.
    #[error("arguments of `{kernel}`: required {required} ({names}), actual {actual}")]
    ArgumentCount { kernel: String, required: usize, names: String, actual: usize },
    /// Buffers that the host's memory does not hold.
    #[error("buffers: required at most {required} bytes in all (free memory), actual {actual}")]
    HostMemory { required: u64, actual: u64 },
    /// A refused allocation or read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A launch that was refused or went wrong.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A timeline of more than one launch.
    #[error("--trace: required one launch, actual {launches}: name one of the folders")]
    TraceOfSeveral { launches: usize },
    /// A file that coverage cannot be added to.
    #[error("{}: {source}", .path.display())]
    Coverage { path: PathBuf, source: ParseCoverageError },
    /// A list of reasons that cannot be read.
    #[error("{}: {source}", .path.display())]
    Explanations { path: PathBuf, source: ParseExplanationsError },
    /// The files of the test runs cannot be read.
    #[error(transparent)]
    Reached(#[from] ReadReachedError),
    /// An output that cannot be written.
    #[error("{}: cannot be written: {source}", .path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl CliError {
    /// 1 for a kernel that did something wrong, 2 for bad input.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Launch(LaunchError::Diagnostic(_)) => 1,
            _ => 2,
        }
    }
}

/// An item of the argument file that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("argument {index}{}: {field}: required {required}, actual {actual}", parameter(.name))]
pub(crate) struct ArgumentError {
    /// Place in the list, from 0.
    pub(crate) index: usize,
    /// Kernel parameter at that place.
    pub(crate) name: Option<String>,
    /// Part of the item, e.g. `struct.fields[2].u32`.
    pub(crate) field: String,
    /// The required value.
    pub(crate) required: String,
    /// The actual value.
    pub(crate) actual: String,
}

fn parameter(name: &Option<String>) -> String {
    name.as_ref().map_or_else(String::new, |name| format!(" (parameter `{name}`)"))
}
