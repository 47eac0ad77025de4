//! The statements of the files beside the tensors: how inputs are quantised, the KV cache, the
//! groups of layers of compressed-tensors.

use fp4_formats::quantize::Format;
use serde_json::Value;

use super::auto_round_config as auto_round;
use super::inputs::Inputs;
use super::model::Model;
use super::parts::{Layout, Parts};
use super::pattern::Patterns;
use super::quark_config as quark;
use super::weight::module;

/// The format of codes with scales in e5m3 in AutoRound's configuration of compressed-tensors' kind.
const E5M3: &str = "nvfp4-e5m3-pack-quantized";

/// Statements of the configuration about layers, read once for all of them.
pub(super) struct Said<'a> {
    groups: Vec<Group<'a>>,
    /// The format of groups that state none.
    format: Option<&'a str>,
    quark: Option<quark::Stated<'a>>,
    auto_round: Option<auto_round::Stated<'a>>,
}

impl<'a> Said<'a> {
    /// Reads the statements that `config.json` has.
    pub fn of(model: &'a Model) -> Self {
        Self {
            groups: Group::all(model),
            format: model.quantization_config().and_then(|config| config["format"].as_str()),
            quark: quark::Stated::of(model),
            auto_round: auto_round::Stated::of(model),
        }
    }

    /// Whether the group of a module in compressed-tensors' configuration quantises inputs.
    pub fn has_inputs(&self, module: &str) -> bool {
        Group::of(&self.groups, module)
            .is_some_and(|group| !group.stated["input_activations"].is_null())
    }

    /// Whether codes of a module have scales in e5m3, which this crate does not read.
    pub fn has_e5m3(&self, module: &str) -> bool {
        self.quark.as_ref().is_some_and(|stated| stated.has_e5m3(module))
            || self.auto_round.as_ref().is_some_and(|stated| stated.has_e5m3(module))
            || self.groups.iter().any(|group| self.is_e5m3(group))
                && Group::of(&self.groups, module).is_some_and(|group| self.is_e5m3(group))
    }

    /// Whether a group of compressed-tensors' configuration has scales in e5m3.
    fn is_e5m3(&self, group: &Group<'_>) -> bool {
        group.stated["format"].as_str().or(self.format) == Some(E5M3)
    }
}

impl Inputs {
    /// Reads the inputs of a weight, from the configuration or, if it says nothing, from whether there is a scale
    /// for them.
    pub(super) fn of(model: &Model, layout: Layout, said: &Said<'_>, part: &Parts) -> Self {
        let stored = if part.input.is_some() { Self::Calibrated } else { Self::Float };
        let of = module(&part.name);
        match layout {
            Layout::ModelOpt => match modelopt_algorithm(model, of) {
                Some("W4A16_NVFP4") => Self::Float,
                Some(algorithm) if algorithm.starts_with("W4A8_") => Self::Fp8,
                _ => stored,
            },
            Layout::CompressedTensors => match Group::of(&said.groups, of) {
                Some(group) => group.inputs().unwrap_or(stored),
                None => stored,
            },
            Layout::TorchAo => {
                let stated: Value = described(model, &part.name)
                    .and_then(|text| serde_json::from_str(text).ok())
                    .unwrap_or_default();
                let how = &stated["_data"]["act_quant_kwargs"];
                let dynamic = how["_data"]["use_dynamic_per_tensor_scale"] == true;
                match (how["_type"].as_str(), part.input.is_some()) {
                    (None, _) | (_, true) => stored,
                    (Some("QuantizeTensorToNVFP4Kwargs"), false) if dynamic => Self::Dynamic,
                    (Some("QuantizeTensorToNVFP4Kwargs"), false) => Self::OneLevel,
                    (Some(_), false) => {
                        let element = how["_data"]["elem_dtype"]["_data"].as_str();
                        let eight = element.is_some_and(|name| name.starts_with("float8"));
                        if eight { Self::Fp8 } else { Self::Dynamic }
                    }
                }
            }
            Layout::GptOss | Layout::Mlx | Layout::DeepSeek => Self::Float,
            Layout::Gguf => stored,
            Layout::Quark => match &said.quark {
                Some(stated) => stated.inputs(of, part.input.is_some()),
                None => stored,
            },
            Layout::AutoRound => match &said.auto_round {
                Some(stated) => stated.inputs(of, part.input.is_some()),
                None => stored,
            },
        }
    }
}

/// ModelOpt's algorithm for a module, which `quantized_layers` may have for each.
pub(super) fn modelopt_algorithm<'a>(model: &'a Model, module: &str) -> Option<&'a str> {
    let stated = [model.hf_quant_config().map(|x| &x["quantization"]), model.quantization_config()];
    stated.into_iter().flatten().find_map(|stated| match stated["quant_algo"].as_str()? {
        "MIXED_PRECISION" => stated["quantized_layers"][module]["quant_algo"].as_str(),
        algorithm => Some(algorithm),
    })
}

/// The quantisation of a checkpoint's KV cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KvCache {
    /// FP8, one scale for each layer's keys and one for its values.
    Fp8,
    /// A quantisation in the configuration's words.
    Other(String),
}

impl KvCache {
    pub fn of(model: &Model) -> Option<Self> {
        let stated = model.hf_quant_config().map(|x| &x["quantization"]["kv_cache_quant_algo"]);
        let scheme = model.quantization_config().map(|x| &x["kv_cache_scheme"]);
        if quark::Stated::of(model).is_some_and(|stated| stated.has_kv_cache()) {
            return Some(Self::Other("as kv_cache_quant_config says".into()));
        }
        let own = auto_round::Stated::of(model);
        if let Some(kind) = own.as_ref().and_then(auto_round::Stated::kv_cache) {
            return Some(Self::Other(kind.into()));
        }
        let said = [stated, scheme].into_iter().flatten().find(|said| !said.is_null())?;
        let fp8 = said == "FP8"
            || (said["num_bits"] == 8
                && said["type"] == "float"
                && said["dynamic"] == false
                && matches!(said["strategy"].as_str(), None | Some("tensor")));
        Some(if fp8 {
            Self::Fp8
        } else {
            Self::Other(said.as_str().map_or_else(|| said.to_string(), str::to_owned))
        })
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Fp8 => "FP8",
            Self::Other(said) => said,
        }
    }
}

/// A group of `config_groups`: layers that are quantised alike.
pub(super) struct Group<'a> {
    /// Its name.
    pub name: &'a str,
    /// The group as it is stated.
    pub stated: &'a Value,
    /// Layers by name.
    targets: Patterns<'a>,
    /// Whether it has all linear layers that no other group names.
    linear: bool,
}

impl<'a> Group<'a> {
    pub fn all(model: &'a Model) -> Vec<Self> {
        let groups = model.quantization_config().and_then(|x| x["config_groups"].as_object());
        let group = |(name, stated): (&'a String, &'a Value)| {
            let targets = stated["targets"].as_array().into_iter().flatten();
            let targets: Vec<&str> = targets.filter_map(Value::as_str).collect();
            let linear = targets.contains(&"Linear");
            let targets = Patterns::of_compressed_tensors(targets);
            Self { name, stated, targets, linear }
        };
        groups.into_iter().flatten().map(group).collect()
    }

    /// The group of a module: one that names it, or else one of all linear layers.
    pub fn of<'g>(groups: &'g [Self], module: &str) -> Option<&'g Self> {
        let named = |group: &&Self| group.targets.find(module).is_some();
        groups.iter().find(named).or_else(|| groups.iter().find(|group| group.linear))
    }

    /// Targets that cannot be compared with names.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.targets.unknown()
    }

    fn inputs(&self) -> Option<Inputs> {
        let inputs = &self.stated["input_activations"];
        Some(match (inputs["num_bits"].as_u64(), &inputs["dynamic"]) {
            _ if inputs.is_null() => Inputs::Float,
            (Some(8), _) => Inputs::Fp8,
            (_, Value::Bool(true)) => Inputs::Dynamic,
            _ => return None,
        })
    }

    /// The stated storage format: the group's, or else the whole configuration's.
    pub fn format(&self, config: &'a Value) -> Option<&'a str> {
        self.stated["format"].as_str().or(config["format"].as_str())
    }
}

/// The name of a format's storage in compressed-tensors' configuration.
pub(super) const fn packed(format: Format) -> &'static str {
    match format {
        Format::Nvfp4 => "nvfp4-pack-quantized",
        Format::Mxfp4 => "mxfp4-pack-quantized",
    }
}

/// Returns TorchAO's description of a tensor, from the metadata of the files.
pub(super) fn described<'a>(model: &'a Model, name: &str) -> Option<&'a str> {
    model.metadata(name).or_else(|| model.metadata(&in_model(name)))
}

/// A tensor's name in transformers' model, by which it is looked for in the metadata. transformers
/// renames Mixtral's experts while it saves them, and leaves the metadata as they are.
pub(super) fn in_model(name: &str) -> String {
    name.replace(".block_sparse_moe.experts.", ".mlp.experts.")
}
