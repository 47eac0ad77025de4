//! Results in NVFP4 and MXFP4, and the largest magnitude of results, against the f64 oracle.
//!
//! Quantised results are known up to the bound `a` of an f32 result (see [`crate::oracle`]). Both
//! the scale of a block and, for a given scale, each code follow their argument monotonically: a
//! right scale lies between those of the least and the largest maximum that the block may have, and
//! a right element between the codes of `v - a` and `v + a`. Nothing is left for the quantisation
//! itself: this is as narrow as a check of the values alone can be.

use fp4_formats::gemm::{OUT_MX_RECIPE, OUT_RECIPE};
use fp4_formats::recipe::{Nvfp4Tensor, Software};
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4, e2m1};

use crate::oracle::{Mismatch, Reference, Verification};
use nvfp4::gemm::{GemmResult, Output};

/// A result that can be compared with the oracle.
pub trait Verify {
    /// Compares with the f64 oracle, within the bound of the plan's kernel: the result, and the largest
    /// magnitude, if there is one.
    #[must_use]
    fn verify(&self, reference: &Reference) -> Verification;
}

impl Verify for GemmResult {
    fn verify(&self, reference: &Reference) -> Verification {
        let reference = reference.clone().with_additions(self.plan.additions);
        let mut report = match self.output {
            Output::Floats(floats) => reference.verify(&self.values(), floats),
            Output::Nvfp4 { scale, .. } => {
                let tensor = Nvfp4Tensor::new(OUT_RECIPE, scale);
                let block = |amax| tensor.block::<Software>(amax).byte;
                blocks::<Nvfp4>(&reference, self, scale, block)
            }
            Output::Mxfp4 { .. } => {
                let block = |amax| OUT_MX_RECIPE.block(amax).byte;
                blocks::<Mxfp4>(&reference, self, 1.0, block)
            }
        };
        if let Some(found) = self.magnitude {
            magnitude(&reference, found, &mut report);
        }
        report
    }
}

/// An f32 that is at most `x`.
fn below(x: f64) -> f32 {
    (x as f32).next_down()
}

/// An f32 that is at least `x`.
fn above(x: f64) -> f32 {
    (x as f32).next_up()
}

/// `x`, over the multiplier that `operand` is the reciprocal of, to the nearest code and back.
fn nearest(x: f32, operand: f32, multiplier: f32) -> f64 {
    f64::from(e2m1::decode(e2m1::encode(x * operand)) * multiplier)
}

/// Factors of the elements of a block whose scale has this byte: before rounding, and back.
fn factors<F: BlockFormat>(scale: f32, byte: u8) -> [f32; 2] {
    let value = F::decode_scale(byte);
    [(1.0 / scale) / value, scale * value]
}

/// Compares a result in `F` block by block; see the module's head. `scale` is the factor of all values,
/// and `recipe` gives the scale of a block from its largest magnitude.
///
/// `overflowed` counts the elements beyond the largest magnitude, which are right at that.
fn blocks<F: BlockFormat>(
    reference: &Reference,
    result: &GemmResult,
    scale: f32,
    recipe: impl Fn(f32) -> u8,
) -> Verification {
    let got = result.values();
    let largest_scaled = f64::from(e2m1::MAX * F::MAX_SCALE) * f64::from(scale);
    let mut report = Verification {
        outputs: reference.values.len(),
        mismatches: reference.values.len().abs_diff(got.len()),
        first_mismatch: None,
        overflowed: 0,
        max_abs_error: 0.0,
        max_rel_error: 0.0,
        max_bound_fraction: 0.0,
        contest_criterion: reference.values.len() == got.len(),
    };
    let blocks = got.chunks_exact(F::BLOCK).zip(reference.values.chunks_exact(F::BLOCK));
    for (block, ((got, values), byte)) in blocks.zip(result.block_scales()).enumerate() {
        let allowed = |i| reference.allowed(block * F::BLOCK + i, FloatType::F32);
        let slack: Vec<f64> = (0..F::BLOCK).map(allowed).collect();
        let largest = |sign: f64| {
            values.iter().zip(&slack).fold(0f64, |amax, (v, a)| amax.max(v.abs() + sign * a))
        };
        let (least, most) = (below(largest(-1.0)).max(0.0), above(largest(1.0)));
        let right_scale = (recipe(least)..=recipe(most)).contains(&byte);
        let [operand, multiplier] = factors::<F>(scale, byte);
        // The reference's own quantised values.
        let amax = values.iter().fold(0f32, |amax, &x| amax.max((x as f32).abs()));
        let [near_operand, near_multiplier] = factors::<F>(scale, recipe(amax));
        for i in 0..F::BLOCK {
            let near = nearest(values[i] as f32, near_operand, near_multiplier);
            let (value, expected) = (f64::from(got[i]), values[i]);
            let low = nearest(below(expected - slack[i]), operand, multiplier);
            let high = nearest(above(expected + slack[i]), operand, multiplier);
            let allowed = (high - expected).abs().max((expected - low).abs());
            let error = (value - expected).abs();
            let contest = (value - near).abs() <= 1e-3 + 1e-3 * near.abs();
            report.contest_criterion &= contest;
            if value.is_finite() {
                report.max_abs_error = report.max_abs_error.max(error);
                report.max_bound_fraction = report.max_bound_fraction.max(error / allowed);
                if expected != 0.0 {
                    report.max_rel_error = report.max_rel_error.max(error / expected.abs());
                }
            }
            if right_scale && low <= value && value <= high {
                report.overflowed += usize::from(expected.abs() - slack[i] > largest_scaled);
                continue;
            }
            report.mismatches += 1;
            let index = block * F::BLOCK + i;
            report.first_mismatch.get_or_insert(Mismatch {
                batch: index / reference.rows,
                row: index % reference.rows,
                got: got[i],
                expected,
                allowed: if right_scale { allowed } else { 0.0 },
            });
        }
    }
    report
}

/// Compares the largest magnitude of the results with those that results within the bound may have; a
/// mismatch is one of the element that is largest in the reference.
fn magnitude(reference: &Reference, found: f32, report: &mut Verification) {
    let (mut least, mut most, mut largest) = (0f64, 0f64, 0);
    for (index, value) in reference.values.iter().enumerate() {
        let slack = reference.allowed(index, FloatType::F32);
        least = least.max(value.abs() - slack);
        most = most.max(value.abs() + slack);
        if value.abs() > reference.values[largest].abs() {
            largest = index;
        }
    }
    if (below(least).max(0.0)..=above(most)).contains(&found) {
        return;
    }
    let expected = reference.values.get(largest).map_or(0.0, |value| value.abs());
    report.mismatches += 1;
    report.first_mismatch.get_or_insert(Mismatch {
        batch: largest / reference.rows.max(1),
        row: largest % reference.rows.max(1),
        got: found,
        expected,
        allowed: most - expected,
    });
}
