//! Errors of reading, converting and writing checkpoints.

use std::fmt;
use std::path::PathBuf;

use nvfp4::error::{Error as LibraryError, ErrorKind};
use thiserror::Error;

/// The reasons why a safetensors file, or a checkpoint that consists of them, cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file is not a valid safetensors file, index or configuration.
    #[error("{} is not usable: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// There is no tensor of this name.
    #[error("{} has no tensor `{tensor}`{}", path.display(), suggestion(similar))]
    MissingTensor {
        /// The file, or the checkpoint's folder.
        path: PathBuf,
        /// The name asked for.
        tensor: String,
        /// A few existing names that are similar.
        similar: Vec<String>,
    },
    /// A file that an index names is not there.
    #[error(
        "{} is not there; {} has `{tensor}` and {others} more tensors in it",
        shard.display(), index.display()
    )]
    MissingShard {
        /// The index.
        index: PathBuf,
        /// The file.
        shard: PathBuf,
        /// The first of its tensors.
        tensor: String,
        /// The number of the others.
        others: usize,
    },
    /// A tensor has a type that the operation cannot use.
    #[error("tensor `{tensor}` of {} has type {actual}; required {required}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The required types.
        required: &'static str,
        /// The type found.
        actual: String,
    },
    /// A tensor has a shape that the operation cannot use.
    #[error("tensor `{tensor}` of {} has shape {actual:?}; required {required}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The required shape.
        required: String,
        /// The shape found.
        actual: Vec<usize>,
    },
    /// The dimension of a tensor's blocks is not known.
    #[error(
        "tensor `{tensor}` of {} has shape {actual:?}; required {required}, but {reason}",
        path.display()
    )]
    Orientation {
        /// The file, or the checkpoint's folder.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The required shape.
        required: &'static str,
        /// The shape found.
        actual: Vec<usize>,
        /// The reason.
        reason: String,
    },
    /// A tensor holds an infinity or a NaN.
    #[error("tensor `{tensor}` of {} has {value} at index {index} (byte {byte} of the file)", path.display())]
    NonFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Row-major index of the first such element.
        index: usize,
        /// Its byte in the file.
        byte: u64,
        /// The value.
        value: f32,
    },
    /// An invalid block scale or global scale.
    #[error(
        "tensor `{tensor}` of {} has scale {found} at index {index} (byte {byte} of the file); \
         required {required}", path.display()
    )]
    Scale {
        /// The file.
        path: PathBuf,
        /// The tensor of scales.
        tensor: String,
        /// Index of the first such scale in the order of the file.
        index: usize,
        /// Its byte in the file.
        byte: u64,
        /// The value found.
        found: String,
        /// The condition.
        required: &'static str,
    },
    /// The checkpoint contains nothing that the operation applies to.
    #[error("{} has no {what}", path.display())]
    Nothing {
        /// The file or folder.
        path: PathBuf,
        /// The memory that the operation needs.
        what: String,
    },
    /// A layout cannot hold a weight.
    #[error("layout {layout} cannot hold `{tensor}`: {reason}")]
    Unsupported {
        /// The layout.
        layout: &'static str,
        /// The weight.
        tensor: String,
        /// The reason.
        reason: String,
    },
    /// A conversion between formats that would change a value.
    #[error(
        "`{tensor}` cannot be converted exactly from mxfp4 to nvfp4: block {index:?} ([.., row, \
         block of 16]) {reason}"
    )]
    Inexact {
        /// The weight.
        tensor: String,
        /// The block, outermost dimension first; blocks of 16 along K.
        index: Vec<usize>,
        /// The reason.
        reason: String,
    },
    /// The output exists already.
    #[error("{} exists; {advice}", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
        /// Advice to the user.
        advice: &'static str,
    },
    /// The file was written to while it was open.
    #[error("{} changed while it was read", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The caller asked to stop.
    #[error("interrupted; nothing was written to {}", path.display())]
    Interrupted {
        /// The path of the output.
        path: PathBuf,
    },
    /// An error of the library: of quantising, of a device, of memory, or of a file.
    #[error(transparent)]
    Library(#[from] LibraryError),
}

impl CheckpointError {
    /// The kind of the error, for a program that acts on it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Library(error) => error.kind(),
            _ => ErrorKind::Checkpoint,
        }
    }

    /// The exit code with which a program should end: 1 if it was interrupted or a kernel failed, 2 for
    /// bad input or if there is nothing to run on.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Library(error) => error.exit_code(),
            Self::Interrupted { .. } => 1,
            _ => 2,
        }
    }

    /// The library's error for a length or a shape that does not fit, from printable values.
    #[must_use]
    pub fn shape(
        field: impl Into<String>,
        required: impl Into<String>,
        actual: impl fmt::Display,
    ) -> Self {
        LibraryError::shape(field, required, actual).into()
    }
}

/// Shorthand for this crate's results.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

fn suggestion(similar: &[String]) -> String {
    if similar.is_empty() { String::new() } else { format!("; there are {}", similar.join(", ")) }
}

/// Up to three of `names` that share the longest beginning and ending with `name`, because names
/// usually differ in a layer number or a prefix.
pub(super) fn similar(name: &str, names: impl IntoIterator<Item = String>) -> Vec<String> {
    let likeness = |other: &String| {
        let same = |(a, b): &(char, char)| a == b;
        let prefix = name.chars().zip(other.chars()).take_while(same).count();
        let suffix = name.chars().rev().zip(other.chars().rev()).take_while(same).count();
        std::cmp::Reverse(prefix + suffix)
    };
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort_by_cached_key(likeness);
    names.truncate(3);
    names
}
