//! Decides which tensors of a model are quantised, and why others are not.

use std::collections::BTreeMap;

use fp4_formats::quantize::{Format, Recipe};
use safetensors::tensor::Dtype;

use super::calibration::QuantizedInputs;
use super::decode::{self, Encoded};
use super::encode::float_type;
use super::error::CheckpointError;
use super::experts::{self, Family};
use super::families::{self, Kept};
use super::ggml::NVFP4_ROW;
use super::mlx_config as mlx;
use super::model::Model;
use super::options::{DEFAULT_EXCLUDES, ModelOptions};
use super::orientation::{EXPERTS, Orientation};
use super::others;
use super::parts::Layout;
use super::pattern;
use crate::error::Result;
use nvfp4::quantize::TensorScale;

/// A tensor of the input.
pub(super) struct Source {
    /// Its name as floats.
    pub name: String,
    /// Its type, F32 where it is encoded.
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Its type in words.
    pub stored: String,
    /// Its format if it is in FP8 or packed integers.
    pub encoded: Option<&'static str>,
}

/// The tensors of a model, those of encoded weights as one each.
///
/// # Errors
/// [`CheckpointError::Unsupported`] for weights in formats that are not read: copied, they would be among
/// those of which the output's configuration says that they are in this crate's formats.
pub(super) fn sources(model: &Model, layout: Layout) -> Result<Vec<Source>> {
    let mut parts: BTreeMap<String, Option<Encoded>> = BTreeMap::new();
    for entry in model.entries() {
        let raw = model.raw(&entry.name)?;
        let Some(weight) = decode::weight_of(&entry.name, raw.dtype, raw.shape.len()) else {
            continue;
        };
        if let Some(encoded) = Encoded::of(model, &weight)? {
            parts.extend(encoded.tensors.iter().skip(1).map(|name| (name.clone(), None)));
            parts.insert(entry.name, Some(encoded));
        }
    }
    let unread = others::find(model, &[]).into_iter().find(|x| !parts.contains_key(&x.weight));
    if let Some(other) = unread {
        return Err(CheckpointError::Unsupported {
            layout: layout.name(),
            tensor: other.weight,
            reason: format!(
                "it is quantised already, in {}, which is not read and which the output's \
                 configuration cannot describe",
                other.format.name()
            ),
        });
    }
    let mut sources = Vec::new();
    for entry in model.entries() {
        let raw = model.raw(&entry.name)?;
        let stored = format!("{:?}", raw.dtype);
        match parts.remove(&entry.name) {
            Some(Some(encoded)) => sources.push(Source {
                encoded: Some(encoded.format()),
                name: encoded.name,
                dtype: Dtype::F32,
                shape: encoded.shape,
                stored,
            }),
            Some(None) => {}
            None => sources.push(Source {
                name: entry.name,
                dtype: raw.dtype,
                shape: raw.shape,
                stored,
                encoded: None,
            }),
        }
    }
    Ok(sources)
}

/// Decides which tensors of a model are quantised.
pub(super) struct Decisions<'a> {
    pub model: &'a Model,
    pub options: &'a ModelOptions,
    pub family: Family,
}

/// The decision about a tensor.
pub(super) enum Decision {
    Leave(String),
    /// Quantise it, with this shape once it is `[.., N, K]`.
    Quantize(Orientation, Vec<usize>),
}

impl Decisions<'_> {
    /// Returns the reason why a tensor is not quantised; `None` if it is.
    fn reason_to_leave(&self, Source { name, dtype, shape, .. }: &Source) -> Option<String> {
        if float_type(*dtype).is_none() {
            return Some(format!("type {dtype:?}"));
        }
        let is_weight = match shape.len() {
            2 => name.ends_with(".weight") || name.ends_with("_weight"),
            // Experts in one tensor go without the ending.
            3 => name.ends_with("weight") || name.ends_with(EXPERTS),
            _ => false,
        };
        if !is_weight {
            return Some("no matrix called weight".into());
        }
        let excluded = self.options.exclude.iter();
        if let Some(pattern) = excluded.into_iter().find(|pattern| pattern::matches(pattern, name))
        {
            return Some(format!("excluded by {pattern}"));
        }
        if self.options.default_excludes {
            let matching = |kept: &&Kept| pattern::matches(kept.0, name);
            let by_family = match self.family {
                Family::Known(architecture) => architecture.keeps(name),
                Family::Unknown | Family::Other => None,
            };
            if let Some((pattern, why)) =
                by_family.or_else(|| DEFAULT_EXCLUDES.iter().find(matching))
            {
                return Some(format!("excluded by {pattern}: {why}"));
            }
            if families::predicts(self.model.config(), name) {
                return Some("a multi-token predictor, past num_hidden_layers".into());
            }
        }
        if let (Layout::Mlx, Some((pattern, why))) =
            (self.options.save.layout, self.family.stays_float_in_mlx(name))
        {
            return Some(format!("excluded by {pattern}: {why}"));
        }
        let matrix = self.options.save.layout == Layout::DeepSeek && experts::is_matrix(name);
        if self.options.experts_only && shape.len() != 3 && !matrix {
            return Some("no experts".into());
        }
        shape.contains(&0).then(|| "no elements".into())
    }

    pub fn of(&self, source: &Source) -> Result<Decision> {
        if let Some(reason) = self.reason_to_leave(source) {
            return Ok(Decision::Leave(reason));
        }
        let Source { name, shape, .. } = source;
        let orientation = Orientation::of(self.model, name, shape)?;
        let stored = shape;
        let shape = orientation.output_first(shape);
        let cols = shape.last().copied().unwrap_or(0);
        let block = match (self.options.save.layout, self.options.recipe.format()) {
            (Layout::Gguf, Format::Nvfp4) => NVFP4_ROW,
            (_, format) => self.options.inputs.group(format),
        };
        if !cols.is_multiple_of(block) {
            return Ok(Decision::Leave(format!("K = {cols} is no multiple of {block}")));
        }
        let layout = self.options.save.layout;
        if orientation == Orientation::InputFirst && layout == Layout::TorchAo {
            return Err(CheckpointError::Unsupported {
                layout: layout.name(),
                tensor: name.clone(),
                reason: format!(
                    "it is {stored:?}, [experts, K, N], and no reader of this layout is known to \
                     expect its blocks transposed, [experts, N, K]"
                ),
            });
        }
        Ok(Decision::Quantize(orientation, shape))
    }
}

/// The family in words, and what follows from it.
pub(super) fn architecture(model: &Model, options: &ModelOptions) -> String {
    let (types, classes) = families::stated(model.config());
    let named = types.first().or(classes.first()).copied().unwrap_or_default();
    let rules = match options.default_excludes {
        true => "the general list of exclusions and of joined weights",
        false => "no list of exclusions, and the general list of joined weights",
    };
    match Family::of(model) {
        Family::Known(architecture) => format!("architecture {} ({named})", architecture.name),
        Family::Other => {
            format!("architecture {named} is unknown: {rules} decides; --list shows every tensor")
        }
        Family::Unknown => {
            format!(
                "no config.json names the architecture: {rules} decides; --list shows every tensor"
            )
        }
    }
}

/// Refuses what [`quantize_model`](super::quantize_model) refuses before it looks at tensors.
pub(super) fn check(model: &Model, options: &ModelOptions) -> Result<()> {
    // DeepSeek's experts are a source, with the layers in FP8 beside them.
    let quantised = Layout::detect(model).filter(|layout| *layout != Layout::DeepSeek);
    if let Some(layout) = quantised {
        let field = model.path().display().to_string();
        return Err(CheckpointError::shape(
            field,
            "not quantised yet",
            format!("in layout {layout}"),
        ));
    }
    if mlx::quantization(model).is_some() {
        mlx::refuse_differing(model, options.save.layout.name())?;
    }
    let layout = options.save.layout;
    if !layout.is_written() {
        let written = Layout::ALL.into_iter().filter(|layout| layout.is_written());
        let names: Vec<&str> = written.map(Layout::name).collect();
        let required = format!("one that is written: {}", names.join(", "));
        return Err(CheckpointError::shape("layout", required, layout));
    }
    if options.search && !matches!(options.recipe, Recipe::Nvfp4(_)) {
        let required = "a recipe of NVFP4 that chooses no scale itself";
        return Err(CheckpointError::shape("search for scales", required, options.recipe.name()));
    }
    check_inputs(options)?;
    if options.scale == TensorScale::PerRow {
        return Err(CheckpointError::shape("tensor-level scale", "one per tensor", "one per row"));
    }
    Ok(())
}

/// Refuses inputs that the layout, the format or the recipe cannot have.
fn check_inputs(options: &ModelOptions) -> Result<(), CheckpointError> {
    let wrong = |required: &str, actual: &str| {
        Err(CheckpointError::shape("quantised inputs", required, actual))
    };
    let (layout, recipe) = (options.save.layout, options.recipe);
    match options.inputs {
        QuantizedInputs::Float => Ok(()),
        _ if recipe.format() != Format::Nvfp4 => wrong("weights in nvfp4", recipe.format().name()),
        QuantizedInputs::Nvfp4(_) => match layout {
            Layout::ModelOpt | Layout::CompressedTensors | Layout::TorchAo | Layout::Gguf => Ok(()),
            Layout::GptOss | Layout::Mlx | Layout::DeepSeek | Layout::Quark | Layout::AutoRound => {
                let required = "layout modelopt, compressed-tensors, torchao or gguf for nvfp4";
                wrong(required, layout.name())
            }
        },
        QuantizedInputs::Fp8(_) if layout != Layout::ModelOpt => {
            wrong("layout modelopt for fp8, which has groups of 32", layout.name())
        }
        QuantizedInputs::Fp8(_) if options.search || !matches!(recipe, Recipe::Nvfp4(_)) => {
            let required = "a recipe without a choice of scales for fp8, which has groups of 32";
            wrong(required, recipe.name())
        }
        QuantizedInputs::Fp8(_) => Ok(()),
    }
}
