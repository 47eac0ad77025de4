//! Quark's description of the quantisation.
//!
//! `quantization_config` in `config.json` specifies weights and inputs: by name (`layer_quant_config`, with `*`
//! and `?`), by class (`layer_type_quant_config`), or for all others (`global_quant_config`). A list of two
//! specifies the elements and their scales. `exclude` has the modules that are left out.

use fp4_formats::quantize::Format;
use serde_json::Value;

use super::inputs::Inputs;
use super::model::Model;
use super::pattern::Patterns;

/// The value of `quant_method`.
pub(super) const METHOD: &str = "quark";

/// The configuration of a checkpoint.
pub(super) struct Stated<'a> {
    config: &'a Value,
    /// The specifications by name, and the names.
    layers: Vec<(&'a str, &'a Value)>,
    patterns: Patterns<'a>,
    pub exclude: Patterns<'a>,
}

/// The specification of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Spec<'a> {
    pub elements: &'a Value,
    /// The same of its scales, where these are quantised themselves.
    pub scales: Option<&'a Value>,
}

impl<'a> Spec<'a> {
    /// Reads a specification; `None` if the tensor is not quantised.
    fn of(stated: &'a Value) -> Option<Self> {
        match stated {
            Value::Null => None,
            Value::Array(stages) => Some(Self { elements: stages.first()?, scales: stages.get(1) }),
            elements => Some(Self { elements, scales: None }),
        }
    }

    /// The type of the elements in Quark's words.
    fn element(self) -> &'a str {
        let stated = match &self.elements["dtype"] {
            mx if mx == "mx" => &self.elements["mx_element_dtype"],
            dtype => dtype,
        };
        stated.as_str().unwrap_or("null")
    }

    /// The format; `None` if it is none of this crate's.
    pub fn format(self) -> Option<Format> {
        let size = self.elements["group_size"].as_u64();
        let scales = self.scales.map(|scales| scales["dtype"].as_str().unwrap_or_default());
        let powers = self.elements["scale_format"] == "e8m0" || self.elements["dtype"] == "mx";
        match (self.element(), size, scales) {
            ("fp4", Some(16), Some("fp8_e4m3")) => Some(Format::Nvfp4),
            ("fp4", Some(32), None) if powers => Some(Format::Mxfp4),
            _ => None,
        }
    }

    /// The specification in words.
    pub fn words(self) -> String {
        let size = &self.elements["group_size"];
        let scales = match self.scales {
            Some(scales) => scales["dtype"].as_str(),
            None => self.elements["scale_format"].as_str(),
        };
        format!("{} in groups of {size} with {} scales", self.element(), scales.unwrap_or("float"))
    }
}

impl<'a> Stated<'a> {
    /// The configuration, if it is Quark's.
    pub fn of(model: &'a Model) -> Option<Self> {
        let config = model.quantization_config().filter(|x| x["quant_method"] == METHOD)?;
        let layers = config["layer_quant_config"].as_object();
        let layers: Vec<(&str, &Value)> =
            layers.into_iter().flatten().map(|(name, stated)| (name.as_str(), stated)).collect();
        let patterns = Patterns::of_wildcards(layers.iter().map(|(name, _)| *name));
        let exclude = config["exclude"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Some(Self { config, layers, patterns, exclude: Patterns::of_wildcards(exclude) })
    }

    /// The specifications of a module, `weight` and `input_tensors` among them.
    fn layer(&self, module: &str) -> &'a Value {
        let by_class = &self.config["layer_type_quant_config"]["Linear"];
        match self.patterns.find(module) {
            Some(at) => self.layers[at].1,
            None if by_class.is_object() => by_class,
            None => &self.config["global_quant_config"],
        }
    }

    /// The specification of a module's weight; `None` if it is not quantised.
    pub fn weight(&self, module: &str) -> Option<Spec<'a>> {
        Spec::of(&self.layer(module)["weight"])
    }

    /// The specification of a module's inputs; `None` if they are not quantised.
    pub fn input(&self, module: &str) -> Option<Spec<'a>> {
        Spec::of(&self.layer(module)["input_tensors"])
    }

    /// The quantisation of a module's inputs; `stored` if there is a scale for them.
    pub fn inputs(&self, module: &str, stored: bool) -> Inputs {
        let Some(spec) = self.input(module) else { return Inputs::Float };
        match spec.format() {
            Some(_) if stored => Inputs::Calibrated,
            Some(_) => Inputs::Dynamic,
            None if spec.element() == "fp8_e4m3" => Inputs::Fp8,
            None => Inputs::Other,
        }
    }

    /// Whether codes of a module have scales in e5m3, which this crate does not read.
    pub fn has_e5m3(&self, module: &str) -> bool {
        self.weight(module).is_some_and(|spec| {
            let scales = spec.scales.map(|scales| &scales["dtype"]);
            scales.is_some_and(|dtype| dtype == "fp8_e5m3")
                || spec.elements["scale_format"] == "e5m3"
        })
    }

    /// Whether the KV cache is quantised.
    pub fn has_kv_cache(&self) -> bool {
        self.config["kv_cache_quant_config"].as_object().is_some_and(|cache| !cache.is_empty())
    }
}
