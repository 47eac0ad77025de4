//! Random inputs for tests and benches, from a seed.

use std::fmt;
use std::str::FromStr;

use fp4_formats::pack::{packed_len, pair};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, HalfType, Nvfp4, ScaleLayout, e2m1, e4m3, ue8m0};

use crate::rng::SplitMix64;
use crate::shape::GemvShape;
use nvfp4::error::{Error, Result, filled, reserve};
use nvfp4::gemm::{HalfMatrix, format_of};
use nvfp4::tensor::{BlockScaled, Dims, byte_counts};

/// MXFP4's scale 1.
const MXFP4_ONE: u8 = 127;

/// The bits of a pair of codes of magnitudes 0, 1/2, 1 and 3/2, signs included.
const UP_TO_THREE_HALVES: u8 = 0xbb;
/// The signs of a pair of codes.
const SIGNS: u8 = 0x88;
/// Digits of a signature, each the magnitude of a code: eight digits distinguish 2^24 rows.
const DIGITS: usize = 8;

/// A distinct number for each row, whose digits look random.
struct Signatures {
    first: u32,
}

impl Signatures {
    /// The digits, from 0 to 7, of row `row` of all rows.
    fn of(&self, row: usize) -> [u8; DIGITS] {
        // Multiplication by an odd factor permutes the numbers.
        let number = (row as u32).wrapping_mul(0x9e37_79b1).wrapping_add(self.first);
        std::array::from_fn(|digit| (number >> (3 * digit) & 7) as u8)
    }
}

/// The generator of operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generator {
    /// The inputs of the public GEMV contest: code bytes uniform in 0..=3, scales uniform in
    /// {0, 1, 2} (MXFP4: {1/2, 1, 2}).
    Contest,
    /// All 256 code bytes and all 127 finite e4m3 scales, subnormals, zero and 448 included (MXFP4:
    /// 2^-10 to 2^10). The global scale of each operand is 2^-10, so that the results of a GEMV are
    /// about `sqrt(K) / 12`, well inside the range of f16.
    #[default]
    FullRange,
    /// Inputs whose product has no rounding before the output: all 256 code bytes, scales in
    /// {1, 2} for K up to 28,672 and 1 above. Every partial sum is then a multiple of 1/4 below
    /// 2^22, which is exact in f32 for any order of summation (K up to 116,000). Rows are random.
    /// The magnitudes of the first eight codes are different in each of the first 2^24 rows of an
    /// operand, so that reading an operand at a wrong address changes the result.
    Exact,
    /// The inputs of the public GEMM contest: all 256 code bytes, scales uniform in {0, 1, 2, 3}
    /// (MXFP4: {1/2, 1, 2}). Sums are exact in f32 for K up to 12,900.
    ContestGemm,
    /// The inputs of the public dual GEMM contest: codes of magnitudes 0 to 1.5 with both signs,
    /// scales uniform in [0, 1) and rounded to e4m3 (MXFP4: {1/4, 1/2, 1}).
    ContestDual,
}

impl Generator {
    /// All generators, for tests.
    pub const ALL: [Self; 5] =
        [Self::Contest, Self::FullRange, Self::Exact, Self::ContestGemm, Self::ContestDual];

    fn code(self, random: u8) -> u8 {
        match self {
            Self::Contest => random & 3,
            Self::ContestDual => random & UP_TO_THREE_HALVES,
            Self::FullRange | Self::Exact | Self::ContestGemm => random,
        }
    }

    /// The signatures of an operand's rows.
    fn signatures(self, rng: &mut SplitMix64) -> Option<Signatures> {
        (self == Self::Exact).then(|| Signatures { first: rng.next_u64() as u32 })
    }

    fn scale(self, format: Format, rng: &mut SplitMix64, k: usize) -> u8 {
        const ONE: u8 = e4m3::encode(1.0);
        const TWO: u8 = e4m3::encode(2.0);
        const THREE: u8 = e4m3::encode(3.0);
        if format == Format::Mxfp4 {
            return match self {
                Self::Contest | Self::ContestGemm => MXFP4_ONE - 1 + rng.below(3) as u8,
                Self::ContestDual => MXFP4_ONE - 2 + rng.below(3) as u8,
                Self::FullRange => MXFP4_ONE - 10 + rng.below(21) as u8,
                Self::Exact if k > 28_672 => MXFP4_ONE,
                Self::Exact => MXFP4_ONE + rng.below(2) as u8,
            };
        }
        match self {
            Self::Contest => [0, ONE, TWO][rng.below(3) as usize],
            Self::ContestGemm => [0, ONE, TWO, THREE][rng.below(4) as usize],
            Self::ContestDual => e4m3::encode(rng.uniform() as f32),
            Self::FullRange => rng.below(u32::from(e4m3::MAX_CODE) + 1) as u8,
            Self::Exact if k > 28_672 => ONE,
            Self::Exact => [ONE, TWO][rng.below(2) as usize],
        }
    }

    fn global_scale(self) -> f32 {
        match self {
            Self::FullRange => 1.0 / 1024.0,
            Self::Contest | Self::Exact | Self::ContestGemm | Self::ContestDual => 1.0,
        }
    }

    /// One operand of `dims`, with scales in `layout`. The padding of the 128x4 layout is filled
    /// with NaN, so that a kernel that uses it gives a wrong result.
    ///
    /// # Errors
    /// [`Error::Shape`] if K is not a multiple of the block; [`Error::Overflow`] and
    /// [`Error::Memory`] if it does not fit.
    pub fn blocks<F: BlockFormat>(
        self,
        name: &str,
        dims: Dims,
        layout: ScaleLayout,
        rng: &mut SplitMix64,
    ) -> Result<BlockScaled<F>> {
        let (code_bytes, scale_bytes) = byte_counts::<F>(name, dims, layout)?;
        let format = format_of::<F>();
        let mut codes = filled("codes", code_bytes, 0u8)?;
        rng.fill_bytes(&mut codes, |random| self.code(random));
        if let Some(signatures) = self.signatures(rng) {
            for (row, codes) in codes.chunks_exact_mut(packed_len(dims.cols())).enumerate() {
                let digits = signatures.of(row);
                for (byte, [low, high]) in codes.iter_mut().zip(digits.as_chunks().0) {
                    *byte = *byte & SIGNS | pair(*low, *high);
                }
            }
        }
        let padding = match format {
            Format::Nvfp4 => e4m3::NAN,
            Format::Mxfp4 => ue8m0::NAN,
        };
        let mut scales = filled("scales", scale_bytes, padding)?;
        let stride = scale_bytes / dims.batch();
        let kblocks = dims.cols() / F::BLOCK;
        for matrix in scales.chunks_exact_mut(stride) {
            for row in 0..dims.rows() {
                for kb in 0..kblocks {
                    matrix[layout.offset(row, kb, kblocks)] = self.scale(format, rng, dims.cols());
                }
            }
        }
        BlockScaled::new(name, dims, layout, codes, scales, self.global_scale())
    }

    /// [`blocks`](Self::blocks) in NVFP4.
    ///
    /// # Errors
    /// The same.
    pub fn operand(
        self,
        name: &str,
        dims: Dims,
        layout: ScaleLayout,
        rng: &mut SplitMix64,
    ) -> Result<BlockScaled<Nvfp4>> {
        self.blocks(name, dims, layout, rng)
    }

    /// A matrix of 16-bit floats: standard normal values (full-range), the values of the contest's
    /// codes, or small integers whose products with exact weights have exact sums.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn halves(
        self,
        name: &str,
        dims: Dims,
        operand: HalfType,
        rng: &mut SplitMix64,
    ) -> Result<HalfMatrix> {
        let mut values = reserve("values", dims.elements())?;
        values.extend((0..dims.elements()).map(|_| match self {
            Self::Contest => rng.below(4) as f32 / 2.0,
            Self::FullRange => rng.normal() as f32,
            Self::Exact => rng.below(9) as f32 - 4.0,
            Self::ContestGemm => e2m1::decode(rng.below(16) as u8),
            Self::ContestDual => e2m1::decode(self.code(rng.below(16) as u8)),
        }));
        if let Some(signatures) = self.signatures(rng) {
            for (row, values) in values.chunks_exact_mut(dims.cols()).enumerate() {
                for (value, digit) in values.iter_mut().zip(signatures.of(row)) {
                    *value = f32::from(digit) - 4.0;
                }
            }
        }
        HalfMatrix::round(name, dims, operand, &values)
    }

    /// Activations and weights of a GEMV, with scales in `layouts` in this order. The values depend
    /// on the seed only, not on the layouts.
    ///
    /// # Errors
    /// The errors of [`operand`](Self::operand).
    pub fn gemv(
        self,
        shape: GemvShape,
        layouts: [ScaleLayout; 2],
        seed: u64,
    ) -> Result<(BlockScaled<Nvfp4>, BlockScaled<Nvfp4>)> {
        let mut rng = SplitMix64::new(seed);
        let b = self.operand("b", Dims::new(shape.l, shape.m, shape.k)?, layouts[1], &mut rng)?;
        let a = self.operand("a", Dims::new(shape.l, 1, shape.k)?, layouts[0], &mut rng)?;
        Ok((a, b))
    }
}

impl fmt::Display for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Contest => "contest",
            Self::FullRange => "full-range",
            Self::Exact => "exact",
            Self::ContestGemm => "contest-gemm",
            Self::ContestDual => "contest-dual",
        })
    }
}

impl FromStr for Generator {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|generator| generator.to_string() == text).ok_or_else(|| {
            let known = "contest, contest-gemm, contest-dual, full-range or exact";
            Error::shape("generator", known, text)
        })
    }
}
