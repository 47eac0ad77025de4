//! The residual: elements of another matrix, which are added to the results in f32.

use cuda_std::ptx::{marker, memory};
use fp4_formats::gemm::epilogue::Residual;
use fp4_formats::gemm::{Problem, Sink};

use super::line::Line;
use super::{floats, pinned_halves};

/// Bytes of the widest load.
const LOAD: u64 = 16;

/// Whether there is one.
#[inline(always)]
pub fn is_given(sink: &Sink) -> bool {
    address(sink) != 0
}

/// Its address, or 0. Pinned, so that the answer takes no register during the main loop.
#[inline(always)]
fn address(sink: &Sink) -> u64 {
    pinned(sink.residual.address)
}

#[inline(always)]
fn pinned(value: u64) -> u64 {
    let [low, high] = pinned_halves(value);
    u64::from(low) | u64::from(high) << 32
}

/// Whether eight elements of every row start at a multiple of 16 bytes, at columns that are a multiple
/// of 8. Holds without a residual.
#[inline(always)]
pub fn rows_aligned(sink: &Sink) -> bool {
    // The host has computed it: from the other parameters, it would take registers that kernels for few
    // tokens do not have.
    marker::pin(sink.residual.aligned) != 0
}

/// Adds the residual to the results of a line that exist, if there is one.
///
/// # Safety
/// They are inside the result, of these sizes. Elements of the residual that other threads store
/// meanwhile are not of this line.
#[inline(always)]
pub unsafe fn add<const N: usize>(
    line: &Line,
    sink: &Sink,
    sizes: &Problem,
    results: [f32; N],
) -> [f32; N] {
    let address = address(sink);
    if address == 0 {
        return results;
    }
    let Residual { address: _, stride, float_type, aligned: _ } = sink.residual;
    let (stride, float_type) = (pinned(stride), marker::pin(float_type));
    let (is_f32, bytes) = (floats::is_f32(float_type), floats::bytes(float_type));
    // Pinned, too: the element's index in the result is not kept for both.
    let ([m, n], columns) = (line.place, marker::pin(sizes.n));
    let row = u64::from(m) * u64::from(columns) + u64::from(n);
    let first = address + (u64::from(line.matrix) * stride + row) * bytes;
    // SAFETY: as the caller says.
    let bits: [u32; N] = unsafe {
        if line.aligned {
            load_row(first, is_f32)
        } else {
            load_each(first, u64::from(line.step(sizes)) * bytes, line.exist, is_f32)
        }
    };
    // One branch for all.
    let values = if is_f32 {
        bits.map(f32::from_bits)
    } else {
        floats::widened(float_type, bits.map(|bits| bits as u16))
    };
    core::array::from_fn(|i| results[i] + values[i])
}

/// The bits of the elements from `first` on, one behind the other.
///
/// # Safety
/// All can be read, and `first` is a multiple of 16.
#[inline(always)]
unsafe fn load_row<const N: usize>(first: u64, is_f32: bool) -> [u32; N] {
    // SAFETY: as the caller says.
    unsafe {
        let words = memory::ld_global_v4_b32(first);
        if is_f32 {
            let more = memory::ld_global_v4_b32(first + LOAD);
            core::array::from_fn(|i| if i < 4 { words[i] } else { more[i % 4] })
        } else {
            core::array::from_fn(|i| words[i / 2 % 4] >> (16 * (i % 2)) & 0xffff)
        }
    }
}

/// The bits of the first `exist` of elements that are `step` bytes apart, zeros of the others.
///
/// # Safety
/// The first can be read.
#[inline(always)]
unsafe fn load_each<const N: usize>(first: u64, step: u64, exist: u32, is_f32: bool) -> [u32; N] {
    let (mut bits, mut at) = ([0; N], first);
    // All are loaded before the first one is used.
    for i in 0..N {
        if (i as u32) < exist {
            // SAFETY: as the caller says.
            bits[i] = unsafe {
                if is_f32 { memory::ld_global_b32(at) } else { memory::ld_global_u16(at).into() }
            };
        }
        at += step;
    }
    bits
}
