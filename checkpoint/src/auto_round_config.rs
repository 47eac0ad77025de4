//! AutoRound's description of the quantisation.
//!
//! `quantization_config` in `config.json` has the scheme of all layers (`bits`, `data_type`, `group_size`,
//! `act_bits`, `act_data_type`) and in `extra_config` the settings of single layers, by name or by a regular
//! expression that a part of the name matches.

use fancy_regex::Regex;
use fp4_formats::quantize::Format;
use serde_json::{Map, Value};

use super::inputs::Inputs;
use super::model::Model;

/// The value of `quant_method`.
pub(super) const METHOD: &str = "auto-round";
/// Bits from which on AutoRound does not quantise.
pub(super) const FLOAT_BITS: u64 = 16;

/// The configuration of a checkpoint.
pub(super) struct Stated<'a> {
    config: &'a Value,
    layers: Option<&'a Map<String, Value>>,
    /// Keys of `extra_config` that are no plain names.
    patterns: Vec<(Regex, &'a Value)>,
}

impl<'a> Stated<'a> {
    /// The configuration, if it is AutoRound's.
    pub fn of(model: &'a Model) -> Option<Self> {
        let config = model.quantization_config().filter(|x| x["quant_method"] == METHOD)?;
        let layers = config["extra_config"].as_object();
        let pattern = |(key, stated): (&'a String, &'a Value)| {
            // A plain name has dots only, and would match names that begin with it, too.
            let plain = key.chars().all(|x| x.is_alphanumeric() || matches!(x, '.' | '_' | '-'));
            Some((Regex::new(key).ok().filter(|_| !plain)?, stated))
        };
        let patterns = layers.into_iter().flatten().filter_map(pattern).collect();
        Some(Self { config, layers, patterns })
    }

    /// A setting of a module: its own, that of an expression, or that of all layers.
    pub fn setting(&self, module: &str, key: &str) -> &'a Value {
        let own = self.layers.and_then(|layers| layers.get(module)).map(|layer| &layer[key]);
        let matching = self.patterns.iter().filter(|(pattern, _)| {
            // An expression that takes too many steps matches nothing.
            pattern.is_match(module).unwrap_or(false)
        });
        let mut settings = own.into_iter().chain(matching.map(|(_, stated)| &stated[key]));
        settings.find(|stated| !stated.is_null()).unwrap_or(&self.config[key])
    }

    /// The modules that stay floats, regular expressions after `re:`.
    pub fn floats(&self) -> Vec<String> {
        let is_float = |stated: &Value| stated["bits"].as_u64().is_some_and(|x| x >= FLOAT_BITS);
        let layers = self.layers.into_iter().flatten().filter(|(_, stated)| is_float(stated));
        let expression = |key: &str| self.patterns.iter().any(|(x, _)| x.as_str() == key);
        layers
            .map(|(key, _)| match expression(key) {
                // compressed-tensors matches from the beginning of a name on.
                true if !key.starts_with('^') && !key.starts_with(".*") => {
                    format!("re:.*(?:{key})")
                }
                true => format!("re:{key}"),
                false => key.clone(),
            })
            .collect()
    }

    /// The quantisation of a module's inputs; `stored` if there is a scale for them.
    pub fn inputs(&self, module: &str, stored: bool) -> Inputs {
        let bits = self.setting(module, "act_bits").as_u64().unwrap_or(FLOAT_BITS);
        let kind = self.setting(module, "act_data_type").as_str().unwrap_or_default();
        match bits {
            FLOAT_BITS.. => Inputs::Float,
            4 if format_of(kind).is_some() && stored => Inputs::Calibrated,
            4 if format_of(kind).is_some() => Inputs::Dynamic,
            8 if kind.starts_with("fp") => Inputs::Fp8,
            _ => Inputs::Other,
        }
    }

    /// Whether codes of a module have scales in e5m3, which this crate does not read.
    pub fn has_e5m3(&self, module: &str) -> bool {
        self.setting(module, "data_type") == "nvfp4_v2"
    }

    /// The quantisation of the KV cache in AutoRound's words.
    pub fn kv_cache(&self) -> Option<&'a str> {
        self.config["static_kv_dtype"].as_str()
    }
}

/// The format of a data type such as `nv_fp` or `mx_fp4`; `None` if it is none of this crate's.
pub(super) fn format_of(data_type: &str) -> Option<Format> {
    match data_type {
        kind if kind.starts_with("nv_fp") => Some(Format::Nvfp4),
        kind if kind.starts_with("mx_fp") => Some(Format::Mxfp4),
        _ => None,
    }
}
