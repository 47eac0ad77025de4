//! Searches a scale for each block of NVFP4: the one whose codes have the least squared error. Gives pairs of blocks one
//! scale.
//!
//! A recipe puts a block's largest magnitude on 6, the largest code. Between 4 and 6 there is no code, so that a
//! scale up to 1.5 times as large, which puts it on 4, often rounds the block's other elements better. Smaller scales
//! are not tried: they clip the largest magnitude, which `verify` calls wrong.

use fp4_formats::{BlockFormat, Nvfp4, e2m1, e4m3, pack};
use nvfp4::floats::nearest_e2m1;
use nvfp4::quantize::source::Source;
use rayon::prelude::*;

use super::parts::Layout;

/// The largest block scale in GGUF: 240. ggml's encoder makes 448 of every scale from 248 up.
const LARGEST_OF_GGML: u8 = 0x77;
/// A scale of 1.5 times a recipe's, rounded, is at most so many above it.
const STEPS: usize = 5;
/// Blocks that one thread takes at once, whose elements are 16 KiB.
const BLOCKS: usize = 1 << 8;

/// The largest block scale that is tried for a layout.
pub(super) const fn largest(layout: Layout) -> u8 {
    match layout {
        Layout::Gguf => LARGEST_OF_GGML,
        Layout::ModelOpt
        | Layout::CompressedTensors
        | Layout::TorchAo
        | Layout::GptOss
        | Layout::Mlx
        | Layout::DeepSeek
        | Layout::Quark
        | Layout::AutoRound => e4m3::MAX_CODE,
    }
}

/// Replaces the codes and the scale of each block where a larger scale, up to `largest`, has less error.
///
/// `source`: the elements. `codes`, `scales`: their blocks in linear order, by a recipe. `multiplier`: the tensor-level
/// scale. Returns the number of blocks that have another scale.
pub(super) fn search(
    source: Source<'_>,
    multiplier: f32,
    largest: u8,
    codes: &mut [u8],
    scales: &mut [u8],
) -> u64 {
    const BYTES: usize = BLOCKS * Nvfp4::BLOCK_BYTES;
    let parts = codes.par_chunks_mut(BYTES).zip(scales.par_chunks_mut(BLOCKS)).enumerate();
    let changed = parts.map(|(part, (codes, scales))| {
        let mut values = [[0f32; Nvfp4::BLOCK]; BLOCKS];
        let values = &mut values[..scales.len()];
        let first = part * BLOCKS * Nvfp4::BLOCK;
        let elements = values.as_flattened_mut();
        source.part(first..first + elements.len()).load(elements);
        let blocks = codes.as_chunks_mut().0.iter_mut().zip(scales).zip(values);
        let changed = blocks.map(|((codes, scale), values)| {
            u64::from(block(values, multiplier, largest, codes, scale))
        });
        changed.sum::<u64>()
    });
    changed.sum()
}

/// Gives each two blocks the larger of their scales, which is that of a recipe for groups of 32.
///
/// `source`, `codes`, `scales`, `multiplier`: as for [`search`], with an even number of blocks.
pub(super) fn pair(source: Source<'_>, multiplier: f32, codes: &mut [u8], scales: &mut [u8]) {
    let pairs = codes
        .par_chunks_exact_mut(2 * Nvfp4::BLOCK_BYTES)
        .zip(scales.par_chunks_exact_mut(2))
        .enumerate();
    pairs.for_each(|(at, (codes, scales))| {
        let larger = if scales[0] > scales[1] { scales[0] } else { scales[1] };
        for (block, codes) in codes.as_chunks_mut().0.iter_mut().enumerate() {
            if scales[block] == larger {
                continue;
            }
            let mut values = [0f32; Nvfp4::BLOCK];
            let start = (2 * at + block) * Nvfp4::BLOCK;
            source.part(start..start + Nvfp4::BLOCK).load(&mut values);
            *codes = rounded(&values, Nvfp4::decode_scale(larger) * multiplier);
            scales[block] = larger;
        }
    });
}

/// Whether another scale was found for a block.
fn block(
    values: &[f32; Nvfp4::BLOCK],
    multiplier: f32,
    largest: u8,
    codes: &mut [u8; Nvfp4::BLOCK_BYTES],
    scale: &mut u8,
) -> bool {
    let unit = |scale: u8| Nvfp4::decode_scale(scale) * multiplier;
    let own = *scale;
    // Numbers of e4m3, so that the comparison is exact.
    let most = 1.5 * Nvfp4::decode_scale(own);
    let mut least = error(values, codes, unit(own));
    // A block of zeros has a scale of zero, and no error.
    if least == 0.0 {
        return false;
    }
    let magnitudes = values.map(f32::abs);
    let candidates: [u8; STEPS] = std::array::from_fn(|step| own + 1 + step as u8);
    // Without a branch that depends on an error, so that the arithmetic of all candidates overlaps. Candidates that
    // are not allowed are computed, too.
    let errors = least_errors(&magnitudes, candidates.map(unit));
    for (candidate, error) in candidates.into_iter().zip(errors) {
        let allowed = (candidate <= largest) & (Nvfp4::decode_scale(candidate) <= most);
        let better = allowed & (error < least);
        least = if better { error } else { least };
        *scale = if better { candidate } else { *scale };
    }
    if *scale != own {
        *codes = rounded(values, unit(*scale));
    }
    *scale != own
}

/// The [`error`] of the nearest codes for each unit, which signs do not change: in the same arithmetic, without the
/// codes.
fn least_errors<const UNITS: usize>(
    magnitudes: &[f32; Nvfp4::BLOCK],
    units: [f32; UNITS],
) -> [f64; UNITS] {
    let mut squares = [[0f64; Nvfp4::BLOCK]; UNITS];
    for (squares, unit) in squares.iter_mut().zip(units) {
        let mut nearest = [0f32; Nvfp4::BLOCK];
        for at in 0..Nvfp4::BLOCK {
            nearest[at] = nearest_e2m1(magnitudes[at] / unit);
        }
        for at in 0..Nvfp4::BLOCK {
            let error = f64::from(magnitudes[at]) - f64::from(nearest[at]) * f64::from(unit);
            squares[at] = error * error;
        }
    }
    // In the order of the elements, all sums at once.
    let mut sums = [0f64; UNITS];
    for at in 0..Nvfp4::BLOCK {
        for (sum, squares) in sums.iter_mut().zip(&squares) {
            *sum += squares[at];
        }
    }
    sums
}

/// The nearest codes for a unit above zero.
fn rounded(values: &[f32; Nvfp4::BLOCK], unit: f32) -> [u8; Nvfp4::BLOCK_BYTES] {
    let pairs = values.as_chunks::<2>().0;
    std::array::from_fn(|at| {
        let [low, high] = pairs[at];
        pack::pair(e2m1::encode(low / unit), e2m1::encode(high / unit))
    })
}

/// The sum of squared errors.
fn error(values: &[f32; Nvfp4::BLOCK], codes: &[u8; Nvfp4::BLOCK_BYTES], unit: f32) -> f64 {
    let decoded = codes.map(|byte| e2m1::PAIRS[usize::from(byte)]);
    let mut squares = [0f64; Nvfp4::BLOCK];
    for (square, (x, code)) in squares.iter_mut().zip(values.iter().zip(decoded.as_flattened())) {
        let error = f64::from(*x) - f64::from(*code) * f64::from(unit);
        *square = error * error;
    }
    squares.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    /// The least error of all scales from the recipe's to 1.5 times that, by the definition of the format.
    fn naive(values: &[f32], multiplier: f32, own: u8) -> (u8, f64) {
        let unit = |scale: u8| f64::from(e4m3::decode(scale)) * f64::from(multiplier);
        let error = |scale: u8| -> f64 {
            let nearest = |x: f64| {
                let codes = e2m1::VALUES.map(|code| (x - f64::from(code) * unit(scale)).abs());
                codes.into_iter().fold(f64::INFINITY, f64::min)
            };
            values.iter().map(|&x| nearest(f64::from(x)).powi(2)).sum()
        };
        let all = (own..=LARGEST_OF_GGML).filter(|&scale| unit(scale) <= 1.5 * unit(own));
        let each = all.map(|scale| (scale, error(scale)));
        each.min_by(|(_, x), (_, y)| x.total_cmp(y)).expect("its own")
    }

    /// Both ways to an error give the same bits, for units from subnormal ones up.
    #[test]
    fn errors_do_not_need_codes() {
        let mut rng = SplitMix64::new(3);
        for at in 0..4000 {
            let unit = f32::from_bits(0x0010_0000 + at * 0x7_1234);
            let values = std::array::from_fn(|_| (rng.normal() * 3.0) as f32 * unit);
            let expected = error(&values, &rounded(&values, unit), unit);
            let [found] = least_errors(&values.map(f32::abs), [unit]);
            assert_eq!(found.to_bits(), expected.to_bits(), "unit {unit:e}: {values:?}");
        }
    }

    #[test]
    fn no_scale_in_reach_has_less_error() {
        let mut rng = SplitMix64::new(7);
        let mut changed = 0;
        const COUNT: u64 = 3000;
        let multiplier = 0.003f32;
        let mut values = Vec::new();
        for at in 0..COUNT {
            // Blocks of all magnitudes: subnormal scales, the largest, zeros.
            let size = 10f64.powi((at % 7) as i32 - 4);
            values.extend((0..16).map(|_| match at % 11 {
                0 => 0.0,
                _ => (rng.normal() * size) as f32,
            }));
        }
        let amax = |block: &[f32]| block.iter().fold(0f32, |x, y| x.max(y.abs()));
        let mut scales: Vec<u8> = values
            .chunks_exact(16)
            .map(|block| e4m3::encode((amax(block) / 6.0 / multiplier).min(112.0)))
            .collect();
        let own = scales.clone();
        let mut codes: Vec<u8> = Vec::new();
        for (block, &scale) in values.as_chunks::<16>().0.iter().zip(&own) {
            let unit = e4m3::decode(scale) * multiplier;
            codes.extend(if unit > 0.0 { rounded(block, unit) } else { [0; 8] });
        }
        let before = codes.clone();
        let count =
            search(Source::Values(&values), multiplier, LARGEST_OF_GGML, &mut codes, &mut scales);
        for (at, block) in values.as_chunks::<16>().0.iter().enumerate() {
            let (best, least) = naive(block, multiplier, own[at]);
            let codes: &[u8; 8] = &codes.as_chunks().0[at];
            let found = error(block, codes, e4m3::decode(scales[at]) * multiplier);
            assert!(
                found <= least * (1.0 + 1e-5),
                "block {at}: {found} of {:#x}, {least} of {best:#x}",
                scales[at]
            );
            assert!(scales[at] <= LARGEST_OF_GGML, "block {at}");
            if scales[at] == own[at] {
                assert_eq!(codes[..], before[at * 8..][..8], "block {at}");
            } else {
                changed += 1;
            }
        }
        assert_eq!(changed, count);
        assert!((COUNT / 4..COUNT).contains(&changed), "{changed}");
    }
}
