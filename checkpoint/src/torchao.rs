//! TorchAO's `NVFP4Tensor` and `MXTensor`, flattened to safetensors (0.18,
//! `torchao/prototype/safetensors`).
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `m._weight_qdata` | U8 | `[.., N, K/2]` |
//! | `m._weight_scale` | F8_E4M3, or for `MXTensor` F8_E8M0 | `[.., N, K/block]`; swizzled: `[.., ceil(N/128) * 32, ceil(K/block/4) * 16]` |
//! | `m._weight_per_tensor_scale` | F32 | `[]`, or `[experts, 1, 1]`; NVFP4 with two levels |
//! | `m._weight_act_per_tensor_scale` | F32 | `[]`; if activations are calibrated |
//!
//! The file's metadata has a JSON object for each tensor of the model, under its name, with its
//! class and attributes (`_type`, `_data`, `_tensor_data_names`), and under `tensor_names` the list
//! of these names. If it is missing, types and shapes determine the same. transformers reads it
//! only if `quantization_config` in `config.json` says `torchao`.

use std::collections::BTreeMap;

use fp4_formats::ScaleLayout;
use fp4_formats::layout::{TILE_BLOCKS, TILE_ROWS};
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use super::contents::{Alike, Contents, Description, Extras};
use super::inputs::Inputs;
use super::model::Model;
use super::parts::{Content, Parts, Piece, format_of_scales, present};
use super::stated::{described, in_model};
use super::weight::{Order, WeightSpec};

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
            let stated: Value = described(model, &name)
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
                order: Order::OutputFirst,
                transposed: false,
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
        (ScaleLayout::Blocked128x4, &[experts, rows, blocks]) if rows.is_multiple_of(TILE_ROWS) => {
            vec![experts, rows / TILE_ROWS * 32, blocks.div_ceil(TILE_BLOCKS) * 16]
        }
        _ => {
            return Err(format!(
                "swizzled scales are of one matrix, or of several with a multiple of {TILE_ROWS} \
                 rows"
            ));
        }
    };
    let mut pieces = vec![
        Piece::new(format!("{prefix}qdata"), Dtype::U8, codes, Content::Codes),
        Piece::new(format!("{prefix}scale"), scale_type, scale_shape, Content::Scales(layout)),
    ];
    if weight.global {
        let name = format!("{prefix}per_tensor_scale");
        let shape = match (weight.expert_scales, weight.shape.first()) {
            (true, Some(&experts)) => vec![experts, 1, 1],
            _ => vec![],
        };
        pieces.push(Piece::new(name, Dtype::F32, shape, Content::Global));
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
    extras: &Extras,
) -> BTreeMap<String, String> {
    let mut metadata = BTreeMap::new();
    for (weight, layout) in weights {
        metadata.insert(in_model(&weight.name), tensor(weight, *layout, extras).to_string());
    }
    let plain = json!({"_type": "Tensor"}).to_string();
    metadata.extend(others.iter().map(|name| (name.clone(), plain.clone())));
    let names: Vec<&String> = metadata.keys().collect();
    let names = json!(names).to_string();
    metadata.insert("tensor_names".into(), names);
    metadata
}

/// A value of a type of torch, as TorchAO writes it.
fn typed(kind: &str, data: impl Into<Value>) -> Value {
    json!({"_type": kind, "_data": data.into()})
}

/// The element type of MXFP4.
fn fp4() -> Value {
    typed("torch.dtype", "float4_e2m1fn_x2")
}

/// The class of a weight and its attributes; those of the input's own description are kept.
fn tensor(weight: &WeightSpec, layout: ScaleLayout, extras: &Extras) -> Value {
    let inputs = extras.inputs.get(&weight.name).copied().unwrap_or_default();
    let original = weight.original.unwrap_or(Dtype::BF16);
    let original = TYPES.iter().find(|(_, dtype)| *dtype == original).map_or("bfloat16", |x| x.0);
    let mut data = json!({
        "block_size": weight.format.block(),
        "orig_dtype": typed("torch.dtype", original),
    });
    let mut names = Vec::new();
    let class = match weight.format {
        Format::Nvfp4 => {
            names.extend(weight.global.then_some("per_tensor_scale"));
            names.extend(weight.input.then_some("act_per_tensor_scale"));
            data["use_triton_kernel"] = false.into();
            let how = |dynamic: bool| {
                let how = json!({
                    "block_size": weight.format.block(),
                    "is_swizzled_scales": true,
                    "use_triton_kernel": false,
                    "use_dynamic_per_tensor_scale": dynamic,
                });
                typed("QuantizeTensorToNVFP4Kwargs", how)
            };
            data["act_quant_kwargs"] = match inputs {
                Inputs::Dynamic => how(true),
                Inputs::Calibrated | Inputs::OneLevel => how(false),
                Inputs::Float | Inputs::Fp8 | Inputs::Other => Value::Null,
            };
            "NVFP4Tensor"
        }
        Format::Mxfp4 => {
            data["elem_dtype"] = fp4();
            data["kernel_preference"] = typed("KernelPreference", "AUTO");
            let how = json!({
                "elem_dtype": fp4(),
                "block_size": weight.format.block(),
                "scaling_mode": typed("ScaleCalculationMode", "RCEIL"),
                "kernel_preference": typed("KernelPreference", "AUTO"),
                "is_swizzled_scales": true,
            });
            data["act_quant_kwargs"] = match inputs {
                Inputs::Dynamic => typed("QuantizeTensorToMXKwargs", how),
                Inputs::Float
                | Inputs::Calibrated
                | Inputs::OneLevel
                | Inputs::Fp8
                | Inputs::Other => Value::Null,
            };
            "MXTensor"
        }
    };
    names.extend(["qdata", "scale"]);
    if let Some(stated) = extras.stated.get(&weight.name).filter(|x| x["_type"] == class) {
        data = stated["_data"].clone();
    }
    data["is_swizzled_scales"] = (layout == ScaleLayout::Blocked128x4).into();
    json!({"_type": class, "_data": data, "_tensor_data_names": names})
}

/// The configuration of layers that are quantised alike.
fn config(alike: &Alike<'_>) -> Value {
    let two_levels = alike.weights.iter().any(|weight| weight.global);
    let (class, data) = match (alike.format, alike.inputs) {
        (Format::Nvfp4, Inputs::Float | Inputs::Fp8 | Inputs::Other) => {
            ("NVFP4WeightOnlyConfig", json!({"use_dynamic_per_tensor_scale": two_levels}))
        }
        (Format::Nvfp4, inputs) => {
            // As text, because transformers does not find the class that the exporter names.
            let step = (inputs == Inputs::Calibrated).then_some("convert");
            let data = json!({
                "use_triton_kernel": false,
                "use_dynamic_per_tensor_scale": inputs == Inputs::Dynamic,
                "step": step,
            });
            ("NVFP4DynamicActivationNVFP4WeightConfig", data)
        }
        // TorchAO has no configuration for weights alone in this format; that of the tensors says
        // that inputs are not quantised.
        (Format::Mxfp4, _) => {
            let data = json!({
                "block_size": alike.format.block(),
                "activation_dtype": fp4(),
                "weight_dtype": fp4(),
                "kernel_preference": typed("KernelPreference", "AUTO"),
                "scaling_mode": typed("ScaleCalculationMode", "RCEIL"),
            });
            ("MXDynamicActivationMXWeightConfig", data)
        }
    };
    json!({"_type": class, "_version": 1, "_data": data})
}

/// transformers reads the tensors' metadata only if the configuration says that they are TorchAO's.
pub(super) fn describe(contents: &Contents) -> Description {
    let alike = contents.alike();
    let experts = contents.weights.iter().any(|weight| !weight.name.ends_with(".weight"));
    let kind = match alike.as_slice() {
        [only] if !experts => config(only),
        several => {
            let mut names = serde_json::Map::new();
            for alike in several {
                for weight in &alike.weights {
                    // A parameter that is not called `weight` is named itself.
                    let of = match weight.name.strip_suffix(".weight") {
                        Some(module) => module,
                        None => &weight.name,
                    };
                    names.insert(of.into(), config(alike));
                }
            }
            let data = json!({"fqn_to_config": names, "module_fqn_to_config": names});
            json!({"_type": "FqnToConfig", "_version": 1, "_data": data})
        }
    };
    Description {
        expert_dtype: None,
        quantization: None,
        quantization_config: Some(json!({
            "quant_method": "torchao",
            "quant_type": {"default": kind},
            "modules_to_not_convert": contents.left,
            "include_input_output_embeddings": false,
            "untie_embedding_weights": false,
        })),
        files: Vec::new(),
    }
}
