//! Quantises a layer, multiplies, and says how far the results are from the unquantised ones.

use std::fmt;

use fp4_formats::{FloatType, HalfType, ScaleLayout};
use nvfp4::device::Kernels;
use nvfp4::gemm::{Activations, GemmOptions, HalfMatrix, gemm};
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::Dims;
use nvfp4_checkpoint::Checkpoint;
use nvfp4_checkpoint::Result;
use nvfp4_lab::gemm::{Verify, reference};
use nvfp4_lab::oracle;

/// The layer that sees the embeddings as they are.
pub const LAYER: &str = "encoder.layer.0.attention.self.query";

/// The vocabulary's first token that takes part.
const FIRST_TOKEN: usize = 2000;
/// The model's addend of variances.
const EPSILON: f32 = 1e-12;

/// A result against that of the unquantised operands.
pub struct Compared {
    /// `W4A16` or `W4A4`.
    pub name: &'static str,
    /// The kernel.
    pub kernel: &'static str,
    /// Whether every result is within its bound of the f64 oracle on the quantised operands.
    pub verified: bool,
    /// Signal-to-quantisation-noise ratio, dB.
    pub sqnr_db: f64,
    /// The largest error over the largest magnitude of the exact result.
    pub relative_error: f64,
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kernel, sqnr_db, .. } = self;
        let percent = 100.0 * self.relative_error;
        write!(f, "{name:<6} SQNR {sqnr_db:.2} dB, largest error {percent:.2} % by {kernel}")
    }
}

/// Multiplies `tokens` embeddings with the layer's weight, and adds its bias.
pub fn compare(kernels: &Kernels, model: &Checkpoint, tokens: usize) -> Result<Vec<Compared>> {
    let (n, k, weight) = model.matrix(&format!("{LAYER}.weight"))?;
    let bias = model.floats(&format!("{LAYER}.bias"))?.values;
    let input = embed(model, tokens)?;
    let mut exact = Vec::with_capacity(tokens * n);
    for token in input.chunks_exact(k) {
        let product = oracle::product(&weight, token)?;
        exact.extend(product.iter().zip(&bias).map(|(sum, bias)| sum + f64::from(*bias)));
    }

    let (scale, layout) = (TensorScale::FromAmax, ScaleLayout::Linear);
    let b = quantize("weight", &weight, Dims::new(1, n, k)?, scale, layout)?;
    let dims = Dims::new(1, tokens, k)?;
    let halves = HalfMatrix::round("input", dims, HalfType::Bf16, &input)?;
    let blocks = quantize("input", &input, dims, scale, layout)?;
    let options = GemmOptions::new().output(FloatType::F32).bias(bias);
    let products =
        [("W4A16", Activations::Halves(&halves)), ("W4A4", Activations::Blocks(&blocks))];
    let compared = products.into_iter().map(|(name, a)| {
        let result = gemm(kernels, &a, &b, &options)?;
        let values = result.values();
        let reference = reference(&a, &b, &options)?;
        let errors = exact.iter().zip(&values).map(|(exact, got)| (f64::from(*got) - exact).abs());
        let largest = exact.iter().fold(0f64, |most, value| most.max(value.abs()));
        Ok(Compared {
            name,
            kernel: result.plan.kernel,
            verified: result.verify(&reference).passed(),
            sqnr_db: oracle::sqnr_db(&exact, &values),
            relative_error: errors.fold(0f64, f64::max) / largest,
        })
    });
    compared.collect()
}

/// Computes the input of the model's first layer for `tokens` words: the sum of the embeddings of
/// word, position and segment, normalised.
fn embed(model: &Checkpoint, tokens: usize) -> Result<Vec<f32>> {
    let (_, k, words) = model.matrix("embeddings.word_embeddings.weight")?;
    let (.., positions) = model.matrix("embeddings.position_embeddings.weight")?;
    let (.., segments) = model.matrix("embeddings.token_type_embeddings.weight")?;
    let gain = model.floats("embeddings.LayerNorm.weight")?.values;
    let shift = model.floats("embeddings.LayerNorm.bias")?.values;
    let rows = words.chunks_exact(k).skip(FIRST_TOKEN).zip(positions.chunks_exact(k));
    let mut input = Vec::with_capacity(tokens * k);
    for (word, position) in rows.take(tokens) {
        let sum: Vec<f32> =
            word.iter().zip(position).zip(&segments).map(|((w, p), s)| w + p + s).collect();
        let mean = sum.iter().sum::<f32>() / k as f32;
        let variance = sum.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / k as f32;
        let factor = (variance + EPSILON).sqrt().recip();
        let normal = sum.iter().zip(&gain).zip(&shift);
        input.extend(normal.map(|((x, gain), shift)| (x - mean) * factor * gain + shift));
    }
    Ok(input)
}
