//! Compares compressed-tensors' configuration of a checkpoint with its tensors.
//!
//! `config_groups` has for each group of layers the storage `format`, the `weights` (bits, group
//! size) and the `input_activations`; `ignore` has the layers that are not quantised. Layers are
//! named, matched by a regular expression (`re:`), or all those of a class (`Linear`).

use serde_json::Value;

use super::model::Model;
use super::others::{OtherFormat, OtherLayer};
use super::parts::Parts;
use super::pattern::Patterns;
use super::report::{Finding, Once, Severity};
use super::stated::{Group, packed};
use super::weight::module;

/// The storage format of a checkpoint whose groups have several.
const MIXED: &str = "mixed-precision";

/// Findings of kind `configuration`. `floats` are the modules with a matrix that is not quantised.
pub(super) fn check(
    model: &Model,
    parts: &[Parts],
    others: &[OtherLayer],
    floats: &[String],
) -> Vec<Finding> {
    let mut findings = Once::default();
    let Some(config) = model.quantization_config() else { return findings.all };
    if config["quant_method"] != "compressed-tensors" {
        return findings.all;
    }
    let groups = Group::all(model);
    if groups.is_empty() {
        let message = "config.json has no config_groups".to_owned();
        findings.add(Severity::Error, None, message);
        return findings.all;
    }
    let ignored = config["ignore"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let ignored: Vec<&str> = ignored.collect();
    let patterns = Patterns::of_compressed_tensors(ignored.iter().copied());
    for text in patterns.unknown().chain(groups.iter().flat_map(Group::unknown)) {
        let message = format!("`{text}` of config.json was not compared with the layers");
        findings.add(Severity::Warning, None, message);
    }
    let ignores = |of: &str| patterns.find(of).map(|at| ignored[at]);

    let formats: Vec<Option<&str>> = groups.iter().map(|group| group.format(config)).collect();
    let stated = config["format"].as_str();
    if stated != Some(MIXED) && !formats.iter().all(|format| *format == stated) {
        let of_groups: Vec<&str> = formats.iter().map(|x| x.unwrap_or("null")).collect();
        let message = format!(
            "config.json says format {}, and of its groups {}",
            stated.unwrap_or("null"),
            of_groups.join(", ")
        );
        findings.add(Severity::Error, None, message);
    }
    for part in parts {
        let of = module(&part.name);
        if let Some(text) = ignores(of) {
            let message = format!("it is quantised; config.json ignores it by `{text}`");
            findings.add(Severity::Error, Some(&part.name), message);
            continue;
        }
        let Some(group) = Group::of(&groups, of) else {
            let message = "it is quantised; no group of config.json has it".to_owned();
            findings.add(Severity::Error, Some(&part.name), message);
            continue;
        };
        let (name, weights) = (group.name, &group.stated["weights"]);
        let expected = packed(part.format);
        let format = group.format(config).unwrap_or("null");
        if format != expected {
            let message =
                format!("config.json says format {format} for {name}; the tensors are {expected}");
            findings.add(Severity::Error, None, message);
            continue;
        }
        let block = u64::from(part.format.block());
        let (bits, kind, size) = (&weights["num_bits"], &weights["type"], &weights["group_size"]);
        if *bits != 4 || *kind != "float" || size.as_u64() != Some(block) {
            let message = format!(
                "config.json says num_bits {bits}, type {kind}, group_size {size} for {name}; the \
                 tensors are 4-bit floats in groups of {block}"
            );
            findings.add(Severity::Error, None, message);
        }
        let inputs = &group.stated["input_activations"];
        let calibrated = inputs["num_bits"] == 4 && inputs["dynamic"] != true;
        match &part.input {
            None if calibrated => {
                let message = format!(
                    "config.json quantises its inputs with a scale from calibration ({name}), but \
                     there is no input_global_scale"
                );
                findings.add(Severity::Error, Some(&part.name), message);
            }
            Some(input) if inputs.is_null() => {
                let message = format!("{name} of config.json does not use it");
                findings.add(Severity::Warning, Some(input), message);
            }
            _ => {}
        }
    }
    for other in others {
        let of = other.module.as_str();
        let bits = match other.format {
            OtherFormat::Fp8
            | OtherFormat::Fp8Weight
            | OtherFormat::Fp8Rows
            | OtherFormat::Fp8Blocks
            | OtherFormat::Mxfp8
            | OtherFormat::Int8 => Some(8),
            OtherFormat::Packed
            | OtherFormat::FloatScales
            | OtherFormat::E5m3
            | OtherFormat::FpQuant
            | OtherFormat::E2m1
            | OtherFormat::GptOss
            | OtherFormat::MlxIntegers
            | OtherFormat::MlxOther => None,
        };
        let name = other.format.name();
        if let Some(text) = ignores(of) {
            let message = format!("it is in {name}; config.json ignores it by `{text}`");
            findings.add(Severity::Error, Some(of), message);
            continue;
        }
        let Some(group) = Group::of(&groups, of) else {
            let message = format!("it is in {name}; no group of config.json has it");
            findings.add(Severity::Error, Some(of), message);
            continue;
        };
        let weights = &group.stated["weights"];
        let four_bit_floats = weights["num_bits"] == 4 && weights["type"] == "float";
        let wrong = bits.is_some_and(|bits: u64| weights["num_bits"].as_u64() != Some(bits));
        if wrong || four_bit_floats {
            let format = group.format(config).unwrap_or("null");
            let message = format!("it is in {name}; {} of config.json says {format}", group.name);
            findings.add(Severity::Error, Some(of), message);
        }
    }
    for of in floats.iter().filter(|of| ignores(of).is_none()) {
        if let Some(group) = Group::of(&groups, of) {
            let message = format!(
                "it is not quantised, and config.json does not ignore it ({} has it)",
                group.name
            );
            // Whether it is a linear layer, which a loader would look for scales of, is not known.
            findings.add(Severity::Warning, Some(of), message);
        }
    }
    findings.all
}
