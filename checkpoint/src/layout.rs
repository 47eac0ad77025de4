//! The layouts of quantised weights in safetensors: names, types, shapes, conventions.
//!
//! | layout | formats | tensors of `m.weight` | tensor-level scale |
//! | --- | --- | --- | --- |
//! | [`ModelOpt`](Layout::ModelOpt) | nvfp4, mxfp4 | `m.weight`, `m.weight_scale`, `m.weight_scale_2`, `m.input_scale` | multiplier |
//! | [`CompressedTensors`](Layout::CompressedTensors) | nvfp4, mxfp4 | `m.weight_packed`, `m.weight_scale`, `m.weight_global_scale`, `m.input_global_scale` | divisor |
//! | [`TorchAo`](Layout::TorchAo) | nvfp4, mxfp4 | `m._weight_qdata`, `m._weight_scale`, `m._weight_per_tensor_scale`, `m._weight_act_per_tensor_scale` | multiplier |
//! | [`GptOss`](Layout::GptOss) | mxfp4 | `m.weight.blocks`, `m.weight.scales`, or `x_proj_blocks`, `x_proj_scales` | none |
//!
//! Each layout is a module that finds weights by name and lists the tensors of a weight. Reading
//! and writing the bytes is common to all (the modules `load` and `save`). In all four layouts
//! packed codes are `U8`, with the element of lower index in the low nibble.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::error::CheckpointError;
use super::experts::Family;
use super::model::Model;
use super::others::OtherLayer;
use super::stated::Inputs;
use super::weight::{Convention, Order, WeightSpec, module};
use super::write::TensorSpec;
use super::{compressed_tensors, gpt_oss, modelopt, torchao};

/// A project's layout of quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// NVIDIA ModelOpt's unified export.
    #[serde(rename = "modelopt")]
    ModelOpt,
    /// compressed-tensors, `nvfp4-pack-quantized` and `mxfp4-pack-quantized`.
    CompressedTensors,
    /// TorchAO's flattened tensor subclasses.
    #[serde(rename = "torchao")]
    TorchAo,
    /// OpenAI's gpt-oss, also as Hugging Face stores it.
    GptOss,
}

/// The tensors of a quantised weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Name of the tensor before it was quantised.
    pub name: String,
    /// Its format.
    pub format: Format,
    /// Tensor of packed codes.
    pub codes: String,
    /// Tensor of block scales.
    pub scales: String,
    /// Tensor of the tensor-level scale, if there is one.
    pub global: Option<String>,
    /// Tensor of the scale of the layer's input, if there is one.
    pub input: Option<String>,
    /// Whether codes are `[.., K/32, 16]` instead of `[.., K/2]`.
    pub codes_in_blocks: bool,
    /// Whether scales are in 128x4 tiles; if absent, their shape decides.
    pub swizzled: Option<bool>,
    /// Element type before it was quantised, if the file states it.
    pub original: Option<Dtype>,
    /// The order of its last two dimensions.
    pub order: Order,
    /// Whether codes and scales are stored with K before N: `[experts, K/2, N]`.
    pub transposed: bool,
}

impl Parts {
    /// Names of the tensors that hold it, missing ones included.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        [Some(&self.codes), Some(&self.scales), self.global.as_ref(), self.input.as_ref()]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }
}

/// The content of a tensor of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Packed codes.
    Codes,
    /// Block scales.
    Scales(ScaleLayout),
    /// The tensor-level scale; 1 if the weight has none.
    Global,
    /// The scale of the layer's input.
    Input,
}

/// A tensor that a layout stores for a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Name, type and shape.
    pub spec: TensorSpec,
    /// Its content.
    pub content: Content,
    /// Whether it is stored with K before N.
    pub transposed: bool,
}

impl Piece {
    pub(super) fn new(name: String, dtype: Dtype, shape: Vec<usize>, content: Content) -> Self {
        Self { spec: TensorSpec { name, dtype, shape }, content, transposed: false }
    }
}

/// The contents of a whole output, from which the files beside the tensors are written.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    pub weights: Vec<WeightSpec>,
    /// Modules with a matrix that is not quantised.
    pub left: Vec<String>,
    pub extras: Extras,
}

/// The parts of an output besides weights of this crate's formats.
#[derive(Clone, Debug, Default)]
pub(super) struct Extras {
    /// The quantisation of the weights' inputs.
    pub inputs: BTreeMap<String, Inputs>,
    /// Layers in other formats.
    pub others: Vec<OtherLayer>,
    /// Whether the KV cache is quantised to FP8.
    pub kv_fp8: bool,
    /// Whether the configuration is that of the input, unchanged.
    pub verbatim: bool,
    /// TorchAO's own description of weights.
    pub stated: BTreeMap<String, Value>,
    /// Whether rows of gate and up alternate in a joint tensor, if that is known.
    pub interleaved: Option<bool>,
    /// The family of the model.
    pub family: Family,
}

/// Weights that are quantised alike.
pub(super) struct Alike<'a> {
    pub format: Format,
    pub inputs: Inputs,
    /// Elements with one scale.
    pub group: usize,
    pub weights: Vec<&'a WeightSpec>,
}

impl Alike<'_> {
    /// Their modules.
    pub fn modules(&self) -> Vec<&str> {
        let mut modules: Vec<&str> = self.weights.iter().map(|weight| weight.module()).collect();
        modules.sort_unstable();
        modules.dedup();
        modules
    }
}

impl Contents {
    /// The weights in groups that are quantised alike.
    pub fn alike(&self) -> Vec<Alike<'_>> {
        let mut groups: BTreeMap<(bool, Inputs, usize), Alike<'_>> = BTreeMap::new();
        for weight in &self.weights {
            let inputs = self.extras.inputs.get(&weight.name).copied().unwrap_or_default();
            let key = (weight.format == Format::Mxfp4, inputs, weight.group);
            let (format, group) = (weight.format, weight.group);
            let empty = Alike { format, inputs, group, weights: Vec::new() };
            groups.entry(key).or_insert(empty).weights.push(weight);
        }
        groups.into_values().collect()
    }
}

/// The description of an output in files beside its tensors.
#[derive(Clone, Debug, Default)]
pub(super) struct Description {
    /// `quantization_config` of `config.json`.
    pub quantization_config: Option<Value>,
    /// Further JSON files.
    pub files: Vec<(&'static str, Value)>,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Self; 4] =
        [Self::ModelOpt, Self::CompressedTensors, Self::TorchAo, Self::GptOss];

    /// The name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ModelOpt => "modelopt",
            Self::CompressedTensors => "compressed-tensors",
            Self::TorchAo => "torchao",
            Self::GptOss => "gpt-oss",
        }
    }

    /// Whether weights of this format can be stored.
    #[must_use]
    pub const fn supports(self, format: Format) -> bool {
        match self {
            Self::GptOss => matches!(format, Format::Mxfp4),
            Self::ModelOpt | Self::CompressedTensors | Self::TorchAo => true,
        }
    }

    /// Whether its readers join weights such as q, k and v, which must then have one tensor-level
    /// scale. Readers of TorchAO's tensors keep them apart, and gpt-oss's have no such scale.
    #[must_use]
    pub const fn joins_weights(self) -> bool {
        match self {
            Self::ModelOpt | Self::CompressedTensors => true,
            Self::TorchAo | Self::GptOss => false,
        }
    }

    /// The layout of a checkpoint's tensors, or `None` if none of them is quantised.
    #[must_use]
    pub fn detect(model: &Model) -> Option<Self> {
        // ModelOpt's names are the least distinctive, so they come last.
        [Self::CompressedTensors, Self::TorchAo, Self::GptOss, Self::ModelOpt]
            .into_iter()
            .find(|layout| !layout.find(model).is_empty())
    }

    /// All quantised weights, sorted by name. Their pieces may be missing or wrong.
    #[must_use]
    pub fn find(self, model: &Model) -> Vec<Parts> {
        match self {
            Self::ModelOpt => modelopt::find(model),
            Self::CompressedTensors => compressed_tensors::find(model),
            Self::TorchAo => torchao::find(model),
            Self::GptOss => gpt_oss::find(model),
        }
    }

    /// The tensors that store a weight.
    ///
    /// # Errors
    /// [`CheckpointError::Unsupported`].
    pub fn pieces(
        self,
        weight: &WeightSpec,
        scales: ScaleLayout,
    ) -> Result<Vec<Piece>, CheckpointError> {
        let refuse = |reason: String| CheckpointError::Unsupported {
            layout: self.name(),
            tensor: weight.name.clone(),
            reason,
        };
        if !self.supports(weight.format) {
            return Err(refuse(format!("it has no form of {}", weight.format.name())).into());
        }
        if scales != ScaleLayout::Linear && self != Self::TorchAo {
            return Err(refuse(format!("its scales are linear, not {scales}")).into());
        }
        if weight.order == Order::AlongOutput && self != Self::ModelOpt {
            return Err(refuse("its blocks run along the output dimension".into()).into());
        }
        if weight.expert_scales && self != Self::TorchAo {
            let reason = "each expert has a tensor-level scale of its own";
            return Err(refuse(reason.into()).into());
        }
        if weight.order == Order::InputFirst && self == Self::TorchAo {
            let reason = "the model has it as [experts, K, N], and it is quantised as \
                          [experts, N, K], which readers of this layout do not expect";
            return Err(refuse(reason.into()).into());
        }
        match self {
            Self::ModelOpt => modelopt::pieces(weight).map_err(|why| refuse(why).into()),
            Self::CompressedTensors => Ok(compressed_tensors::pieces(weight)),
            Self::TorchAo => torchao::pieces(weight, scales).map_err(|why| refuse(why).into()),
            Self::GptOss => Ok(gpt_oss::pieces(weight)),
        }
    }

    /// The convention of its tensor-level scales.
    #[must_use]
    pub const fn convention(self) -> Convention {
        match self {
            Self::CompressedTensors => Convention::Divisor,
            Self::ModelOpt | Self::TorchAo | Self::GptOss => Convention::Multiplier,
        }
    }

    /// Metadata of a file that holds these weights and these other tensors.
    pub(super) fn metadata(
        self,
        weights: &[(WeightSpec, ScaleLayout)],
        others: &[String],
        extras: &Extras,
    ) -> BTreeMap<String, String> {
        let mut metadata = match self {
            Self::TorchAo => torchao::metadata(weights, others, extras),
            Self::ModelOpt | Self::CompressedTensors | Self::GptOss => BTreeMap::new(),
        };
        // Hugging Face's loader requires it.
        metadata.insert("format".into(), "pt".into());
        metadata
    }

    pub(super) fn describe(self, contents: &Contents) -> Description {
        match self {
            Self::ModelOpt => modelopt::describe(contents),
            Self::CompressedTensors => compressed_tensors::describe(contents),
            Self::TorchAo => torchao::describe(contents),
            Self::GptOss => gpt_oss::describe(contents),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = CheckpointError;

    fn from_str(text: &str) -> Result<Self, CheckpointError> {
        Self::ALL.into_iter().find(|layout| layout.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            CheckpointError::shape("layout", format!("one of {names}"), format!("`{text}`"))
        })
    }
}

/// `name` if the checkpoint has such a tensor.
pub(super) fn present(model: &Model, name: String) -> Option<String> {
    model.contains(&name).then_some(name)
}

/// The format of a tensor of scales, from its type; `None` if the type does not determine it.
pub(super) fn format_of_scales(model: &Model, scales: &str) -> Option<Format> {
    match model.raw(scales).ok()?.dtype {
        Dtype::F8_E4M3 => Some(Format::Nvfp4),
        Dtype::F8_E8M0 => Some(Format::Mxfp4),
        _ => None,
    }
}

/// Modules with a float matrix that is not one of the weights `parts`; configurations exclude them.
pub(super) fn modules_left<'a>(
    tensors: impl Iterator<Item = (&'a str, Dtype, &'a [usize])>,
) -> Vec<String> {
    let mut left: Vec<String> = tensors
        .filter(|(name, dtype, shape)| {
            let float = matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
            float && shape.len() == 2 && name.ends_with(".weight")
        })
        .map(|(name, ..)| module(name).to_owned())
        .collect();
    left.sort();
    left.dedup();
    left
}

/// The model's configuration with another `quantization_config`.
pub(super) fn config(model: &Model, quantization: Option<Value>) -> Option<Value> {
    let mut config = match model.config() {
        Some(Value::Object(config)) => config.clone(),
        _ => Map::new(),
    };
    config.remove("quantization_config");
    if let Some(quantization) = quantization {
        config.insert("quantization_config".into(), quantization);
    }
    (!config.is_empty()).then(|| json!(config))
}
