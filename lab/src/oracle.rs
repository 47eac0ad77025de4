//! The f64 reference of the GEMV, and the tolerance of a kernel's result.
//!
//! # GEMV
//! `c[l, m] = alpha * ga * gb * sum_k a[l, k] * sa[l, k/16] * b[l, m, k] * sb[l, m, k/16]`, `a` the
//! activations and `b` the weights.
//!
//! Twice an e2m1 code is an integer, so the sum over a block is computed in integers. The rest is
//! computed in f64. The oracle's own error is below 2^-50 of the sum of magnitudes and is ignored.
//!
//! # Tolerance
//! The sum over a block is exact, and so is its product with two scales: 12 bits times 4 bits times
//! 4 bits fit f32. Roundings occur when the blocks are added in f32, when the scalar factor is
//! combined and applied (alpha, ga, gb: at most four roundings), and when the result is converted to
//! the output type. In any order of summation a term passes through at most as many additions as
//! there are blocks; a plan may state a smaller number, `additions`. To first order, an f32 rounding
//! has an error of at most eps/2 times a partial sum, and no partial sum exceeds `sum |terms|`. With
//! a factor of 2 for the higher orders,
//!
//! `|error| <= eps_f32 * (additions + 4) * sum |terms| + half_ulp(output)`
//!
//! plus the smallest normal f32, below which a GPU may flush to zero. If the exact value is beyond
//! the range of the output type, the infinity of the same sign is accepted.

use fp4_formats::{BlockFormat, FloatType, e2m1, pack};
use serde::Serialize;

use nvfp4::error::{Error, Result, filled};
use nvfp4::floats;
use nvfp4::gemv;
use nvfp4::tensor::BlockScaled;
pub use nvfp4_checkpoint::decibels;

/// The results of an operation in f64, and the quantities that bound a kernel's error.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// Result `[l, m]`, row-major.
    pub values: Vec<f64>,
    /// Sum of the magnitudes of the terms of each result.
    pub magnitudes: Vec<f64>,
    /// Results of one batch entry.
    pub rows: usize,
    /// Allowed length of the longest chain of dependent f32 additions behind a result: the number
    /// of blocks, which holds for any order of summation, or less after
    /// [`with_additions`](Self::with_additions).
    pub additions: usize,
}

/// Twice the values of the two elements of each byte.
const TWICE_PAIRS: [[i8; 2]; 256] = {
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (low, high) = pack::unpair(byte as u8);
        table[byte] = [e2m1::TWICE[low as usize], e2m1::TWICE[high as usize]];
        byte += 1;
    }
    table
};

/// The GEMV of the module's formula, of activations `a` and weights `b`.
///
/// # Errors
/// [`Error::Shape`] if the operands do not fit each other.
pub fn gemv<F: BlockFormat>(
    a: &BlockScaled<F>,
    b: &BlockScaled<F>,
    alpha: f32,
) -> Result<Reference> {
    gemv::shape(a, b)?;
    let dims = b.dims();
    let factor = f64::from(alpha) * f64::from(b.global_scale()) * f64::from(a.global_scale());
    let outputs = dims.batch() * dims.rows();
    let mut values = filled("reference", outputs, 0f64)?;
    let mut magnitudes = filled("reference", outputs, 0f64)?;
    for batch in 0..dims.batch() {
        let activations: Vec<[i32; 2]> = a
            .row_codes(batch, 0)
            .iter()
            .map(|&byte| TWICE_PAIRS[usize::from(byte)].map(i32::from))
            .collect();
        let scales: Vec<f64> = (0..a.kblocks())
            .map(|kb| f64::from(F::decode_scale(a.scale_byte(batch, 0, kb))) / 4.0)
            .collect();
        for row in 0..dims.rows() {
            let (mut value, mut magnitude) = (0f64, 0f64);
            let blocks = b.row_codes(batch, row).chunks_exact(F::BLOCK_BYTES);
            let pairs = blocks.zip(activations.chunks(F::BLOCK_BYTES));
            for (kb, (block, activations)) in pairs.enumerate() {
                let (mut sum, mut absolute) = (0i32, 0i32);
                for (&byte, x) in block.iter().zip(activations) {
                    let w = TWICE_PAIRS[usize::from(byte)];
                    let products = [i32::from(w[0]) * x[0], i32::from(w[1]) * x[1]];
                    sum += products[0] + products[1];
                    absolute += products[0].abs() + products[1].abs();
                }
                let scale = f64::from(F::decode_scale(b.scale_byte(batch, row, kb))) * scales[kb];
                value += f64::from(sum) * scale;
                magnitude += f64::from(absolute) * scale;
            }
            values[batch * dims.rows() + row] = value * factor;
            magnitudes[batch * dims.rows() + row] = magnitude * factor.abs();
        }
    }
    Ok(Reference { values, magnitudes, rows: dims.rows(), additions: b.kblocks() })
}

/// The product of an unquantised row-major matrix with a vector, summed in f64.
///
/// # Errors
/// [`Error::Shape`] if the lengths do not fit each other.
pub fn product(matrix: &[f32], vector: &[f32]) -> Result<Vec<f64>> {
    if vector.is_empty() || !matrix.len().is_multiple_of(vector.len()) {
        let required = format!("a divisor of the matrix's {} elements", matrix.len());
        return Err(Error::shape("length of the vector", required, vector.len()));
    }
    let dot =
        |row: &[f32]| row.iter().zip(vector).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    Ok(matrix.chunks_exact(vector.len()).map(dot).collect())
}

/// Signal-to-quantisation-noise ratio in dB: [`decibels`] of `sum ref^2` and `sum (ref - got)^2`.
/// Infinite for equal inputs; NaN where both sums are zero or a result is not finite.
#[must_use]
pub fn sqnr_db(reference: &[f64], got: &[f32]) -> f64 {
    let (mut signal, mut noise) = (0f64, 0f64);
    for (r, g) in reference.iter().zip(got) {
        signal += r * r;
        noise += (r - f64::from(*g)).powi(2);
    }
    decibels(signal, noise)
}

/// A result outside its bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mismatch {
    /// Batch entry.
    pub batch: usize,
    /// Row of that entry.
    pub row: usize,
    /// The kernel's result.
    pub got: f32,
    /// The oracle's result.
    pub expected: f64,
    /// The largest allowed error of this result.
    pub allowed: f64,
}

/// Comparison of a kernel's results with a [`Reference`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verification {
    /// Results compared.
    pub outputs: usize,
    /// Results outside their bound; a result that is missing counts.
    pub mismatches: usize,
    /// The first of them in row-major order.
    pub first_mismatch: Option<Mismatch>,
    /// Results that are correctly infinite; only their sign could be compared.
    pub overflowed: usize,
    /// Largest absolute error of finite results.
    pub max_abs_error: f64,
    /// Largest error relative to the expected value, over finite non-zero expected values.
    pub max_rel_error: f64,
    /// Largest error as a fraction of its bound.
    pub max_bound_fraction: f64,
    /// Whether the public contest's criterion holds: every error at most
    /// `1e-3 + 1e-3 * |expected|`, against the reference rounded to the output type.
    pub contest_criterion: bool,
}

impl Verification {
    /// Whether every result is within its bound.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.mismatches == 0
    }

    /// One line, with further lines for overflows and the first wrong result.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = format!(
            "{}  {} of {} results within bounds; largest error {:.3e} absolute, {:.3e} relative, \
             {:.1} % of its bound",
            if self.passed() { "verified" } else { "WRONG   " },
            self.outputs.saturating_sub(self.mismatches),
            self.outputs,
            self.max_abs_error,
            self.max_rel_error,
            100.0 * self.max_bound_fraction,
        );
        if self.overflowed > 0 {
            text += &format!("\n  note      {} results overflow their type", self.overflowed);
        }
        if let Some(Mismatch { batch, row, got, expected, allowed }) = self.first_mismatch {
            text += &format!(
                "\n  first     [{batch}, {row}] is {got:e}, expected {expected:e} within {allowed:.1e}"
            );
        }
        text
    }
}

impl Reference {
    /// The largest magnitude of the results, rounded to f32.
    #[must_use]
    pub fn largest(&self) -> f32 {
        self.values.iter().fold(0f64, |largest, value| largest.max(value.abs())) as f32
    }

    /// Tightens the bound to that of a kernel whose plan states `additions` as the length of its
    /// longest chain of dependent f32 additions.
    #[must_use]
    pub fn with_additions(mut self, additions: u32) -> Self {
        self.additions = self.additions.min(additions as usize);
        self
    }

    /// The largest error that a kernel may have at result `index`; see the module head.
    #[must_use]
    pub fn allowed(&self, index: usize, dtype: FloatType) -> f64 {
        let accumulation =
            f64::from(f32::EPSILON) * (self.additions + 4) as f64 * self.magnitudes[index];
        let largest = self.values[index].abs() + accumulation;
        accumulation + floats::half_ulp(dtype, largest) + f64::from(f32::MIN_POSITIVE)
    }

    /// Compares a kernel's results, converted from `dtype` to f32, with this reference. If the exact
    /// result of infinite or NaN operands is not finite, the kernel's must be the same infinity, or NaN.
    #[must_use]
    pub fn verify(&self, got: &[f32], dtype: FloatType) -> Verification {
        let mut report = Verification {
            outputs: self.values.len(),
            mismatches: self.values.len().abs_diff(got.len()),
            first_mismatch: None,
            overflowed: 0,
            max_abs_error: 0.0,
            max_rel_error: 0.0,
            max_bound_fraction: 0.0,
            contest_criterion: self.values.len() == got.len(),
        };
        let rounded = floats::decode(dtype, &floats::encode(dtype, self.values.iter().copied()));
        for (index, (&value, &expected)) in got.iter().zip(&self.values).enumerate() {
            let allowed = self.allowed(index, dtype);
            let near = f64::from(rounded[index]);
            let contest = (f64::from(value) - near).abs() <= 1e-3 + 1e-3 * near.abs();
            let same = f64::from(value) == near || value.is_nan() && near.is_nan();
            report.contest_criterion &= contest || same;
            let error = (f64::from(value) - expected).abs();
            if value.is_finite() {
                report.max_abs_error = report.max_abs_error.max(error);
                report.max_bound_fraction = report.max_bound_fraction.max(error / allowed);
                if expected != 0.0 {
                    report.max_rel_error = report.max_rel_error.max(error / expected.abs());
                }
            }
            let same_sign = value.is_sign_negative() == expected.is_sign_negative();
            let is_right = if expected.is_nan() {
                value.is_nan()
            } else if expected.is_infinite() {
                value.is_infinite() && same_sign
            } else if value.is_infinite() {
                // Beyond the range the rounding error is unbounded, so only the sign can be checked.
                expected.abs() + allowed >= floats::max(dtype) && same_sign
            } else {
                error <= allowed
            };
            if is_right {
                report.overflowed += usize::from(value.is_infinite());
            } else {
                report.mismatches += 1;
                report.first_mismatch.get_or_insert(Mismatch {
                    batch: index / self.rows,
                    row: index % self.rows,
                    got: value,
                    expected,
                    allowed,
                });
            }
        }
        report
    }
}
