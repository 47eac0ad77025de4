//! Results in NVFP4 and MXFP4: 16 or 32 neighbouring columns of a row to codes and a scale.
//!
//! The recipes are [`OUT_RECIPE`] and [`OUT_MX_RECIPE`], run by the same conversions as the quantise
//! kernels'. A thread stores sixteen columns ([`store`]) or eight ([`store_eight`]), and knows the largest
//! magnitude of their block, which other threads may have the rest of. The thread that has a block's first
//! columns stores its scale.

use cuda_std::ptx::{float, marker, memory};
use fp4_formats::gemm::{OUT_MX_RECIPE, OUT_RECIPE, Problem, Sink};
use fp4_formats::layout::{TILE_BLOCKS, TILE_ROWS};
use fp4_formats::recipe::{BlockScale, Nvfp4Tensor};
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, ScaleLayout, e4m3, ue8m0};

use super::{COLUMNS, element, is_mxfp4};
use crate::quantize::{AnyRange, F32};

/// Columns that are quantised together: a block of NVFP4, half of one of MXFP4.
pub const GROUP: usize = Nvfp4::BLOCK;

const _: () = assert!(GROUP == 2 * COLUMNS && Mxfp4::BLOCK == 2 * GROUP);

/// Returns the number of blocks in `columns` columns, which are whole blocks.
#[inline(always)]
pub fn count(sink: &Sink, columns: u32) -> u32 {
    // Pinned, so that it takes no register during the main loop.
    columns >> sink.out_type
}

/// Quantises and stores the results of row `m`, columns `n..n + 16`, of a block of largest magnitude
/// `amax`.
///
/// # Safety
/// Row and columns belong to matrix `matrix` of a result of these sizes, `n` is a multiple of 16; the
/// pointers of `sink` are as its documentation says, for a result in NVFP4 or MXFP4; the rest of the block
/// is stored, too.
#[inline(always)]
pub unsafe fn store(
    sink: &Sink,
    sizes: &Problem,
    matrix: u32,
    [m, n]: [u32; 2],
    results: [[f32; COLUMNS]; 2],
    amax: f32,
) {
    let scale = block_scale(sink, amax);
    let codes = results.map(|half| scale.codes::<AnyRange<F32>>(half));
    // SAFETY: the columns' codes, and the block's scale.
    unsafe {
        memory::st_global_v2_b32(code_address(sink, sizes, matrix, [m, n]), codes);
        store_scale(sink, sizes, matrix, [m, n], scale);
    }
}

/// Stores columns `n..n + 8` as [`store`] does.
///
/// # Safety
/// The same as [`store`], `n` a multiple of 8.
#[inline(always)]
pub unsafe fn store_eight(
    sink: &Sink,
    sizes: &Problem,
    matrix: u32,
    [m, n]: [u32; 2],
    results: [f32; COLUMNS],
    amax: f32,
) {
    let scale = block_scale(sink, amax);
    let codes = scale.codes::<AnyRange<F32>>(results);
    // SAFETY: the columns' codes, and the block's scale.
    unsafe {
        memory::st_global_b32(code_address(sink, sizes, matrix, [m, n]), codes);
        store_scale(sink, sizes, matrix, [m, n], scale);
    }
}

/// Makes block `block` of row `m` NaN, by its scale.
///
/// # Safety
/// The same as [`store`].
#[inline(always)]
pub unsafe fn store_nan(sink: &Sink, sizes: &Problem, matrix: u32, [m, block]: [u32; 2]) {
    let codes = code_address(sink, sizes, matrix, [m, block << sink.out_type]);
    let scale = if is_mxfp4(sink) { ue8m0::NAN } else { e4m3::NAN };
    // SAFETY: the block's codes, of MXFP4 twice as many, and its scale.
    unsafe {
        memory::st_global_v2_b32(codes, [0; 2]);
        if is_mxfp4(sink) {
            memory::st_global_v2_b32(codes + const { (GROUP / 2) as u64 }, [0; 2]);
        }
        memory::st_global_b8(scale_address(sink, sizes, matrix, m, block), u16::from(scale));
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
    // Either way by one product for each element, so that the conversion of elements is there once.
    if is_mxfp4(sink) {
        return OUT_MX_RECIPE.block(amax).as_product();
    }
    // Pinned as in `here`.
    let parameter = marker::pin(sink.scales.parameter.to_bits());
    let tensor = Nvfp4Tensor::new(OUT_RECIPE, f32::from_bits(parameter));
    tensor.block::<AnyRange<F32>>(amax).as_product()
}

/// Address of the codes from element `[m, n]` of a matrix on.
#[inline(always)]
fn code_address(sink: &Sink, sizes: &Problem, matrix: u32, place: [u32; 2]) -> u64 {
    sink.out + element(sink, sizes.n, matrix, place) / 2
}

/// Stores the scale of a block whose first column is `n`, and after a row's last one the padding in the
/// same tile. Stores nothing if the block begins before `n`.
///
/// # Safety
/// The same as [`store`].
#[inline(always)]
unsafe fn store_scale(
    sink: &Sink,
    sizes: &Problem,
    matrix: u32,
    [m, n]: [u32; 2],
    scale: BlockScale,
) {
    let sizes = here(sizes);
    let (block, blocks) = (count(sink, n), count(sink, sizes.n));
    if n & ((1 << sink.out_type) - 1) != 0 {
        return;
    }
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

/// Returns the sizes, pinned to this place: the values that follow from them take a few
/// instructions, and would otherwise take registers from the kernel's start on.
#[inline(always)]
fn here(sizes: &Problem) -> Problem {
    Problem { m: marker::pin(sizes.m), n: marker::pin(sizes.n), ..*sizes }
}

/// Writes zeros to the scales of the rows that pad a 128x4 result, for `own` blocks from `first`
/// on. If the last block of a row is one of them, writes zeros to the scales that pad the row as
/// well. Thread `thread` of `threads` does its part.
///
/// # Safety
/// The same as [`store`].
#[inline(always)]
pub unsafe fn pad_rows(
    sink: &Sink,
    sizes: &Problem,
    matrix: u32,
    [first, own]: [u32; 2],
    [thread, threads]: [u32; 2],
) {
    let sizes = here(sizes);
    let blocks = count(sink, sizes.n);
    if sink.scales.blocked == 0 || first >= blocks {
        return;
    }
    let padded = blocks.next_multiple_of(TILE_BLOCKS as u32);
    let end = if first + own < blocks { first + own } else { padded };
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

/// Returns the address of the scale of block `block` of row `m`, either of which may be padding.
#[inline(always)]
fn scale_address(sink: &Sink, sizes: &Problem, matrix: u32, m: u32, block: u32) -> u64 {
    let layout =
        if sink.scales.blocked != 0 { ScaleLayout::Blocked128x4 } else { ScaleLayout::Linear };
    let offset = layout.offset(m as usize, block as usize, count(sink, sizes.n) as usize);
    sink.scales.out + u64::from(matrix) * sink.scales.stride + offset as u64
}
