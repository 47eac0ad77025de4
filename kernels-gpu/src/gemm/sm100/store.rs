//! The storing warps: sums from tensor memory, the epilogue, and the result to global memory. Warp
//! `w` holds rows `32 w ..` of the CTA's 128.

use super::memory::arrive_at;
use super::results::{
    Results, SEGMENT, SEGMENT_COLUMNS, Segment, each_eight, map_eights, results, segment_columns,
    values,
};
use super::schedule::{self, Scheduled};
use super::{Cta, RESULT, WorkList};
use super::{boxes, exchange, fix_up, store_blocks};
use crate::gemm::epilogue::line::{self, Line};
use crate::gemm::epilogue::{self, COLUMNS, direct, largest};
use crate::gemm::fix_up::Contributors;
use crate::gemm::walk::Walk;
use cuda_std::ptx::{grid, marker, tcgen05};
use cuda_std::{thread, warp};
use fp4_formats::gemm::Problem;
use fp4_formats::gemm::sm100::Sm100Config;

/// Columns that a warp reads at a time if it reads ahead.
const CHUNK: usize = 32;
const CHUNK_SEGMENTS: u32 = (CHUNK / SEGMENT) as u32;
/// Chunks of the columns that overlapping accumulators share. With decoding warps, threads do not
/// have the registers to hold them.
const HELD: usize = 3;

/// # Safety
/// The four storing warps of each CTA; `tensor` is the allocation.
#[inline(always)]
pub unsafe fn run<L: WorkList>(cta: &Cta<'_, L>, tensor: u32) {
    let config = cta.config;
    let accumulators = cta.memory.accumulators();
    let mut cursor = accumulators.consumer();
    let mut walk = Walk::<Scheduled<true>>::start(cta);
    let mut which = 0;
    let mut exchange = exchange::Exchange::new(&cta.memory);
    let mut boxes = boxes::Boxes::new(config, &cta.memory);
    let mut blocks = store_blocks::Blocks::new();
    let lanes = (thread::thread_idx_x() / warp::LANES * warp::LANES) << 16;
    // The kernel before may make the vectors, and use the memory of the result. In products of sizes of
    // their own it has ended: see `WorkList::begin`.
    if !L::MIXED {
        grid::griddepcontrol_wait();
    }
    // SAFETY: all storing threads are here.
    unsafe { L::refuse(cta) };
    let mut known = u32::MAX;
    let mut in_blocks = false;
    // SAFETY: the table of the work list, if it has one, is made.
    while let Some(item) = unsafe { walk.current(cta) } {
        let tile = L::tile(cta, item.tile);
        // SAFETY: the tile is one of a problem, which has a map of the result.
        let cta = &unsafe { cta.acquire(&tile, [RESULT, RESULT + 1], &mut known) };
        let tile_row = TileRow {
            x: cta.x_row(tile) + thread::thread_idx_x(),
            y: cta.y_row(tile),
            matrix: tile.tokens.matrix,
            // SAFETY: the tile is one of a problem.
            alphas: unsafe { cta.list.alphas(&cta.params.epilogue, tile.problem) },
            problem: tile.problem,
            end: tile.tokens.first + tile.tokens.count,
            rows: tile.tokens.rows,
        };
        let d = tensor + which * config.accumulator_step() + lanes;
        let in_blocks_before = in_blocks;
        in_blocks = epilogue::is_blocks(&cta.params.epilogue.sink);
        if L::MIXED && in_blocks != in_blocks_before {
            // SAFETY: all storing warps are here: they have the same tiles.
            unsafe { blocks.hand_over() };
        }
        // Another cluster owns a tile whose last K step is not this one's.
        let cut = if config.takes_stream_k() { schedule::of_run(cta, item) } else { None };
        let owned = cut.is_none_or(|item| item.owned(&cta.params.schedule));
        if in_blocks {
            let columns = config.stored_columns();
            let part = [cta.split() * columns, if owned { columns } else { 0 }];
            // SAFETY: called once per tile; the result has blocks, and these are the CTA's columns.
            unsafe { store_blocks::pad(cta, &tile_row, part) };
        }
        // SAFETY: the sums are complete; each is read before the accumulator is given
        // back, and the lanes of a warp stay together.
        unsafe {
            accumulators.wait_full(&cursor);
            warp::sync();
            tcgen05::tcgen05_fence_after_thread_sync();
            let give_back = || {
                tcgen05::tcgen05_fence_before_thread_sync();
                warp::sync();
                if warp::lane_id() == 0 {
                    if config.cta_group == 1 {
                        accumulators.arrive_empty(&cursor);
                    } else {
                        arrive_at(accumulators.empty(cursor.stage), cta.leader());
                    }
                }
            };
            if owned {
                let order = Order::new(cta, which);
                let (exchange, boxes, blocks) = (&mut exchange, &mut boxes, &mut blocks);
                let contributors = fix_up::wait(cta, cut);
                let mut sinks = Sinks { exchange, boxes, blocks, contributors, found: 0.0 };
                if config.accumulators_overlap() && !config.decodes() {
                    sinks.drain::<L, HELD>(cta, d, &tile_row, &order, give_back);
                } else {
                    sinks.drain::<L, 0>(cta, d, &tile_row, &order, give_back);
                }
            } else {
                fix_up::send(cta, d, give_back);
            }
        }
        cursor.advance();
        which ^= 1;
        // SAFETY: called once per tile, by whole warps.
        unsafe { walk.advance(cta, &item) };
    }
    boxes.end();
}

/// The row of a tile that a thread stores: its row of `X`, and the first of its columns, rows of `Y`.
pub struct TileRow {
    /// Row of `X`.
    pub x: u32,
    /// First row of `Y`.
    pub y: u32,
    /// Matrix of the result.
    pub matrix: u32,
    /// Its problem: which factors and bias.
    pub problem: u32,
    /// One past the problem's last token.
    pub end: u32,
    /// Tokens of the matrix up to the last problem's last one.
    pub rows: u32,
    /// Factors of the sums of both halves.
    pub alphas: [f32; 2],
}

impl TileRow {
    /// The tile's first row of `Y` as one of the result's.
    #[inline(always)]
    pub fn result_y(&self, cta: &Cta<'_, impl WorkList>) -> u32 {
        if cta.gated() && !cta.swapped() { self.y / 2 } else { self.y }
    }
}

/// The order in which a CTA reads the parts of a tile that it stores: overlapping accumulators from
/// the shared end on, so that they can be released when the shared columns were read.
struct Order {
    /// First column of the first part.
    first: u32,
    /// The number of parts.
    parts: u32,
    /// The number of parts that are read before the accumulator is released.
    shared: u32,
    /// The part that is read first.
    skip: u32,
}

impl Order {
    #[inline(always)]
    fn new(cta: &Cta<'_, impl WorkList>, which: u32) -> Self {
        let config = cta.config;
        let columns = config.stored_columns();
        let parts = columns.div_ceil(SEGMENT_COLUMNS);
        let shared = if config.accumulators_overlap() {
            (config.columns - config.accumulator_step()) / SEGMENT_COLUMNS
        } else {
            parts
        };
        // The second accumulator begins at the first one's shared columns.
        let skip = if which == 0 { parts - shared } else { 0 };
        Self { first: cta.split() * columns, parts, shared, skip }
    }

    /// First column of the `i`-th part that is read.
    #[inline(always)]
    fn column(&self, i: u32) -> u32 {
        let part = i + self.skip;
        self.first + (if part >= self.parts { part - self.parts } else { part }) * SEGMENT_COLUMNS
    }
}

/// The targets of sums.
struct Sinks<'a> {
    exchange: &'a mut exchange::Exchange,
    boxes: &'a mut boxes::Boxes,
    blocks: &'a mut store_blocks::Blocks,
    contributors: Contributors,
    /// The thread's largest magnitude of a tile, if it is asked for.
    found: f32,
}

impl Sinks<'_> {
    /// Stores the CTA's columns of a tile. One loop serves all kinds of results and is not
    /// unrolled: code that runs once per tile should be small. With `HELD`, a thread reads the
    /// shared chunks of overlapping accumulators first, so that the accumulator is released before
    /// results wait for boxes.
    ///
    /// # Safety
    /// Whole warps; the sums at `d` are complete. `tile_row` is of a tile of the problem, which comes
    /// here once.
    #[inline(always)]
    unsafe fn drain<L: WorkList, const HELD: usize>(
        &mut self,
        cta: &Cta<'_, L>,
        d: u32,
        tile_row: &TileRow,
        order: &Order,
        give_back: impl Fn(),
    ) {
        let split = cta.config.k_parts() > 1;
        if split {
            // SAFETY: the caller's.
            unsafe { self.exchange.exchange(cta, d) };
        }
        // SAFETY: the caller's.
        let mut held: [[f32; CHUNK]; HELD] = core::array::from_fn(|i| unsafe {
            let column = order.column(i as u32 * CHUNK_SEGMENTS);
            tcgen05::tcgen05_ld_32x32b_x32(d + column).map(f32::from_bits)
        });
        if HELD > 0 {
            give_back();
        }
        let mut before = [0.0; COLUMNS];
        let mut i = 0;
        while i < order.parts {
            let column = order.column(i);
            let mut sums = [0.0; SEGMENT];
            if i < HELD as u32 * CHUNK_SEGMENTS {
                let all = held.as_flattened_mut();
                sums.copy_from_slice(&all[..SEGMENT]);
                for j in SEGMENT..HELD * CHUNK {
                    all[j - SEGMENT] = all[j];
                }
            } else {
                // SAFETY: the caller's.
                sums = unsafe { load(cta.config, d + column) };
            }
            if HELD == 0 && i + 1 == order.shared {
                give_back();
            }
            // SAFETY: the caller's; the branches are the same for all lanes.
            unsafe {
                if split {
                    sums = self.exchange.add(cta, column, sums);
                }
                if cta.config.takes_stream_k() {
                    sums = fix_up::add(cta, self.contributors, column, sums);
                }
                let values = values(cta, tile_row, column, sums);
                if let Some(results) = results(cta, tile_row, column, values, &mut before) {
                    self.put(cta, tile_row, results);
                }
                // Lanes without a row come first.
                warp::sync();
            }
            i = marker::pin(i + 1);
        }
        // SAFETY: whole warps.
        unsafe { largest::raise(&cta.params.epilogue.sink, || self.found) };
        if split {
            // SAFETY: the lanes have met behind what each read.
            unsafe { self.exchange.end(cta) };
        }
    }

    /// Stores each thread's results.
    ///
    /// # Safety
    /// Whole warps; `tile_row` and `results` are of a tile of the problem; each element is stored once.
    #[inline(always)]
    unsafe fn put<L: WorkList>(
        &mut self,
        cta: &Cta<'_, L>,
        tile_row: &TileRow,
        mut results: Results,
    ) {
        let sink = &cta.params.epilogue.sink;
        if line::is_asked(sink) {
            let (own, result) = own_line(cta, tile_row, &results);
            results.results = map_eights(cta.config, results.results, |i, eight| {
                // SAFETY: those that exist are inside the result.
                unsafe { own.behind(i).finish(sink, &result, eight, &mut self.found) }
            });
        }
        // SAFETY: the caller's; the branches are the same for all lanes.
        unsafe {
            if epilogue::is_blocks(sink) {
                self.blocks.store(cta, self.boxes, tile_row, &results);
            } else if boxes::Boxes::take(cta, tile_row, results.column) {
                self.boxes.put(cta, tile_row, results.column, results.results);
            } else {
                store(cta, tile_row, &results);
            }
        }
    }
}

/// Returns the thread's row of `X`, pinned as if it changed: otherwise the compiler may give lanes
/// without a row a separate loop, with separate copies of the instructions that all lanes must
/// execute together.
#[inline(always)]
pub fn own_row(tile_row: &TileRow) -> u32 {
    marker::pin(tile_row.x)
}

/// The thread's sums of a part at `d`; zeros for columns that the CTA does not store.
///
/// # Safety
/// Whole warps, whose sums are complete.
#[inline(always)]
pub unsafe fn load(config: &Sm100Config, d: u32) -> Segment {
    if segment_columns(config) == SEGMENT_COLUMNS {
        // SAFETY: the caller's.
        return unsafe { tcgen05::tcgen05_ld_32x32b_x16(d) }.map(f32::from_bits);
    }
    // SAFETY: as above.
    let eight = unsafe { tcgen05::tcgen05_ld_32x32b_x8(d) };
    core::array::from_fn(|i| if i < COLUMNS { f32::from_bits(eight[i]) } else { 0.0 })
}

/// Returns the line of a thread's results, and the sizes of the result.
#[inline(always)]
fn own_line<L: WorkList>(
    cta: &Cta<'_, L>,
    tile_row: &TileRow,
    results: &Results,
) -> (Line, Problem) {
    let result = cta.result(tile_row.end);
    // A row of `X` is a row of the result, or swapped a column.
    let down = cta.swapped();
    let (rows, columns) = if down { (result.n, result.m) } else { (result.m, result.n) };
    let (x, y) = (results.x, tile_row.result_y(cta) + results.column);
    let exist = columns.saturating_sub(y).min(segment_columns(cta.config));
    let exist = if x < rows { exist } else { 0 };
    let at = if down { [y, x] } else { [x, y] };
    (Line { matrix: tile_row.matrix, place: at, down, exist, aligned: false }, result)
}

/// Stores the thread's results that lie inside the result.
///
/// # Safety
/// `tile_row` and `results` are of a tile of the problem; each element is stored once.
#[inline(always)]
unsafe fn store<L: WorkList>(cta: &Cta<'_, L>, tile_row: &TileRow, results: &Results) {
    let (own, result) = own_line(cta, tile_row, results);
    if own.exist == 0 {
        return;
    }
    each_eight(cta.config, results.results, |i, results| {
        // SAFETY: the row, and those of the columns that exist, are inside the result.
        unsafe { direct::store_line(&cta.params.epilogue.sink, &result, own.behind(i), results) };
    });
}
