//! The activations of a GEMM: block-scaled, 16-bit floats, or e4m3 with a scale for each token.

use std::borrow::Cow;

use fp4_formats::gemm::OUT_RECIPE;
use fp4_formats::quantize::Format;
use fp4_formats::quantize::tokens;
use fp4_formats::{BlockFormat, HalfType, ScaleLayout, e4m3};
use half::{bf16, f16};

use super::{ActivationKind, format_of};
use crate::error::{Error, Result, reserve};
use crate::quantize::{QuantizeOptions, QuantizedMatrix, Recipe, TensorScale, quantize_bytes};
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

    /// Values of row `row` of all rows of the batch.
    pub fn row(&self, row: usize) -> impl Iterator<Item = f64> + '_ {
        let cols = self.dims.cols();
        let (elements, _) = self.bytes[row * cols * 2..][..cols * 2].as_chunks();
        elements.iter().map(|&bytes| match self.operand {
            HalfType::F16 => f16::from_le_bytes(bytes).to_f64(),
            HalfType::Bf16 => bf16::from_le_bytes(bytes).to_f64(),
        })
    }
}

/// A batch of matrices of e4m3 in host memory, `[batch, rows, columns]`, row-major, with a scale for
/// each row.
#[derive(Clone, Debug, PartialEq)]
pub struct Fp8Matrix {
    name: String,
    dims: Dims,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Fp8Matrix {
    /// Checks the lengths of elements and scales, `[batch, rows]`.
    ///
    /// # Errors
    /// [`Error::Shape`] for others than `dims` says.
    pub fn new(
        name: impl Into<String>,
        dims: Dims,
        codes: Vec<u8>,
        scales: Vec<f32>,
    ) -> Result<Self> {
        let name = name.into();
        for (what, required, found) in [
            ("elements", dims.elements(), codes.len()),
            ("scales", dims.batch() * dims.rows(), scales.len()),
        ] {
            if required != found {
                return Err(Error::shape(
                    format!("{what} of `{name}`"),
                    required.to_string(),
                    found,
                ));
            }
        }
        Ok(Self { name, dims, codes, scales })
    }

    /// Quantises each row as the kernels do ([`tokens`]).
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn quantize(halves: &HalfMatrix) -> Result<Self> {
        let dims = halves.dims();
        let mut codes = reserve("matrix of e4m3", dims.elements())?;
        let mut scales = reserve("scales of tokens", dims.batch() * dims.rows())?;
        for row in 0..dims.batch() * dims.rows() {
            let values = || halves.row(row).map(|x| x as f32);
            // Bits of magnitudes are ordered as they are, and those of NaN are the largest.
            let amax = values().map(|x| x.abs().to_bits()).max().map_or(0.0, f32::from_bits);
            let factor = tokens::to_codes(amax);
            codes.extend(values().map(|x| e4m3::encode(x * factor)));
            scales.push(tokens::scale(amax));
        }
        Self::new(halves.name(), dims, codes, scales)
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

    /// Elements.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Scales of the rows of all matrices.
    #[must_use]
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The scales in little endian, as a device takes them.
    #[must_use]
    pub fn scale_bytes(&self) -> Vec<u8> {
        self.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect()
    }

    /// Values of row `row` of all rows of the batch, with its scale.
    pub fn row(&self, row: usize) -> impl Iterator<Item = f64> + '_ {
        let (cols, scale) = (self.dims.cols(), f64::from(self.scales[row]));
        let codes = &self.codes[row * cols..][..cols];
        codes.iter().map(move |&code| f64::from(e4m3::decode(code)) * scale)
    }
}

/// A batch of block-scaled matrices in host memory with a scale for each row, instead of one for the whole tensor: of NVFP4.
#[derive(Clone, Debug, PartialEq)]
pub struct RowScaled<F> {
    blocks: BlockScaled<F>,
    scales: Vec<f32>,
}

impl<F: BlockFormat> RowScaled<F> {
    /// Checks the number of scales, `[batch, rows]`. The tensor's own scale is a further factor.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number than the rows', and for MXFP4, which has none; [`Error::Scalar`] for a scale
    /// that is not finite.
    pub fn new(blocks: BlockScaled<F>, scales: Vec<f32>) -> Result<Self> {
        let (dims, name) = (blocks.dims(), blocks.name());
        let what = format!("scales of the rows of `{name}`");
        if let Format::Mxfp4 = format_of::<F>() {
            return Err(Error::shape(what, "absent, as mxfp4 has none", "there"));
        }
        let rows = dims.batch() * dims.rows();
        if scales.len() != rows {
            return Err(Error::shape(what, rows.to_string(), scales.len()));
        }
        if let Some(scale) = scales.iter().find(|scale| !scale.is_finite()) {
            let (required, actual) = ("finite", f64::from(*scale));
            return Err(Error::Scalar { field: what, required, actual });
        }
        Ok(Self { blocks, scales })
    }

    /// A matrix that was quantised with a [scale for each row](crate::quantize::TensorScale::PerRow), on a device or on
    /// the CPU, as a tensor of `dims`.
    ///
    /// # Errors
    /// The same as [`new`](Self::new) and [`BlockScaled::new`]; [`Error::Shape`] for another format, for one scale of the
    /// tensor, and for a batch of matrices with scales in 128x4 tiles.
    pub fn of_matrix(name: &str, matrix: QuantizedMatrix, dims: Dims) -> Result<Self> {
        let (format, layout) = (matrix.options.recipe.format(), matrix.options.layout);
        if format != format_of::<F>() {
            let field = format!("format of `{name}`");
            return Err(Error::shape(field, F::NAME, format.name()));
        }
        if layout == ScaleLayout::Blocked128x4 && dims.batch() > 1 {
            let field = format!("layout of the scales of `{name}`");
            return Err(Error::shape(field, "linear, for a batch", layout));
        }
        let scales = matrix.multipliers();
        let blocks = BlockScaled::new(name, dims, layout, matrix.codes, matrix.scales, 1.0)?;
        Self::new(blocks, scales)
    }

    /// Quantises each row as layers of experts do, by the recipe of results, with linear scales of blocks.
    ///
    /// # Errors
    /// [`Error::Shape`] for a K of other than whole blocks, and for MXFP4; [`Error::NonFinite`], [`Error::Memory`].
    pub fn quantize(halves: &HalfMatrix) -> Result<Self> {
        let options = QuantizeOptions::new(Recipe::Nvfp4(OUT_RECIPE)).scale(TensorScale::PerRow);
        let (name, dims, dtype) = (halves.name(), halves.dims(), halves.operand().float());
        let matrix = quantize_bytes(name, dtype, halves.bytes(), dims, &options)?;
        Self::of_matrix(name, matrix, dims)
    }

    /// Codes and scales of blocks.
    #[must_use]
    pub fn blocks(&self) -> &BlockScaled<F> {
        &self.blocks
    }

    /// Scales of the rows of all matrices.
    #[must_use]
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The rows' scales in little endian, as a device takes them.
    #[must_use]
    pub fn scale_bytes(&self) -> Vec<u8> {
        self.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect()
    }
}

/// The activations of a GEMM with weights in format `F`.
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a, F> {
    /// Activations in the weights' format (W4A4). Decoded exactly to 16-bit floats before the
    /// product.
    Blocks(&'a BlockScaled<F>),
    /// The same with a scale for each row.
    ScaledRows(&'a RowScaled<F>),
    /// 16-bit floats (W4A16).
    Halves(&'a HalfMatrix),
    /// e4m3 with a scale for each token (W4A8).
    Fp8(&'a Fp8Matrix),
    /// 16-bit floats that a kernel quantises to e4m3 before the product.
    ToFp8(&'a HalfMatrix),
}

impl<F: BlockFormat> Activations<'_, F> {
    /// Batch, tokens, columns.
    #[must_use]
    pub fn dims(&self) -> Dims {
        match self {
            Self::Blocks(blocks) => blocks.dims(),
            Self::ScaledRows(scaled) => scaled.blocks.dims(),
            Self::Halves(halves) | Self::ToFp8(halves) => halves.dims(),
            Self::Fp8(bytes) => bytes.dims(),
        }
    }

    /// The operand's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Blocks(blocks) => blocks.name(),
            Self::ScaledRows(scaled) => scaled.blocks.name(),
            Self::Halves(halves) | Self::ToFp8(halves) => halves.name(),
            Self::Fp8(bytes) => bytes.name(),
        }
    }

    /// Scale of the whole tensor.
    #[must_use]
    pub fn global_scale(&self) -> f32 {
        match self {
            Self::Blocks(blocks) => blocks.global_scale(),
            Self::ScaledRows(scaled) => scaled.blocks.global_scale(),
            Self::Halves(_) | Self::Fp8(_) | Self::ToFp8(_) => 1.0,
        }
    }

    /// Returns the kind, on which a plan depends.
    #[must_use]
    pub fn kind(&self) -> ActivationKind {
        match self {
            Self::Blocks(blocks) => {
                ActivationKind::Blocks { format: format_of::<F>(), layout: blocks.layout() }
            }
            Self::ScaledRows(scaled) => Activations::Blocks(&scaled.blocks).kind(),
            Self::Halves(halves) => ActivationKind::Halves(halves.operand()),
            Self::Fp8(_) => ActivationKind::Fp8(None),
            Self::ToFp8(halves) => ActivationKind::Fp8(Some(halves.operand())),
        }
    }
}

/// The activations of a GEMM, owned.
#[derive(Clone, Debug, PartialEq)]
pub enum GemmActivations<F> {
    /// Activations in the weights' format.
    Blocks(BlockScaled<F>),
    /// The same with a scale for each row.
    ScaledRows(RowScaled<F>),
    /// 16-bit floats.
    Halves(HalfMatrix),
    /// e4m3 with a scale for each token.
    Fp8(Fp8Matrix),
    /// 16-bit floats that become e4m3 before the product.
    ToFp8(HalfMatrix),
}

impl<F: BlockFormat> GemmActivations<F> {
    /// Returns the activations for a GEMM.
    #[must_use]
    pub fn activations(&self) -> Activations<'_, F> {
        match self {
            Self::Blocks(blocks) => Activations::Blocks(blocks),
            Self::ScaledRows(scaled) => Activations::ScaledRows(scaled),
            Self::Halves(halves) => Activations::Halves(halves),
            Self::Fp8(bytes) => Activations::Fp8(bytes),
            Self::ToFp8(halves) => Activations::ToFp8(halves),
        }
    }

    /// Codes and scales of blocks, or elements and their rows' scales or nothing.
    #[must_use]
    pub fn bytes(&self) -> [Cow<'_, [u8]>; 2] {
        match self {
            Self::Blocks(blocks) => [blocks.codes().into(), blocks.scales().into()],
            Self::ScaledRows(scaled) => {
                [scaled.blocks.codes().into(), scaled.blocks.scales().into()]
            }
            Self::Halves(halves) | Self::ToFp8(halves) => [halves.bytes().into(), [][..].into()],
            Self::Fp8(bytes) => [bytes.codes().into(), bytes.scale_bytes().into()],
        }
    }
}
