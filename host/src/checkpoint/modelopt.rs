//! NVIDIA ModelOpt's unified export of NVFP4 (nvidia-modelopt 0.47, `modelopt/torch/export`).
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `m.weight` | U8 | `[.., N, K/2]` |
//! | `m.weight_scale` | F8_E4M3 | `[.., N, K/16]` |
//! | `m.weight_scale_2` | F32 | `[]`: amax / (6 * 448) |
//! | `m.input_scale` | F32 | `[]`: amax of the input / (6 * 448); only with quantised activations |
//!
//! `hf_quant_config.json` names the algorithm, `NVFP4` or without activations `W4A16_NVFP4`, and
//! the excluded modules; `quantization_config` in `config.json` repeats it.

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde_json::json;

use super::layout::{Content, Contents, Description, Parts, Piece, present};
use super::model::Model;
use super::weight::{WeightSpec, module};

/// A matrix of bytes is a weight if it has scales or its name ends in `.weight`.
pub(super) fn find(model: &Model) -> Vec<Parts> {
    model
        .names()
        .filter(|name| {
            let matrix = |name: &str| {
                model.raw(name).is_ok_and(|raw| {
                    matches!(raw.dtype, Dtype::U8 | Dtype::F4) && raw.shape.len() >= 2
                })
            };
            let scaled = model.contains(&format!("{name}_scale"));
            (scaled || name.ends_with(".weight")) && matrix(name)
        })
        .map(|name| Parts {
            name: name.into(),
            format: Format::Nvfp4,
            codes: name.into(),
            scales: format!("{name}_scale"),
            // Required, because without it the weight would be at least 448 times too large.
            global: Some(format!("{name}_scale_2")),
            input: present(model, format!("{}.input_scale", module(name))),
            codes_in_blocks: false,
            swizzled: Some(false),
            original: None,
        })
        .collect()
}

pub(super) fn pieces(weight: &WeightSpec) -> Vec<Piece> {
    let name = &weight.name;
    let codes = weight.with_last(&[weight.cols() / 2]);
    let scales = Content::Scales(ScaleLayout::Linear);
    let mut pieces = vec![
        Piece::new(name.clone(), Dtype::U8, codes, Content::Codes),
        Piece::new(format!("{name}_scale"), Dtype::F8_E4M3, weight.scale_shape(), scales),
        Piece::new(format!("{name}_scale_2"), Dtype::F32, vec![], Content::Global),
    ];
    if weight.input {
        let input = format!("{}.input_scale", weight.module());
        pieces.push(Piece::new(input, Dtype::F32, vec![], Content::Input));
    }
    pieces
}

pub(super) fn describe(contents: &Contents) -> Description {
    let algorithm = if contents.has_inputs() { "NVFP4" } else { "W4A16_NVFP4" };
    let block = Format::Nvfp4.block();
    let tensor = json!({"dynamic": false, "num_bits": 4, "type": "float", "group_size": block});
    let mut group = json!({"weights": tensor, "targets": ["Linear"]});
    if contents.has_inputs() {
        group["input_activations"] = tensor;
    }
    let producer = json!({"name": "nvfp4", "version": env!("CARGO_PKG_VERSION")});
    Description {
        quantization_config: Some(json!({
            "quant_method": "modelopt",
            "quant_algo": algorithm,
            "config_groups": {"group_0": group},
            "ignore": contents.left,
            "producer": producer,
        })),
        files: vec![(
            "hf_quant_config.json",
            json!({
                "producer": producer,
                "quantization": {
                    "quant_algo": algorithm,
                    "kv_cache_quant_algo": null,
                    "group_size": block,
                    "exclude_modules": contents.left,
                },
            }),
        )],
    }
}
