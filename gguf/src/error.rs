//! Errors of reading and writing GGUF.

use thiserror::Error;

/// The reasons why bytes are no usable GGUF file, or a tensor cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes end too early.
    #[error("{what} needs {required} bytes at byte {at}, and the file has {actual}")]
    Truncated {
        /// The part that does not fit.
        what: &'static str,
        /// Its first byte.
        at: u64,
        /// Its length.
        required: u64,
        /// The length of the file.
        actual: u64,
    },
    /// A field has a value that the format does not allow or this crate does not know.
    #[error("{field} at byte {at} is {actual}; required {required}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its first byte.
        at: u64,
        /// The condition.
        required: &'static str,
        /// The value found.
        actual: String,
    },
    /// A tensor's shape, type and data do not fit each other.
    #[error("tensor `{tensor}`: {field} is {actual}; required {required}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The property.
        field: &'static str,
        /// The condition.
        required: String,
        /// The value found.
        actual: String,
    },
}

impl Error {
    /// The error for a tensor with a property that does not fit.
    pub(crate) fn tensor(
        tensor: impl Into<String>,
        field: &'static str,
        required: impl Into<String>,
        actual: impl Into<String>,
    ) -> Self {
        let (tensor, required, actual) = (tensor.into(), required.into(), actual.into());
        Self::Tensor { tensor, field, required, actual }
    }
}

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;
