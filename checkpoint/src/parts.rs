//! The names of the layouts, and the tensors that make a quantised weight in them.

use std::fmt;
use std::str::FromStr;

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde::Serialize;

use super::error::CheckpointError;
use super::model::Model;
use super::weight::{Convention, Order, module};
use super::write::TensorSpec;

/// A project's layout of quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// NVIDIA ModelOpt's unified export.
    #[serde(rename = "modelopt")]
    ModelOpt,
    /// compressed-tensors, `nvfp4-pack-quantized` and `mxfp4-pack-quantized`.
    CompressedTensors,
    /// TorchAO's flattened tensor subclasses.
    #[serde(rename = "torchao")]
    TorchAo,
    /// OpenAI's gpt-oss, also as Hugging Face stores it.
    GptOss,
    /// GGUF, ggml's file format.
    Gguf,
    /// MLX's `nvfp4` and `mxfp4`.
    Mlx,
    /// DeepSeek V4's routed experts.
    #[serde(rename = "deepseek")]
    DeepSeek,
    /// AMD Quark's export; read, and copied where nothing changes.
    Quark,
    /// AutoRound's own export; read, and copied where nothing changes.
    AutoRound,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Self; 9] = [
        Self::ModelOpt,
        Self::CompressedTensors,
        Self::TorchAo,
        Self::GptOss,
        Self::Gguf,
        Self::Mlx,
        Self::DeepSeek,
        Self::Quark,
        Self::AutoRound,
    ];

    /// The name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ModelOpt => "modelopt",
            Self::CompressedTensors => "compressed-tensors",
            Self::TorchAo => "torchao",
            Self::GptOss => "gpt-oss",
            Self::Gguf => "gguf",
            Self::Mlx => "mlx",
            Self::DeepSeek => "deepseek",
            Self::Quark => "quark",
            Self::AutoRound => "auto-round",
        }
    }

    /// Whether weights of this format can be stored.
    #[must_use]
    pub const fn supports(self, format: Format) -> bool {
        match self {
            Self::GptOss | Self::DeepSeek => matches!(format, Format::Mxfp4),
            Self::ModelOpt
            | Self::CompressedTensors
            | Self::TorchAo
            | Self::Gguf
            | Self::Mlx
            | Self::Quark
            | Self::AutoRound => true,
        }
    }

    /// Whether it is written with a configuration of its own. The others are copied with that of the input.
    #[must_use]
    pub const fn is_written(self) -> bool {
        match self {
            Self::ModelOpt
            | Self::CompressedTensors
            | Self::TorchAo
            | Self::GptOss
            | Self::Gguf
            | Self::Mlx
            | Self::DeepSeek => true,
            Self::Quark | Self::AutoRound => false,
        }
    }

    /// Whether its readers join weights such as q, k and v, which must then have one tensor-level
    /// scale. Readers of TorchAO's tensors and of GGUF keep them apart, and gpt-oss's, MLX's and DeepSeek's have no such
    /// scale.
    #[must_use]
    pub const fn joins_weights(self) -> bool {
        match self {
            Self::ModelOpt | Self::CompressedTensors | Self::Quark | Self::AutoRound => true,
            Self::TorchAo | Self::GptOss | Self::Gguf | Self::Mlx | Self::DeepSeek => false,
        }
    }

    /// Whether its readers take embeddings in blocks. The others look them up in floats.
    #[must_use]
    pub const fn quantizes_embeddings(self) -> bool {
        match self {
            Self::Gguf | Self::Mlx => true,
            Self::ModelOpt
            | Self::CompressedTensors
            | Self::TorchAo
            | Self::GptOss
            | Self::DeepSeek
            | Self::Quark
            | Self::AutoRound => false,
        }
    }

    /// The convention of its tensor-level scales.
    #[must_use]
    pub const fn convention(self) -> Convention {
        match self {
            Self::CompressedTensors | Self::AutoRound => Convention::Divisor,
            Self::Mlx => Convention::Largest,
            Self::ModelOpt
            | Self::TorchAo
            | Self::GptOss
            | Self::Gguf
            | Self::DeepSeek
            | Self::Quark => Convention::Multiplier,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = CheckpointError;

    fn from_str(text: &str) -> Result<Self, CheckpointError> {
        Self::ALL.into_iter().find(|layout| layout.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            CheckpointError::shape("layout", format!("one of {names}"), format!("`{text}`"))
        })
    }
}

/// The tensors of a quantised weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Name of the tensor before it was quantised.
    pub name: String,
    /// Its format.
    pub format: Format,
    /// Tensor of packed codes.
    pub codes: String,
    /// Tensor of block scales; that of the codes in GGUF.
    pub scales: String,
    /// Tensor of the tensor-level scale, if there is one.
    pub global: Option<String>,
    /// Tensor of the scale of the layer's input, if there is one.
    pub input: Option<String>,
    /// Whether codes are `[.., K/32, 16]` instead of `[.., K/2]`.
    pub codes_in_blocks: bool,
    /// Whether scales are in 128x4 tiles; if absent, their shape decides.
    pub swizzled: Option<bool>,
    /// Element type before it was quantised, if the file states it.
    pub original: Option<Dtype>,
    /// The order of its last two dimensions.
    pub order: Order,
    /// Whether codes and scales are stored with K before N: `[experts, K/2, N]`.
    pub transposed: bool,
}

impl Parts {
    /// A matrix `[N, K]` whose codes and scales are linear and that has no other tensors.
    pub(super) const fn matrix(
        name: String,
        format: Format,
        codes: String,
        scales: String,
    ) -> Self {
        Self {
            name,
            format,
            codes,
            scales,
            global: None,
            input: None,
            codes_in_blocks: false,
            swizzled: Some(false),
            original: None,
            order: Order::OutputFirst,
            transposed: false,
        }
    }

    /// Names of the tensors that hold it, missing ones included.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        let scales = Some(&self.scales).filter(|&scales| *scales != self.codes);
        [Some(&self.codes), scales, self.global.as_ref(), self.input.as_ref()]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }
}

/// The content of a tensor of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Packed codes.
    Codes,
    /// Block scales.
    Scales(ScaleLayout),
    /// The tensor-level scale; 1 if the weight has none.
    Global,
    /// The scale of the layer's input.
    Input,
    /// Blocks of GGUF: codes and scales.
    Blocks(Format),
}

/// A tensor that a layout stores for a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Name, type and shape.
    pub spec: TensorSpec,
    /// Its content.
    pub content: Content,
    /// Whether it is stored with K before N.
    pub transposed: bool,
}

impl Piece {
    pub(super) fn new(name: String, dtype: Dtype, shape: Vec<usize>, content: Content) -> Self {
        Self { spec: TensorSpec { name, dtype, shape }, content, transposed: false }
    }
}

/// `name` if the checkpoint has such a tensor.
pub(super) fn present(model: &Model, name: String) -> Option<String> {
    model.contains(&name).then_some(name)
}

/// The format of a tensor of scales, from its type; `None` if the type does not determine it.
pub(super) fn format_of_scales(model: &Model, scales: &str) -> Option<Format> {
    match model.raw(scales).ok()?.dtype {
        Dtype::F8_E4M3 => Some(Format::Nvfp4),
        Dtype::F8_E8M0 => Some(Format::Mxfp4),
        _ => None,
    }
}

/// Modules with a float matrix that is not one of the weights `parts`; configurations exclude them.
pub(super) fn modules_left<'a>(
    tensors: impl Iterator<Item = (&'a str, Dtype, &'a [usize])>,
) -> Vec<String> {
    let mut left: Vec<String> = tensors
        .filter(|(name, dtype, shape)| {
            let float = matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
            float && shape.len() == 2 && name.ends_with(".weight")
        })
        .map(|(name, ..)| module(name).to_owned())
        .collect();
    left.sort();
    left.dedup();
    left
}

/// Modules with experts in one tensor of floats.
pub(super) fn experts_left<'a>(
    tensors: impl Iterator<Item = (&'a str, Dtype, &'a [usize])>,
) -> Vec<String> {
    let mut left: Vec<String> = tensors
        .filter(|(name, dtype, shape)| {
            let float = matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
            float && shape.len() == 3 && module(name).ends_with("experts")
        })
        .map(|(name, ..)| module(name).to_owned())
        .collect();
    left.sort();
    left.dedup();
    left
}
