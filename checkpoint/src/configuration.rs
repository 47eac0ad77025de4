//! Compares ModelOpt's configuration of a checkpoint with its tensors.
//!
//! | file, object | algorithm | group size | excluded modules |
//! | --- | --- | --- | --- |
//! | `hf_quant_config.json`, `quantization` | `quant_algo` | `group_size` | `exclude_modules` |
//! | `config.json`, `quantization_config` | `quant_algo` | `group_size` of a group's `weights` | `ignore` |
//!
//! Loaders follow it: they make quantised layers of all modules that are not excluded, and quantise
//! inputs if the algorithm is `NVFP4`; other algorithms of this family have different rules. Under
//! `MIXED_PRECISION` each module has an algorithm and a group size in `quantized_layers`, which
//! `config.json` may omit if the other file has it.

use fp4_formats::quantize::Format;
use serde_json::Value;

use super::file::RawTensor;
use super::groups;
use super::load::outline;
use super::model::{HF_QUANT_CONFIG, Model};
use super::others::OtherLayer;
use super::parts::{Layout, Parts, modules_left};
use super::pattern::{self, Patterns};
use super::report::{Finding, Severity};
use super::schemes;
use super::weight::module;

/// Weights and inputs in NVFP4, which needs a scale for the input. It is part of the names of all
/// algorithms whose weights are NVFP4.
const WITH_INPUTS: &str = "NVFP4";
/// Weights only.
const WEIGHTS_ONLY: &str = "W4A16_NVFP4";
/// Part of the names of algorithms whose weights are MXFP4.
const MXFP4: &str = "mxfp4";
/// Each module has its own algorithm.
const MIXED: &str = "MIXED_PRECISION";

/// The configuration in one file.
struct Stated<'a> {
    file: &'static str,
    /// The object with `quant_algo`.
    quantization: &'a Value,
    group_size: Option<&'a Value>,
    left: Vec<&'a str>,
    /// The same, to look modules up in.
    patterns: Patterns<'a>,
}

impl<'a> Stated<'a> {
    fn new(
        file: &'static str,
        quantization: &'a Value,
        group_size: Option<&'a Value>,
        left: &'a Value,
    ) -> Self {
        let left: Vec<&str> =
            left.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let patterns = Patterns::of_wildcards(left.iter().copied());
        Self { file, quantization, group_size, left, patterns }
    }

    fn all(model: &'a Model) -> Vec<Self> {
        let mut all = Vec::new();
        if let Some(config) = model.hf_quant_config() {
            let quantization = &config["quantization"];
            // A loader fails without one, so an absent one is compared too.
            let group_size = Some(&quantization["group_size"]);
            let left = &quantization["exclude_modules"];
            all.push(Self::new(HF_QUANT_CONFIG, quantization, group_size, left));
        }
        let config = model.quantization_config();
        let says = |config: &&Value| {
            let mixed = config["quant_algo"] == MIXED;
            config["quant_method"] == "modelopt"
                && (!mixed || config["quantized_layers"].is_object())
        };
        if let Some(config) = config.filter(says) {
            let groups = config["config_groups"].as_object();
            let mut sizes = groups.into_iter().flat_map(|groups| groups.values());
            let group_size = sizes.find_map(|group| group["weights"].get("group_size"));
            all.push(Self::new("config.json", config, group_size, &config["ignore"]));
        }
        all
    }

    /// Algorithm and group size of a module.
    fn of(&self, module: &str) -> (Option<&'a str>, Option<&'a Value>) {
        match self.quantization["quant_algo"].as_str() {
            Some(MIXED) => {
                let layer = &self.quantization["quantized_layers"][module];
                (layer["quant_algo"].as_str(), Some(&layer["group_size"]))
            }
            algorithm => (algorithm, self.group_size),
        }
    }
}

/// Findings of kind `configuration`. Facts that a loader would misread are an error.
pub(super) fn check(
    model: &Model,
    layout: Layout,
    parts: &[Parts],
    others: &[OtherLayer],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |severity, tensor: Option<&str>, message| {
        let tensor = tensor.map(str::to_owned);
        findings.push(Finding { severity, kind: "configuration", tensor, message });
    };
    if layout != Layout::ModelOpt {
        if model.hf_quant_config().is_some() {
            let message = format!("{HF_QUANT_CONFIG} is ModelOpt's, the tensors are {layout}'s");
            add(Severity::Error, None, message);
        }
        if model.config().is_some() && model.quantization_config().is_none() {
            let message = "config.json has no quantization_config, so that readers take the model \
                           for an unquantised one";
            add(Severity::Warning, None, message.to_owned());
        }
        if layout == Layout::CompressedTensors {
            findings.extend(groups::check(model, parts, others, &floats(model)));
        }
        findings.extend(schemes::check(model, layout, parts));
        return findings;
    }
    let floats = floats(model);
    for stated in Stated::all(model) {
        let file = stated.file;
        if stated.quantization["quant_algo"].as_str().is_none() {
            add(Severity::Error, None, format!("{file} has no quant_algo"));
            continue;
        }
        let mut said_of_all = false;
        for part in parts {
            let name = part.name.as_str();
            let of = module(name);
            if let Some(pattern) = stated.patterns.find(of).map(|at| stated.left[at]) {
                let message = format!("it is quantised; {file} leaves it out by `{pattern}`");
                add(Severity::Error, Some(name), message);
                continue;
            }
            let (algorithm, group_size) = stated.of(of);
            let mixed = stated.quantization["quant_algo"] == MIXED;
            let group = outline(model, part).map_or(part.format.block() as usize, |x| x.spec.group);
            let (names, size_fits) = match part.format {
                Format::Nvfp4 => {
                    let fits = group_size.is_none_or(|size| size.as_u64() == Some(group as u64));
                    (algorithm.is_some_and(|algorithm| algorithm.contains(WITH_INPUTS)), fits)
                }
                // ModelOpt has no size for it.
                Format::Mxfp4 => {
                    let named = |algorithm: &str| algorithm.to_lowercase().contains(MXFP4);
                    (algorithm.is_some_and(named), true)
                }
            };
            if !names || !size_fits {
                // Said of every module alike, it is one mistake.
                if mixed || !said_of_all {
                    let size = group_size.unwrap_or(&Value::Null);
                    let message = format!(
                        "{file} says quant_algo {}, group_size {size}; the tensors are {} in \
                         groups of {group}",
                        algorithm.unwrap_or("null"),
                        part.format.name().to_uppercase()
                    );
                    add(Severity::Error, mixed.then_some(name), message);
                }
                said_of_all = true;
                continue;
            }
            match (algorithm, &part.input) {
                (Some(WITH_INPUTS), None) => {
                    let message = format!(
                        "{file} says {WITH_INPUTS}, which quantises inputs, but there is no \
                         input_scale; weights alone are {WEIGHTS_ONLY}"
                    );
                    add(Severity::Error, Some(name), message);
                }
                (Some(WEIGHTS_ONLY), Some(input)) => {
                    let message = format!("{file} says {WEIGHTS_ONLY}, which does not use it");
                    add(Severity::Warning, Some(input), message);
                }
                _ => {}
            }
        }
        for other in others {
            let of = other.module.as_str();
            let (algorithm, _) = stated.of(of);
            let four = |algorithm: &str| {
                algorithm.contains(WITH_INPUTS) || algorithm.to_lowercase().contains(MXFP4)
            };
            if let Some(algorithm) = algorithm.filter(|algorithm| four(algorithm)) {
                let format = other.format.name();
                let message = format!("it is in {format}; {file} says quant_algo {algorithm}");
                add(Severity::Error, Some(of), message);
            }
        }
        for of in floats.iter().filter(|of| !leaves_out(&stated, of)) {
            let message = format!("it is not quantised, and {file} does not leave it out");
            // Whether it is a linear layer, which a loader would look for scales of, is not known.
            add(Severity::Warning, Some(of), message);
        }
    }
    findings
}

/// Modules with a matrix that is not quantised. Embeddings are never quantised or listed.
fn floats(model: &Model) -> Vec<String> {
    let tensors: Vec<(&str, RawTensor)> =
        model.names().filter_map(|name| Some((name, model.raw(name).ok()?))).collect();
    let mut modules =
        modules_left(tensors.iter().map(|(name, raw)| (*name, raw.dtype, raw.shape.as_slice())));
    modules.retain(|module| !pattern::matches("*embed*", module));
    modules
}

fn leaves_out(stated: &Stated<'_>, module: &str) -> bool {
    // A name has the modules below it, too.
    let above = |module: &str| {
        module.match_indices('.').any(|(end, _)| stated.patterns.has_name(&module[..end]))
    };
    stated.quantization["quant_algo"] == MIXED
        || stated.patterns.find(module).is_some()
        || above(module)
}
