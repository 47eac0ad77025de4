//! compressed-tensors' `nvfp4-pack-quantized` and `mxfp4-pack-quantized` (0.20,
//! `compressors/nvfp4`, `compressors/mxfp4`).
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `m.weight_packed` | U8 | `[.., N, K/2]` |
//! | `m.weight_scale` | nvfp4: F8_E4M3, mxfp4: U8 | `[.., N, K/16]`, `[.., N, K/32]` |
//! | `m.weight_global_scale` | F32 | `[1]`: 6 * 448 / amax, a divisor; nvfp4 only |
//! | `m.input_global_scale` | F32 | `[1]`: the same for the input; only with quantised activations |
//!
//! `quantization_config` in `config.json` has the scheme and the excluded modules.

use std::collections::BTreeMap;

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use super::contents::{Alike, Contents, Description};
use super::inputs::Inputs;
use super::model::Model;
use super::others::Described;
use super::parts::{Content, Parts, Piece, format_of_scales, present};
use super::stated::{Said, packed};
use super::weight::{Order, WeightSpec, module};

pub(super) fn find(model: &Model) -> Vec<Parts> {
    let stated = model.quantization_config().and_then(|config| config["format"].as_str());
    let stated =
        [Format::Nvfp4, Format::Mxfp4].into_iter().find(|format| stated == Some(packed(*format)));
    let said = Said::of(model);
    model
        .names()
        .filter_map(|codes| {
            let name = codes.strip_suffix("_packed")?;
            // These scales would be read as numbers that they are not.
            if said.has_e5m3(module(name)) {
                return None;
            }
            // 4-bit integers use the same names with other types.
            let bytes = model.raw(codes).is_ok_and(|raw| raw.dtype == Dtype::U8);
            if !bytes {
                return None;
            }
            let scales = format!("{name}_scale");
            let global = format!("{name}_global_scale");
            let by_parts = if model.contains(&global) {
                Format::Nvfp4
            } else {
                stated.unwrap_or(Format::Mxfp4)
            };
            let format = format_of_scales(model, &scales).unwrap_or(by_parts);
            Some(Parts {
                name: name.into(),
                format,
                codes: codes.into(),
                scales,
                global: (format == Format::Nvfp4).then_some(global),
                input: present(model, format!("{}.input_global_scale", module(name))),
                codes_in_blocks: false,
                swizzled: Some(false),
                original: None,
                order: Order::OutputFirst,
                transposed: false,
            })
        })
        .collect()
}

pub(super) fn pieces(weight: &WeightSpec) -> Vec<Piece> {
    let name = &weight.name;
    let codes = weight.with_last(&[weight.cols() / 2]);
    let scales = Content::Scales(ScaleLayout::Linear);
    let scale_type = match weight.format {
        Format::Nvfp4 => Dtype::F8_E4M3,
        Format::Mxfp4 => Dtype::U8,
    };
    let mut pieces = vec![
        Piece::new(format!("{name}_packed"), Dtype::U8, codes, Content::Codes),
        Piece::new(format!("{name}_scale"), scale_type, weight.scale_shape(), scales),
    ];
    if weight.format == Format::Nvfp4 {
        let global = format!("{name}_global_scale");
        pieces.push(Piece::new(global, Dtype::F32, vec![1], Content::Global));
    }
    if weight.input {
        let input = format!("{}.input_global_scale", weight.module());
        pieces.push(Piece::new(input, Dtype::F32, vec![1], Content::Input));
    }
    pieces
}

pub(super) fn describe(contents: &Contents) -> Description {
    let mut groups: Vec<(Value, Vec<&str>)> = Vec::new();
    let alike = contents.alike();
    for Alike { format, inputs, .. } in &alike {
        let (strategy, scale_type) = match format {
            Format::Nvfp4 => ("tensor_group", "torch.float8_e4m3fn"),
            Format::Mxfp4 => ("group", "torch.uint8"),
        };
        let tensor = |dynamic: Value| {
            json!({
                "num_bits": 4,
                "type": "float",
                "strategy": strategy,
                "symmetric": true,
                "dynamic": dynamic,
                "group_size": format.block(),
                "scale_dtype": scale_type,
                "zp_dtype": scale_type,
            })
        };
        let inputs = match inputs {
            // The global scale is from calibration; block scales are computed at run time.
            Inputs::Calibrated => Some(tensor("local".into())),
            Inputs::Dynamic => Some(tensor(true.into())),
            Inputs::Float | Inputs::OneLevel | Inputs::Fp8 | Inputs::Other => None,
        };
        let group = json!({
            "weights": tensor(false.into()),
            "input_activations": inputs,
            "output_activations": null,
            "format": packed(*format),
        });
        groups.push((group, Vec::new()));
    }
    for ((_, modules), alike) in groups.iter_mut().zip(&alike) {
        *modules = alike.modules();
    }
    let eight = json!({
        "num_bits": 8,
        "type": "float",
        "strategy": "tensor",
        "symmetric": true,
        "dynamic": false,
    });
    for other in others(contents) {
        let Others { format, dynamic, modules } = other;
        groups.push((described(format, dynamic, &eight), modules));
    }
    // A single group has all linear layers that are not ignored.
    let format = match groups.as_mut_slice() {
        [(group, modules)] => {
            *modules = vec!["Linear"];
            group["format"].clone()
        }
        several => {
            let mut formats = several.iter().map(|(group, _)| &group["format"]);
            let first = formats.next().cloned().unwrap_or_default();
            if formats.all(|format| *format == first) { first } else { "mixed-precision".into() }
        }
    };
    let mut config_groups = serde_json::Map::new();
    for (at, (mut group, modules)) in groups.into_iter().enumerate() {
        group["targets"] = json!(modules);
        config_groups.insert(format!("group_{at}"), group);
    }
    let kv_cache = contents.extras.kv_fp8.then_some(eight);
    Description {
        quantization: None,
        expert_dtype: None,
        quantization_config: Some(json!({
            "quant_method": "compressed-tensors",
            "format": format,
            "quantization_status": "compressed",
            "config_groups": config_groups,
            "ignore": contents.left,
            "kv_cache_scheme": kv_cache,
            "global_compression_ratio": null,
        })),
        files: Vec::new(),
    }
}

/// Layers in one other format.
struct Others<'a> {
    format: Described,
    /// Whether their inputs are quantised at run time.
    dynamic: bool,
    modules: Vec<&'a str>,
}

/// The layers in other formats, by format.
fn others(contents: &Contents) -> Vec<Others<'_>> {
    let mut groups: BTreeMap<(Described, bool), Vec<&str>> = BTreeMap::new();
    for other in &contents.extras.others {
        // Layers that no configuration describes are refused before.
        let Some(format) = other.format.described() else { continue };
        let dynamic = contents.extras.dynamic.contains(&other.module);
        groups.entry((format, dynamic)).or_default().push(&other.module);
    }
    let group = |((format, dynamic), modules)| Others { format, dynamic, modules };
    groups.into_iter().map(group).collect()
}

/// The group of layers in another format; `eight` describes FP8 with one scale. These are compressed-tensors'
/// schemes FP8, MXFP8 and FP8_BLOCK.
fn described(format: Described, dynamic: bool, eight: &Value) -> Value {
    let tensor = |strategy: &str, dynamic: bool| {
        json!({
            "num_bits": 8,
            "type": "float",
            "strategy": strategy,
            "symmetric": true,
            "dynamic": dynamic,
        })
    };
    let mut group = json!({"output_activations": null, "format": "float-quantized"});
    match format {
        Described::Mxfp8 => {
            let scaled = |dynamic: bool| {
                let mut tensor = tensor("group", dynamic);
                tensor["group_size"] = 32.into();
                tensor["scale_dtype"] = "torch.uint8".into();
                tensor["zp_dtype"] = "torch.uint8".into();
                tensor
            };
            group["format"] = "mxfp8-quantized".into();
            group["weights"] = scaled(false);
            group["input_activations"] = if dynamic { scaled(true) } else { Value::Null };
        }
        Described::Fp8Blocks => {
            let mut inputs = tensor("group", true);
            inputs["group_size"] = 128.into();
            group["weights"] = tensor("block", false);
            group["weights"]["block_structure"] = json!([128, 128]);
            group["input_activations"] = if dynamic { inputs } else { Value::Null };
        }
        Described::Fp8 => {
            group["weights"] = eight.clone();
            group["input_activations"] = eight.clone();
        }
    }
    group
}
