//! Whether each code is the one to which the original rounds, block by block.
//!
//! A ratio over a whole tensor hides damage to a few blocks. Here every element must be within half
//! a step of its code, for the scale that is stored, whatever recipe chose the scale. That finds
//! nearly every damaged code and scale. Deviations of all recipes are allowed for:
//!
//! - the quotient may be rounded to bf16 before it is rounded to a code;
//! - the largest magnitude may exceed the largest code by what rounding the scale down leaves, and
//!   in MXFP4 by a third (FLOOR), or by anything if the scale is the largest there is;
//! - NVFP4 whose scales are all powers of two may be converted MXFP4, and saturate as it does.
//!
//! Weights that were rounded twice, as sharing a tensor-level scale does, exceed a half step, but
//! not [`TWICE`] half steps.

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, e2m1, pack};
use rayon::prelude::*;

use super::weight::Blocks;

/// The error of a quotient that was rounded to bf16, in units of the scale: `6 * 2^-8`.
const QUOTIENT_ERROR: f64 = 6.0 / 256.0;
/// The bound of MXFP4's largest magnitude, in units of the scale: FLOOR has maxima below 8.
const MXFP4_REACH: f64 = 8.0;

/// Blocks that one thread takes at once.
const BLOCKS: usize = 1 << 12;
/// Errors in half steps that are less than this, computed in f32, are what rounding explains: of a
/// tie between 4 and 6 it is `1 - QUOTIENT_ERROR`.
const HARMLESS: f32 = 0.98;
/// The least unit, 2^-80, for which quotients of f32 are neither infinite nor subnormal where it
/// matters.
const MIN_QUICK_UNIT: f64 = f64::from_bits((1023 - 80) << 52);

/// The largest error of a code that was rounded by one scale and then by another, in half steps: 1
/// of the first scale, which the second is at least two thirds of (1.5 times the least subnormal
/// scale may round to it), and 1 of the second.
pub(super) const TWICE: f64 = 2.5;

/// The blocks of a weight that are not what the original rounds to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Misrounded {
    /// The number of blocks.
    pub blocks: usize,
    /// The number of all.
    pub of: usize,
    /// The first, in row-major order.
    pub first: usize,
    /// The largest error, in half steps of its code; 1 is the most that rounding explains.
    pub worst: f64,
}

/// Compares the blocks with the original's values, in the same order. An error may be `bound` times
/// that of rounding to the nearest code.
pub(super) fn misrounded(blocks: &Blocks, before: &[f32], bound: f64) -> Misrounded {
    match blocks {
        Blocks::Nvfp4(x) => of::<Nvfp4>(x.codes(), x.scales(), x.global_scale(), before, bound),
        Blocks::Mxfp4(x) => of::<Mxfp4>(x.codes(), x.scales(), x.global_scale(), before, bound),
    }
}

fn of<F: BlockFormat>(
    codes: &[u8],
    scales: &[u8],
    multiplier: f32,
    before: &[f32],
    bound: f64,
) -> Misrounded {
    let format = if F::NAME == Nvfp4::NAME { Format::Nvfp4 } else { Format::Mxfp4 };
    let unit = |byte: u8| f64::from(F::decode_scale(byte)) * f64::from(multiplier);
    let was_mxfp4 = scales.iter().all(|&byte| unit(byte) == 0.0 || is_power_of_two(unit(byte)));
    // By byte: the scale, and the largest magnitude that rounds to it.
    let units: Vec<(f64, f64)> = (0..=u8::MAX)
        .map(|byte| {
            let value = |byte: u8| f64::from(F::decode_scale(byte));
            let unit = unit(byte);
            let next = byte.checked_add(1).map_or(f64::INFINITY, value);
            let reach = match format {
                Format::Nvfp4 if was_mxfp4 && unit > 0.0 => MXFP4_REACH * unit,
                Format::Nvfp4 if next.is_finite() => {
                    let middle = f64::midpoint(value(byte), next) * f64::from(multiplier);
                    f64::from(e2m1::MAX) * middle
                }
                Format::Mxfp4 if next.is_finite() => MXFP4_REACH * unit,
                Format::Nvfp4 | Format::Mxfp4 => f64::INFINITY,
            };
            (unit, reach * (1.0 + QUOTIENT_ERROR))
        })
        .collect();
    // A block whose errors are below this has none that counts.
    let harmless = HARMLESS.min(bound as f32 * 0.999);
    let worst_of = |at: usize, before: &[f32]| {
        let (unit, reach) = units[usize::from(scales[at])];
        let codes = &codes[at * F::BLOCK_BYTES..][..F::BLOCK_BYTES];
        if let Some(worst) = quickly(codes, before, unit, reach).filter(|x| *x < harmless) {
            return Misrounded { blocks: 0, of: 1, first: usize::MAX, worst: worst.into() };
        }
        let mut worst = 0f64;
        for (&byte, pair) in codes.iter().zip(before.as_chunks::<2>().0) {
            let (low, high) = pack::unpair(byte);
            for (code, x) in [(low, pair[0]), (high, pair[1])] {
                worst = worst.max(half_steps(code, f64::from(x), unit, reach));
            }
        }
        let bad = worst > bound;
        let (blocks, first) = if bad { (1, at) } else { (0, usize::MAX) };
        Misrounded { blocks, of: 1, first, worst }
    };
    let join = |x: Misrounded, y: Misrounded| Misrounded {
        blocks: x.blocks + y.blocks,
        of: x.of + y.of,
        first: x.first.min(y.first),
        worst: x.worst.max(y.worst),
    };
    let none = || Misrounded { first: usize::MAX, ..Misrounded::default() };
    let parts = before.par_chunks(BLOCKS * F::BLOCK).enumerate().map(|(part, before)| {
        let blocks = before.chunks_exact(F::BLOCK).enumerate();
        let each = blocks.map(|(at, before)| worst_of(part * BLOCKS + at, before));
        each.fold(none(), join)
    });
    parts.reduce(none, join)
}

/// An upper bound of the largest error of a block in half steps, in f32 and without branches; `None`
/// where f32 does not do or a magnitude is out of reach. An element beyond the largest code is right
/// if the code is that one, and otherwise counts as more than 1.
fn quickly(codes: &[u8], before: &[f32], unit: f64, reach: f64) -> Option<f32> {
    /// Half steps change at 2 and 4; below these, the smaller is taken.
    const NEAR: [f32; 2] = [2.001, 4.001];
    /// Elements of which the largest error is kept.
    const LANES: usize = 8;
    let within = (MIN_QUICK_UNIT..=1.0 / MIN_QUICK_UNIT).contains(&unit);
    let inverse = within.then_some((1.0 / unit) as f32)?;
    let (mut worst, mut largest) = ([0f32; LANES], [0f32; LANES]);
    let larger = |x: f32, y: f32| if x > y { x } else { y };
    let (codes, before) = (codes.as_chunks::<{ LANES / 2 }>().0, before.as_chunks::<LANES>().0);
    for (codes, before) in codes.iter().zip(before) {
        let mut values = [[0f32; 2]; LANES / 2];
        for (values, &byte) in values.iter_mut().zip(codes) {
            *values = e2m1::PAIRS[usize::from(byte)];
        }
        for (lane, (value, x)) in values.as_flattened().iter().zip(before).enumerate() {
            let scaled = (x * inverse).clamp(-e2m1::MAX, e2m1::MAX);
            let at = scaled.abs();
            let coarse = if at < NEAR[1] { 2.0 } else { 1.0 };
            let steps = if at < NEAR[0] { 4.0 } else { coarse };
            let error = ((value - scaled).abs() - QUOTIENT_ERROR as f32) * steps;
            worst[lane] = larger(error, worst[lane]);
            largest[lane] = larger(x.abs(), largest[lane]);
        }
    }
    let [worst, largest] = [worst, largest].map(|lanes| lanes.into_iter().fold(0.0, larger));
    (f64::from(largest) <= reach).then_some(worst)
}

fn is_power_of_two(x: f64) -> bool {
    x.is_normal() && x.to_bits().trailing_zeros() >= f64::MANTISSA_DIGITS - 1
}

/// The error of a code in half steps, those between the code and the element.
fn half_steps(code: u8, x: f64, unit: f64, reach: f64) -> f64 {
    let magnitude = x.abs();
    if unit == 0.0 {
        // Every code stands for zero.
        return if magnitude <= reach { 0.0 } else { magnitude / reach.max(f64::MIN_POSITIVE) };
    }
    let value = f64::from(e2m1::decode(code));
    let scaled = x / unit;
    let top = f64::from(e2m1::MAX);
    if scaled.abs() >= top && scaled.is_sign_negative() == (code & 8 != 0) && code & 7 == 7 {
        return if magnitude <= reach { 0.0 } else { magnitude / reach * 2.0 };
    }
    let at = scaled.abs();
    let half = if at < 2.0 {
        0.25
    } else if at < 4.0 {
        0.5
    } else {
        1.0
    };
    ((value - scaled).abs() - QUOTIENT_ERROR).max(0.0) / half
}

#[cfg(test)]
mod tests {
    use fp4_formats::ScaleLayout;

    use super::*;
    use crate::rng::SplitMix64;
    use nvfp4::quantize::{QuantizeOptions, TensorScale, quantize_matrix, recipe_by_name};
    use nvfp4::tensor::Dims;

    fn values(rows: usize, cols: usize, seed: u64) -> Vec<f32> {
        let mut rng = SplitMix64::new(seed);
        let scale = |at: usize| 10f64.powi((at / 16 % 7) as i32 - 4);
        (0..rows * cols).map(|at| (rng.normal() * scale(at)) as f32).collect()
    }

    /// No recipe's own blocks are refused, whatever the blocks' magnitudes.
    #[test]
    fn every_recipe_rounds_to_the_nearest() {
        let recipes = [
            (Format::Nvfp4, "torchao"),
            (Format::Nvfp4, "te"),
            (Format::Nvfp4, "modelopt"),
            (Format::Nvfp4, "compressed-tensors"),
            (Format::Nvfp4, "te-4over6"),
            (Format::Nvfp4, "te-4over6-448-mse"),
            (Format::Nvfp4, "modelopt-4over6"),
            (Format::Mxfp4, "floor"),
            (Format::Mxfp4, "ceil"),
            (Format::Mxfp4, "even"),
            (Format::Mxfp4, "rceil"),
            (Format::Mxfp4, "modelopt"),
            (Format::Mxfp4, "compressed-tensors"),
        ];
        let dims = Dims::new(1, 64, 224).expect("sizes above zero");
        for (format, name) in recipes {
            let recipe = recipe_by_name(format, name).expect("known");
            for scale in [TensorScale::FromAmax, TensorScale::OneLevel] {
                let before = values(64, 224, 3);
                let layout = ScaleLayout::Linear;
                let options = QuantizeOptions::new(recipe).scale(scale).layout(layout);
                let matrix = quantize_matrix("x", &before, dims, &options).expect("finite");
                let blocks = matrix.into_blocks("x", dims).expect("one scale");
                let found = misrounded(&blocks, &before, 1.0);
                assert_eq!(found.blocks, 0, "{name} {scale:?}: {found:?}");
                assert_eq!(found.of, 64 * 224 / format.block() as usize);
                assert!(found.worst > 0.5, "{name}: {found:?}");
            }
        }
    }

    /// The quick bound is what the exact errors are, or more where half steps change, and not less.
    #[test]
    fn the_quick_bound_is_one() {
        let mut rng = SplitMix64::new(4);
        let (mut quick, mut blocks) = (0, 0);
        for _ in 0..20_000 {
            let unit = f64::from(rng.normal() as f32).abs() + 0.01;
            let x: [f32; 16] = std::array::from_fn(|_| (rng.normal() * 3.0 * unit) as f32);
            // Nearly always the nearest code.
            let code = |x: f32| e2m1::encode((f64::from(x) / unit) as f32);
            let mut codes: [u8; 8] =
                std::array::from_fn(|at| pack::pair(code(x[2 * at]), code(x[2 * at + 1])));
            if rng.below(8) == 0 {
                codes[rng.below(8) as usize] ^= 1 << rng.below(8);
            }
            let reach = 9.0 * unit;
            let each = codes.iter().zip(x.as_chunks::<2>().0).flat_map(|(&byte, &pair)| {
                let (low, high) = pack::unpair(byte);
                [(low, pair[0]), (high, pair[1])]
            });
            let exact = each
                .map(|(code, x)| half_steps(code, f64::from(x), unit, reach))
                .fold(0.0, f64::max);
            blocks += 1;
            match quickly(&codes, &x, unit, reach) {
                Some(bound) if bound < HARMLESS => {
                    quick += 1;
                    assert!((f64::from(bound) - exact).abs() < 1e-4, "{exact}, quickly {bound}");
                }
                _ => {}
            }
        }
        assert!(quick > blocks / 2, "{quick} of {blocks}");
    }

    /// MXFP4's saturated codes are right in NVFP4 too, unless a scale shows that it is not MXFP4.
    #[test]
    fn nvfp4_may_have_been_mxfp4() {
        let mut before = [0.25f32; 32];
        (before[3], before[20]) = (7.5, -7.5);
        let mut codes = [0x11u8; 16];
        (codes[1], codes[10]) = (0x71, 0x1f);
        before.iter_mut().filter(|x| **x == 0.25).for_each(|x| *x = 0.5);
        for (scales, multiplier, bad) in [
            ([0x38u8, 0x38], 1.0f32, 0),
            ([0x40, 0x40], 0.5, 0),
            // Scales of 1 and 1.125, and a tensor-level scale that is no power of two.
            ([0x38, 0x39], 1.0, 2),
            ([0x38, 0x38], 1.01, 2),
        ] {
            let found = of::<Nvfp4>(&codes, &scales, multiplier, &before, 1.0);
            assert_eq!(found.blocks, bad, "{scales:?} {multiplier}: {found:?}");
        }
        // Maxima that MXFP4 would have given a larger scale.
        before[3] = 9.0;
        let found = of::<Nvfp4>(&codes, &[0x38, 0x38], 1.0, &before, 1.0);
        assert_eq!((found.blocks, found.first), (1, 0), "{found:?}");
    }

    /// Each changed bit of a code or scale is found, unless it is the sign of a zero, or the element
    /// is as far from either code as the tolerance says.
    #[test]
    fn damage_is_found() {
        let dims = Dims::new(1, 1, 64).expect("sizes above zero");
        for (format, name) in [(Format::Nvfp4, "torchao"), (Format::Mxfp4, "floor")] {
            let recipe = recipe_by_name(format, name).expect("known");
            let mut rng = SplitMix64::new(9);
            let before: Vec<f32> = (0..64).map(|_| rng.normal() as f32).collect();
            let options = QuantizeOptions::new(recipe);
            let matrix = quantize_matrix("x", &before, dims, &options).expect("finite");
            let (mut missed, mut tried) = (0, 0);
            for bit in 0..8 * (matrix.codes.len() + matrix.scales.len()) {
                let mut damaged = matrix.clone();
                let (at, mask) = (bit / 8, 1u8 << (bit % 8));
                match at.checked_sub(damaged.codes.len()) {
                    None => damaged.codes[at] ^= mask,
                    Some(at) => damaged.scales[at] ^= mask,
                }
                // Scales that no loader accepts are found before.
                let Ok(blocks) = damaged.into_blocks("x", dims) else { continue };
                tried += 1;
                missed += usize::from(misrounded(&blocks, &before, 1.0).blocks == 0);
            }
            assert!(tried > 250 && missed * 20 < tried, "{name}: {missed} of {tried} missed");
        }
    }
}
