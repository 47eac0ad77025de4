//! Errors of tensor maps, of their edits and of tile copies.

/// A refused tensor map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMapError {
    /// A field that does not fit the rules of `cuTensorMapEncodeTiled`.
    #[error("{field}: required {required}, actual {actual}")]
    Field {
        /// Argument, with its index in a list: `box[1]`.
        field: String,
        /// The required value.
        required: String,
        /// The actual value.
        actual: String,
    },
    /// 128 bytes that are not a tensor map.
    #[error("tensor map, bits {bit} to {}: {field}: required {required}, actual {actual}", .bit + .width - 1)]
    Bits {
        /// Field they hold.
        field: &'static str,
        /// First bit, counted from bit 0 of byte 0.
        bit: u32,
        /// Number of bits.
        width: u32,
        /// The required value.
        required: &'static str,
        /// The actual value.
        actual: u64,
    },
}

impl TensorMapError {
    pub(super) fn field(
        field: impl Into<String>,
        required: impl Into<String>,
        actual: impl ToString,
    ) -> Self {
        Self::Field { field: field.into(), required: required.into(), actual: actual.to_string() }
    }
}

/// A refused `tensormap.replace`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tensormap.replace.{field}: required {required}, actual {actual}")]
pub struct ReplaceError {
    /// Field, as the instruction names it.
    pub field: &'static str,
    /// The required value of the operand.
    pub required: String,
    /// The actual value.
    pub actual: String,
}

/// A refused tile copy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TileError {
    /// A map that no copy can use.
    #[error("tensor map: {0}")]
    Map(#[from] TensorMapError),
    /// An operand or a field of the map that the copy cannot use.
    #[error("{field}: required {required}, actual {actual}")]
    Field {
        /// Operand or field.
        field: String,
        /// The required value.
        required: String,
        /// The actual value.
        actual: String,
    },
    /// A map whose copies are not modelled.
    #[error("not modelled: {what}")]
    Unsupported {
        /// The feature that the map or the copy asks for.
        what: &'static str,
    },
}

impl TileError {
    pub(super) fn field(
        field: impl Into<String>,
        required: impl Into<String>,
        actual: impl ToString,
    ) -> Self {
        Self::Field { field: field.into(), required: required.into(), actual: actual.to_string() }
    }
}
