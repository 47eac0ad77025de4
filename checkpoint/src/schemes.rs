//! Compares the configurations of MLX, Quark and AutoRound with the tensors.

use super::auto_round_config::{self, FLOAT_BITS, format_of};
use super::mlx_config as mlx;
use super::model::Model;
use super::parts::{Layout, Parts};
use super::quark_config;
use super::report::{Finding, Once, Severity};
use super::weight::module;

/// Findings of kind `configuration`, of layouts whose configurations this module knows.
pub(super) fn check(model: &Model, layout: Layout, parts: &[Parts]) -> Vec<Finding> {
    match layout {
        Layout::Mlx => of_mlx(model, parts),
        Layout::Quark => of_quark(model, parts),
        Layout::AutoRound => of_auto_round(model, parts),
        Layout::ModelOpt
        | Layout::CompressedTensors
        | Layout::TorchAo
        | Layout::GptOss
        | Layout::DeepSeek
        | Layout::Gguf => Vec::new(),
    }
}

fn of_mlx(model: &Model, parts: &[Parts]) -> Vec<Finding> {
    let mut findings = Once::default();
    if model.config().is_none() {
        return findings.all;
    }
    let Some(stated) = mlx::quantization(model) else {
        let message = "config.json has no quantization, so that readers take the model for an \
                       unquantised one";
        findings.add(Severity::Warning, None, message.to_owned());
        return findings.all;
    };
    for part in parts {
        let of = module(&part.name);
        let own = mlx::layer(model, stated, of);
        let layer = if own.is_object() { own } else { stated };
        let [mode, bits, size] = ["mode", "bits", "group_size"].map(|key| &layer[key]);
        let block = u64::from(part.format.block());
        let fits = mode == part.format.name() && *bits == 4 && size.as_u64() == Some(block);
        if !fits {
            let message = format!(
                "config.json says mode {mode}, bits {bits}, group_size {size}; the tensors are {} in groups of \
                 {block}",
                part.format.name()
            );
            findings.add(Severity::Error, None, message);
        }
    }
    findings.all
}

fn of_quark(model: &Model, parts: &[Parts]) -> Vec<Finding> {
    let mut findings = Once::default();
    let Some(stated) = quark_config::Stated::of(model) else { return findings.all };
    for part in parts {
        let of = module(&part.name);
        if stated.exclude.find(of).is_some() {
            let message = "it is quantised; config.json excludes it".to_owned();
            findings.add(Severity::Error, Some(&part.name), message);
            continue;
        }
        let is = part.format.name().to_uppercase();
        match stated.weight(of) {
            None => {
                let message = "it is quantised; config.json has no specification for it".to_owned();
                findings.add(Severity::Error, Some(&part.name), message);
            }
            Some(spec) if spec.format() != Some(part.format) => {
                let message = format!("config.json says {}; the tensors are {is}", spec.words());
                findings.add(Severity::Error, None, message);
            }
            Some(_) => {}
        }
        let inputs = stated.input(of);
        let calibrated = inputs.and_then(|spec| spec.scales);
        let calibrated = calibrated.is_some_and(|scales| scales["is_dynamic"] != true);
        match &part.input {
            None if calibrated => {
                let message = "config.json quantises its inputs with a scale from calibration, but there \
                               is no input_scale_2";
                findings.add(Severity::Error, Some(&part.name), message.to_owned());
            }
            Some(input) if inputs.is_none() => {
                let message = "config.json does not use it".to_owned();
                findings.add(Severity::Warning, Some(input), message);
            }
            _ => {}
        }
    }
    findings.all
}

fn of_auto_round(model: &Model, parts: &[Parts]) -> Vec<Finding> {
    let mut findings = Once::default();
    let Some(stated) = auto_round_config::Stated::of(model) else { return findings.all };
    for part in parts {
        let of = module(&part.name);
        let [bits, kind, size] =
            ["bits", "data_type", "group_size"].map(|key| stated.setting(of, key));
        let block = u64::from(part.format.block());
        let fits = bits.as_u64() == Some(4)
            && format_of(kind.as_str().unwrap_or_default()) == Some(part.format)
            && size.as_u64() == Some(block);
        if !fits {
            let message = format!(
                "config.json says bits {bits}, data_type {kind}, group_size {size}; the tensors are {} in \
                 groups of {block}",
                part.format.name().to_uppercase()
            );
            findings.add(Severity::Error, None, message);
        }
        let bits = stated.setting(of, "act_bits").as_u64().unwrap_or(FLOAT_BITS);
        let kind = stated.setting(of, "act_data_type").as_str().unwrap_or_default();
        match &part.input {
            None if bits == 4 && kind.contains("static_gs") => {
                let message = "config.json quantises its inputs with a scale from calibration, but there \
                               is no input_global_scale";
                findings.add(Severity::Error, Some(&part.name), message.to_owned());
            }
            Some(input) if bits >= FLOAT_BITS => {
                let message = "config.json does not use it".to_owned();
                findings.add(Severity::Warning, Some(input), message);
            }
            _ => {}
        }
    }
    findings.all
}
