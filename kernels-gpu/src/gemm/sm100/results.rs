//! The way from a thread's sums to results, [`Segment`] by segment: the affine step, in which the lanes
//! of a warp exchange the vectors of the rows of `Y`, and the combine step.
//!
//! The weights of a gated product are pairs of eight rows: eight of the gate, eight of `up`. If they
//! are `Y`, a thread's part has both for eight results, and two parts make one of results. If they
//! are `X`, eight lanes have the gate and the next eight `up`: results go to the first sixteen lanes
//! of a warp.

use super::store::{TileRow, own_row};
use super::{Cta, WorkList, decode};
use crate::gemm::epilogue::COLUMNS;
use crate::gemm::epilogue::affine::{self, Column};
use crate::gemm::epilogue::blocks::GROUP;
use crate::gemm::epilogue::combine::combine;
use cuda_std::ptx::marker;
use cuda_std::warp;
use fp4_formats::gemm::combine::{GATE_ROWS, Half, PairedRows};
use fp4_formats::gemm::sm100::Sm100Config;
use fp4_formats::gemm::sm100::config::STORE_COLUMNS;

/// Columns that a thread has at a time, which are quantised together.
pub const SEGMENT: usize = GROUP;
/// [`SEGMENT`] as a number of columns of a tile.
pub const SEGMENT_COLUMNS: u32 = SEGMENT as u32;
/// A thread's sums or results of neighbouring columns, two times eight.
pub type Segment = [f32; SEGMENT];

/// Returns the number of a part's columns that are the CTA's: all, or the first eight if it stores
/// no more.
#[inline(always)]
pub const fn segment_columns(config: &Sm100Config) -> u32 {
    let own = config.stored_columns();
    if own < SEGMENT_COLUMNS { own } else { SEGMENT_COLUMNS }
}

const _: () = assert!(SEGMENT_COLUMNS == STORE_COLUMNS);

const _: () = assert!(SEGMENT == 2 * COLUMNS);

const _: () = assert!(GATE_ROWS == COLUMNS as u32);

/// Returns the values of the sums of columns `column ..` of the thread's row; values outside the
/// result are arbitrary.
///
/// Each lane reads the vectors of one row of `Y`, and all lanes get them from there.
///
/// # Safety
/// Whole storing warps. `tile_row` and `column` are of a tile of the problem.
#[inline(always)]
pub unsafe fn values<L: WorkList>(
    cta: &Cta<'_, L>,
    tile_row: &TileRow,
    column: u32,
    sums: Segment,
) -> Segment {
    let epilogue = &cta.params.epilogue;
    let (unit, swapped) = (decode::unit(cta.config), cta.swapped());
    let (x, y) = (own_row(tile_row), tile_row.y + column + warp::lane_id());
    // The lane's token, and its row of weights: a column of a half.
    let (m, row) = if swapped { (y, x) } else { (x, y) };
    let (half, n) = if cta.gated() { PairedRows::source(row) } else { (Half::Gate, row) };
    let affine = cta.list.affine(epilogue, half as u32, tile_row.problem, tile_row.alphas);
    // SAFETY: vectors are read where row or column exist.
    let (factor, own) = unsafe {
        (
            if m < tile_row.end { affine::token_factor(&affine, m) } else { 1.0 },
            if n < epilogue.sink.columns { affine::column(&affine, n) } else { Column::NONE },
        )
    };
    let along_y = if swapped { affine.row_factors != 0 } else { affine.has_columns() };
    // The factor of the thread's row of `X` is known, also if another lane's half is needed: there
    // it comes with that lane's row of `Y`.
    let gated_rows = cta.gated() && !swapped;
    if !along_y && !gated_rows {
        let row = affine.alpha * factor;
        return sums.map(|sum| affine::value(sum, unit, row, own));
    }
    // All cases run the same instructions and differ in the exchanged values.
    let exchanged = if swapped { factor } else { own.factor };
    core::array::from_fn(|i| {
        let i = i as u32;
        // SAFETY: all lanes take the same branches around what they exchange.
        let [exchanged, bias, alpha] = unsafe {
            [exchanged, own.bias, affine.alpha].map(|value| warp::broadcast_f32(value, i))
        };
        let (row, column) = if swapped {
            (affine.alpha * exchanged, own)
        } else {
            (alpha * factor, Column { factor: exchanged, bias })
        };
        affine::value(sums[i as usize], unit, row, column)
    })
}

/// The results of a thread's values, and their place: sixteen neighbouring columns of `Y`, from
/// `column` on, in row `x` of `X`. Rows and columns are the result's.
pub struct Results {
    pub x: u32,
    pub column: u32,
    pub results: Segment,
}

/// Returns the results of the values of columns `column ..` of a tile, which come in order: none if
/// they need the next part's values. `before` keeps the values of the part before.
///
/// # Safety
/// Whole storing warps. `tile_row` and `column` are of a tile of the problem.
#[inline(always)]
pub unsafe fn results<L: WorkList>(
    cta: &Cta<'_, L>,
    tile_row: &TileRow,
    column: u32,
    mut values: Segment,
    before: &mut [f32; COLUMNS],
) -> Option<Results> {
    let step = &cta.params.epilogue.combine;
    let x = own_row(tile_row);
    if step.is_none() {
        return Some(Results { x, column, results: values });
    }
    let swapped = cta.swapped();
    let up = values;
    // Eight at a time; if a part has both halves, only the first eight are the gate's.
    let eights = if cta.gated() && !swapped { 1 } else { 2 };
    let mut i = 0;
    while i < eights {
        let eight: [f32; COLUMNS] = core::array::from_fn(|j| values[j]);
        let eight = combine(step, 0, eight, eight);
        for j in 0..COLUMNS {
            values[j] = values[COLUMNS + j];
            values[COLUMNS + j] = eight[j];
        }
        i = marker::pin(i + 1);
    }
    if !cta.gated() {
        return Some(Results { x, column, results: values });
    }
    let lane = warp::lane_id() % GROUP as u32;
    if swapped {
        // The lane of the gate's row of result `lane`.
        let gate = lane + lane / GATE_ROWS * GATE_ROWS;
        let mut ups = up;
        for j in 0..SEGMENT {
            // SAFETY: all lanes are here.
            unsafe {
                values[j] = warp::broadcast_f32(values[j], gate);
                ups[j] = warp::broadcast_f32(up[j], gate + GATE_ROWS);
            }
        }
        let results = combine(step, 1, values, ups);
        // The other lanes have no row.
        let own = warp::lane_id() == lane;
        let first = (x - warp::lane_id()) / 2;
        return Some(Results { x: if own { first + lane } else { u32::MAX }, column, results });
    }
    // Activated behind, `up` in front.
    let gate: [f32; COLUMNS] = core::array::from_fn(|j| values[COLUMNS + j]);
    let eight = combine(step, 1, gate, core::array::from_fn(|j| up[COLUMNS + j]));
    let results =
        core::array::from_fn(|j| if j < COLUMNS { before[j] } else { eight[j - COLUMNS] });
    *before = eight;
    // The second of two parts is the one with an odd index.
    let second = !(column / SEGMENT_COLUMNS).is_multiple_of(2);
    second.then_some(Results { x, column: (column - SEGMENT_COLUMNS) / 2, results })
}

/// Calls `f` with either eight results of a part, as far as they are the CTA's, and the first one's column
/// in the part. Not unrolled: code that runs once per tile should be small.
#[inline(always)]
pub fn each_eight(config: &Sm100Config, results: Segment, mut f: impl FnMut(u32, [f32; COLUMNS])) {
    map_eights(config, results, |at, eight| {
        f(at, eight);
        eight
    });
}

/// Replaces either eight results by those that `f` makes of them, as [`each_eight`] calls it.
#[inline(always)]
pub fn map_eights(
    config: &Sm100Config,
    mut results: Segment,
    mut f: impl FnMut(u32, [f32; COLUMNS]) -> [f32; COLUMNS],
) -> Segment {
    let mut at = 0;
    while at < segment_columns(config) {
        let eight = f(at, core::array::from_fn(|i| results[i]));
        // Exchanged: if the halves stayed the same, the compiler would make separate code of the
        // last iteration.
        for i in 0..COLUMNS {
            results[i] = results[COLUMNS + i];
            results[COLUMNS + i] = eight[i];
        }
        at = marker::pin(at + COLUMNS as u32);
    }
    if segment_columns(config) < SEGMENT_COLUMNS {
        // They were exchanged once.
        for i in 0..COLUMNS {
            results.swap(i, COLUMNS + i);
        }
    }
    results
}
