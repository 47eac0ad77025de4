//! MLX's quantised layers (0.32, mlx-lm 0.32): `nvfp4` and `mxfp4`.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `m.weight` | U32, eight codes each, the first in the lowest bits | `[.., N, K/8]` |
//! | `m.scales` | U8: nvfp4 e4m3, mxfp4 ue8m0 | `[.., N, K/16]`, `[.., N, K/32]` |
//! | `m.global_scale` | F32 | `[E]`: the largest magnitude of each expert; stacked experts in nvfp4 only, and not written |
//!
//! Experts of a layer are one tensor `[E, ..]` for each projection in files, and a matrix each here: `stack`. A family
//! says in `families` where mlx-lm has them and what else differs.
//!
//! `quantization` in `config.json` has the mode, for all layers or for each. A layer is quantised if it has
//! `scales`; one in MLX's affine format has `biases`, too, and `mxfp8` has eight words for each scale. Neither is read.

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use super::contents::{Contents, Description};
use super::expert_names::whole;
use super::mlx_config::{layer, quantization};
use super::model::Model;
use super::parts::{Content, Parts, Piece, present};
use super::weight::{WeightSpec, module};

/// Codes in a word.
const CODES: usize = 8;

/// The mode of a layer, as the configuration says it, for itself or for all.
fn mode<'a>(model: &'a Model, module: &str) -> Option<&'a str> {
    let stated = quantization(model)?;
    [&layer(model, stated, module)["mode"], &stated["mode"]].into_iter().find_map(Value::as_str)
}

/// The format of a layer with words and scales of these shapes; `None` if it is not read.
fn format_of(mode: Option<&str>, words: &[usize], scales: &[usize]) -> Option<Format> {
    if let Some(mode) = mode {
        return [Format::Nvfp4, Format::Mxfp4].into_iter().find(|format| format.name() == mode);
    }
    match (words.last(), scales.last()) {
        (Some(words), Some(blocks)) if *words == 2 * blocks => Some(Format::Nvfp4),
        (Some(words), Some(blocks)) if *words == 8 * blocks => None,
        _ => Some(Format::Mxfp4),
    }
}

/// All weights with scales and without biases, those of which a tensor is missing or has another type included if
/// the configuration is MLX's.
pub(super) fn find(model: &Model) -> Vec<Parts> {
    let described = quantization(model).is_some();
    let raw = |name: &str, dtype| model.optional(name).filter(|raw| raw.dtype == dtype);
    let part = |tensor: &str| {
        let (of, is_weight) = match tensor.strip_suffix(".weight") {
            Some(of) => (of, true),
            None => (tensor.strip_suffix(".scales").filter(|_| described)?, false),
        };
        let (name, scales) = (format!("{of}.weight"), format!("{of}.scales"));
        let words = raw(&name, Dtype::U32);
        let bytes = raw(&scales, Dtype::U8);
        let is_layer = match is_weight {
            true => words.is_some() && (bytes.is_some() || described),
            // Found by its weight, if that is what it should be.
            false => bytes.is_some() && words.is_none(),
        };
        if !is_layer || model.contains(&format!("{of}.biases")) {
            return None;
        }
        let [words, bytes] = [words, bytes].map(|raw| raw.map(|raw| raw.shape).unwrap_or_default());
        let format = format_of(mode(model, of), &words, &bytes)?;
        let global = present(model, format!("{of}.global_scale"));
        let global = global.filter(|_| format == Format::Nvfp4);
        Some(Parts { global, ..Parts::matrix(name.clone(), format, name, scales) })
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
            let whole = whole(contents.extras.family.known(), module);
            let module = whole.map_or_else(|| module.to_owned(), |(whole, _)| whole);
            stated[module] = mode(group.format);
        }
    }
    Description { quantization: Some(stated), ..Description::default() }
}
