//! Layers that are quantised in other formats than those of this crate: FP8, MXFP8, integers. They
//! are not read, but they are named, and copied where the output can describe them.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::tensor::Dtype;
use serde::Serialize;

use super::model::Model;
use super::parts::Parts;
use super::weight::module;

/// A format by which other layers are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OtherFormat {
    /// FP8 with one scale for the weight and one, from calibration, for the input.
    Fp8,
    /// FP8 with one scale for the weight; inputs are not quantised or at run time.
    Fp8Weight,
    /// FP8 with a scale for each row.
    Fp8Rows,
    /// FP8 with scales of blocks, or without any.
    Fp8Blocks,
    /// 8-bit integers.
    Int8,
    /// Integers packed into words or bytes.
    Packed,
}

impl OtherFormat {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp8 => "FP8",
            Self::Fp8Weight => "FP8 without scales of inputs",
            Self::Fp8Rows => "FP8 with a scale for each row",
            Self::Fp8Blocks => "FP8 with scales of blocks",
            Self::Int8 => "8-bit integers",
            Self::Packed => "packed integers",
        }
    }
}

/// A layer in another format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OtherLayer {
    /// The module.
    pub module: String,
    /// Its format.
    pub format: OtherFormat,
    /// The tensor with its codes.
    pub weight: String,
}

/// All layers with a quantised weight that is none of `parts`, by module.
pub(super) fn find(model: &Model, parts: &[Parts]) -> Vec<OtherLayer> {
    let pieces: BTreeSet<&str> = parts.iter().flat_map(Parts::tensors).collect();
    let weight = |name: &&str| {
        let ending = [".weight", "weight_packed", "_proj", ".qweight"];
        !pieces.contains(name) && ending.iter().any(|ending| name.ends_with(ending))
    };
    let layer = |name: &str| {
        let raw = model.raw(name).ok().filter(|raw| raw.shape.len() >= 2)?;
        // Blocks of GGUF are read.
        if model.kind(name).is_some() {
            return None;
        }
        let of = module(name);
        let scale = model.raw(&format!("{of}.weight_scale")).ok();
        let scales = scale.map_or(0, |raw| raw.shape.iter().product::<usize>());
        let format = match raw.dtype {
            Dtype::F8_E4M3 | Dtype::F8_E5M2 => match scales {
                1 if model.contains(&format!("{of}.input_scale")) => OtherFormat::Fp8,
                1 => OtherFormat::Fp8Weight,
                rows if raw.shape.first() == Some(&rows) => OtherFormat::Fp8Rows,
                _ => OtherFormat::Fp8Blocks,
            },
            Dtype::I8 => OtherFormat::Int8,
            Dtype::U8 | Dtype::I32 => OtherFormat::Packed,
            _ => return None,
        };
        Some((of.to_owned(), OtherLayer { module: of.into(), format, weight: name.into() }))
    };
    let layers: BTreeMap<String, OtherLayer> =
        model.names().filter(weight).filter_map(layer).collect();
    layers.into_values().collect()
}
