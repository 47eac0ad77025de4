//! MLX's quantised layers (0.32, mlx-lm): `nvfp4` and `mxfp4`, without a tensor-level scale.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `m.weight` | U32, eight codes each, the first in the lowest bits | `[.., N, K/8]` |
//! | `m.scales` | U8: nvfp4 e4m3, mxfp4 ue8m0 | `[.., N, K/16]`, `[.., N, K/32]` |
//!
//! `quantization` in `config.json` has the mode, for all layers or for each. A layer is quantised if it has
//! `scales`; one in MLX's affine format has `biases`, too, and is none of these.

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde_json::json;

use super::contents::{Contents, Description};
use super::model::Model;
use super::parts::{Content, Parts, Piece};
use super::weight::{Order, WeightSpec, module};

/// Codes in a word.
const CODES: usize = 8;

/// The format of a layer, as the configuration says it, for itself or for all.
fn stated(model: &Model, module: &str) -> Option<Format> {
    let stated = &model.config()?["quantization"];
    let mode = [&stated[module]["mode"], &stated["mode"]].into_iter().find_map(|x| x.as_str())?;
    [Format::Nvfp4, Format::Mxfp4].into_iter().find(|format| format.name() == mode)
}

/// All weights with scales and without biases.
pub(super) fn find(model: &Model) -> Vec<Parts> {
    let part = |name: &str| {
        let of = name.strip_suffix(".weight")?;
        let codes = model.raw(name).ok().filter(|raw| raw.dtype == Dtype::U32)?;
        let scales = format!("{of}.scales");
        let raw = model.raw(&scales).ok().filter(|raw| raw.dtype == Dtype::U8)?;
        if model.contains(&format!("{of}.biases")) {
            return None;
        }
        let by_size = match (codes.shape.last(), raw.shape.last()) {
            (Some(words), Some(blocks)) if *words == 2 * blocks => Format::Nvfp4,
            _ => Format::Mxfp4,
        };
        Some(Parts {
            name: name.into(),
            format: stated(model, of).unwrap_or(by_size),
            codes: name.into(),
            scales,
            global: None,
            input: None,
            codes_in_blocks: false,
            swizzled: Some(false),
            original: None,
            order: Order::OutputFirst,
            transposed: false,
        })
    };
    model.names().filter_map(part).collect()
}

/// The tensors of a weight.
///
/// # Errors
/// The reason why it cannot be stored.
pub(super) fn pieces(weight: &WeightSpec) -> Result<Vec<Piece>, String> {
    if weight.global {
        return Err(
            "it has a tensor-level scale, for which there is no place; quantize writes NVFP4 with \
                    one level"
                .into(),
        );
    }
    let codes = weight.with_last(&[weight.cols() / CODES]);
    let scales = format!("{}.scales", module(&weight.name));
    let content = Content::Scales(ScaleLayout::Linear);
    Ok(vec![
        Piece::new(weight.name.clone(), Dtype::U32, codes, Content::Codes),
        Piece::new(scales, Dtype::U8, weight.scale_shape(), content),
    ])
}

/// `quantization`: the mode of all layers, or of each where they differ.
pub(super) fn describe(contents: &Contents) -> Description {
    let mode =
        |format: Format| json!({"group_size": format.block(), "bits": 4, "mode": format.name()});
    let groups = contents.alike();
    let mut stated = groups.first().map(|group| mode(group.format)).unwrap_or_default();
    for group in groups.iter().skip(1) {
        for module in group.modules() {
            stated[module] = mode(group.format);
        }
    }
    Description { quantization: Some(stated), ..Description::default() }
}
