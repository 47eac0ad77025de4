//! Lays out operands that the copy engine cannot take: see
//! [`fp4_formats::gemm::sm100::prepare`].
//!
//! # Contract
//! Any grid; a thread writes 16 bytes at a time. Reads each existing scale or code once,
//! no padding. The product may begin to copy its weights at once.

use crate::pipeline::{follow_stream, release_stream};
use cuda_std::ptx::memory;
use cuda_std::{kernel, thread};
use fp4_formats::ScaleLayout;
use fp4_formats::gemm::groups::ScaleRows;
use fp4_formats::gemm::sm100::prepare::{
    PrepareCodes, PrepareGroupedScales, PrepareScales, THREADS,
};
use fp4_formats::layout::{TILE_BLOCKS, TILE_BYTES, TILE_ROWS};

/// Calls `f` with this thread's share of `0..count`, behind the kernels before: with the quotient
/// by `divisor` and the remainder of each, which are added up instead of divided.
#[inline(always)]
fn for_each(count: u64, divisor: u32, mut f: impl FnMut(u64, u32)) {
    release_stream();
    follow_stream();
    let divisor = divisor.max(1);
    let first = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    let step = thread::grid_dim_x() * THREADS;
    let (quotient, mut rest) = (first / divisor, first % divisor);
    let (quotient_step, rest_step) = (step / divisor, step % divisor);
    let (mut i, mut quotient) = (u64::from(first), u64::from(quotient));
    while i < count {
        f(quotient, rest);
        i += u64::from(step);
        quotient += u64::from(quotient_step);
        rest += rest_step;
        if rest >= divisor {
            rest -= divisor;
            quotient += 1;
        }
    }
}

/// Scales in the 128x4 layout with zeros in the padding. A 16-byte word holds four
/// scales of each of rows `r`, `r + 32`, `r + 64`, `r + 96` of a tile.
///
/// # Safety
/// The same as [`PrepareScales`] says.
#[kernel(threads = THREADS)]
pub unsafe fn gemm_sm100_prepare_scales(p: PrepareScales) {
    let tiles = p.blocks.div_ceil(TILE_BLOCKS as u32);
    for_each(p.words(), tiles * 32, |row_tile, word| {
        // Memory does not hold 2^32 rows of tiles.
        let (batch, row_tile) = p.row_tiles.divide(row_tile as u32);
        let (batch, tile, lane) = (u64::from(batch), word / 32, word % 32);
        let from = p.from + batch * p.from_stride;
        // SAFETY: scales of the batch entry.
        let words = unsafe { word_of(&p, from, row_tile * TILE_ROWS as u32 + lane, tile, p.rows) };
        let tile = u64::from(row_tile) * u64::from(tiles) + u64::from(tile);
        let to = p.to + batch * p.to_stride + tile * TILE_BYTES as u64 + u64::from(lane) * 16;
        // SAFETY: a word of the destination that no other thread writes.
        unsafe { memory::st_global_v4_b32(to, words) };
    });
}

/// The scales of tile `tile` along K that a word of a tile holds: of rows `row`, `row + 32` and so
/// on of the matrix at `from`, as far as they are below `end`; zeros for all others.
///
/// # Safety
/// The matrix has the parameters' scales, and `end` rows or more.
#[inline(always)]
unsafe fn word_of(p: &PrepareScales, from: u64, row: u32, tile: u32, end: u32) -> [u32; 4] {
    let layout = if p.blocked != 0 { ScaleLayout::Blocked128x4 } else { ScaleLayout::Linear };
    let block = tile * TILE_BLOCKS as u32;
    let mut words = [0; 4];
    for i in 0..4 {
        for j in 0..TILE_BLOCKS as u32 {
            let (row, block) = (row + 32 * i as u32, block + j);
            if row < end && block < p.blocks {
                let at = layout.offset(row as usize, block as usize, p.blocks as usize);
                // SAFETY: an existing scale.
                let byte = unsafe { memory::ld_global_nc_u8(from + at as u64) };
                words[i] |= u32::from(byte) << (8 * j);
            }
        }
    }
    words
}

/// Lays out scales of grouped activations in the 128x4 layout, each problem's in separate tiles.
///
/// # Safety
/// The same as [`PrepareGroupedScales`] says.
#[kernel(threads = THREADS)]
pub unsafe fn gemm_sm100_prepare_grouped_scales(p: PrepareGroupedScales) {
    let scales = &p.scales;
    let tiles = scales.blocks.div_ceil(TILE_BLOCKS as u32);
    // SAFETY: only counts that there are are asked for.
    let count = |at: u32| unsafe { memory::ld_global_b32(p.groups.counts + u64::from(at) * 4) };
    let (mut known, mut rows) = (u32::MAX, ScaleRows { matrix: 0, first: 0, count: 0 });
    for_each(p.words(), tiles * 32, |row_tile, word| {
        // Memory does not hold 2^32 rows of tiles.
        let row_tile = row_tile as u32;
        if row_tile != known {
            (known, rows) = (row_tile, p.groups.scale_rows(row_tile, |at| count(at) as i32));
        }
        if rows.count == 0 {
            return;
        }
        let (tile, lane) = (word / 32, word % 32);
        let from = scales.from + u64::from(rows.matrix) * scales.from_stride;
        let end = rows.first + rows.count;
        // SAFETY: scales of tokens that there are.
        let words = unsafe { word_of(scales, from, rows.first + lane, tile, end) };
        let tile = u64::from(row_tile) * u64::from(tiles) + u64::from(tile);
        let to = scales.to + tile * TILE_BYTES as u64 + u64::from(lane) * 16;
        // SAFETY: a word of the destination that no other thread writes.
        unsafe { memory::st_global_v4_b32(to, words) };
    });
}

/// Rows padded with zeros to a multiple of 16 bytes.
///
/// # Safety
/// The same as [`PrepareCodes`] says.
#[kernel(threads = THREADS)]
pub unsafe fn gemm_sm100_prepare_codes(p: PrepareCodes) {
    let padded = PrepareCodes::padded(p.row_bytes);
    for_each(p.words(), padded / 16, |row, word| {
        let column = u64::from(word * 16);
        let from = p.from + row * u64::from(p.row_bytes) + column;
        let mut out = [0; 4];
        // SAFETY: 8-byte pieces that begin inside the row are inside; the destination is
        // this thread's.
        unsafe {
            [out[0], out[1]] = memory::ld_global_nc_v2_b32(from);
            if column + 8 < u64::from(p.row_bytes) {
                [out[2], out[3]] = memory::ld_global_nc_v2_b32(from + 8);
            }
            memory::st_global_v4_b32(p.to + row * u64::from(padded) + column, out);
        }
    });
}
