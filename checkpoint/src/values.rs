//! Tensors that are not in four bits as floats, and checkpoints whose weights mean something else than their bytes say.

use super::decode::Encoded;
use super::error::CheckpointError;
use super::file::FloatTensor;
use super::model::Model;
use super::side;
use crate::error::Result;

/// A tensor in f32 that is stored in floats, in FP8 or in packed integers; its name is that of the weight before it
/// was quantised.
///
/// # Errors
/// [`CheckpointError`] for a missing tensor, another type, scales that do not fit, or a value that is not finite.
pub fn floats(model: &Model, name: &str) -> Result<FloatTensor> {
    match decoded_floats(model, name)? {
        Some(decoded) => Ok(decoded),
        None => model.file(name)?.floats(name),
    }
}

/// [`floats`] of a tensor that is stored in FP8 or in packed integers; `None` for others.
///
/// # Errors
/// The same as there, but for a missing tensor.
pub fn decoded_floats(model: &Model, name: &str) -> Result<Option<FloatTensor>> {
    let Some(encoded) = Encoded::of(model, name)? else { return Ok(None) };
    let values = encoded.decode(model)?;
    Ok(Some(FloatTensor { shape: encoded.shape, values }))
}

/// Refuses a checkpoint in which further tensors or the configuration change what weights mean: products of them
/// alone would be wrong.
///
/// # Errors
/// [`Error::Shape`](nvfp4::Error::Shape) for the inputs' scales of AWQ and SVDQuant, and for rotations.
pub fn refuse_changed(model: &Model) -> Result<()> {
    let refuse = |field: &str, reason: &str| {
        let required = format!("absent: {reason}");
        Err(CheckpointError::shape(format!("`{field}`"), required, "there"))
    };
    if let Some(tensor) = side::tensors(model).first() {
        let reason = "it changes what a weight means (AWQ, SVDQuant), and `nvfp4 dequantize` folds it into the weight";
        return refuse(tensor, reason);
    }
    match side::transforms(model).first() {
        Some(name) => refuse(name, "the weights are rotated, and inputs would not be"),
        None => Ok(()),
    }
}
