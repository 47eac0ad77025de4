//! The element types that can be quantised.

use cuda_std::ptx::{convert, float, half};
use fp4_formats::FloatType;

/// A 16-byte word of elements.
pub type Word = [u32; 4];

/// An element type.
pub trait Input {
    /// The type.
    const TYPE: FloatType;
    /// Elements in a word.
    const PER_WORD: usize = 16 / Self::TYPE.bytes() as usize;
    /// The smallest magnitude above zero.
    const SMALLEST: f32;

    /// Elements `8 group ..` as f32, exactly.
    fn group<const C: usize>(words: &[Word; C], group: usize) -> [f32; 8];

    /// The largest magnitude; NaN if any element is.
    fn amax<const C: usize>(words: &[Word; C]) -> f32;
}

/// IEEE binary32.
pub struct F32;
/// IEEE binary16.
pub struct F16;
/// bfloat16.
pub struct Bf16;

impl Input for F32 {
    const TYPE: FloatType = FloatType::F32;
    const SMALLEST: f32 = f32::from_bits(1);

    #[inline(always)]
    fn group<const C: usize>(words: &[Word; C], group: usize) -> [f32; 8] {
        let mut values = [0.0; 8];
        for i in 0..8 {
            values[i] = f32::from_bits(words[group * 2 + i / 4][i % 4]);
        }
        values
    }

    #[inline(always)]
    fn amax<const C: usize>(words: &[Word; C]) -> f32 {
        let mut amax = 0.0;
        for word in 0..C {
            for i in 0..4 {
                let magnitude = float::abs_f32(f32::from_bits(words[word][i]));
                amax = float::max_nan_f32(amax, magnitude);
            }
        }
        amax
    }
}

impl Input for F16 {
    const TYPE: FloatType = FloatType::F16;
    /// 2^-24.
    const SMALLEST: f32 = f32::from_bits((127 - 24) << 23);

    #[inline(always)]
    fn group<const C: usize>(words: &[Word; C], group: usize) -> [f32; 8] {
        let mut values = [0.0; 8];
        for i in 0..4 {
            let pair = words[group][i];
            values[2 * i] = convert::cvt_f32_f16(pair as u16);
            values[2 * i + 1] = convert::cvt_f32_f16((pair >> 16) as u16);
        }
        values
    }

    #[inline(always)]
    fn amax<const C: usize>(words: &[Word; C]) -> f32 {
        let mut amax = 0;
        for word in 0..C {
            for i in 0..4 {
                amax = half::max_nan_f16x2(amax, half::abs_f16x2(words[word][i]));
            }
        }
        let low = convert::cvt_f32_f16(amax as u16);
        float::max_nan_f32(low, convert::cvt_f32_f16((amax >> 16) as u16))
    }
}

impl Input for Bf16 {
    const TYPE: FloatType = FloatType::Bf16;
    /// 2^-133.
    const SMALLEST: f32 = f32::from_bits(1 << 16);

    #[inline(always)]
    fn group<const C: usize>(words: &[Word; C], group: usize) -> [f32; 8] {
        let mut values = [0.0; 8];
        for i in 0..4 {
            let pair = words[group][i];
            values[2 * i] = f32::from_bits(pair << 16);
            values[2 * i + 1] = f32::from_bits(pair & 0xffff_0000);
        }
        values
    }

    #[inline(always)]
    fn amax<const C: usize>(words: &[Word; C]) -> f32 {
        let mut amax = 0;
        for word in 0..C {
            for i in 0..4 {
                amax = half::max_nan_bf16x2(amax, half::abs_bf16x2(words[word][i]));
            }
        }
        let low = f32::from_bits(amax << 16);
        float::max_nan_f32(low, f32::from_bits(amax & 0xffff_0000))
    }
}
