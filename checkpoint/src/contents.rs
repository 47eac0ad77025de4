//! The contents of a whole output, and the files beside its tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use fp4_formats::quantize::Format;
use serde_json::{Map, Value, json};

use super::experts::Family;
use super::inputs::Inputs;
use super::model::Model;
use super::others::OtherLayer;
use super::weight::WeightSpec;

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
    /// The modules among them whose inputs are quantised at run time.
    pub dynamic: BTreeSet<String>,
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
    /// Further modules that the output's configuration leaves out, in the layout's own terms.
    pub kept: Vec<String>,
    /// The source's `quantization_config` if it is one of FP8.
    pub fp8: Option<Value>,
    /// Tensors that are written in parts along their first dimension, under these names.
    pub parts: BTreeMap<String, Vec<String>>,
    /// Files that are copied as they are.
    pub beside: Vec<PathBuf>,
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
    /// DeepSeek's `expert_dtype` of `config.json`.
    pub expert_dtype: Option<Value>,
    /// MLX's `quantization` of `config.json`.
    pub quantization: Option<Value>,
    /// Further JSON files.
    pub files: Vec<(&'static str, Value)>,
}

/// The model's configuration with another description of the quantisation.
pub(super) fn config(model: &Model, description: &Description) -> Option<Value> {
    let mut config = match model.config() {
        Some(Value::Object(config)) => config.clone(),
        _ => Map::new(),
    };
    for (key, stated) in [
        ("quantization_config", &description.quantization_config),
        ("quantization", &description.quantization),
        ("expert_dtype", &description.expert_dtype),
    ] {
        config.remove(key);
        if let Some(stated) = stated {
            config.insert(key.into(), stated.clone());
        }
    }
    (!config.is_empty()).then(|| json!(config))
}
