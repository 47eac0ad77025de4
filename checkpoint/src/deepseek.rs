//! MXFP4 in the layout of DeepSeek V4's routed experts.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `m.weight` | I8, two codes each, the element of lower index in the low nibble | `[N, K/2]` |
//! | `m.scale` | F8_E8M0 | `[N, K/32]` |
//!
//! `expert_dtype` in `config.json` is `fp4`. The other layers are in FP8 with `m.scale` in F8_E8M0 for each 128 x 128
//! elements, which `quantization_config` describes, or floats, which it leaves out.

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use super::contents::{Contents, Description};
use super::decode::Encoded;
use super::model::Model;
use super::parts::{Content, Parts, Piece};
use super::weight::{WeightSpec, module};
use crate::error::Result;

/// `quant_method` of the configuration.
pub(super) const METHOD: &str = "fp8";

/// All matrices of bytes with E8M0 scales.
pub(super) fn find(model: &Model) -> Vec<Parts> {
    let is = |name: &str, dtype| model.optional(name).is_some_and(|raw| raw.dtype == dtype);
    let part = |name: &str| {
        let scales = format!("{}.scale", module(name));
        let fits = name.ends_with(".weight")
            && is(name, Dtype::I8)
            && model.kind(name).is_none()
            && is(&scales, Dtype::F8_E8M0);
        fits.then(|| Parts::matrix(name.into(), Format::Mxfp4, name.into(), scales))
    };
    model.names().filter_map(part).collect()
}

/// The tensors of a weight.
///
/// # Errors
/// The reason why it cannot be stored.
pub(super) fn pieces(weight: &WeightSpec) -> Result<Vec<Piece>, String> {
    if weight.shape.len() != 2 {
        return Err("it has several experts, and the layout has a matrix for each".into());
    }
    let codes = weight.with_last(&[weight.cols() / 2]);
    let scales = format!("{}.scale", weight.module());
    let content = Content::Scales(ScaleLayout::Linear);
    Ok(vec![
        Piece::new(weight.name.clone(), Dtype::I8, codes, Content::Codes),
        Piece::new(scales, Dtype::F8_E8M0, weight.scale_shape(), content),
    ])
}

/// The tensors of a layer in FP8 as this layout has it beside experts; `None` for a layer that is stored otherwise.
pub(super) fn fp8(model: &Model, name: &str) -> Result<Option<Vec<String>>> {
    let Some(encoded) = Encoded::of(model, name)? else { return Ok(None) };
    let scales = format!("{}.scale", module(name));
    let fits = encoded.scales_of_128() == Some(scales.as_str())
        && encoded.shape.len() == 2
        && model.raw(&scales)?.dtype == Dtype::F8_E8M0
        && model.raw(name)?.dtype == Dtype::F8_E4M3;
    Ok(fits.then_some(encoded.tensors))
}

/// The source's description of FP8, or DeepSeek's.
pub(super) fn stated(model: &Model) -> Option<Value> {
    model.quantization_config().filter(|config| config["quant_method"] == METHOD).cloned()
}

pub(super) fn describe(contents: &Contents) -> Description {
    let mut config = contents.extras.fp8.clone().unwrap_or_else(|| {
        json!({
            "quant_method": METHOD,
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        })
    });
    config["modules_to_not_convert"] = json!(contents.left);
    Description {
        quantization_config: Some(config),
        expert_dtype: Some("fp4".into()),
        ..Description::default()
    }
}
