//! Errors of the library as candle's.

use candle_core::Error;

/// An error of the library.
pub(crate) fn wrap(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::wrap(error)
}

/// A size, a type or a place that does not fit, with field, requirement and value found.
pub(crate) fn shape(
    field: impl Into<String>,
    required: impl Into<String>,
    actual: impl std::fmt::Debug,
) -> Error {
    let (field, required) = (field.into(), required.into());
    wrap(nvfp4::Error::Shape { field, required, actual: format!("{actual:?}") })
}
