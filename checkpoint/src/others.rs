//! Layers that are quantised in other formats than those of this crate: FP8, MXFP8, integers. They are named,
//! decoded where `decode` knows the format, and copied where the output can describe them.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::tensor::Dtype;
use serde::Serialize;

use super::error::CheckpointError;
use super::file::RawTensor;
use super::model::Model;
use super::parts::Parts;
use super::stated::Said;
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
    /// MXFP8: e4m3 with a power of two for each 32 of a row.
    Mxfp8,
    /// 8-bit integers.
    Int8,
    /// Integers packed into words or bytes.
    Packed,
    /// 4-bit codes with scales of blocks in F32, F16 or BF16.
    FloatScales,
    /// 4-bit codes with scales in e5m3: Quark's and AutoRound's.
    E5m3,
    /// FP-Quant's 4-bit codes of weights that were multiplied by a matrix, which the inputs are, too.
    FpQuant,
    /// Two e2m1 codes in an I8, with E8M0 scales: DeepSeek V4's experts.
    E2m1,
    /// gpt-oss's blocks beside weights of another layout.
    GptOss,
    /// MLX's integers with scales and biases.
    MlxIntegers,
    /// MLX's words with scales and without biases that are neither of this crate's formats, such as mxfp8.
    MlxOther,
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
            Self::Mxfp8 => "MXFP8",
            Self::Int8 => "8-bit integers",
            Self::Packed => "packed integers",
            Self::FloatScales => "packed 4-bit codes with float scales of blocks",
            Self::E5m3 => "4-bit codes with e5m3 scales",
            Self::FpQuant => "FP-Quant's codes of rotated weights",
            Self::E2m1 => "e2m1 in I8 with E8M0 scales (DeepSeek V4)",
            Self::GptOss => "MXFP4 in gpt-oss's blocks",
            Self::MlxIntegers => "MLX's integers with scales and biases",
            Self::MlxOther => "another format of MLX's",
        }
    }
}

/// A format of other layers that a configuration written here describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Described {
    /// FP8 with one scale for the weight and one for the input.
    Fp8,
    /// FP8 with a scale for each 128 x 128 elements.
    Fp8Blocks,
    /// MXFP8.
    Mxfp8,
}

impl OtherFormat {
    /// The description of layers in it; `None` if no configuration that is written here has one.
    pub(super) const fn described(self) -> Option<Described> {
        match self {
            Self::Fp8 => Some(Described::Fp8),
            Self::Fp8Blocks => Some(Described::Fp8Blocks),
            Self::Mxfp8 => Some(Described::Mxfp8),
            Self::Fp8Weight
            | Self::Fp8Rows
            | Self::Int8
            | Self::Packed
            | Self::FloatScales
            | Self::E5m3
            | Self::FpQuant
            | Self::E2m1
            | Self::GptOss
            | Self::MlxIntegers
            | Self::MlxOther => None,
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

/// The error for a checkpoint without a weight in a known layout, with the first in another format.
pub(super) fn nothing(model: &Model) -> CheckpointError {
    let known = "quantised weight in a known layout";
    let what = match find(model, &[]).first() {
        Some(other) => format!("{known}; `{}` is in {}", other.weight, other.format.name()),
        None => known.to_owned(),
    };
    CheckpointError::Nothing { path: model.path().into(), what }
}

/// All layers with a quantised weight that is none of `parts`, by module.
pub(super) fn find(model: &Model, parts: &[Parts]) -> Vec<OtherLayer> {
    let pieces: BTreeSet<&str> = parts.iter().flat_map(Parts::tensors).collect();
    let weight = |name: &&str| {
        let ending = [".weight", "weight_packed", "_proj", ".qweight", "_blocks", ".blocks"];
        !pieces.contains(name) && ending.iter().any(|ending| name.ends_with(ending))
    };
    let said = Said::of(model);
    let layer = |name: &str| {
        let raw = model.raw(name).ok().filter(|raw| raw.shape.len() >= 2)?;
        // Blocks of GGUF are read.
        if model.kind(name).is_some() {
            return None;
        }
        let of = module(name);
        let scale = model.optional(&format!("{of}.weight_scale"));
        let scales = scale.as_ref().map_or(0, |raw| raw.shape.iter().product::<usize>());
        let kind_of_scales = scale.as_ref().map(|raw| raw.dtype);
        let blocks = name.strip_suffix("blocks").map(|of| format!("{of}scales"));
        let format = match raw.dtype {
            Dtype::F8_E4M3 if scale.as_ref().is_some_and(|scale| is_mx(&raw.shape, scale)) => {
                OtherFormat::Mxfp8
            }
            Dtype::F8_E4M3 | Dtype::F8_E5M2 => match scales {
                1 if model.contains(&format!("{of}.input_scale")) => OtherFormat::Fp8,
                1 => OtherFormat::Fp8Weight,
                rows if raw.shape.first() == Some(&rows) => OtherFormat::Fp8Rows,
                _ => OtherFormat::Fp8Blocks,
            },
            _ if name.ends_with("blocks") => match raw.dtype {
                Dtype::U8 if blocks.is_some_and(|scales| model.contains(&scales)) => {
                    OtherFormat::GptOss
                }
                _ => return None,
            },
            Dtype::I8 => {
                let scale = model.optional(&format!("{of}.scale"));
                match scale.is_some_and(|raw| raw.dtype == Dtype::F8_E8M0) {
                    true => OtherFormat::E2m1,
                    false => OtherFormat::Int8,
                }
            }
            Dtype::U32 if model.contains(&format!("{of}.scales")) => {
                match model.contains(&format!("{of}.biases")) {
                    true => OtherFormat::MlxIntegers,
                    false => OtherFormat::MlxOther,
                }
            }
            Dtype::U8 if said.has_e5m3(of) => OtherFormat::E5m3,
            Dtype::U8 if model.contains(&format!("{of}.forward_hadamard_matrix")) => {
                OtherFormat::FpQuant
            }
            Dtype::U8 => match kind_of_scales {
                Some(Dtype::F32 | Dtype::F16 | Dtype::BF16) if scales > raw.shape[0] => {
                    OtherFormat::FloatScales
                }
                _ => OtherFormat::Packed,
            },
            Dtype::I32 => OtherFormat::Packed,
            _ => return None,
        };
        Some((of.to_owned(), OtherLayer { module: of.into(), format, weight: name.into() }))
    };
    let layers: BTreeMap<String, OtherLayer> =
        model.names().filter(weight).filter_map(layer).collect();
    layers.into_values().collect()
}

/// Whether scales are powers of two, one for each 32 elements of a row.
fn is_mx(codes: &[usize], scales: &RawTensor<'_>) -> bool {
    let Some((&cols, rows)) = codes.split_last() else { return false };
    let powers = matches!(scales.dtype, Dtype::U8 | Dtype::F8_E8M0);
    powers && cols.is_multiple_of(32) && scales.shape == [rows, &[cols / 32]].concat()
}
