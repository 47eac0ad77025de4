//! AMD Quark's export (amd-quark 0.13), which is read, and copied where nothing changes.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `m.weight` | U8 | `[N, K/2]` |
//! | `m.weight_scale` | nvfp4: F8_E4M3, mxfp4: U8 | `[N, K/16]`, `[N, K/32]` |
//! | `m.weight_scale_2` | F32 | `[]`: a multiplier; nvfp4 only |
//! | `m.input_scale_2` | F32 | `[]`: that of the input; nvfp4 with quantised inputs only |
//!
//! `quark_config` has the description in `config.json`.

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Format;

use super::model::Model;
use super::modelopt;
use super::parts::{Content, Parts, Piece, present};
use super::quark_config::Stated;
use super::weight::{WeightSpec, module};

/// ModelOpt's tensors under Quark's configuration, of the formats that it specifies, with Quark's name for the
/// scale of the input.
pub(super) fn find(model: &Model) -> Vec<Parts> {
    let Some(stated) = Stated::of(model) else { return Vec::new() };
    let part = |part: Parts| {
        let of = module(&part.name);
        // The scales of another format would be read as numbers that they are not.
        if stated.weight(of).is_some_and(|spec| spec.format().is_none()) {
            return None;
        }
        let input = present(model, format!("{of}.{}", input_name(part.format)));
        Some(Parts { input, swizzled: Some(false), ..part })
    };
    modelopt::find(model).into_iter().filter_map(part).collect()
}

/// The last part of the name of an input's scale: the second one where there are two levels.
const fn input_name(format: Format) -> &'static str {
    match format {
        Format::Nvfp4 => "input_scale_2",
        Format::Mxfp4 => "input_scale",
    }
}

/// The tensors of a weight.
///
/// # Errors
/// The reason why it cannot be stored.
pub(super) fn pieces(weight: &WeightSpec, scales: ScaleLayout) -> Result<Vec<Piece>, String> {
    let mut pieces = modelopt::pieces(weight, scales)?;
    for piece in pieces.iter_mut().filter(|piece| piece.content == Content::Input) {
        piece.spec.name = format!("{}.{}", weight.module(), input_name(weight.format));
    }
    Ok(pieces)
}
