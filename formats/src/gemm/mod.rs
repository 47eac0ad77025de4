//! The contract between the GEMM kernels and whoever launches them.
//!
//! `C[l, m, n] = factors * sum_k A[l, m, k] B[l, n, k] + bias[n]`: `A` are the
//! activations, its rows the tokens; `B` are the weights, its rows the output
//! columns. Both are K-major.
//!
//! What the architectures share is here: the sizes and what happens to a sum on
//! its way to memory. [`hopper`] holds the rest of sm_90a's contract.
//!
//! # Results in NVFP4
//! Where [`Epilogue::out_type`] is [`OUT_NVFP4`], what would be stored as f32 is quantised
//! by [`OUT_RECIPE`] with a given tensor parameter, in blocks of 16 columns of a row: codes
//! and scales are the recipe's for those f32 in every bit. N is a multiple of 16.
//!
//! A block that has a NaN gets the scale NaN (0x7f), so that all of it is NaN, and codes
//! that are not specified. An infinity becomes the largest magnitude that the parameter
//! leaves, 6 * 448 times it, as does any f32 beyond that; the block's other elements are
//! those of a block with the scale 448. Neither is reported besides.

pub mod blackwell;
pub mod hopper;

use crate::recipe::Nvfp4Recipe;
use crate::{BlockFormat, FloatType, Nvfp4};

/// What [`Epilogue::out_type`] says of a result in NVFP4; of others, a [`FloatType`].
pub const OUT_NVFP4: u32 = 3;

const _: () = {
    let types = [FloatType::F16, FloatType::Bf16, FloatType::F32];
    let mut i = 0;
    while i < types.len() {
        assert!(types[i] as u32 != OUT_NVFP4);
        i += 1;
    }
};

/// How results in NVFP4 are quantised.
pub const OUT_RECIPE: Nvfp4Recipe = Nvfp4Recipe::TorchAo;

/// The type of a result, as far as the cost of a product depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultType {
    /// Floats.
    Floats(FloatType),
    /// NVFP4 by [`OUT_RECIPE`]. Every configuration makes it: no tile, and no part of one that a
    /// CTA stores, cuts a block.
    Nvfp4,
}

impl ResultType {
    /// Bytes of `elements` elements, of NVFP4 with their block scales, padding left out.
    pub const fn bytes(self, elements: u64) -> u64 {
        match self {
            Self::Floats(floats) => elements * floats.bytes() as u64,
            Self::Nvfp4 => elements.div_ceil(2) + elements.div_ceil(Nvfp4::BLOCK as u64),
        }
    }
}

/// Sizes of a GEMM as kernels take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Problem {
    /// Rows of `A` and of the result: tokens.
    pub m: u32,
    /// Rows of `B`, columns of the result.
    pub n: u32,
    /// Columns of `A` and `B`, a multiple of the format's block.
    pub k: u32,
    /// Batch entries.
    pub l: u32,
}

/// What a kernel does with the sums, `C = alpha * row[m] * column[n] * sum + bias[n]`,
/// and where it puts them. Pointers are device addresses; 0 where a vector is
/// absent. Vectors are shared by the batch.
///
/// | field | shape | type |
/// |---|---|---|
/// | `out` | `[L, M, N]`, batch entries `out_stride` elements apart | `out_type`; packed codes for NVFP4 |
/// | `scales` | L matrices of `[M, N/16]` | e4m3; NVFP4 only |
/// | `row_factors` | `[M]` | f32 |
/// | `column_factors` | `[N]` | f32 |
/// | `bias` | `[N]` | `bias_type` |
///
/// Each is aligned to its element, codes to a block's 8 bytes. Factors and bias are
/// applied in f32 in the order of the formula, then the result is rounded to `out_type`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Epilogue {
    /// Result.
    pub out: u64,
    /// Elements from one batch entry's result to the next.
    pub out_stride: u64,
    /// A factor for each row of `A`, or 0.
    pub row_factors: u64,
    /// A factor for each row of `B`, or 0.
    pub column_factors: u64,
    /// What is added to each column, or 0.
    pub bias: u64,
    /// Factor of all results.
    pub alpha: f32,
    /// A [`FloatType`], or [`OUT_NVFP4`].
    pub out_type: u32,
    /// A [`FloatType`]; any where there is no bias.
    pub bias_type: u32,
    /// 0; keeps the size a multiple of 8.
    pub reserved: u32,
    /// Where the scales of a result in NVFP4 go.
    pub scales: ResultScales,
}

/// The scales of a result in NVFP4.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct ResultScales {
    /// Device address of the block scales, one byte each. All padding of the 128x4 layout
    /// is written as zero.
    pub out: u64,
    /// Bytes from one batch entry's scales to the next, padding included.
    pub stride: u64,
    /// The tensor parameter, which [`OUT_RECIPE`] accepts: values are
    /// `code * scale * parameter`.
    pub parameter: f32,
    /// 1 for the 128x4 layout, 0 for the linear one.
    pub blocked: u32,
}

impl ResultScales {
    /// For results that have none.
    pub const NONE: Self = Self { out: 0, stride: 0, parameter: 1.0, blocked: 0 };
}

impl Epilogue {
    /// The fields' bits in order, as 32-bit words (low half first).
    pub const fn words(&self) -> [u32; size_of::<Self>() / 4] {
        let wide = [self.out, self.out_stride, self.row_factors, self.column_factors, self.bias];
        let narrow = [self.alpha.to_bits(), self.out_type, self.bias_type, self.reserved];
        let scales = &self.scales;
        let wide_scales = [scales.out, scales.stride];
        let narrow_scales = [scales.parameter.to_bits(), scales.blocked];
        let mut words = [0; size_of::<Self>() / 4];
        let mut at = 0;
        at = put_wide(&mut words, at, &wide);
        at = put(&mut words, at, &narrow);
        at = put_wide(&mut words, at, &wide_scales);
        at = put(&mut words, at, &narrow_scales);
        assert!(at == words.len());
        words
    }
}

/// Copies `from` to `words[at..]`; gives where it ends.
const fn put(words: &mut [u32], mut at: usize, from: &[u32]) -> usize {
    let mut i = 0;
    while i < from.len() {
        words[at] = from[i];
        (at, i) = (at + 1, i + 1);
    }
    at
}

/// [`put`] of both halves of each.
const fn put_wide(words: &mut [u32], mut at: usize, from: &[u64]) -> usize {
    let mut i = 0;
    while i < from.len() {
        at = put(words, at, &[from[i] as u32, (from[i] >> 32) as u32]);
        i += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_results() {
        let floats = [FloatType::F16, FloatType::Bf16, FloatType::F32].map(ResultType::Floats);
        assert_eq!(floats.map(|result| result.bytes(4096)), [8192, 8192, 16384]);
        assert_eq!(ResultType::Nvfp4.bytes(4096), 2048 + 256);
        assert_eq!(ResultType::Nvfp4.bytes(16), 9);
    }

    #[test]
    fn epilogue_words_follow_the_layout() {
        let epilogue = Epilogue {
            out: 0x0000_0002_0000_0001,
            out_stride: 3,
            row_factors: 4,
            column_factors: 5,
            bias: 6,
            alpha: f32::from_bits(7),
            out_type: 8,
            bias_type: 9,
            reserved: 0,
            scales: ResultScales {
                out: 10,
                stride: 11,
                parameter: f32::from_bits(12),
                blocked: 13,
            },
        };
        let words = epilogue.words();
        let at = |offset: usize| words[offset / 4];
        assert_eq!(words[..2], [1, 2]);
        assert_eq!(at(core::mem::offset_of!(Epilogue, out_stride)), 3);
        assert_eq!(at(core::mem::offset_of!(Epilogue, row_factors)), 4);
        assert_eq!(at(core::mem::offset_of!(Epilogue, column_factors)), 5);
        assert_eq!(at(core::mem::offset_of!(Epilogue, bias)), 6);
        assert_eq!(at(core::mem::offset_of!(Epilogue, alpha)), 7);
        assert_eq!(at(core::mem::offset_of!(Epilogue, out_type)), 8);
        assert_eq!(at(core::mem::offset_of!(Epilogue, bias_type)), 9);
        let scales = core::mem::offset_of!(Epilogue, scales);
        assert_eq!(at(scales + core::mem::offset_of!(ResultScales, out)), 10);
        assert_eq!(at(scales + core::mem::offset_of!(ResultScales, stride)), 11);
        assert_eq!(at(scales + core::mem::offset_of!(ResultScales, parameter)), 12);
        assert_eq!(at(scales + core::mem::offset_of!(ResultScales, blocked)), 13);
    }
}
