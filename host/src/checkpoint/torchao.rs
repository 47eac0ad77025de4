//! TorchAO's `NVFP4Tensor` and `MXTensor`, flattened to safetensors (0.18,
//! `torchao/prototype/safetensors`).
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `m._weight_qdata` | U8 | `[.., N, K/2]` |
//! | `m._weight_scale` | F8_E4M3, or for `MXTensor` F8_E8M0 | `[.., N, K/block]`; swizzled: `[ceil(N/128) * 32, ceil(K/block/4) * 16]` |
//! | `m._weight_per_tensor_scale` | F32 | `[]`; NVFP4 with two levels |
//! | `m._weight_act_per_tensor_scale` | F32 | `[]`; if activations are calibrated |
//!
//! The file's metadata has a JSON object for each tensor of the model, under its name, with its
//! class and attributes (`_type`, `_data`, `_tensor_data_names`), and under `tensor_names` the list
//! of these names. If it is missing, types and shapes determine the same.

use std::collections::BTreeMap;

use fp4_formats::ScaleLayout;
use fp4_formats::layout::{TILE_BLOCKS, TILE_ROWS};
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use super::layout::{Content, Parts, Piece, format_of_scales, present};
use super::model::Model;
use super::weight::WeightSpec;

/// Ending of the tensor of codes.
const CODES: &str = "_qdata";

/// Names of types in torch and in safetensors.
const TYPES: [(&str, Dtype); 3] =
    [("float32", Dtype::F32), ("float16", Dtype::F16), ("bfloat16", Dtype::BF16)];

/// `m.weight` from `m._weight_qdata`.
fn dense_name(codes: &str) -> Option<String> {
    let (module, tensor) = codes.strip_suffix(CODES)?.rsplit_once('.')?;
    Some(format!("{module}.{}", tensor.strip_prefix('_').filter(|name| !name.is_empty())?))
}

/// `m._weight_` from `m.weight`; `None` for a name without a module.
fn prefix(name: &str) -> Option<String> {
    let (module, tensor) = name.rsplit_once('.')?;
    Some(format!("{module}._{tensor}_"))
}

pub(super) fn find(model: &Model) -> Vec<Parts> {
    model
        .names()
        .filter_map(|codes| {
            let name = dense_name(codes)?;
            let bytes =
                model.raw(codes).is_ok_and(|raw| matches!(raw.dtype, Dtype::U8 | Dtype::F4));
            if !bytes {
                return None;
            }
            let prefix = prefix(&name)?;
            let scales = format!("{prefix}scale");
            let stated: Value = model
                .metadata(&name)
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default();
            let (class, data) = (stated["_type"].as_str(), &stated["_data"]);
            let format = match class {
                Some("NVFP4Tensor") => Format::Nvfp4,
                Some("MXTensor") => Format::Mxfp4,
                _ => format_of_scales(model, &scales).unwrap_or(Format::Nvfp4),
            };
            Some(Parts {
                format,
                codes: codes.into(),
                scales,
                global: present(model, format!("{prefix}per_tensor_scale")),
                input: present(model, format!("{prefix}act_per_tensor_scale")),
                codes_in_blocks: false,
                swizzled: swizzled(data),
                original: original(data),
                name,
            })
        })
        .collect()
}

/// Versions differ: a flag, or a class.
fn swizzled(data: &Value) -> Option<bool> {
    let class = || Some(data["swizzle_type"]["_type"].as_str()? == "Swizzle_32_4_4");
    data["is_swizzled_scales"].as_bool().or_else(class)
}

fn original(data: &Value) -> Option<Dtype> {
    let name = data["orig_dtype"]["_data"].as_str()?;
    TYPES.iter().find(|(torch, _)| *torch == name).map(|(_, dtype)| *dtype)
}

pub(super) fn pieces(weight: &WeightSpec, layout: ScaleLayout) -> Result<Vec<Piece>, String> {
    let prefix = prefix(&weight.name)
        .ok_or("its names have a module and a tensor, separated by a dot".to_owned())?;
    let codes = weight.with_last(&[weight.cols() / 2]);
    let scale_type = match weight.format {
        Format::Nvfp4 => Dtype::F8_E4M3,
        Format::Mxfp4 => Dtype::F8_E8M0,
    };
    let scale_shape = match (layout, weight.scale_shape().as_slice()) {
        (ScaleLayout::Linear, shape) => shape.to_vec(),
        (ScaleLayout::Blocked128x4, &[rows, blocks]) => {
            vec![rows.div_ceil(TILE_ROWS) * 32, blocks.div_ceil(TILE_BLOCKS) * 16]
        }
        _ => return Err("swizzled scales are of a matrix, not of several".into()),
    };
    let mut pieces = vec![
        Piece::new(format!("{prefix}qdata"), Dtype::U8, codes, Content::Codes),
        Piece::new(format!("{prefix}scale"), scale_type, scale_shape, Content::Scales(layout)),
    ];
    if weight.global {
        let name = format!("{prefix}per_tensor_scale");
        pieces.push(Piece::new(name, Dtype::F32, vec![], Content::Global));
    }
    if weight.input {
        let name = format!("{prefix}act_per_tensor_scale");
        pieces.push(Piece::new(name, Dtype::F32, vec![], Content::Input));
    }
    Ok(pieces)
}

pub(super) fn metadata(
    weights: &[(WeightSpec, ScaleLayout)],
    others: &[String],
) -> BTreeMap<String, String> {
    let mut metadata = BTreeMap::new();
    for (weight, layout) in weights {
        metadata.insert(weight.name.clone(), describe(weight, *layout).to_string());
    }
    let plain = json!({"_type": "Tensor"}).to_string();
    metadata.extend(others.iter().map(|name| (name.clone(), plain.clone())));
    let names: Vec<&String> = metadata.keys().collect();
    let names = json!(names).to_string();
    metadata.insert("tensor_names".into(), names);
    metadata
}

/// The class of a weight and its attributes.
fn describe(weight: &WeightSpec, layout: ScaleLayout) -> Value {
    let torch_type = |name: &str| json!({"_type": "torch.dtype", "_data": name});
    let original = weight.original.unwrap_or(Dtype::BF16);
    let original = TYPES.iter().find(|(_, dtype)| *dtype == original).map_or("bfloat16", |x| x.0);
    let mut data = json!({
        "block_size": weight.format.block(),
        "orig_dtype": torch_type(original),
        "is_swizzled_scales": layout == ScaleLayout::Blocked128x4,
        "act_quant_kwargs": null,
    });
    let mut names = Vec::new();
    let class = match weight.format {
        Format::Nvfp4 => {
            names.extend(weight.global.then_some("per_tensor_scale"));
            names.extend(weight.input.then_some("act_per_tensor_scale"));
            "NVFP4Tensor"
        }
        Format::Mxfp4 => {
            data["elem_dtype"] = torch_type("float4_e2m1fn_x2");
            data["kernel_preference"] = json!({"_type": "KernelPreference", "_data": "EMULATED"});
            "MXTensor"
        }
    };
    names.extend(["qdata", "scale"]);
    json!({"_type": class, "_data": data, "_tensor_data_names": names})
}
