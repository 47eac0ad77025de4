//! The activations of a product, as far as plans depend on them.

use std::fmt;
use std::str::FromStr;

use fp4_formats::quantize::Format;
use fp4_formats::{HalfType, Operand, ScaleLayout};

use crate::error::{Error, Result};

/// The kind of activations, without their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationKind {
    /// Blocks in a block-scaled format, scales in a layout.
    Blocks {
        /// The format.
        format: Format,
        /// Order of the scales.
        layout: ScaleLayout,
    },
    /// 16-bit floats.
    Halves(HalfType),
    /// e4m3 with a scale for each token, given or, with a type, made of floats of that type before
    /// the product. Weights are folded to e4m3, which rounds those of NVFP4
    /// ([`fold`](fp4_formats::gemm::fold)); sm_100a multiplies those of MXFP4 as they are. sm_80 folds no weights: it
    /// decodes the activations to bf16, exactly.
    Fp8(Option<HalfType>),
}

impl ActivationKind {
    /// The type in which the product takes them: block-scaled ones are decoded exactly. sm_80 takes bf16 for e4m3.
    #[must_use]
    pub fn operand(self) -> Operand {
        match self {
            Self::Blocks { format: Format::Nvfp4, .. } => Operand::F16,
            Self::Blocks { format: Format::Mxfp4, .. } => Operand::BF16,
            Self::Halves(operand) => Operand::Half(operand),
            Self::Fp8(_) => Operand::E4m3,
        }
    }

    /// The 16-bit floats in memory, where it is that.
    #[must_use]
    pub fn input(self) -> Option<HalfType> {
        match self {
            Self::Blocks { .. } | Self::Fp8(None) => None,
            Self::Halves(input) | Self::Fp8(Some(input)) => Some(input),
        }
    }

    /// Name in commands and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocks { format, .. } => format.name(),
            Self::Halves(operand) => operand.name(),
            Self::Fp8(None) => "fp8",
            Self::Fp8(Some(HalfType::F16)) => "fp8-from-f16",
            Self::Fp8(Some(HalfType::Bf16)) => "fp8-from-bf16",
        }
    }
}

/// Activations that are asked for by name, whatever the weights' format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActivationInput {
    /// The weights' format (W4A4).
    #[default]
    Fp4,
    /// NVFP4 with a scale for each row.
    Fp4Rows,
    /// 16-bit floats (W4A16).
    Halves(HalfType),
    /// e4m3 with a scale for each token (W4A8), given or made of floats before the product.
    Fp8(Option<HalfType>),
}

impl FromStr for ActivationInput {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "fp4" => Ok(Self::Fp4),
            "fp4-rows" => Ok(Self::Fp4Rows),
            "f16" => Ok(Self::Halves(HalfType::F16)),
            "bf16" => Ok(Self::Halves(HalfType::Bf16)),
            "fp8" => Ok(Self::Fp8(None)),
            "fp8-from-f16" => Ok(Self::Fp8(Some(HalfType::F16))),
            "fp8-from-bf16" => Ok(Self::Fp8(Some(HalfType::Bf16))),
            _ => {
                let required = "fp4, fp4-rows, f16, bf16, fp8, fp8-from-f16 or fp8-from-bf16";
                Err(Error::shape("activations", required, text))
            }
        }
    }
}

impl fmt::Display for ActivationInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fp4 => "fp4",
            Self::Fp4Rows => "fp4-rows",
            Self::Halves(operand) => operand.name(),
            Self::Fp8(from) => ActivationKind::Fp8(*from).name(),
        })
    }
}

impl ActivationInput {
    /// Returns the kind for weights in `format` and scales in `layout`.
    #[must_use]
    pub fn kind(self, format: Format, layout: ScaleLayout) -> ActivationKind {
        match self {
            Self::Fp4 | Self::Fp4Rows => ActivationKind::Blocks { format, layout },
            Self::Halves(operand) => ActivationKind::Halves(operand),
            Self::Fp8(from) => ActivationKind::Fp8(from),
        }
    }
}
