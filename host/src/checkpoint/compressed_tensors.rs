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

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use super::layout::{Content, Contents, Description, Parts, Piece, format_of_scales, present};
use super::model::Model;
use super::weight::{WeightSpec, module};

/// The name of a format's storage in `quantization_config`.
fn format_name(format: Format) -> &'static str {
    match format {
        Format::Nvfp4 => "nvfp4-pack-quantized",
        Format::Mxfp4 => "mxfp4-pack-quantized",
    }
}

pub(super) fn find(model: &Model) -> Vec<Parts> {
    let stated = model.quantization_config().and_then(|config| config["format"].as_str());
    let stated = [Format::Nvfp4, Format::Mxfp4]
        .into_iter()
        .find(|format| stated == Some(format_name(*format)));
    model
        .names()
        .filter_map(|codes| {
            let name = codes.strip_suffix("_packed")?;
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
    let format = contents.format();
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
    // Inputs have a global scale from calibration; their block scales are computed at run time.
    let inputs = contents.has_inputs().then(|| tensor("local".into()));
    Description {
        quantization_config: Some(json!({
            "quant_method": "compressed-tensors",
            "format": format_name(format),
            "quantization_status": "compressed",
            "config_groups": {"group_0": {
                "targets": ["Linear"],
                "weights": tensor(false.into()),
                "input_activations": inputs,
                "output_activations": null,
                "format": format_name(format),
            }},
            "ignore": contents.left,
            "kv_cache_scheme": null,
            "global_compression_ratio": null,
        })),
        files: Vec::new(),
    }
}
