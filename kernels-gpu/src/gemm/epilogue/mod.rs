//! The epilogue of both architectures: from f32 sums to results in memory.
//!
//! ```text
//! sums --affine--> alpha * row * column * sum + bias --combine--> results
//! results --line--> finished results --sink--> memory
//! ```
//!
//! | file | step |
//! |---|---|
//! | [`affine`] | factors and bias; the only place that computes the formula |
//! | [`combine`] | values to results: activations, and pairs of values that make one result |
//! | [`line`] | the last operations in f32: the [`residual`] is added, the [`largest`] magnitude found |
//! | [`direct`] | sink: threads convert and store floats |
//! | [`floats`] | elements that are read or stored as f16, bf16 or f32 |
//! | [`blocks`] | sink: threads quantise blocks of 16 columns to NVFP4, or 32 to MXFP4, and store codes and scales |
//!
//! All results go through [`line`], unless the launch's epilogue [is
//! plain](fp4_formats::gemm::Epilogue::is_plain) or [a plain
//! gate](fp4_formats::gemm::Epilogue::is_plain_gate). [`nan`] makes all results NaN if a grouped product's token
//! counts are bad.
//!
//! sm_100a has one more sink for floats, boxes of results that the copy engine stores; it converts
//! by [`direct::Bits`], too, which is the only place that looks at the type of a float result.
//!
//! A thread holds neighbouring sums of one token or of one column.

pub mod affine;
pub mod blocks;
pub mod combine;
pub mod direct;
pub mod floats;
pub mod largest;
pub mod line;
pub mod nan;
pub mod residual;

use cuda_std::ptx::marker;
use fp4_formats::gemm::{OUT_MXFP4, OUT_NVFP4, Sink};

/// Neighbouring columns that a thread stores together: 16 bytes of 16-bit results.
pub const COLUMNS: usize = 8;

/// Whether the result is NVFP4 or MXFP4.
#[inline(always)]
pub fn is_blocks(sink: &Sink) -> bool {
    // Pinned, like the other one, so that the answer takes no register during the main loop.
    marker::pin(sink.out_type) >= OUT_NVFP4
}

/// Whether the result is MXFP4.
#[inline(always)]
pub fn is_mxfp4(sink: &Sink) -> bool {
    marker::pin(sink.out_type) == OUT_MXFP4
}

/// Whether results are f32: elements of 4 bytes. All other floats have 2.
#[inline(always)]
pub fn is_f32(sink: &Sink) -> bool {
    floats::is_f32(sink.out_type)
}

/// Bytes of an element of a result in floats.
#[inline(always)]
pub fn element_bytes(sink: &Sink) -> u64 {
    floats::bytes(sink.out_type)
}

/// The lower and the upper half of a parameter, pinned, so that what is asked of it takes no register during the
/// main loop.
#[inline(always)]
fn pinned_halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32].map(marker::pin)
}

/// Index of element `[m, n]` of a matrix of the result with `columns` columns.
#[inline(always)]
pub fn element(sink: &Sink, columns: u32, matrix: u32, [m, n]: [u32; 2]) -> u64 {
    u64::from(matrix) * sink.out_stride + u64::from(m) * u64::from(columns) + u64::from(n)
}
