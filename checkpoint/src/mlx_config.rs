//! The configuration of MLX's checkpoints, and the families that mlx-lm has in a form of its own.

use serde_json::Value;

use super::error::CheckpointError;
use super::expert_names::{form, whole};
use super::families;
use super::model::{MLX, Model};
use super::pattern;

/// The object `quantization` of the configuration.
pub(super) fn quantization(model: &Model) -> Option<&Value> {
    let stated = &model.config()?[MLX];
    stated.is_object().then_some(stated)
}

/// The description of a layer in `quantization`, null if it has none of its own.
pub(super) fn layer<'a>(model: &Model, stated: &'a Value, module: &str) -> &'a Value {
    let family = families::find(model.config());
    match whole(family, module) {
        Some((whole, _)) => &stated[whole.as_str()],
        None => &stated[module],
    }
}

/// Refuses a checkpoint of a family whose other tensors are not those of transformers in mlx-lm.
///
/// # Errors
/// [`CheckpointError::Unsupported`] in `layout`, with the first tensor.
pub(super) fn refuse_differing(model: &Model, layout: &'static str) -> Result<(), CheckpointError> {
    let form = form(families::find(model.config()));
    let own = |name: &str| form.own.iter().find(|(pattern, _)| pattern::matches(pattern, name));
    let found = model.names().find_map(|name| match form.differs {
        Some(reason) => Some((name, reason)),
        None => own(name).map(|(_, reason)| (name, *reason)),
    });
    let Some((tensor, reason)) = found else { return Ok(()) };
    let (tensor, reason) = (tensor.into(), reason.into());
    Err(CheckpointError::Unsupported { layout, tensor, reason })
}
