//! The storing warps' results in NVFP4. Each thread has one row of `X`. Plain, that is a row of the
//! result, whose blocks lie along the tile's columns. Swapped, it is a column of the result: sixteen
//! lanes hold a block together, and exchange their elements first.

use super::Work;
use super::results::Results;
use super::store::Place;
use super::work::List;
use crate::gemm::epilogue::COLUMNS;
use crate::gemm::epilogue::blocks::{self, BLOCK};
use cuda_std::{thread, warp};
use fp4_formats::gemm::blackwell::config::{CTA_ROWS, STORE_WARPS};

/// Quantises a thread's results, and stores what lies inside the result.
///
/// # Safety
/// Whole warps; `place` and `results` are of a tile of the problem, their column a multiple of 16;
/// each element is stored once; the result is NVFP4.
#[inline(always)]
pub unsafe fn store<L: List>(work: &Work<'_, L>, place: &Place<L>, results: &Results) {
    let end = L::end(work.params, &place.group);
    let (sink, problem) = (&work.params.epilogue.sink, work.result(end));
    let &Results { x, column, results } = results;
    let y = place.result_y(work) + column;
    // Both ways to a block's results meet before it is quantised, which is most of the code.
    let (results, [m, n]) = if work.params.swapped == 0 {
        (results, [x, y])
    } else {
        let lane = warp::lane_id() % BLOCK as u32;
        // SAFETY: all lanes of the warp are here. N is a multiple of a block, so lanes past the
        // last column hold no element of a block that is stored.
        (unsafe { warp::transpose(results) }, [y + lane, x - lane])
    };
    if m < problem.m && n < problem.n {
        let half = |first: usize| core::array::from_fn(|i| results[first + i]);
        let results = [half(0), half(COLUMNS)];
        // SAFETY: the block is inside the result.
        unsafe { blocks::store(sink, &problem, place.matrix, [m, n], results) };
    }
}

/// Writes the padding of the scales below the last row of the result, if that is in the
/// CTA's part of the tile: columns `first..first + count`.
///
/// # Safety
/// As [`store`]; called once per tile, by any of the threads.
#[inline(always)]
pub unsafe fn pad<L: List>(work: &Work<'_, L>, place: &Place<L>, [first, count]: [u32; 2]) {
    let rows = L::rows(work.params, &place.group);
    if L::GROUPED && L::end(work.params, &place.group) != rows {
        // There are tokens of other problems behind this one's.
        return;
    }
    let (sink, problem) = (&work.params.epilogue.sink, work.result(rows));
    let thread = thread::thread_idx_x();
    // Of a gated product, half as many columns of the result.
    let halved = u32::from(work.gated());
    let (x, y) = ((place.x - thread, CTA_ROWS), (place.y + first, count));
    let ((row, rows), (column, columns)) = if work.params.swapped != 0 { (y, x) } else { (x, y) };
    let last = problem.m - 1;
    if row <= last && last - row < rows {
        let part = [column, columns].map(|columns| (columns >> halved) / BLOCK as u32);
        let threads = [thread, STORE_WARPS * warp::LANES];
        // SAFETY: the result is NVFP4, and these are the CTA's columns of blocks.
        unsafe { blocks::pad_rows(sink, &problem, place.matrix, part, threads) };
    }
}
