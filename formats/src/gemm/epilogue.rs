//! The epilogue's part of the contract: from a sum to a result in memory.
//!
//! ```text
//! sum --affine--> alpha * row * column * sum + bias --combine--> result --sink--> memory
//! ```
//!
//! | step | what it does |
//! |---|---|
//! | affine | factors and bias in f32, in the order of the formula; an absent factor or bias changes nothing |
//! | combine | identity: one sum makes one result |
//! | sink | rounds to f16, bf16 or f32, or quantises to NVFP4, and stores |
//!
//! # Results in NVFP4
//! Where [`Epilogue::out_type`] is [`OUT_NVFP4`], what would be stored as f32 is quantised
//! by [`OUT_RECIPE`] with a given tensor scale, in blocks of 16 columns of a row: codes
//! and scales are the recipe's for those f32 in every bit. N is a multiple of 16.
//!
//! A block that has a NaN gets the scale NaN (0x7f), so that all of it is NaN, and codes
//! that are not specified. An infinity becomes the largest magnitude that the tensor scale
//! leaves, 6 * 448 times it, as does any f32 beyond that; the block's other elements are
//! those of a block with the scale 448. Neither is reported as an error.

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

/// What a kernel does with the sums of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Epilogue {
    /// Factors and bias.
    pub affine: Affine,
    /// Where results go, and their type.
    pub sink: Sink,
}

/// `alpha * row[m] * column[n] * sum + bias[n]`, in f32 and in this order. Pointers are device
/// addresses, aligned to the element; 0 where a vector is absent. The problems of a launch share
/// the vectors.
///
/// | field | shape | type |
/// |---|---|---|
/// | `row_factors` | `[M]` | f32 |
/// | `column_factors` | `[N]` | f32 |
/// | `bias` | `[N]` | `bias_type` |
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Affine {
    /// A factor for each row of `A`, or 0.
    pub row_factors: u64,
    /// A factor for each row of `B`, or 0.
    pub column_factors: u64,
    /// What is added to each column, or 0.
    pub bias: u64,
    /// Factor of all results.
    pub alpha: f32,
    /// A [`FloatType`]; any where there is no bias.
    pub bias_type: u32,
}

/// The result in memory. Pointers are device addresses.
///
/// | field | shape | type |
/// |---|---|---|
/// | `out` | `[L, M, N]`, matrices `out_stride` elements apart | `out_type`; packed codes for NVFP4 |
/// | `scales` | L matrices of `[M, N/16]` | e4m3; NVFP4 only |
///
/// Floats are aligned to their size, codes to a block's 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Sink {
    /// Result.
    pub out: u64,
    /// Elements from one matrix of the result to the next.
    pub out_stride: u64,
    /// A [`FloatType`], or [`OUT_NVFP4`].
    pub out_type: u32,
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
    /// One result for each sum, with nothing between the affine step and the sink.
    pub const fn of(affine: Affine, sink: Sink) -> Self {
        Self { affine, sink }
    }

    /// The fields' bits in order, as 32-bit words (low half first).
    pub const fn words(&self) -> [u32; size_of::<Self>() / 4] {
        let Self { affine, sink } = self;
        let scales = &sink.scales;
        let mut words = [0; size_of::<Self>() / 4];
        let mut at = 0;
        at = put_wide(&mut words, at, &[affine.row_factors, affine.column_factors, affine.bias]);
        at = put(&mut words, at, &[affine.alpha.to_bits(), affine.bias_type]);
        at = put_wide(&mut words, at, &[sink.out, sink.out_stride]);
        at = put(&mut words, at, &[sink.out_type, sink.reserved]);
        at = put_wide(&mut words, at, &[scales.out, scales.stride]);
        at = put(&mut words, at, &[scales.parameter.to_bits(), scales.blocked]);
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
    use core::mem::offset_of;

    #[test]
    fn bytes_of_results() {
        let floats = [FloatType::F16, FloatType::Bf16, FloatType::F32].map(ResultType::Floats);
        assert_eq!(floats.map(|result| result.bytes(4096)), [8192, 8192, 16384]);
        assert_eq!(ResultType::Nvfp4.bytes(4096), 2048 + 256);
        assert_eq!(ResultType::Nvfp4.bytes(16), 9);
    }

    #[test]
    fn epilogue_words_follow_the_layout() {
        let epilogue = Epilogue::of(
            Affine {
                row_factors: 0x0000_0002_0000_0001,
                column_factors: 3,
                bias: 4,
                alpha: f32::from_bits(5),
                bias_type: 6,
            },
            Sink {
                out: 7,
                out_stride: 8,
                out_type: 9,
                reserved: 0,
                scales: ResultScales {
                    out: 10,
                    stride: 11,
                    parameter: f32::from_bits(12),
                    blocked: 13,
                },
            },
        );
        let words = epilogue.words();
        let at = |offset: usize| words[offset / 4];
        assert_eq!(words[..2], [1, 2]);
        let affine = offset_of!(Epilogue, affine);
        assert_eq!(at(affine + offset_of!(Affine, column_factors)), 3);
        assert_eq!(at(affine + offset_of!(Affine, bias)), 4);
        assert_eq!(at(affine + offset_of!(Affine, alpha)), 5);
        assert_eq!(at(affine + offset_of!(Affine, bias_type)), 6);
        let sink = offset_of!(Epilogue, sink);
        assert_eq!(at(sink + offset_of!(Sink, out)), 7);
        assert_eq!(at(sink + offset_of!(Sink, out_stride)), 8);
        assert_eq!(at(sink + offset_of!(Sink, out_type)), 9);
        let scales = sink + offset_of!(Sink, scales);
        assert_eq!(at(scales + offset_of!(ResultScales, out)), 10);
        assert_eq!(at(scales + offset_of!(ResultScales, stride)), 11);
        assert_eq!(at(scales + offset_of!(ResultScales, parameter)), 12);
        assert_eq!(at(scales + offset_of!(ResultScales, blocked)), 13);
    }
}
