//! The oracle of operations on rows: their values in f64, and the comparison of results that are approximate by contract.

use fp4_formats::rows::arithmetic::CHUNK;
use fp4_formats::{BlockFormat, HalfType, Mxfp4, Nvfp4, e2m1, e4m3, ue8m0};
use nvfp4::error::Result;
use nvfp4::floats;
use nvfp4::quantize::{Format, QuantizedMatrix};
use nvfp4::rows::{Made, Operands, RowsOptions, Source, values};

/// The error of a value, in parts of it: that of the approximations in gated activations.
const OWN: f64 = 1.0 / (1 << 16) as f64;
/// The error of a rotated value, in parts of the largest of its sixteen.
const ROTATED: f64 = 1.0 / (1 << 18) as f64;

/// The values in f64, `[rows, cols]`: written anew from their definitions. The sum with a residual is rounded, as it is part
/// of the definition.
///
/// # Errors
/// The errors of [`nvfp4::rows::reference()`].
pub fn exact(
    rows: usize,
    cols: usize,
    element: HalfType,
    options: &RowsOptions,
    operands: &Operands<'_, [u8]>,
) -> Result<Vec<f64>> {
    // Checks the operands, and makes the sums with the residual.
    let (_, sums) = values(rows, cols, element, options, operands)?;
    let of = |bytes: &[u8]| -> Vec<f64> {
        floats::decode(element.float(), bytes).into_iter().map(f64::from).collect()
    };
    let from = |row: usize| match (operands.index, options.gather) {
        (Some(index), Some(gather)) => {
            let at = index[row * 4..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            (at != u32::MAX).then(|| (at / gather.divisor) as usize)
        }
        _ => Some(row),
    };
    let row_of = |matrix: &[u8], row: usize| match from(row) {
        Some(row) => of(&matrix[row * cols * 2..(row + 1) * cols * 2]),
        None => vec![0.0; cols],
    };
    let [weight, bias] = [operands.weight, operands.bias].map(|bytes| bytes.map(of));
    let mut all = Vec::with_capacity(rows * cols);
    for row in 0..rows {
        let mut x = match &sums {
            Some(sums) => of(&sums[row * cols * 2..(row + 1) * cols * 2]),
            None => row_of(operands.input, row),
        };
        let mut mean = 0.0;
        let mut epsilon = None;
        match options.source {
            Source::Plain => {}
            Source::RmsNorm { epsilon: of, .. } => epsilon = Some(f64::from(of)),
            Source::LayerNorm { epsilon: of, .. } => {
                mean = x.iter().sum::<f64>() / cols as f64;
                epsilon = Some(f64::from(of));
            }
            Source::Gated(activation) => {
                let up = operands.up.map_or_else(Vec::new, |up| row_of(up, row));
                for (gate, up) in x.iter_mut().zip(up) {
                    *gate = crate::gemm::exactly_gated(activation, *gate, up);
                }
            }
        }
        if let Some(epsilon) = epsilon {
            let squares: f64 = x.iter().map(|x| (x - mean) * (x - mean)).sum();
            let factor = 1.0 / (squares / cols as f64 + epsilon).sqrt();
            for (at, x) in x.iter_mut().enumerate() {
                let weight = weight.as_ref().map_or(1.0, |weight| weight[at]);
                *x = (*x - mean) * factor * weight + bias.as_ref().map_or(0.0, |bias| bias[at]);
            }
        }
        if let Some(rotation) = options.rotation {
            for x in x.chunks_exact_mut(CHUNK) {
                let old = x.to_vec();
                for (j, x) in x.iter_mut().enumerate() {
                    let signed = |i: usize| {
                        let negative =
                            (i & j).count_ones() % 2 + u32::from(rotation.signs >> i & 1);
                        if negative % 2 == 1 { -old[i] } else { old[i] }
                    };
                    *x = (0..CHUNK).map(signed).sum::<f64>() / 4.0;
                }
            }
        }
        all.extend(x);
    }
    Ok(all)
}

/// Says where a result is farther from the exact values than rounding and approximations allow, or where a scale is more
/// than a code from the reference's.
#[must_use]
pub fn first_wrong(
    found: &Made,
    reference: &Made,
    exact: &[f64],
    element: HalfType,
) -> Option<String> {
    let allowed = |at: usize| {
        let group = &exact[at / CHUNK * CHUNK..][..CHUNK];
        let largest = group.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
        exact[at].abs() * OWN + largest * ROTATED
    };
    match (found, reference) {
        (Made::Blocks(found), Made::Blocks(reference)) => blocks(found, reference, exact, allowed),
        (Made::E4m3 { codes, scales }, Made::E4m3 { scales: expected, .. }) => {
            let wrong = scales.iter().zip(expected).position(|(x, y)| !near(*x, *y));
            if let Some(row) = wrong {
                return Some(format!("scale {row} is {}, expected {}", scales[row], expected[row]));
            }
            let cols = codes.len() / scales.len();
            (0..codes.len()).find_map(|at| {
                let scale = f64::from(scales[at / cols]);
                let value = f64::from(e4m3::decode(codes[at])) * scale;
                // Half a unit of three bits behind the first, or half the smallest subnormal.
                let half = (exact[at].abs() / 16.0).max(scale / 1024.0);
                let is_near = (value - exact[at]).abs() <= half + 2.0 * allowed(at);
                (!is_near).then(|| format!("element {at} is {value}, exactly {}", exact[at]))
            })
        }
        (Made::Half(found), Made::Half(_)) => {
            let found = floats::decode(element.float(), found);
            (0..found.len()).find_map(|at| {
                let half = floats::half_ulp(element.float(), exact[at].abs());
                let value = f64::from(found[at]);
                let largest = floats::max(element.float());
                let is_near = (value - exact[at]).abs() <= half * 1.01 + allowed(at)
                    || exact[at].abs() >= largest && value.abs() >= largest;
                (!is_near).then(|| format!("element {at} is {value}, exactly {}", exact[at]))
            })
        }
        (Made::Blocks(_) | Made::E4m3 { .. } | Made::Half(_), _) => {
            Some("results of another kind".into())
        }
    }
}

/// Whether two numbers that are made of a largest magnitude differ no more than that may.
fn near(found: f32, expected: f32) -> bool {
    let (found, expected) = (f64::from(found), f64::from(expected));
    found == expected || (found - expected).abs() <= expected.abs() * 4.0 * OWN
}

fn blocks(
    found: &QuantizedMatrix,
    reference: &QuantizedMatrix,
    exact: &[f64],
    allowed: impl Fn(usize) -> f64,
) -> Option<String> {
    let QuantizedMatrix { options, rows: _, cols, codes, scales, parameters } = found;
    let parts = [(codes.len(), reference.codes.len()), (scales.len(), reference.scales.len())];
    if parts.iter().any(|(found, expected)| found != expected) {
        return Some("results of another size".into());
    }
    let of_levels = parameters.iter().zip(&reference.parameters);
    if let Some(row) = of_levels.clone().position(|(x, y)| !near(*x, *y)) {
        return Some(format!("parameter {row} is {}", parameters[row]));
    }
    let differs = |(x, y): (&u8, &u8)| x.abs_diff(*y) > 1;
    if let Some(at) = scales.iter().zip(&reference.scales).position(differs) {
        return Some(format!(
            "scale {at} is {:#x}, expected {:#x}",
            scales[at], reference.scales[at]
        ));
    }
    let multipliers = found.multipliers();
    let (block, decode): (usize, fn(u8) -> f32) = match options.recipe.format() {
        Format::Nvfp4 => (Nvfp4::BLOCK, e4m3::decode),
        Format::Mxfp4 => (Mxfp4::BLOCK, ue8m0::decode),
    };
    let kblocks = cols / block;
    (0..exact.len()).find_map(|at| {
        let (row, column) = (at / cols, at % cols);
        let level = match multipliers.as_slice() {
            [] => 1.0,
            [only] => *only,
            all => all[row],
        };
        let byte = scales[options.layout.offset(row, column / block, kblocks)];
        let scale = f64::from(decode(byte)) * f64::from(level);
        let value = f64::from(e2m1::decode(codes[at / 2] >> (at % 2 * 4) & 15));
        let scaled = exact[at] / scale;
        let step = match scaled.abs() {
            x if x < 2.0 => 0.5,
            x if x < 4.0 => 1.0,
            _ => 2.0,
        };
        let bound = step / 2.0 + 2.0 * allowed(at) / scale;
        let saturates = scaled.abs() > 6.0 && value.abs() == 6.0 && value * scaled > 0.0;
        let is_near = scale == 0.0 || saturates || (value - scaled).abs() <= bound;
        (!is_near)
            .then(|| format!("[{row}, {column}] is {value} * {scale:e}, exactly {:e}", exact[at]))
    })
}
