//! The noise that a quantised weight adds to products, with activations as they are, in FP8 and in
//! FP4.
//!
//! Measured are products `W x` of rows of the weight with vectors of standard normal activations,
//! from a seed: the ratio of the sum of squares of the original weight's products in f64 to that of
//! the differences. Real activations have outliers, so that FP8 and FP4 activations lose more on
//! them; the numbers compare weights, not models.
//!
//! - FP8: e4m3, a vector's scale is its largest magnitude over 448.
//! - FP4: the weight's format; NVFP4 by TorchAO's recipe with a scale per vector, MXFP4 by FLOOR.

use fp4_formats::quantize::Format;
use fp4_formats::{ScaleLayout, e4m3};
use rayon::prelude::*;
use serde::Serialize;

use super::measured::db;
use super::weight::Blocks;
use crate::error::Result;
use crate::rng::SplitMix64;
use nvfp4::quantize::{QuantizeOptions, TensorScale, quantize_matrix, recipe_by_name};
use nvfp4::tensor::Dims;

/// Vectors of activations.
const VECTORS: usize = 8;
/// Most rows of a weight that are multiplied, evenly spaced.
const ROWS: usize = 256;

/// Signal-to-noise ratios of a weight's products, dB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProductNoise {
    /// Only the weight is quantised (W4A16).
    pub weight_only_db: f64,
    /// Activations are in FP8 (W4A8).
    pub fp8_db: f64,
    /// Activations are in the weight's format (W4A4).
    pub fp4_db: f64,
}

impl ProductNoise {
    /// The smaller of each.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self {
            weight_only_db: self.weight_only_db.min(other.weight_only_db),
            fp8_db: self.fp8_db.min(other.fp8_db),
            fp4_db: self.fp4_db.min(other.fp4_db),
        }
    }
}

/// Measures a weight, of which `before` are the original values and `after` those of its blocks.
///
/// # Errors
/// The errors of quantising the activations.
pub(super) fn product_noise(
    blocks: &Blocks,
    before: &[f32],
    after: &[f32],
    seed: u64,
) -> Result<ProductNoise> {
    let k = blocks.dims().cols();
    let mut rng = SplitMix64::new(seed);
    let x: Vec<f32> = (0..VECTORS * k).map(|_| rng.normal() as f32).collect();
    let fp8: Vec<f32> = x.chunks_exact(k).flat_map(to_fp8).collect();
    let fp4 = to_fp4(blocks.format(), &x, k)?;

    let rows = before.len() / k;
    let chosen: Vec<usize> = (0..rows.min(ROWS)).map(|i| i * rows / rows.min(ROWS)).collect();
    // Signal, and noise of each kind.
    let sums: Vec<[f64; 4]> = chosen
        .par_iter()
        .map(|&row| {
            let (before, after) = (&before[row * k..][..k], &after[row * k..][..k]);
            let mut sums = [0f64; 4];
            for vector in 0..VECTORS {
                let part = |x: &[f32], row: &[f32]| dot(&x[vector * k..][..k], row);
                let exact = part(&x, before);
                sums[0] += exact * exact;
                for (sum, x) in sums[1..].iter_mut().zip([&x, &fp8, &fp4]) {
                    *sum += (part(x, after) - exact).powi(2);
                }
            }
            sums
        })
        .collect();
    let [signal, weight_only, fp8, fp4] =
        sums.iter().fold([0f64; 4], |sums, part| std::array::from_fn(|at| sums[at] + part[at]));
    Ok(ProductNoise {
        weight_only_db: db(signal, weight_only),
        fp8_db: db(signal, fp8),
        fp4_db: db(signal, fp4),
    })
}

fn dot(x: &[f32], y: &[f32]) -> f64 {
    // Several sums, because one addition need not wait for the last.
    const LANES: usize = 8;
    let mut sums = [0f64; LANES];
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in x.iter().zip(y) {
        for (sum, (x, y)) in sums.iter_mut().zip(x.iter().zip(y)) {
            *sum += f64::from(*x) * f64::from(*y);
        }
    }
    let rest = x_rest.iter().zip(y_rest).map(|(x, y)| f64::from(*x) * f64::from(*y));
    sums.into_iter().chain(rest).sum()
}

/// A vector as e4m3 holds it.
fn to_fp8(vector: &[f32]) -> Vec<f32> {
    let amax = vector.iter().fold(0f32, |max, x| max.max(x.abs()));
    let scale = if amax > 0.0 { amax / e4m3::MAX } else { 1.0 };
    vector.iter().map(|x| e4m3::decode(e4m3::encode(x / scale)) * scale).collect()
}

/// Vectors as the format holds them.
fn to_fp4(format: Format, x: &[f32], k: usize) -> Result<Vec<f32>> {
    let recipe = recipe_by_name(format, "torchao")?;
    let layout = ScaleLayout::Linear;
    let options = QuantizeOptions::new(recipe).scale(TensorScale::FromAmax).layout(layout);
    let dims = Dims::new(1, 1, k)?;
    let mut values = Vec::with_capacity(x.len());
    for vector in x.chunks_exact(k) {
        let matrix = quantize_matrix("activations", vector, dims, &options)?;
        values.extend(matrix.into_blocks("activations", dims)?.dequantize()?);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A weight that loses nothing leaves the noise of the activations: about 31 dB in e4m3, 20 dB
    /// in NVFP4 and 18 dB in MXFP4.
    #[test]
    fn activations_alone() {
        let (rows, k) = (300, 512);
        let mut rng = SplitMix64::new(5);
        let before: Vec<f32> =
            (0..rows * k).map(|_| [0.5, 1.0, -1.5, 6.0][rng.below(4) as usize]).collect();
        let dims = Dims::new(1, rows, k).expect("sizes above zero");
        for (format, fp4) in [(Format::Nvfp4, 20.5), (Format::Mxfp4, 18.0)] {
            let recipe = recipe_by_name(format, "torchao").expect("known");
            let mut options = QuantizeOptions::new(recipe);
            options.scale = TensorScale::OneLevel;
            let matrix = quantize_matrix("x", &before, dims, &options).expect("finite");
            let blocks = matrix.into_blocks("x", dims).expect("one scale");
            let after = blocks.dequantize().expect("memory");
            let noise = product_noise(&blocks, &before, &after, 1).expect("measured");
            assert_eq!(noise.weight_only_db, 200.0, "{noise:?}");
            assert!((noise.fp8_db - 31.5).abs() < 1.5, "{noise:?}");
            assert!((noise.fp4_db - fp4).abs() < 1.5, "{noise:?}");
            let again = product_noise(&blocks, &before, &after, 1).expect("measured");
            assert_eq!(noise, again);
        }
    }
}
