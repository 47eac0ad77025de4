//! MXFP4 in the layout of gpt-oss: OpenAI's own files and Hugging Face's.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `x.blocks`, or `x_blocks` | U8 | `[.., N, K/32, 16]` |
//! | `x.scales`, or `x_scales` | U8 | `[.., N, K/32]` |
//!
//! `x` is the tensor's name before quantisation (`block.0.mlp.mlp1_weight`). Names with a dot are
//! OpenAI's; names with an underscore, after `.._proj`, are Hugging Face's. The leading dimension
//! is that of the experts. Hugging Face stores the unquantised tensor transposed, `[E, K, N]`;
//! quantising changes it to the order of this table.

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Mxfp4, ScaleLayout};
use safetensors::tensor::Dtype;
use serde_json::json;

use super::contents::{Contents, Description};
use super::model::Model;
use super::orientation::EXPERTS;
use super::parts::{Content, Parts, Piece};
use super::weight::{Order, WeightSpec};

/// The separator between the name of a tensor and that of a piece.
fn joint(name: &str) -> char {
    if name.ends_with(EXPERTS) { '_' } else { '.' }
}

pub(super) fn find(model: &Model) -> Vec<Parts> {
    model
        .names()
        .filter_map(|codes| {
            let name = codes.strip_suffix("blocks")?;
            let (name, joint) = match (name.strip_suffix('.'), name.strip_suffix('_')) {
                (Some(name), _) => (name, '.'),
                (_, Some(name)) => (name, '_'),
                _ => return None,
            };
            let bytes = model.raw(codes).is_ok_and(|raw| raw.dtype == Dtype::U8);
            // transformers has the unquantised experts as `[experts, K, N]`.
            let order = match joint {
                '_' => Order::InputFirst,
                _ => Order::OutputFirst,
            };
            bytes.then(|| Parts {
                name: name.into(),
                format: Format::Mxfp4,
                codes: codes.into(),
                scales: format!("{name}{joint}scales"),
                global: None,
                input: None,
                codes_in_blocks: true,
                swizzled: Some(false),
                original: None,
                order,
                transposed: false,
            })
        })
        .collect()
}

pub(super) fn pieces(weight: &WeightSpec) -> Vec<Piece> {
    let (name, joint) = (&weight.name, joint(&weight.name));
    let codes = weight.with_last(&[weight.cols() / Mxfp4::BLOCK, Mxfp4::BLOCK_BYTES]);
    let scales = Content::Scales(ScaleLayout::Linear);
    vec![
        Piece::new(format!("{name}{joint}blocks"), Dtype::U8, codes, Content::Codes),
        Piece::new(format!("{name}{joint}scales"), Dtype::U8, weight.scale_shape(), scales),
    ]
}

pub(super) fn describe(contents: &Contents) -> Description {
    Description {
        quantization: None,
        expert_dtype: None,
        quantization_config: Some(json!({
            "quant_method": "mxfp4",
            "modules_to_not_convert": contents.left,
        })),
        files: Vec::new(),
    }
}
