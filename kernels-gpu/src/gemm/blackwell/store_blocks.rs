//! The storing warps' results in NVFP4. Each thread has one row of `X`. Plain, that is a row of the
//! result, whose blocks lie along the tile's columns. Swapped, it is a column of the result: sixteen
//! lanes hold a block together, and exchange their elements first.

use super::store::Place;
use super::{Work, decode};
use crate::gemm::epilogue::blocks::{self, BLOCK};
use crate::gemm::epilogue::{COLUMNS, affine};
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
pub unsafe fn store(work: &Work<'_>, place: &Place, column: u32, sums: [f32; BLOCK]) {
    let BlackwellParams { epilogue, problem, .. } = work.params;
    let unit = decode::unit(work.config);
    let (x, y) = (place.x, place.y + column);
    // Both ways to a block's results meet before it is quantised, which is most of the code.
    let (results, [m, n]) = if work.params.swapped == 0 {
        if x >= problem.m || y >= problem.n {
            return;
        }
        let all = BLOCK as u32;
        // SAFETY: row and columns exist, since N is a multiple of a block.
        (unsafe { affine::row_results(epilogue, unit, [x, y], all, sums) }, [x, y])
    } else {
        if y >= problem.m {
            return;
        }
        // Lanes past the last column repeat it, so that all 32 lanes take part in the shuffle.
        let n = x.min(problem.n - 1);
        let lane = warp::lane_id() % BLOCK as u32;
        // SAFETY: column `n` and the tokens below M exist; all lanes of the warp are here.
        let row = unsafe {
            let exist = problem.m - y;
            warp::transpose(affine::column_results(epilogue, unit, [y, n], exist, sums))
        };
        (row, [y + lane, x - lane])
    };
    if m < problem.m && n < problem.n {
        let half = |first: usize| core::array::from_fn(|i| results[first + i]);
        let results = [half(0), half(COLUMNS)];
        // SAFETY: the block is inside the result.
        unsafe { blocks::store(&epilogue.sink, problem, place.matrix, [m, n], results) };
    }
}

/// Writes the padding of the scales below the last row of the result, if that is in the
/// CTA's part of the tile: columns `first..first + count`.
///
/// # Safety
/// As [`store`]; called once per tile, by any of the threads.
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
        // SAFETY: the result is NVFP4, and these are the CTA's columns of blocks.
        unsafe { blocks::pad_rows(&epilogue.sink, problem, place.matrix, part, threads) };
    }
}
