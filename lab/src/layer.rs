//! One linear layer of a checkpoint as a GEMV: quantises one vector of activations to NVFP4, and the
//! weight unless the checkpoint has it in NVFP4, multiplies them, and measures two errors.
//!
//! The error against the f64 oracle on the *quantised* data is the kernel's rounding, which has a
//! bound ([`oracle`]). The error against the f64 product of the data *before* is mostly that of
//! quantisation; it is reported as a signal-to-noise ratio.

use std::fmt;
use std::path::PathBuf;

use fp4_formats::ScaleLayout;
use serde::Serialize;

use crate::bench::Emulated;
use crate::oracle::{self, Verification};
use crate::rng::SplitMix64;
use nvfp4::device::{Choice, Kernels};
use nvfp4::gemv::{GemvOptions, GemvPlan, GemvResult, gemv};
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::Dims;
use nvfp4_checkpoint::{Checkpoint, Layout, Model, matrix};
use nvfp4_checkpoint::{CheckpointError, Result};

/// Default row of the embedding; the last row if there are fewer.
const DEFAULT_TOKEN: usize = 1000;

/// Seed of the standard normal values that are used if no embedding fits.
const DEFAULT_SEED: u64 = 1;

/// The source of the activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActivationSource {
    /// A row of the checkpoint's largest embedding of the layer's width, which is the input of the
    /// model's first layer. An embedding is a matrix with `embed` in its name. If none fits,
    /// [`Normal`](Self::Normal) with seed 1.
    Embedding {
        /// The row; by default row 1000, or the last row if there are fewer.
        token: Option<usize>,
    },
    /// Standard normal values.
    Normal {
        /// Seed of the generator.
        seed: u64,
    },
    /// A safetensors file: its tensor `x`, or its only tensor, with K values.
    File(PathBuf),
}

/// The report of one layer, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct LayerReport {
    /// The operation.
    pub op: &'static str,
    /// The file.
    pub checkpoint: String,
    /// The weight.
    pub tensor: String,
    /// The layout in which the weight was stored, or `not quantised`.
    pub stored: &'static str,
    /// The shape as a string.
    pub shape: String,
    /// The name of the activations' source.
    pub vector: String,
    /// Layout of the scales of both operands.
    pub layout: &'static str,
    /// Element type of the result.
    pub output: &'static str,
    /// The device, and why it was chosen.
    pub device: Choice,
    /// The plan.
    pub plan: GemvPlan,
    /// Whether every result is within its bound.
    pub verified: bool,
    /// Largest absolute error against the f64 oracle on the quantised data.
    pub max_error: f64,
    /// The whole comparison with that oracle.
    pub verification: Verification,
    /// Signal-to-quantisation-noise ratio against the f64 product of the data before, dB.
    pub sqnr_db: f64,
    /// The emulator's counters; none on a GPU.
    pub emulated: Option<Emulated>,
}

/// The weight of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight<'a> {
    /// The tensor, as [`matrix`] takes it.
    pub tensor: &'a str,
    /// The number of the matrix among several.
    pub expert: Option<usize>,
}

/// Runs a layer whose weight `[M, K]` is that of a checkpoint, see [`matrix`].
///
/// Activations are quantised by [`quantize`] with two-level scales. Scales of both are in `layout`.
///
/// # Errors
/// The errors of reading the checkpoint, of quantising (K is a multiple of 16) and of running;
/// [`Error::Shape`](nvfp4::Error::Shape) for a weight in MXFP4. A wrong result is not an error but part of the report.
pub fn run(
    kernels: &Kernels,
    model: &Model,
    weight: Weight<'_>,
    source: &ActivationSource,
    layout: ScaleLayout,
    options: GemvOptions,
) -> Result<(LayerReport, GemvResult)> {
    let found = matrix(model, weight.tensor, weight.expert)?;
    let (tensor, stored) = (found.name.clone(), found.layout);
    let (b, weight) = found.nvfp4("gemv")?;
    let b = if layout == ScaleLayout::Linear { b } else { b.to_layout(layout)? };
    let k = b.dims().cols();
    let (input, vector) = activations(model, &tensor, k, source)?;
    let scale = TensorScale::FromAmax;
    let a = quantize(&vector, &input, Dims::new(1, 1, k)?, scale, layout)?;
    let alpha = options.alpha;
    let (observed, reports) = kernels.observed();
    let result = gemv(&observed, &a, &b, options)?;

    let device = kernels.device();
    let values = result.values();
    let verification = oracle::gemv(&a, &b, alpha)?
        .with_additions(result.plan.additions)
        .verify(&values, result.output);
    let mut exact = oracle::product(&weight, &input)?;
    exact.iter_mut().for_each(|value| *value *= f64::from(alpha));
    let report = LayerReport {
        op: "gemv",
        checkpoint: model.path().display().to_string(),
        tensor,
        stored: stored.map_or("not quantised", Layout::name),
        shape: nvfp4::gemv::shape(&a, &b)?.to_string(),
        vector,
        layout: layout.name(),
        output: result.output.name(),
        device: device.choice().clone(),
        plan: result.plan.clone(),
        verified: verification.passed(),
        max_error: verification.max_abs_error,
        verification,
        sqnr_db: oracle::sqnr_db(&exact, &values),
        emulated: Emulated::of(device, &reports.take()),
    };
    Ok((report, result))
}

/// The activations, with a description of their source.
fn activations(
    model: &Model,
    weight: &str,
    k: usize,
    source: &ActivationSource,
) -> Result<(Vec<f32>, String)> {
    match source {
        ActivationSource::File(path) => {
            let other = Checkpoint::open(path)?;
            let entries = other.entries();
            let name = match entries.as_slice() {
                [only] => only.name.clone(),
                _ => "x".into(),
            };
            let values = other.floats(&name)?.values;
            let description = format!("tensor `{name}` of {}", path.display());
            if values.len() != k {
                let required = format!("{k}, the K of `{weight}`");
                return Err(CheckpointError::shape(
                    format!("length of {description}"),
                    required,
                    values.len(),
                ));
            }
            Ok((values, description))
        }
        ActivationSource::Normal { seed } => Ok(normal(k, *seed)),
        ActivationSource::Embedding { token } => match embedding(model, weight, k) {
            Some((name, rows)) => {
                let row = token.unwrap_or(DEFAULT_TOKEN.min(rows - 1));
                if row >= rows {
                    let required = format!("below {rows}, the rows of `{name}`");
                    return Err(CheckpointError::shape("token", required, row));
                }
                let (_, _, values) = model.file(&name)?.matrix(&name)?;
                let values = values.into_iter().skip(row * k).take(k).collect();
                Ok((values, format!("row {row} of `{name}`")))
            }
            None if token.is_some() => {
                let required = format!("absent: no embedding of width {k} is there");
                Err(CheckpointError::shape("token", required, "given"))
            }
            None => Ok(normal(k, DEFAULT_SEED)),
        },
    }
}

fn normal(k: usize, seed: u64) -> (Vec<f32>, String) {
    let mut rng = SplitMix64::new(seed);
    ((0..k).map(|_| rng.normal() as f32).collect(), format!("standard normal, seed {seed}"))
}

/// Name and number of rows of the embedding of width `k` with the most rows, `weight` excluded.
fn embedding(model: &Model, weight: &str, k: usize) -> Option<(String, usize)> {
    let fits = |dtype: &str| matches!(dtype, "F32" | "F16" | "BF16");
    model
        .entries()
        .into_iter()
        .filter(|entry| entry.name != weight && entry.name.contains("embed") && fits(&entry.dtype))
        .filter_map(|entry| match *entry.shape.as_slice() {
            [rows, cols] if cols == k && rows > 0 => Some((entry.name, rows)),
            _ => None,
        })
        .max_by_key(|(_, rows)| *rows)
}

impl fmt::Display for LayerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = &self.verification;
        writeln!(
            f,
            "{} ({}) as {}, {} scales, result {}",
            self.tensor, self.stored, self.shape, self.layout, self.output
        )?;
        writeln!(f, "  vector    {}", self.vector)?;
        writeln!(f, "  device    {}", self.device)?;
        writeln!(f, "  plan      {}", self.plan.to_string().replace('\n', "\n          "))?;
        writeln!(f, "  {}", v.summary())?;
        writeln!(
            f,
            "  SQNR      {:.2} dB against the f64 product of the data before",
            self.sqnr_db
        )?;
        if let Some(emulated) = &self.emulated {
            write!(f, "{emulated}")?;
        }
        Ok(())
    }
}
