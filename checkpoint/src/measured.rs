//! Comparing values, and the mistakes that reading them another way would undo.

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, ScaleLayout, e2m1};
use rayon::prelude::*;

use super::weight::{Blocks, GlobalScale, Weight};
use crate::error::Result;

/// Sums over two versions of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    before: f64,
    after: f64,
    product: f64,
    noise: f64,
}

impl Measured {
    pub fn of(before: &[f32], after: &[f32]) -> Self {
        const CHUNK: usize = 1 << 16;
        // Several sums of each kind, because one addition need not wait for the last.
        const LANES: usize = 4;
        let terms = |x: f32, y: f32| {
            let (x, y) = (f64::from(x), f64::from(y));
            [x * x, y * y, x * y, (x - y) * (x - y)]
        };
        let sums = |(before, after): (&[f32], &[f32])| {
            let (before, rest_before) = before.as_chunks::<LANES>();
            let (after, rest_after) = after.as_chunks::<LANES>();
            let mut sums = [[0f64; LANES]; 4];
            for (before, after) in before.iter().zip(after) {
                for lane in 0..LANES {
                    let terms = terms(before[lane], after[lane]);
                    for (sums, term) in sums.iter_mut().zip(terms) {
                        sums[lane] += term;
                    }
                }
            }
            let mut sums = sums.map(|lanes| lanes.iter().sum());
            for (x, y) in rest_before.iter().zip(rest_after) {
                let terms = terms(*x, *y);
                sums = std::array::from_fn(|at| sums[at] + terms[at]);
            }
            sums
        };
        // Collected in order, so that the result does not depend on the threads.
        let parts: Vec<[f64; 4]> =
            before.par_chunks(CHUNK).zip(after.par_chunks(CHUNK)).map(sums).collect();
        let [before, after, product, noise] = parts
            .iter()
            .fold([0f64; 4], |sums, part| std::array::from_fn(|at| sums[at] + part[at]));
        Self { before, after, product, noise }
    }

    pub fn sqnr_db(&self) -> f64 {
        db(self.before, self.noise)
    }

    /// The ratio with the later version multiplied by a factor.
    pub fn scaled_db(&self, factor: f64) -> f64 {
        db(self.before, self.before - factor * (2.0 * self.product - factor * self.after))
    }

    /// The factor that brings the later version nearest to the earlier one.
    pub fn fit(&self) -> f64 {
        if self.after > 0.0 { self.product / self.after } else { 1.0 }
    }

    /// The ratio with that factor.
    pub fn fitted_db(&self) -> f64 {
        db(self.before, self.before - self.product * self.fit())
    }
}

/// The ratio of two powers, sums of squares, in dB: `10 log10(signal / noise)`.
///
/// | signal | noise | dB |
/// | --- | --- | --- |
/// | above 0 | 0 | infinite |
/// | 0 | above 0 | minus infinity |
/// | 0 | 0 | NaN |
/// | any | NaN | NaN |
/// | NaN | any | NaN |
///
/// JSON has none of these, so reports leave the number out or limit it.
#[must_use]
pub fn decibels(signal: f64, noise: f64) -> f64 {
    10.0 * (signal / noise).log10()
}

/// [`decibels`] from -200 to 200, because JSON has no infinity: 200 for equal tensors, also for two
/// without signal, and -200 where only noise is left.
pub(super) fn db(signal: f64, noise: f64) -> f64 {
    const EXACT: f64 = 200.0;
    if noise <= 0.0 {
        EXACT
    } else if signal <= 0.0 {
        -EXACT
    } else {
        decibels(signal, noise).clamp(-EXACT, EXACT)
    }
}

/// The codes with the two elements of each byte exchanged.
pub(super) fn swapped(values: &[f32]) -> Vec<f32> {
    values.chunks_exact(2).flat_map(|pair| [pair[1], pair[0]]).collect()
}

/// The codes with the low nibbles first, then the high nibbles, block by block.
pub(super) fn split(values: &[f32], block: usize) -> Vec<f32> {
    let order = |half: usize| {
        move |block: &[f32]| -> Vec<f32> { block.iter().skip(half).step_by(2).copied().collect() }
    };
    values.chunks_exact(block).flat_map(|x| [order(0)(x), order(1)(x)].concat()).collect()
}

/// The values if the scales, which were read as linear, were 128x4 tiles; `None` if the sizes do
/// not fit.
pub(super) fn reordered(weight: &Weight) -> Result<Option<Vec<f32>>> {
    let (blocks, dims) = (&weight.blocks, weight.blocks.dims());
    let layout = ScaleLayout::Blocked128x4;
    let kblocks = dims.cols() / weight.spec.format.block() as usize;
    if dims.batch() != 1 || layout.bytes(dims.rows(), kblocks) != Ok(blocks.scales().len()) {
        return Ok(None);
    }
    let multiplier = weight.global.map_or(1.0, GlobalScale::multiplier);
    let (codes, scales) = (blocks.codes().to_vec(), blocks.scales().to_vec());
    let name = &weight.spec.name;
    let blocks = Blocks::new(weight.spec.format, name, dims, layout, codes, scales, multiplier)?;
    Ok(Some(blocks.dequantize()?))
}

/// The largest magnitude before the tensor-level scale, and the number of blocks with scale 0 and
/// other codes.
pub(super) fn largest(blocks: &Blocks) -> (f32, usize) {
    // Bytes of a block are whole words of 16 codes.
    const {
        assert!(Nvfp4::BLOCK_BYTES % 8 == 0 && Mxfp4::BLOCK_BYTES % 8 == 0);
    }
    /// Blocks of a task: enough that handing it to a thread costs nothing beside it.
    const BLOCKS: usize = 1 << 12;
    /// The largest of 16 magnitudes' codes of three bits, one in each nibble: bit by bit from the highest,
    /// among the nibbles that have had the bits so far.
    fn greatest(codes: u64) -> u8 {
        const ONES: u64 = 0x1111_1111_1111_1111;
        let (mut code, mut among) = (0u8, ONES);
        for bit in [2, 1, 0] {
            let have = (codes >> bit) & among;
            code = code << 1 | u8::from(have != 0);
            among = if have != 0 { have } else { among };
        }
        code
    }
    fn of<F: BlockFormat>(codes: &[u8], scales: &[u8]) -> (f32, usize) {
        let decoded: [f32; 256] = std::array::from_fn(|scale| F::decode_scale(scale as u8));
        let tasks = codes.par_chunks(BLOCKS * F::BLOCK_BYTES).zip(scales.par_chunks(BLOCKS));
        let each = tasks.map(|(codes, scales)| {
            let blocks = codes.chunks_exact(F::BLOCK_BYTES).zip(scales);
            blocks.fold((0f32, 0), |(largest, zeros), (codes, &scale)| {
                let (words, _) = codes.as_chunks::<8>();
                let words = words.iter().map(|word| greatest(u64::from_le_bytes(*word)));
                let (code, scale) = (words.fold(0, u8::max), decoded[usize::from(scale)]);
                let magnitude = e2m1::decode(code) * scale;
                (largest.max(magnitude), zeros + usize::from(scale == 0.0 && code > 0))
            })
        });
        each.reduce(|| (0.0, 0), |x, y| (x.0.max(y.0), x.1 + y.1))
    }
    match blocks.format() {
        Format::Nvfp4 => of::<Nvfp4>(blocks.codes(), blocks.scales()),
        Format::Mxfp4 => of::<Mxfp4>(blocks.codes(), blocks.scales()),
    }
}

#[cfg(test)]
mod tests {
    use super::db;

    #[test]
    fn ratios_in_reports_are_finite() {
        assert_eq!(db(100.0, 1.0), 20.0);
        assert_eq!(db(1.0, 0.0), 200.0);
        assert_eq!(db(0.0, 0.0), 200.0);
        assert_eq!(db(0.0, 1.0), -200.0);
        // Rounding may leave a noise below zero, where it is a difference.
        assert_eq!(db(1.0, -1e-30), 200.0);
        assert_eq!(db(1e300, 1e-300), 200.0);
    }
}
