//! The activations of a GEMM: block-scaled, or 16-bit floats.

use std::fmt;
use std::str::FromStr;

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, HalfType, ScaleLayout};
use half::{bf16, f16};

use super::format_of;
use crate::error::{Error, Result, reserve};
use crate::tensor::{BlockScaled, Dims};

/// A batch of matrices of f16 or bf16 in host memory, `[batch, rows, columns]`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct HalfMatrix {
    name: String,
    dims: Dims,
    operand: HalfType,
    bytes: Vec<u8>,
}

impl HalfMatrix {
    /// Checks the length of little-endian elements.
    ///
    /// # Errors
    /// [`Error::Shape`] for another length than `dims` says.
    pub fn new(
        name: impl Into<String>,
        dims: Dims,
        operand: HalfType,
        bytes: Vec<u8>,
    ) -> Result<Self> {
        let name = name.into();
        let required = dims.elements().checked_mul(2);
        if required != Some(bytes.len()) {
            let field = format!("bytes of `{name}`");
            return Err(Error::shape(
                field,
                format!("2 x {} elements", dims.elements()),
                bytes.len(),
            ));
        }
        Ok(Self { name, dims, operand, bytes })
    }

    /// Rounds `values` to the nearest elements.
    ///
    /// # Errors
    /// [`Error::Shape`] for another length than `dims` says, [`Error::Memory`].
    pub fn round(
        name: impl Into<String>,
        dims: Dims,
        operand: HalfType,
        values: &[f32],
    ) -> Result<Self> {
        let mut bytes = reserve("16-bit matrix", values.len().saturating_mul(2))?;
        match operand {
            HalfType::F16 => {
                bytes.extend(values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()));
            }
            HalfType::Bf16 => {
                bytes.extend(values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()));
            }
        }
        Self::new(name, dims, operand, bytes)
    }

    /// The name given at construction.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Batch, rows, columns.
    #[must_use]
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// Type of the elements.
    #[must_use]
    pub fn operand(&self) -> HalfType {
        self.operand
    }

    /// Little-endian elements.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Row `row` of all rows of the batch.
    pub(super) fn row(&self, row: usize) -> impl Iterator<Item = f64> + '_ {
        let cols = self.dims.cols();
        let (elements, _) = self.bytes[row * cols * 2..][..cols * 2].as_chunks();
        elements.iter().map(|&bytes| match self.operand {
            HalfType::F16 => f16::from_le_bytes(bytes).to_f64(),
            HalfType::Bf16 => bf16::from_le_bytes(bytes).to_f64(),
        })
    }
}

/// The activations of a GEMM with weights in format `F`.
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a, F> {
    /// In the weights' format (W4A4). Decoded exactly to 16-bit floats before the product.
    Blocks(&'a BlockScaled<F>),
    /// 16-bit floats (W4A16).
    Halves(&'a HalfMatrix),
}

impl<F: BlockFormat> Activations<'_, F> {
    /// Batch, tokens, columns.
    #[must_use]
    pub fn dims(&self) -> Dims {
        match self {
            Self::Blocks(blocks) => blocks.dims(),
            Self::Halves(halves) => halves.dims(),
        }
    }

    /// The operand's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Blocks(blocks) => blocks.name(),
            Self::Halves(halves) => halves.name(),
        }
    }

    /// Scale of the whole tensor.
    #[must_use]
    pub fn global_scale(&self) -> f32 {
        match self {
            Self::Blocks(blocks) => blocks.global_scale(),
            Self::Halves(_) => 1.0,
        }
    }

    /// What a plan depends on.
    #[must_use]
    pub fn kind(&self) -> ActivationKind {
        match self {
            Self::Blocks(blocks) => {
                ActivationKind::Blocks { format: format_of::<F>(), layout: blocks.layout() }
            }
            Self::Halves(halves) => ActivationKind::Halves(halves.operand()),
        }
    }
}

/// The activations of a GEMM, owned.
#[derive(Clone, Debug, PartialEq)]
pub enum GemmActivations<F> {
    /// In the weights' format.
    Blocks(BlockScaled<F>),
    /// 16-bit floats.
    Halves(HalfMatrix),
}

impl<F: BlockFormat> GemmActivations<F> {
    /// As a GEMM takes it.
    #[must_use]
    pub fn activations(&self) -> Activations<'_, F> {
        match self {
            Self::Blocks(blocks) => Activations::Blocks(blocks),
            Self::Halves(halves) => Activations::Halves(halves),
        }
    }

    /// Codes and scales, or elements and nothing.
    #[must_use]
    pub fn bytes(&self) -> [&[u8]; 2] {
        match self {
            Self::Blocks(blocks) => [blocks.codes(), blocks.scales()],
            Self::Halves(halves) => [halves.bytes(), &[]],
        }
    }
}

/// What activations are, without their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationKind {
    /// In a block-scaled format, scales in a layout.
    Blocks {
        /// The format.
        format: Format,
        /// Order of the scales.
        layout: ScaleLayout,
    },
    /// 16-bit floats.
    Halves(HalfType),
}

impl ActivationKind {
    /// The type in which the product takes them: block-scaled ones are decoded exactly.
    #[must_use]
    pub fn operand(self) -> HalfType {
        match self {
            Self::Blocks { format: Format::Nvfp4, .. } => HalfType::F16,
            Self::Blocks { format: Format::Mxfp4, .. } => HalfType::Bf16,
            Self::Halves(operand) => operand,
        }
    }

    /// Name in commands and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocks { format, .. } => format.name(),
            Self::Halves(operand) => operand.name(),
        }
    }
}

/// What activations are asked for by name, whatever the weights' format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActivationInput {
    /// In the weights' format (W4A4).
    #[default]
    Fp4,
    /// 16-bit floats (W4A16).
    Halves(HalfType),
}

impl FromStr for ActivationInput {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "fp4" => Ok(Self::Fp4),
            "f16" => Ok(Self::Halves(HalfType::F16)),
            "bf16" => Ok(Self::Halves(HalfType::Bf16)),
            _ => Err(Error::shape("activations", "fp4, f16 or bf16", text)),
        }
    }
}

impl fmt::Display for ActivationInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fp4 => "fp4",
            Self::Halves(operand) => operand.name(),
        })
    }
}

impl ActivationInput {
    /// What a plan depends on, for weights in `format` and scales in `layout`.
    #[must_use]
    pub fn kind(self, format: Format, layout: ScaleLayout) -> ActivationKind {
        match self {
            Self::Fp4 => ActivationKind::Blocks { format, layout },
            Self::Halves(operand) => ActivationKind::Halves(operand),
        }
    }
}
