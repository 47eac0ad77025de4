//! Errors of descriptors.

/// A field of a descriptor, or a combination of operands, that no instruction has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {field}: required {required}, actual {actual}")]
pub struct TensorError {
    /// The descriptor or operand.
    pub what: &'static str,
    /// Field of it.
    pub field: &'static str,
    /// The required value of the field.
    pub required: String,
    /// The actual value.
    pub actual: String,
}

impl TensorError {
    pub(super) fn new(
        what: &'static str,
        field: &'static str,
        required: impl Into<String>,
        actual: impl ToString,
    ) -> Self {
        Self { what, field, required: required.into(), actual: actual.to_string() }
    }
}
