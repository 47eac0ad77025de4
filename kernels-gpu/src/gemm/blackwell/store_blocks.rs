//! The storing warps' results in NVFP4. A thread of theirs has a row of `X`: of plain
//! products a row of the result, whose blocks lie along the tile's columns; of swapped ones
//! a column, so that sixteen lanes, which hold a block together, exchange theirs first.

use super::store::Place;
use super::{Work, decode};
use crate::gemm::blocks::{self, BLOCK};
use crate::gemm::epilogue::{self, COLUMNS};
use cuda_std::{thread, warp};
use fp4_formats::gemm::blackwell::BlackwellParams;
use fp4_formats::gemm::blackwell::config::{CTA_ROWS, STORE_WARPS};

/// Applies the epilogue to the sums of columns `column..column + 16` of a thread's row,
/// quantises what lies inside the result, and stores it.
///
/// # Safety
/// Whole warps; `place` and `column`, a multiple of 16, are of a tile of the problem; each
/// element is stored once; the result is NVFP4.
#[inline(always)]
pub unsafe fn store(work: &Work<'_>, place: &Place, column: u32, sums: [[f32; COLUMNS]; 2]) {
    let BlackwellParams { epilogue, problem, .. } = work.params;
    let unit = decode::unit(work.config);
    let (x, y) = (place.x, place.y + column);
    if work.params.swapped == 0 {
        if x < problem.m && y < problem.n {
            // SAFETY: the block is inside the result.
            unsafe { blocks::store(epilogue, problem, unit, place.batch, [x, y], sums) };
        }
        return;
    }
    if y >= problem.m {
        return;
    }
    let [low, high] = sums;
    let sums: [f32; BLOCK] =
        core::array::from_fn(|i| if i < COLUMNS { low[i] } else { high[i - COLUMNS] });
    // Lanes without a column are others' aliases up to the exchange, which all take part in.
    let n = x.min(problem.n - 1);
    let lane = warp::lane_id() % BLOCK as u32;
    // SAFETY: token and column exist; all lanes of the warp are here.
    let row =
        unsafe { warp::transpose(epilogue::column_results(epilogue, problem, unit, [y, n], sums)) };
    let (token, first) = (y + lane, x - lane);
    if token < problem.m && first < problem.n {
        let row = halves(row);
        // SAFETY: the block is inside the result.
        unsafe { blocks::store_results(epilogue, problem, place.batch, [token, first], row) };
    }
}

/// A block as two pieces.
#[inline(always)]
pub fn halves(values: [f32; BLOCK]) -> [[f32; COLUMNS]; 2] {
    core::array::from_fn(|half| core::array::from_fn(|i| values[half * COLUMNS + i]))
}

/// Writes the padding of the scales below the last row of the result, if that is in the
/// CTA's part of the tile: columns `first..first + count`.
///
/// # Safety
/// As [`store`], but once a tile by any of the threads.
#[inline(always)]
pub unsafe fn pad(work: &Work<'_>, place: &Place, [first, count]: [u32; 2]) {
    let BlackwellParams { epilogue, problem, .. } = work.params;
    let thread = thread::thread_idx_x();
    let (x, y) = ((place.x - thread, CTA_ROWS), (place.y + first, count));
    let ((row, rows), (column, columns)) = if work.params.swapped != 0 { (y, x) } else { (x, y) };
    let last = problem.m - 1;
    if row <= last && last - row < rows {
        let part = [column / BLOCK as u32, columns / BLOCK as u32];
        let threads = [thread, STORE_WARPS * warp::LANES];
        // SAFETY: the caller's.
        unsafe { blocks::pad_rows(epilogue, problem, place.batch, part, threads) };
    }
}
