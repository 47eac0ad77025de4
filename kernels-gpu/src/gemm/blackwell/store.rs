//! The storing warps: sums from tensor memory, what the epilogue does to them, and the
//! result to global memory. Warp `w` holds rows `32 w ..` of the CTA's 128.

use super::Work;
use super::control::{Control, arrive_at};
use super::schedule::Tiles;
use super::{boxes, decode, exchange, store_blocks};
use crate::gemm::epilogue::blocks::BLOCK;
use crate::gemm::epilogue::{self, affine, direct};
use crate::pipeline::Cursor;
use cuda_std::ptx::{grid, marker, tcgen05};
use cuda_std::{thread, warp};
use fp4_formats::gemm::blackwell::{BlackwellConfig, BlackwellParams};

/// Columns that a warp reads at a time, and where they are looked at one by one.
const CHUNK: u32 = 32;
const PART: u32 = epilogue::COLUMNS as u32;
/// Chunks of the columns that accumulators share where they overlap. With decoding warps,
/// threads do not have the registers to hold them.
const OVERLAP: usize = 3;

/// # Safety
/// The four storing warps of each CTA; `tensor` is the allocation.
#[inline(always)]
pub unsafe fn run<const CTA_GROUP: u32, const STAGES: u32, const ACCUMULATORS: u32>(
    work: &Work<'_>,
    control: &Control<STAGES, ACCUMULATORS>,
    tensor: u32,
) {
    let config = work.config;
    let accumulators = control.accumulators();
    let mut cursor = Cursor::<ACCUMULATORS>::consumer();
    let mut tiles = Tiles::new(work, control);
    let mut which = 0;
    let mut exchange = exchange::Exchange::new(control);
    let mut boxes = boxes::Boxes::new(config, control);
    let lanes = (thread::thread_idx_x() / warp::LANES * warp::LANES) << 16;
    // The kernel before may make the vectors, and use the memory of the result.
    grid::griddepcontrol_wait();
    while let Some(tile) = tiles.current() {
        let place = Place {
            x: work.x_row(tile) + thread::thread_idx_x(),
            y: work.y_row(tile),
            matrix: tile.tokens.matrix,
        };
        let d = tensor + which * config.accumulator_step() + lanes;
        if epilogue::is_nvfp4(&work.params.epilogue.sink) {
            let columns = config.columns / config.k_parts();
            // SAFETY: called once per tile; the result is NVFP4, and these are the CTA's columns.
            unsafe { store_blocks::pad(work, &place, [work.split() * columns, columns]) };
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
                    if CTA_GROUP == 1 {
                        accumulators.arrive_empty(&cursor);
                    } else {
                        arrive_at(accumulators.empty(cursor.stage), work.leader());
                    }
                }
            };
            if config.k_parts() > 1 {
                exchange.run(work, d, &place, &mut boxes, give_back);
            } else {
                let order = Order::new(config, which);
                if work.params.copied == 0 {
                    drain(work, d, &place, &order, give_back);
                } else if config.accumulators_overlap() && config.activations.is_none() {
                    boxes.drain::<OVERLAP>(work, d, &place, &order, give_back);
                } else {
                    boxes.drain::<1>(work, d, &place, &order, give_back);
                }
            }
        }
        cursor.advance();
        which ^= 1;
        // SAFETY: called once per tile, by whole warps.
        unsafe { tiles.advance::<true>() };
    }
    boxes.end();
}

/// Where a thread's sums are in the result: its row of `X`, and the tile's first row of
/// `Y`.
pub struct Place {
    /// Row of `X`.
    pub x: u32,
    /// First row of `Y`.
    pub y: u32,
    /// Matrix of the result.
    pub matrix: u32,
}

/// The chunks of a tile in the order in which they are read: accumulators that overlap from
/// where the other one begins or ends, so that they can be given back when those columns
/// were read.
pub struct Order {
    /// Chunks of a tile.
    pub chunks: u32,
    /// How many of them are read before the accumulator is given back.
    pub shared: u32,
    /// The first one.
    skip: u32,
}

impl Order {
    #[inline(always)]
    pub fn new(config: &BlackwellConfig, which: u32) -> Self {
        let chunks = config.columns / CHUNK;
        let shared = if config.accumulators_overlap() {
            (config.columns - config.accumulator_step()) / CHUNK
        } else {
            chunks
        };
        // The second accumulator begins where the first one's shared columns do.
        let skip = if which == 0 { chunks - shared } else { 0 };
        Self { chunks, shared, skip }
    }

    /// First column of the `i`-th chunk that is read.
    #[inline(always)]
    pub fn column(&self, i: u32) -> u32 {
        let chunk = i + self.skip;
        (if chunk >= self.chunks { chunk - self.chunks } else { chunk }) * CHUNK
    }
}

/// Stores a tile from the threads' registers.
///
/// # Safety
/// Whole warps; the sums at `d` are complete.
#[inline(always)]
unsafe fn drain(work: &Work<'_>, d: u32, place: &Place, order: &Order, give_back: impl Fn()) {
    let blocks = epilogue::is_nvfp4(&work.params.epilogue.sink);
    let mut i = 0;
    while i < order.chunks {
        let column = order.column(i);
        let last = i + 1 == order.shared;
        // SAFETY: the caller's; the branch is the same for all lanes.
        unsafe {
            if blocks {
                let mut part = 0;
                while part < CHUNK / BLOCK as u32 {
                    let column = column + part * BLOCK as u32;
                    let sums = tcgen05::tcgen05_ld_32x32b_x16(d + column).map(f32::from_bits);
                    if last && part + 1 == CHUNK / BLOCK as u32 {
                        give_back();
                    }
                    store_blocks::store(work, place, column, sums);
                    warp::sync();
                    part = marker::pin(part + 1);
                }
            } else {
                let mut part = 0;
                while part < CHUNK / PART {
                    let column = column + part * PART;
                    let sums = tcgen05::tcgen05_ld_32x32b_x8(d + column).map(f32::from_bits);
                    if last && part + 1 == CHUNK / PART {
                        give_back();
                    }
                    store(work, place, column, sums);
                    // Lanes without a row come first.
                    warp::sync();
                    // Not unrolled: code that runs once per tile should be small.
                    part = marker::pin(part + 1);
                }
            }
        }
        // SAFETY: as above.
        unsafe { warp::sync() };
        i = marker::pin(i + 1);
    }
}

/// The thread's row of `X`, as if it changed: a compiler that knows that it does not may
/// give lanes without a row a loop of their own, and with it their own copies of the
/// instructions that all lanes must execute together.
#[inline(always)]
pub fn own_row(place: &Place) -> u32 {
    marker::pin(place.x)
}

/// Applies the epilogue to the sums of columns `column ..` of a thread's row and stores
/// what lies inside the result.
///
/// # Safety
/// `place` and `column` are of a tile of the problem; each element is stored once.
#[inline(always)]
pub unsafe fn store(work: &Work<'_>, place: &Place, column: u32, sums: [f32; PART as usize]) {
    let (x, y) = (own_row(place), place.y + column);
    if x >= work.x_rows() || y >= work.y_rows() {
        return;
    }
    let BlackwellParams { epilogue, problem, .. } = work.params;
    let sink = &epilogue.sink;
    let unit = decode::unit(work.config);
    let exist = work.y_rows() - y;
    // SAFETY: the row, and those of the columns that exist, are inside the result.
    unsafe {
        if work.params.swapped != 0 {
            // A row of `X` is a column of the result.
            let results = affine::column_results(epilogue, unit, [y, x], exist, sums);
            direct::store_column(sink, problem, place.matrix, [y, x], exist, results);
        } else {
            let results = affine::row_results(epilogue, unit, [x, y], exist, sums);
            direct::store_row(sink, problem, place.matrix, [x, y], exist, results);
        }
    }
}
