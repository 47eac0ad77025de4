//! Results in NVFP4: 16 neighbouring columns of a row to codes and a scale.
//!
//! The recipe is [`OUT_RECIPE`], run by the same conversions as the quantise kernels'. A
//! thread has a whole block, whatever the architecture: it needs no other's maximum.

use cuda_std::ptx::{float, marker, memory};
use fp4_formats::gemm::{OUT_RECIPE, Problem, Sink};
use fp4_formats::layout::{TILE_BLOCKS, TILE_ROWS};
use fp4_formats::recipe::{BlockScale, Nvfp4Tensor};
use fp4_formats::{BlockFormat, Nvfp4, ScaleLayout};

use super::{COLUMNS, element};
use crate::quantize::{AnyRange, F32};

/// Columns of a block.
pub const BLOCK: usize = Nvfp4::BLOCK;

const _: () = assert!(BLOCK == 2 * COLUMNS);

/// Quantises and stores the results of row `m`, columns `n..n + 16`.
///
/// # Safety
/// Row and columns are of matrix `matrix` of `problem`, `n` a multiple of 16; the pointers of
/// `sink` are what its documentation says, for a result in NVFP4.
#[inline(always)]
pub unsafe fn store(
    sink: &Sink,
    problem: &Problem,
    matrix: u32,
    [m, n]: [u32; 2],
    results: [[f32; COLUMNS]; 2],
) {
    let amax = float::max_nan_f32(magnitude(results[0]), magnitude(results[1]));
    let scale = block_scale(sink, amax);
    let codes = results.map(|half| scale.codes::<AnyRange<F32>>(half));
    // SAFETY: the block's codes and scale.
    unsafe {
        memory::st_global_v2_b32(code_address(sink, problem, matrix, [m, n]), codes);
        store_scale(sink, problem, matrix, [m, n / BLOCK as u32], scale);
    }
}

/// The largest magnitude; NaN if any is.
#[inline(always)]
fn magnitude(values: [f32; COLUMNS]) -> f32 {
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
fn code_address(sink: &Sink, problem: &Problem, matrix: u32, place: [u32; 2]) -> u64 {
    sink.out + element(sink, problem.n, matrix, place) / 2
}

/// Stores a block's scale, and after a row's last one the padding in the same tile.
///
/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_scale(
    sink: &Sink,
    problem: &Problem,
    matrix: u32,
    [m, block]: [u32; 2],
    scale: BlockScale,
) {
    let problem = here(problem);
    let blocks = problem.n / BLOCK as u32;
    let at = scale_address(sink, &problem, matrix, m, block);
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
fn here(problem: &Problem) -> Problem {
    Problem { m: marker::pin(problem.m), n: marker::pin(problem.n), ..*problem }
}

/// Writes zeros to the scales of the rows that pad a 128x4 result, for `count` blocks from
/// `first` on, or as many as there are with padding. Thread `thread` of `threads` does its
/// part.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub unsafe fn pad_rows(
    sink: &Sink,
    problem: &Problem,
    matrix: u32,
    [first, count]: [u32; 2],
    [thread, threads]: [u32; 2],
) {
    let problem = here(problem);
    let blocks = (problem.n / BLOCK as u32).next_multiple_of(TILE_BLOCKS as u32);
    if sink.scales.blocked == 0 || first >= blocks {
        return;
    }
    let rows = problem.m.next_multiple_of(TILE_ROWS as u32) - problem.m;
    let mut item = thread;
    while item < rows * count {
        // By `count`, a constant of the configuration.
        let (row, block) = (problem.m + item / count, first + item % count);
        if block < blocks {
            // SAFETY: a byte of the padding.
            unsafe { memory::st_global_b8(scale_address(sink, &problem, matrix, row, block), 0) };
        }
        item += threads;
    }
}

/// Address of the scale of block `block` of row `m`, either of which may be padding.
#[inline(always)]
fn scale_address(sink: &Sink, problem: &Problem, matrix: u32, m: u32, block: u32) -> u64 {
    let layout =
        if sink.scales.blocked != 0 { ScaleLayout::Blocked128x4 } else { ScaleLayout::Linear };
    let offset = layout.offset(m as usize, block as usize, problem.n as usize / BLOCK);
    sink.scales.out + u64::from(matrix) * sink.scales.stride + offset as u64
}
