//! Operands of a GEMM from a checkpoint: one of its weights, and activations for it.

use std::path::PathBuf;

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, HalfType, Nvfp4, ScaleLayout};
use rayon::prelude::*;
use serde::Serialize;

use super::gemm::{AnyOperands, GemmActivations, GemmOperands, Halves};
use crate::oracle;
use crate::rng::SplitMix64;
use nvfp4::gemm::ActivationInput;
use nvfp4::gemm::{Fp8Matrix, GemmOptions, HalfMatrix, RowScaled};
use nvfp4::quantize::{QuantizeOptions, TensorScale, quantize_matrix, recipe_by_name};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_checkpoint::{Blocks, Checkpoint, Layout, Matrix, Model, matrix};
use nvfp4_checkpoint::{CheckpointError, Result};

/// The values of activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// Standard normal values.
    Normal {
        /// Rows.
        rows: usize,
        /// Seed of the generator.
        seed: u64,
    },
    /// A safetensors file: its tensor `x`, or its only tensor, `[M, K]` or `[K]`.
    File(PathBuf),
}

/// Operands, and what they were made from.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerOperands {
    /// The operands.
    pub operands: AnyOperands,
    /// The rest.
    pub context: Context,
}

/// The origin of operands.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Context {
    /// The weight.
    pub tensor: String,
    /// The layout in which it was stored, or `not quantised`.
    pub stored: &'static str,
    /// The name of the activations' source.
    pub vector: String,
    /// The activations before they were quantised or rounded, `[M, K]`.
    #[serde(skip)]
    input: Vec<f32>,
    /// The weight's values, `[N, K]`.
    #[serde(skip)]
    weight: Vec<f32>,
    #[serde(skip)]
    k: usize,
}

/// Reads a weight, as [`matrix`] does, and makes activations for it: in the weight's format by
/// TorchAO's recipe, or rounded to 16 bits.
///
/// # Errors
/// The errors of [`matrix`] and of reading a file of activations; [`Error::Shape`](nvfp4::Error::Shape) for activations
/// that do not fit.
pub fn read(
    model: &Model,
    tensor: &str,
    expert: Option<usize>,
    values: &Values,
    activations: ActivationInput,
) -> Result<LayerOperands> {
    let Matrix { name, blocks, values: weight, layout } = matrix(model, tensor, expert)?;
    let k = blocks.dims().cols();
    let (input, rows, vector) = input(values, &name, k)?;
    let dims = Dims::new(1, rows, k)?;
    let operands = match blocks {
        Blocks::Nvfp4(b) => {
            let a = match quantised(activations, Format::Nvfp4, dims, &input)? {
                Made::Halves(halves) => GemmActivations::Halves(halves),
                Made::Fp8(bytes) => GemmActivations::Fp8(bytes),
                Made::ToFp8(halves) => GemmActivations::ToFp8(halves),
                Made::Rows(rows) => GemmActivations::ScaledRows(rows),
                Made::Blocks(Blocks::Nvfp4(a)) => GemmActivations::Blocks(a),
                Made::Blocks(Blocks::Mxfp4(_)) => return Err(other_format(Format::Nvfp4)),
            };
            AnyOperands::Nvfp4(operands(a, b))
        }
        Blocks::Mxfp4(b) => {
            let a = match quantised(activations, Format::Mxfp4, dims, &input)? {
                Made::Halves(halves) => GemmActivations::Halves(halves),
                Made::Fp8(bytes) => GemmActivations::Fp8(bytes),
                Made::ToFp8(halves) => GemmActivations::ToFp8(halves),
                Made::Blocks(Blocks::Mxfp4(a)) => GemmActivations::Blocks(a),
                Made::Rows(_) | Made::Blocks(Blocks::Nvfp4(_)) => {
                    return Err(other_format(Format::Mxfp4));
                }
            };
            AnyOperands::Mxfp4(operands(a, b))
        }
    };
    let stored = layout.map_or("not quantised", Layout::name);
    Ok(LayerOperands {
        operands,
        context: Context { tensor: name, stored, vector, input, weight, k },
    })
}

fn other_format(required: Format) -> CheckpointError {
    CheckpointError::shape("format of the activations", required.name(), "another")
}

fn operands<F: BlockFormat>(a: GemmActivations<F>, b: BlockScaled<F>) -> GemmOperands<F> {
    GemmOperands { a, b, halves: Halves::None, options: GemmOptions::default() }
}

/// Activations of any kind.
enum Made {
    Blocks(Blocks),
    Rows(RowScaled<Nvfp4>),
    Halves(HalfMatrix),
    Fp8(Fp8Matrix),
    ToFp8(HalfMatrix),
}

fn quantised(
    activations: ActivationInput,
    format: Format,
    dims: Dims,
    input: &[f32],
) -> Result<Made> {
    const NAME: &str = "activations";
    match activations {
        ActivationInput::Fp4 => {
            let recipe = recipe_by_name(format, "torchao")?;
            let layout = ScaleLayout::Linear;
            let options = QuantizeOptions::new(recipe).scale(TensorScale::FromAmax).layout(layout);
            let matrix = quantize_matrix(NAME, input, dims, &options)?;
            Ok(Made::Blocks(matrix.into_blocks(NAME, dims)?))
        }
        ActivationInput::Fp4Rows => {
            let recipe = recipe_by_name(Format::Nvfp4, "torchao")?;
            let options = QuantizeOptions::new(recipe).scale(TensorScale::PerRow);
            let matrix = quantize_matrix(NAME, input, dims, &options)?;
            Ok(Made::Rows(RowScaled::of_matrix(NAME, matrix, dims)?))
        }
        ActivationInput::Halves(half) => {
            Ok(Made::Halves(HalfMatrix::round(NAME, dims, half, input)?))
        }
        ActivationInput::Fp8(None) => {
            let rounded = HalfMatrix::round(NAME, dims, HalfType::Bf16, input)?;
            Ok(Made::Fp8(Fp8Matrix::quantize(&rounded)?))
        }
        ActivationInput::Fp8(Some(half)) => {
            Ok(Made::ToFp8(HalfMatrix::round(NAME, dims, half, input)?))
        }
    }
}

/// Values, rows, and where they came from.
fn input(values: &Values, weight: &str, k: usize) -> Result<(Vec<f32>, usize, String)> {
    match values {
        Values::Normal { rows, seed } => {
            let mut rng = SplitMix64::new(*seed);
            let count = rows.checked_mul(k).ok_or_else(|| {
                CheckpointError::shape("rows", format!("representable times {k}"), rows)
            })?;
            let values = (0..count).map(|_| rng.normal() as f32).collect();
            Ok((values, *rows, format!("{rows} standard normal, seed {seed}")))
        }
        Values::File(path) => {
            let file = Checkpoint::open(path)?;
            let entries = file.entries();
            let name = match entries.as_slice() {
                [only] => only.name.clone(),
                _ => "x".into(),
            };
            let tensor = file.floats(&name)?;
            let rows = match *tensor.shape.as_slice() {
                [cols] if cols == k => 1,
                [rows, cols] if cols == k => rows,
                _ => {
                    let required = format!("[M, {k}] or [{k}], for the K of `{weight}`");
                    return Err(file.wrong_shape(&name, required, &tensor.shape));
                }
            };
            Ok((tensor.values, rows, format!("tensor `{name}` of {}", path.display())))
        }
    }
}

impl Context {
    /// The signal-to-noise ratio in dB of a result `[M, N]` against the f64 product of the
    /// activations before they were quantised with the weight's values.
    ///
    /// # Errors
    /// None in practice, because the sizes fit.
    pub fn product(&self, result: &[f32]) -> Result<f64> {
        let rows: Vec<Vec<f64>> = self
            .input
            .par_chunks_exact(self.k)
            .map(|vector| oracle::product(&self.weight, vector))
            .collect::<nvfp4::Result<_>>()?;
        Ok(oracle::sqnr_db(&rows.concat(), result))
    }
}
