//! Converts from one layout to another with unchanged codes and scales, and from MXFP4 to NVFP4 if
//! that is exact.

use std::fmt;
use std::path::Path;

use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde::Serialize;

use super::error::CheckpointError;
use super::exact::to_nvfp4;
use super::layout::{Layout, Parts};
use super::load::{load, outline};
use super::model::Model;
use super::save::{Item, Observer, Save, SaveOptions, Saved};
use super::write::TensorSpec;
use crate::error::Result;

/// The report of a conversion, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConvertReport {
    /// The input.
    pub source: String,
    /// Its layout.
    pub from: Layout,
    /// The output's.
    pub to: Layout,
    /// The output's format.
    pub format: &'static str,
    /// Weights.
    pub weights: usize,
    /// Weights that were converted from mxfp4 to nvfp4, with the same values.
    pub reformatted: usize,
    /// Tensor-level scales that were converted from divisor to multiplier or back. Each is the
    /// reciprocal, rounded once to f32.
    pub inverted: usize,
    /// The output.
    pub saved: Saved,
}

/// Writes the checkpoint `model` in another layout, and with `format` in another format.
///
/// Without `format`, MXFP4 weights remain MXFP4 if the layout can hold them. Other tensors are
/// copied. Memory holds one tensor at a time.
///
/// # Errors
/// [`CheckpointError::Nothing`] for a model that is not quantised, [`CheckpointError::Inexact`]
/// naming the block that NVFP4 cannot hold, [`CheckpointError::Unsupported`] for NVFP4 to MXFP4,
/// [`CheckpointError::Exists`], [`CheckpointError::Interrupted`], and the errors of [`load`]. After
/// an error there is no output.
pub fn convert_model(
    model: &Model,
    format: Option<Format>,
    options: &SaveOptions,
    target: &Path,
    observer: &mut dyn Observer,
) -> Result<ConvertReport> {
    let Some(from) = Layout::detect(model) else {
        let what = "quantised weight in a known layout".to_owned();
        return Err(CheckpointError::Nothing { path: model.path().into(), what }.into());
    };
    let to = options.layout;
    let parts = from.find(model);
    let float = model_type(model);
    let mut items = Vec::new();
    for part in &parts {
        let mut spec = outline(model, part)?.spec;
        spec.original = spec.original.or(float);
        let wanted = format.unwrap_or(match spec.format {
            Format::Mxfp4 if !to.supports(Format::Mxfp4) => Format::Nvfp4,
            same => same,
        });
        if spec.format == Format::Nvfp4 && wanted == Format::Mxfp4 {
            return Err(CheckpointError::Unsupported {
                layout: to.name(),
                tensor: spec.name,
                reason: "nvfp4 to mxfp4 is not exact; quantise the original instead".into(),
            }
            .into());
        }
        if spec.format != wanted {
            (spec.format, spec.global) = (wanted, true);
        }
        items.push(Item::Weight(spec));
    }
    let pieces: std::collections::BTreeSet<&str> = parts.iter().flat_map(Parts::tensors).collect();
    for entry in model.entries() {
        if !pieces.contains(entry.name.as_str()) {
            let raw = model.raw(&entry.name)?;
            let (dtype, shape) = (raw.dtype, raw.shape);
            items.push(Item::Tensor(TensorSpec { name: entry.name, dtype, shape }));
        }
    }

    let size = |name: &str| model.raw(name).map_or(0, |raw| raw.data.len() as u64);
    observer.begin(model.entries().iter().map(|entry| entry.bytes as u64).sum());
    let mut save = Save::create(target, model, &items, options.clone())?;
    let (mut reformatted, mut inverted) = (0, 0);
    let mut format = Format::Nvfp4;
    for (at, item) in items.iter().enumerate() {
        save.go_on(observer)?;
        observer.tensor(item.name());
        match item {
            Item::Weight(spec) => {
                let mut weight = load(model, from, &parts[at])?;
                if spec.format != weight.spec.format {
                    weight = to_nvfp4(&weight)?;
                    reformatted += 1;
                } else if weight.global.is_some() && from.convention() != to.convention() {
                    inverted += 1;
                }
                format = spec.format;
                save.weight(&weight)?;
                observer.done(parts[at].tensors().map(size).sum());
                parts[at].tensors().for_each(|name| model.release(name));
            }
            Item::Tensor(spec) => {
                save.tensor(&spec.name, model.raw(&spec.name)?.data)?;
                observer.done(size(&spec.name));
                model.release(&spec.name);
            }
        }
    }
    Ok(ConvertReport {
        source: model.path().display().to_string(),
        from,
        to,
        format: format.name(),
        weights: parts.len(),
        reformatted,
        inverted,
        saved: save.finish(model)?,
    })
}

/// The type of a model's weights before quantisation if it is not stated: that of the largest float
/// tensor that is not quantised.
pub(super) fn model_type(model: &Model) -> Option<Dtype> {
    let floats = model.names().filter_map(|name| {
        let raw = model.raw(name).ok()?;
        let float = matches!(raw.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
        // Tensor-level scales are F32 whatever the model is.
        (float && raw.shape.iter().product::<usize>() > 1).then_some((raw.data.len(), raw.dtype))
    });
    floats.max_by_key(|(bytes, _)| *bytes).map(|(_, dtype)| dtype)
}

impl fmt::Display for ConvertReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, format, weights, saved, .. } = self;
        writeln!(f, "{weights} weights from layout {from} to {to}, {format}")?;
        if self.reformatted > 0 {
            writeln!(f, "{} of them from mxfp4 to nvfp4, exactly", self.reformatted)?;
        }
        if self.inverted > 0 {
            let inverted = self.inverted;
            writeln!(f, "{inverted} tensor-level scales are the reciprocal, rounded to f32")?;
        }
        writeln!(f, "{}: {} bytes of tensors", saved.path.display(), saved.bytes)?;
        saved.replaced.fmt(f)
    }
}
