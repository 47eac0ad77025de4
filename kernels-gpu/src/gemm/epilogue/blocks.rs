//! Results in NVFP4: 16 neighbouring columns of a row to codes and a scale.
//!
//! The recipe is [`OUT_RECIPE`], run by the same conversions as the quantise kernels'. A thread has a
//! whole block ([`store`]), or half of one, whose largest magnitude it has from its neighbour, too
//! ([`store_half`]).

use cuda_std::ptx::{float, marker, memory};
use fp4_formats::gemm::{OUT_RECIPE, Problem, Sink};
use fp4_formats::layout::{TILE_BLOCKS, TILE_ROWS};
use fp4_formats::recipe::{BlockScale, Nvfp4Tensor};
use fp4_formats::{BlockFormat, Nvfp4, ScaleLayout};

use super::{COLUMNS, element};
use crate::quantize::{AnyRange, F32};

/// Columns of a block.
pub const BLOCK: usize = Nvfp4::BLOCK;

/// The scale NaN.
const NAN_SCALE: u16 = 0x7f;

const _: () = assert!(BLOCK == 2 * COLUMNS);

/// Quantises and stores the results of row `m`, columns `n..n + 16`.
///
/// # Safety
/// Row and columns are of matrix `matrix` of a result of these sizes, `n` a multiple of 16; the pointers of
/// `sink` are what its documentation says, for a result in NVFP4.
#[inline(always)]
pub unsafe fn store(
    sink: &Sink,
    sizes: &Problem,
    matrix: u32,
    [m, n]: [u32; 2],
    results: [[f32; COLUMNS]; 2],
) {
    let amax = float::max_nan_f32(magnitude(results[0]), magnitude(results[1]));
    let scale = block_scale(sink, amax);
    let codes = results.map(|half| scale.codes::<AnyRange<F32>>(half));
    // SAFETY: the block's codes and scale.
    unsafe {
        memory::st_global_v2_b32(code_address(sink, sizes, matrix, [m, n]), codes);
        store_scale(sink, sizes, matrix, [m, n / BLOCK as u32], scale);
    }
}

/// [`store`] of one half of a block, whose largest magnitude is `amax`: the results of columns
/// `n..n + 8`. The block's scale is stored with the first half.
///
/// # Safety
/// As [`store`], `n` a multiple of 8; the other half is stored, too.
#[inline(always)]
pub unsafe fn store_half(
    sink: &Sink,
    sizes: &Problem,
    matrix: u32,
    [m, n]: [u32; 2],
    results: [f32; COLUMNS],
    amax: f32,
) {
    let scale = block_scale(sink, amax);
    let codes = scale.codes::<AnyRange<F32>>(results);
    // SAFETY: the half's codes, and the block's scale.
    unsafe {
        memory::st_global_b32(code_address(sink, sizes, matrix, [m, n]), codes);
        if n.is_multiple_of(BLOCK as u32) {
            store_scale(sink, sizes, matrix, [m, n / BLOCK as u32], scale);
        }
    }
}

/// Makes block `block` of row `m` NaN, by its scale.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub unsafe fn store_nan(sink: &Sink, sizes: &Problem, matrix: u32, [m, block]: [u32; 2]) {
    let codes = code_address(sink, sizes, matrix, [m, block * BLOCK as u32]);
    // SAFETY: the block's codes and scale.
    unsafe {
        memory::st_global_v2_b32(codes, [0; 2]);
        memory::st_global_b8(scale_address(sink, sizes, matrix, m, block), NAN_SCALE);
    }
}

/// The largest magnitude; NaN if any is.
#[inline(always)]
pub fn magnitude(values: [f32; COLUMNS]) -> f32 {
    let mut amax = 0.0;
    for i in 0..COLUMNS {
        amax = float::max_nan_f32(amax, float::abs_f32(values[i]));
    }
    amax
}

/// The scale of a block of largest magnitude `amax`.
#[inline(always)]
fn block_scale(sink: &Sink, amax: f32) -> BlockScale {
    // Pinned as in `here`.
    let parameter = marker::pin(sink.scales.parameter.to_bits());
    Nvfp4Tensor::new(OUT_RECIPE, f32::from_bits(parameter)).block::<AnyRange<F32>>(amax)
}

/// Address of the codes from element `[m, n]` of a matrix on.
#[inline(always)]
fn code_address(sink: &Sink, sizes: &Problem, matrix: u32, place: [u32; 2]) -> u64 {
    sink.out + element(sink, sizes.n, matrix, place) / 2
}

/// Stores a block's scale, and after a row's last one the padding in the same tile.
///
/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_scale(
    sink: &Sink,
    sizes: &Problem,
    matrix: u32,
    [m, block]: [u32; 2],
    scale: BlockScale,
) {
    let sizes = here(sizes);
    let blocks = sizes.n / BLOCK as u32;
    let at = scale_address(sink, &sizes, matrix, m, block);
    // SAFETY: the block's scale, and what pads its row.
    unsafe {
        memory::st_global_b8(at, u16::from(scale.byte));
        if sink.scales.blocked != 0 && block + 1 == blocks {
            // The scales of a row in a tile are consecutive.
            for i in 1..TILE_BLOCKS as u32 {
                if block % TILE_BLOCKS as u32 + i < TILE_BLOCKS as u32 {
                    memory::st_global_b8(at + u64::from(i), 0);
                }
            }
        }
    }
}

/// The sizes, tied to this place: what follows from them is no more than a few instructions,
/// and would otherwise take registers from the kernel's start on.
#[inline(always)]
fn here(sizes: &Problem) -> Problem {
    Problem { m: marker::pin(sizes.m), n: marker::pin(sizes.n), ..*sizes }
}

/// Writes zeros to the scales of the rows that pad a 128x4 result, for `count` blocks from `first`
/// on, and, if the last block of a row is one of them, for those that pad the row. Thread `thread`
/// of `threads` does its part.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub unsafe fn pad_rows(
    sink: &Sink,
    sizes: &Problem,
    matrix: u32,
    [first, count]: [u32; 2],
    [thread, threads]: [u32; 2],
) {
    let sizes = here(sizes);
    let blocks = sizes.n / BLOCK as u32;
    if sink.scales.blocked == 0 || first >= blocks {
        return;
    }
    let padded = blocks.next_multiple_of(TILE_BLOCKS as u32);
    let end = if first + count < blocks { first + count } else { padded };
    let rows = sizes.m.next_multiple_of(TILE_ROWS as u32);
    let mut row = sizes.m + thread;
    while row < rows {
        let mut block = first;
        while block < end {
            // SAFETY: a byte of the padding.
            unsafe { memory::st_global_b8(scale_address(sink, &sizes, matrix, row, block), 0) };
            block = marker::pin(block + 1);
        }
        row += threads;
    }
}

/// Address of the scale of block `block` of row `m`, either of which may be padding.
#[inline(always)]
fn scale_address(sink: &Sink, sizes: &Problem, matrix: u32, m: u32, block: u32) -> u64 {
    let layout =
        if sink.scales.blocked != 0 { ScaleLayout::Blocked128x4 } else { ScaleLayout::Linear };
    let offset = layout.offset(m as usize, block as usize, sizes.n as usize / BLOCK);
    sink.scales.out + u64::from(matrix) * sink.scales.stride + offset as u64
}
