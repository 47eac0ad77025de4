//! The epilogue's part of the contract: from a sum to a result in memory.
//!
//! ```text
//! sum --affine--> alpha * row * column * sum + bias --combine--> value of the result
//! value --residual--> value + residual --sink--> memory
//! ```
//!
//! | step | effect |
//! |---|---|
//! | affine | factors and bias in f32, in the order of the formula; an absent factor or bias changes nothing |
//! | combine | an activation of one value, or of two if the product is gated ([`combine`](super::combine)) |
//! | residual | adds an element of another matrix in f32, if there is one ([`Residual`]) |
//! | sink | rounds to f16, bf16 or f32, or quantises to NVFP4 or MXFP4, and stores |
//!
//! # Results in NVFP4 and MXFP4
//! With [`OUT_NVFP4`] or [`OUT_MXFP4`] in [`Sink::out_type`], the f32 results are quantised in blocks
//! of 16 or 32 columns of a row, of which N is a multiple: by [`OUT_RECIPE`] with a given tensor
//! scale, or by [`OUT_MX_RECIPE`]. Codes and scales are the recipe's for those f32 in every bit.
//!
//! A block that has a NaN gets the scale NaN (0x7f, in MXFP4 0xff), so that all of it is NaN, and
//! unspecified codes. In NVFP4 an infinity, like any f32 beyond it, becomes the largest magnitude
//! that the tensor scale leaves, 6 * 448 times it; the block's other elements are quantised as in a
//! block with the scale 448. In MXFP4 an infinity makes its block NaN. None of this is reported as
//! an error.
//!
//! # Largest magnitude
//! A launch raises the word at [`Sink::magnitude`] to the bits of the largest magnitude of the
//! results, each in f32 before it is rounded or quantised, its residual included. Bits of magnitudes
//! are ordered as the magnitudes are, and the bits of NaN are above infinity's, so that one NaN makes
//! the word NaN. A product that is refused on the device, whose results are NaN, makes it NaN, too. Launches only
//! raise the word: its reader sets it to 0 before the first of them.

use super::combine::Combine;
use crate::params::blocks;
use crate::quantize::Format;
use crate::recipe::{Mxfp4Recipe, Nvfp4Recipe};
use crate::{BlockFormat, FloatType, Mxfp4, Nvfp4};

/// Values of [`Sink::out_type`] for a result in NVFP4, and for one in MXFP4: the base-2 logarithm of
/// a block's columns. Other results have a [`FloatType`] there.
pub const OUT_NVFP4: u32 = Nvfp4::BLOCK.ilog2();
/// See [`OUT_NVFP4`].
pub const OUT_MXFP4: u32 = Mxfp4::BLOCK.ilog2();

const _: () = {
    let types = [FloatType::F16, FloatType::Bf16, FloatType::F32];
    let mut i = 0;
    while i < types.len() {
        assert!((types[i] as u32) < OUT_NVFP4);
        i += 1;
    }
    assert!(OUT_NVFP4 < OUT_MXFP4);
};

/// The recipe of results in NVFP4.
pub const OUT_RECIPE: Nvfp4Recipe = Nvfp4Recipe::TorchAo;
/// The recipe of results in MXFP4: the OCP MX specification's.
pub const OUT_MX_RECIPE: Mxfp4Recipe = Mxfp4Recipe::Floor;

/// The type of a result, as far as the cost of a product depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultType {
    /// Floats.
    Floats(FloatType),
    /// 4-bit codes with block scales: NVFP4 by [`OUT_RECIPE`], MXFP4 by [`OUT_MX_RECIPE`].
    Blocks(Format),
}

impl ResultType {
    /// Bytes of `elements` elements, of NVFP4 with their block scales, padding left out.
    pub const fn bytes(self, elements: u64) -> u64 {
        match self {
            Self::Floats(floats) => elements * floats.bytes() as u64,
            Self::Blocks(format) => elements.div_ceil(2) + elements.div_ceil(format.block() as u64),
        }
    }

    /// Returns the number of neighbouring columns of a row that are stored together, of which N is
    /// a multiple.
    pub const fn block(self) -> u32 {
        match self {
            Self::Floats(_) => 1,
            Self::Blocks(format) => format.block(),
        }
    }
}

/// The epilogue of a launch: its operations on the sums.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Epilogue {
    /// Factors and bias; in a gated product, the gate's.
    pub affine: Affine,
    /// Factors and bias of the other half of a gated product; its row factors are the gate's.
    pub up: Affine,
    /// The combine step, from values to results.
    pub combine: Combine,
    /// Address and type of the results.
    pub sink: Sink,
}

impl Epilogue {
    /// Whether a result is a sum times alpha and a row factor, and nothing is asked of it.
    pub const fn is_plain(&self) -> bool {
        // A plain product has no `up`, and alpha and row factors are applied to every result.
        let Self { affine, up: _, combine, sink } = self;
        let Affine { row_factors: _, column_factors: _, bias: _, alpha: _, bias_type: _ } = affine;
        combine.is_none() && !affine.has_columns() && sink.asks_nothing()
    }

    /// Whether a result is made of two sums times alpha each, gated by a sigmoid, and nothing is asked of it.
    pub const fn is_plain_gate(&self) -> bool {
        let Self { affine, up, combine, sink } = self;
        // `up` has the gate's row factors.
        let Affine { row_factors, column_factors: _, bias: _, alpha: _, bias_type: _ } = affine;
        combine.is_sigmoid_gate()
            && *row_factors == 0
            && !affine.has_columns()
            && !up.has_columns()
            && sink.asks_nothing()
    }

    /// Whether a result is a sum times alpha, or two gated by a sigmoid, to which at most a residual of the result's type is
    /// added.
    pub const fn is_short(&self) -> bool {
        let Self { affine, up: _, combine: _, sink } = self;
        let Sink { residual, out_type, .. } = sink;
        let rest = Self { sink: Sink { residual: Residual::NONE, ..*sink }, ..*self };
        (residual.address == 0 || residual.float_type == *out_type)
            && affine.row_factors == 0
            && (rest.is_plain() || rest.is_plain_gate())
    }
}

/// `alpha * row[m] * column[n] * sum + bias[n]`, in f32 and in this order. Pointers are device
/// addresses, aligned to the element; 0 if a vector is absent. The problems of a launch share the
/// vectors.
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
    /// The address of the values that are added to each column, or 0.
    pub bias: u64,
    /// Factor of all results.
    pub alpha: f32,
    /// A [`FloatType`]; arbitrary without a bias.
    pub bias_type: u32,
}

impl Affine {
    /// Whether columns have factors or a bias.
    #[inline(always)]
    pub const fn has_columns(&self) -> bool {
        // A bias alone has a type, and the others are no column's.
        let Self { row_factors: _, column_factors, bias, alpha: _, bias_type: _ } = self;
        *column_factors != 0 || *bias != 0
    }
}

/// The result in memory. Pointers are device addresses.
///
/// | field | shape | type |
/// |---|---|---|
/// | `out` | `[L, M, N]`, matrices at distances of `out_stride` elements | `out_type`; packed codes for NVFP4 and MXFP4 |
/// | `scales` | L matrices of `[M, N/16]`, or `[M, N/32]` | e4m3 for NVFP4, ue8m0 for MXFP4 |
///
/// Floats are aligned to their size, codes to a block's 8 or 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Sink {
    /// Result.
    pub out: u64,
    /// Elements from one matrix of the result to the next.
    pub out_stride: u64,
    /// A [`FloatType`], [`OUT_NVFP4`] or [`OUT_MXFP4`].
    pub out_type: u32,
    /// Columns of the result: N, or half as many if the product is gated.
    pub columns: u32,
    /// Addresses of the scales of a result in NVFP4 or MXFP4.
    pub scales: ResultScales,
    /// Device address of a word for the [largest magnitude](self#largest-magnitude), or 0.
    pub magnitude: u64,
    /// The matrix that is added to the results.
    pub residual: Residual,
}

impl Sink {
    /// The sink of a result of which nothing else is asked.
    pub const fn of(
        [out, out_stride]: [u64; 2],
        out_type: u32,
        columns: u32,
        scales: ResultScales,
    ) -> Self {
        Self { out, out_stride, out_type, columns, scales, magnitude: 0, residual: Residual::NONE }
    }

    /// Whether results are stored and nothing else is made of them.
    const fn asks_nothing(&self) -> bool {
        let Self { out: _, out_stride: _, out_type: _, columns: _, scales: _, magnitude, residual } =
            self;
        *magnitude == 0 && !residual.is_given()
    }
}

/// A matrix of floats that is added to the results in f32, behind the combine step and before the one
/// rounding: `[L, M, N]` as the result, whose place in memory it may have. Each element is read by the
/// thread that stores the result's, before that.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Residual {
    /// Device address, aligned to the element, or 0 for none.
    pub address: u64,
    /// Elements from one matrix to the next.
    pub stride: u64,
    /// A [`FloatType`]; arbitrary without a residual.
    pub float_type: u32,
    /// 1 if eight elements of every row start at a multiple of 16 bytes, at columns that are a multiple
    /// of 8; and without a residual.
    pub aligned: u32,
}

impl Residual {
    /// The parameters of results to which nothing is added.
    pub const NONE: Self = Self { address: 0, stride: 0, float_type: 0, aligned: 1 };

    /// Matrices of a result of `columns` columns.
    pub const fn new(address: u64, stride: u64, float_type: FloatType, columns: u32) -> Self {
        let rows = (columns as u64 | stride) * float_type.bytes() as u64;
        let aligned = (address | rows).is_multiple_of(16);
        Self { address, stride, float_type: float_type as u32, aligned: aligned as u32 }
    }

    /// Whether there is one.
    const fn is_given(&self) -> bool {
        // The others say where and what it is.
        let Self { address, stride: _, float_type: _, aligned: _ } = self;
        *address != 0
    }
}

/// The scales of a result in NVFP4 or MXFP4.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct ResultScales {
    /// Device address of the block scales, one byte each. All padding of the 128x4 layout
    /// is written as zero.
    pub out: u64,
    /// Bytes from one batch entry's scales to the next, padding included.
    pub stride: u64,
    /// The tensor parameter of NVFP4, which [`OUT_RECIPE`] accepts: values are
    /// `code * scale * parameter`.
    pub parameter: f32,
    /// 1 for the 128x4 layout, 0 for the linear one.
    pub blocked: u32,
}

impl ResultScales {
    /// The parameters of results without scales.
    pub const NONE: Self = Self { out: 0, stride: 0, parameter: 1.0, blocked: 0 };
}

impl Epilogue {
    /// One result for each sum, with nothing between the affine step and the sink.
    pub const fn of(affine: Affine, sink: Sink) -> Self {
        Self { affine, up: affine, combine: Combine::NONE, sink }
    }
}

blocks! {
    Epilogue { affine, up, combine, sink }
    Affine { row_factors, column_factors, bias, alpha, bias_type }
    Sink { out, out_stride, out_type, columns, scales, magnitude, residual }
    Residual { address, stride, float_type, aligned }
    ResultScales { out, stride, parameter, blocked }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_results() {
        let floats = [FloatType::F16, FloatType::Bf16, FloatType::F32].map(ResultType::Floats);
        assert_eq!(floats.map(|result| result.bytes(4096)), [8192, 8192, 16384]);
        let [nv, mx] = [Format::Nvfp4, Format::Mxfp4].map(ResultType::Blocks);
        assert_eq!([nv, mx].map(|result| result.bytes(4096)), [2048 + 256, 2048 + 128]);
        assert_eq!([nv.bytes(16), mx.bytes(32)], [9, 17]);
        assert_eq!([nv.block(), mx.block()], [1 << OUT_NVFP4, 1 << OUT_MXFP4]);
    }
}
