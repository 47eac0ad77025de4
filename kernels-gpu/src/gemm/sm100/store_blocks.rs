//! The storing warps' results in NVFP4 and MXFP4. Each thread has sixteen neighbours of one row of `X` at
//! a time.
//!
//! | weights | a thread's results | a block of NVFP4 | a block of MXFP4 |
//! |---|---|---|---|
//! | `Y` | columns of a row of the result | is one thread's | is the thread's next part: the first half waits in shared memory |
//! | `X`, swapped | rows of a column of the result | is spread over sixteen lanes, which exchange elements first | two such groups of lanes have the halves, and exchange the largest magnitude |
//! | `X`, swapped and gated | the same, in sixteen lanes of each warp | is spread over those lanes | two warps have the halves, and exchange the largest magnitude through shared memory |
//!
//! The shared memory is that of [`Boxes`](super::boxes::Boxes), which only floats need. Tiles of a mixed
//! product may be of either kind: between two kinds it is [handed over](Blocks::hand_over).

use super::boxes::Boxes;
use super::results::{Results, SEGMENT, Segment, segment_columns};
use super::store::TileRow;
use super::{Cta, WorkList};
use crate::gemm::epilogue::blocks::{self, GROUP};
use crate::gemm::epilogue::{self, COLUMNS};
use cuda_std::ptx::{barrier, bulk, float, marker, memory};
use cuda_std::{thread, warp};
use fp4_formats::gemm::sm100::config::{CTA_ROWS, STORE_WARPS};
use fp4_formats::gemm::sm100::store::BOX_BYTES;
use fp4_formats::{BlockFormat, Mxfp4};

/// The barrier at which storing warps exchange magnitudes, and the memory changes hands.
const EXCHANGE_BARRIER: u32 = 2;
/// Threads that meet there.
const STORING: u32 = STORE_WARPS * warp::LANES;
/// f32 of a 16-byte word, and such words of a thread's results.
const WORD: usize = 4;
const WORDS: usize = SEGMENT / WORD;
/// Bytes of a lane's word, and of a warp's words.
const WORD_BYTES: u32 = (WORD * size_of::<f32>()) as u32;
const WARP_WORD_BYTES: u32 = warp::LANES * WORD_BYTES;

const _: () = assert!(WORDS as u32 * WARP_WORD_BYTES <= BOX_BYTES);

/// A storing warp's exchanges of magnitudes.
pub struct Blocks {
    /// Offset of the place for the next one, of two in turn: a warp may be one ahead of another.
    turn: u32,
}

/// Bytes of one of the places.
const TURN_BYTES: u32 = warp::LANES * size_of::<f32>() as u32;

impl Blocks {
    #[inline(always)]
    pub fn new() -> Self {
        Self { turn: 0 }
    }

    /// Waits until nobody uses the memory that results in blocks and boxes of floats share: the copy
    /// engine has read the boxes, and each warp the magnitudes of its neighbour.
    ///
    /// # Safety
    /// All storing warps of the CTA, between two tiles.
    #[inline(always)]
    pub unsafe fn hand_over(&self) {
        // SAFETY: lane 0 has the boxes of its warp stored; whole warps meet at the barrier.
        unsafe {
            if warp::lane_id() == 0 {
                bulk::cp_async_bulk_wait_group_read::<0>();
            }
            warp::sync();
            barrier::bar_sync_threads::<EXCHANGE_BARRIER, STORING>();
        }
    }

    /// Quantises a thread's results, and stores those inside the result. With MXFP4 and weights that are
    /// `Y`, that waits for the second half of a block.
    ///
    /// # Safety
    /// Whole warps; `tile_row` and `results` are of a tile of the problem, their column a multiple of 16,
    /// the halves of a block one after the other; each element is stored once; the result is NVFP4 or
    /// MXFP4.
    #[inline(always)]
    pub unsafe fn store<L: WorkList>(
        &mut self,
        cta: &Cta<'_, L>,
        boxes: &Boxes,
        tile_row: &TileRow,
        results: &Results,
    ) {
        let end = tile_row.end;
        let (sink, problem) = (&cta.params.epilogue.sink, cta.result(end));
        let (swapped, wide) = (cta.swapped(), epilogue::is_mxfp4(sink));
        let &Results { x, column, results } = results;
        let y = tile_row.result_y(cta) + column;
        let waits = boxes.start() + warp::lane_id() * WORD_BYTES;
        if wide && !swapped && y.is_multiple_of(Mxfp4::BLOCK as u32) {
            // SAFETY: the place is the thread's own.
            unsafe { keep(waits, results) };
            return;
        }
        // All ways to a block's results meet before it is quantised, which is most of the code.
        let (mut results, [m, mut n]) = if swapped {
            let lane = warp::lane_id() % GROUP as u32;
            // SAFETY: all lanes of the warp are here. N is a multiple of a block, so lanes past the
            // last column hold no element of a block that is stored.
            (unsafe { warp::transpose(results) }, [y + lane, x - lane])
        } else {
            (results, [x, y])
        };
        let mut amax = magnitude(results);
        if wide {
            // SAFETY: all lanes of all storing warps are here, or none.
            let other = unsafe {
                if !swapped {
                    magnitude(kept(waits))
                } else if cta.gated() {
                    self.neighbour(cta, boxes, amax)
                } else {
                    warp::shuffle_xor_f32(amax, GROUP as u32)
                }
            };
            amax = float::max_nan_f32(amax, other);
        }
        // Swapped, a part may be wider than the CTA's columns of a tile.
        let is_others = swapped && m - y >= segment_columns(cta.config);
        if m >= problem.m || n >= problem.n || is_others {
            return;
        }
        // The thread's groups of the block, the last one first.
        let mut groups = if wide && !swapped { 2 } else { 1 };
        loop {
            let half = |first: usize| core::array::from_fn(|i| results[first + i]);
            // SAFETY: the block is inside the result.
            unsafe {
                let halves = [half(0), half(COLUMNS)];
                blocks::store(sink, &problem, tile_row.matrix, [m, n], halves, amax);
            }
            if groups == 1 {
                return;
            }
            groups = marker::pin(1);
            n -= GROUP as u32;
            // SAFETY: the thread kept them.
            results = unsafe { kept(waits) };
        }
    }

    /// The magnitude that the same lane of the warp with the other half of the blocks has.
    ///
    /// # Safety
    /// All storing warps of the CTA, once for the same results.
    #[inline(always)]
    unsafe fn neighbour(&mut self, cta: &Cta<'_, impl WorkList>, boxes: &Boxes, own: f32) -> f32 {
        let warp = thread::thread_idx_x() / warp::LANES;
        let bytes = cta.config.boxes() * BOX_BYTES;
        let start = boxes.start();
        let other = if warp.is_multiple_of(2) { start + bytes } else { start - bytes };
        let place = self.turn + warp::lane_id() * size_of::<f32>() as u32;
        self.turn ^= TURN_BYTES;
        // SAFETY: the place is free: the neighbour read it before it came to the last barrier.
        unsafe {
            memory::st_shared_b32(start + place, own.to_bits());
            barrier::bar_sync_threads::<EXCHANGE_BARRIER, STORING>();
            f32::from_bits(memory::ld_shared_b32(other + place))
        }
    }
}

/// The largest magnitude; NaN if any is.
#[inline(always)]
fn magnitude(results: Segment) -> f32 {
    let half = |first: usize| blocks::magnitude(core::array::from_fn(|i| results[first + i]));
    float::max_nan_f32(half(0), half(COLUMNS))
}

/// Writes a thread's results to its part of the boxes, in which lanes are side by side.
///
/// # Safety
/// The place is the thread's own.
#[inline(always)]
unsafe fn keep(at: u32, results: Segment) {
    for i in 0..WORDS {
        let word = core::array::from_fn(|j| results[WORD * i + j].to_bits());
        // SAFETY: as the caller says.
        unsafe { memory::st_shared_v4_b32(at + i as u32 * WARP_WORD_BYTES, word) };
    }
}

/// Returns the part that the thread [kept](keep).
///
/// # Safety
/// The thread kept a part there.
#[inline(always)]
unsafe fn kept(at: u32) -> Segment {
    let mut results = [0.0; SEGMENT];
    for i in 0..WORDS {
        // SAFETY: as the caller says.
        let word = unsafe { memory::ld_shared_v4_b32(at + i as u32 * WARP_WORD_BYTES) };
        for j in 0..WORD {
            results[WORD * i + j] = f32::from_bits(word[j]);
        }
    }
    results
}

/// Writes the padding of the scales below the last row of the result, if that is in the
/// CTA's part of the tile: columns `first..first + count`.
///
/// # Safety
/// The same as [`Blocks::store`]; called once per tile, by any of the threads.
#[inline(always)]
pub unsafe fn pad<L: WorkList>(cta: &Cta<'_, L>, tile_row: &TileRow, [first, count]: [u32; 2]) {
    let rows = tile_row.rows;
    if L::GROUPED && tile_row.end != rows {
        // Tokens of other problems are behind this one's.
        return;
    }
    let (sink, problem) = (&cta.params.epilogue.sink, cta.result(rows));
    let thread = thread::thread_idx_x();
    // A gated product has half as many columns in the result.
    let halved = u32::from(cta.gated());
    let (x, y) = ((tile_row.x - thread, CTA_ROWS), (tile_row.y + first, count));
    let ((row, rows), (column, columns)) = if cta.swapped() { (y, x) } else { (x, y) };
    let last = problem.m - 1;
    if row <= last && last - row < rows {
        let part = [column, columns].map(|columns| blocks::count(sink, columns >> halved));
        let threads = [thread, STORE_WARPS * warp::LANES];
        // SAFETY: the result has blocks, and these are the CTA's columns of them.
        unsafe { blocks::pad_rows(sink, &problem, tile_row.matrix, part, threads) };
    }
}
