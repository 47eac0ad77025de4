//! The f64 reference of a GEMM; see [`crate::oracle`] for what a kernel may differ by.
//!
//! A product of two operands has at most 17 significant bits and is exact in f64. Its sum
//! over K errs by far less than f32's rounding, which bounds a kernel's error.

use fp4_formats::{BlockFormat, e2m1, pack};
use rayon::prelude::*;

use super::check::check_operands;
use super::{Activations, GemmOptions, epilogue};
use crate::error::{Result, filled};
use crate::oracle::Reference;
use crate::tensor::BlockScaled;

/// Rows of weights that share a pass over the activations.
const ROWS: usize = 8;
/// Separate sums of a dot product, so that it can be vectorised.
const LANES: usize = 8;

/// The GEMM of [`super`]'s formula, `[L, M, N]`. Weights of one batch entry are shared.
///
/// # Errors
/// [`Error::Shape`] where operands or vectors do not fit each other, [`Error::Memory`].
pub fn reference<F: BlockFormat>(
    a: &Activations<'_, F>,
    b: &BlockScaled<F>,
    options: &GemmOptions,
) -> Result<Reference> {
    check_operands(a, b, options)?;
    let (da, db) = (a.dims(), b.dims());
    let (m, n, k) = (da.rows(), db.rows(), da.cols());
    let outputs = da.batch() * m * n;
    let mut values = filled("reference", outputs, 0f64)?;
    let mut magnitudes = filled("reference", outputs, 0f64)?;
    let scalar =
        f64::from(options.alpha) * f64::from(a.global_scale()) * f64::from(b.global_scale());
    for batch in 0..da.batch() {
        let tokens = decode_activations(a, batch)?;
        let shared = if db.batch() == 1 { 0 } else { batch };
        let groups: Vec<Vec<[f64; 2]>> = (0..n.div_ceil(ROWS))
            .into_par_iter()
            .map(|group| {
                let rows: Vec<Vec<f64>> = (group * ROWS..n.min((group + 1) * ROWS))
                    .map(|row| decode_row(b, shared, row))
                    .collect();
                tokens
                    .chunks_exact(k)
                    .flat_map(|token| rows.iter().map(|row| dot(token, row)))
                    .collect()
            })
            .collect();
        for (group, sums) in groups.iter().enumerate() {
            let rows = (n - group * ROWS).min(ROWS);
            for (index, sums) in sums.iter().enumerate() {
                let (row, column) = (index / rows, group * ROWS + index % rows);
                let at = (batch * m + row) * n + column;
                [values[at], magnitudes[at]] =
                    epilogue::reference(options, scalar, [row, column], *sums);
            }
        }
    }
    Ok(Reference { values, magnitudes, rows: n, additions: k })
}

/// Sum of the products, and of their magnitudes.
fn dot(x: &[f64], y: &[f64]) -> [f64; 2] {
    let (mut sums, mut magnitudes) = ([0f64; LANES], [0f64; LANES]);
    // K is a multiple of 16.
    let (x, _) = x.as_chunks::<LANES>();
    let (y, _) = y.as_chunks::<LANES>();
    for (x, y) in x.iter().zip(y) {
        for lane in 0..LANES {
            let product = x[lane] * y[lane];
            sums[lane] += product;
            magnitudes[lane] += product.abs();
        }
    }
    [sums.iter().sum(), magnitudes.iter().sum()]
}

/// Values of a row without the tensor's scale.
fn decode_row<F: BlockFormat>(x: &BlockScaled<F>, batch: usize, row: usize) -> Vec<f64> {
    let blocks = x.row_codes(batch, row).chunks_exact(F::BLOCK_BYTES).enumerate();
    let values = blocks.flat_map(|(kb, codes)| {
        let scale = f64::from(F::decode_scale(x.scale_byte(batch, row, kb)));
        codes.iter().flat_map(move |&byte| {
            let (low, high) = pack::unpair(byte);
            [low, high].map(|code| f64::from(e2m1::decode(code)) * scale)
        })
    });
    values.collect()
}

fn decode_activations<F: BlockFormat>(a: &Activations<'_, F>, batch: usize) -> Result<Vec<f64>> {
    let (m, k) = (a.dims().rows(), a.dims().cols());
    let mut values = filled("activations", m * k, 0f64)?;
    values.par_chunks_exact_mut(k).enumerate().for_each(|(row, out)| match a {
        Activations::Blocks(blocks) => out.copy_from_slice(&decode_row(blocks, batch, row)),
        Activations::Halves(halves) => {
            for (out, value) in out.iter_mut().zip(halves.row(batch * m + row)) {
                *out = value;
            }
        }
    });
    Ok(values)
}
