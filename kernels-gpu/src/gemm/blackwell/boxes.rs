//! A storing warp's boxes of results: filled by its threads, stored by the copy engine.
//! Layout and reasons are in [`fp4_formats::gemm::blackwell::store`].

use core::hint;

use super::control::Control;
use super::store::{Order, Place, own_row};
use super::{RESULT, Work, decode, map};
use crate::gemm::epilogue;
use crate::gemm::epilogue::affine::{self, Column};
use crate::gemm::epilogue::direct::Bits;
use cuda_std::ptx::{bulk, fence, marker, memory, tcgen05, tensor_copy};
use cuda_std::{thread, warp};
use fp4_formats::FloatType;
use fp4_formats::gemm::blackwell::BlackwellConfig;
use fp4_formats::gemm::blackwell::store::{BOX_BYTES, box_columns, box_swizzle};
use fp4_formats::swizzle::CHUNK_BYTES;

/// Columns that are written at a time.
const PART: usize = epilogue::COLUMNS;
/// Bytes of results.
const NARROW: u32 = FloatType::F16.bytes();
const WIDE: u32 = FloatType::F32.bytes();

/// A warp's boxes, used in turn.
pub struct Boxes {
    /// Shared address of the first one.
    base: u32,
    /// Offset of the one that is filled.
    offset: u32,
    /// Offset of the last one.
    last: u32,
}

impl Boxes {
    #[inline(always)]
    pub fn new<const STAGES: u32, const ACCUMULATORS: u32>(
        config: &BlackwellConfig,
        control: &Control<STAGES, ACCUMULATORS>,
    ) -> Self {
        let warp = thread::thread_idx_x() / warp::LANES;
        let base = control.boxes + warp * config.boxes() * BOX_BYTES;
        Self { base, offset: 0, last: (config.boxes() - 1) * BOX_BYTES }
    }

    /// Stores a tile. A thread reads `HELD` chunks ahead, so that the accumulator is given
    /// back before results wait for boxes.
    ///
    /// # Safety
    /// As [`Boxes::put`]; the sums at `d` are complete.
    #[inline(always)]
    pub unsafe fn drain<const HELD: usize>(
        &mut self,
        work: &Work<'_>,
        d: u32,
        place: &Place,
        order: &Order,
        give_back: impl Fn(),
    ) {
        // SAFETY: the caller's; each chunk is read before the accumulator is given back.
        let read = |i: u32| unsafe {
            let sums = tcgen05::tcgen05_ld_32x32b_x32(d + order.column(i)).map(f32::from_bits);
            if i + 1 == order.shared {
                give_back();
            }
            sums
        };
        let mut held: [_; HELD] = core::array::from_fn(|i| read(i as u32));
        let mut i = 0;
        while i < order.chunks {
            let sums = held[0];
            for j in 1..HELD {
                held[j - 1] = held[j];
            }
            if i + (HELD as u32) < order.chunks {
                held[HELD - 1] = read(i + HELD as u32);
            }
            // SAFETY: the caller's; lanes without a row come first.
            unsafe {
                self.put(work, place, order.column(i), sums);
                warp::sync();
            }
            // Not unrolled: code that runs once per tile should be small.
            i = marker::pin(i + 1);
        }
    }

    /// Applies the epilogue to the sums of columns `column ..` of each thread's row and
    /// puts them into the box that they belong to, which is stored once it is full. Columns
    /// of a box come in order.
    ///
    /// # Safety
    /// Whole storing warps. `place` and `column` are of a tile of the problem; each element
    /// is stored once; the parameter block has the result's map.
    #[inline(always)]
    pub unsafe fn put<const N: usize>(
        &mut self,
        work: &Work<'_>,
        place: &Place,
        column: u32,
        sums: [f32; N],
    ) {
        // SAFETY: the caller's; the branch is the same for all lanes.
        unsafe {
            let results = results(work, place, column, sums);
            if epilogue::is_wide(&work.params.epilogue.sink) {
                self.fill::<WIDE, N>(work, place, column, results);
            } else {
                self.fill::<NARROW, N>(work, place, column, results);
            }
        }
    }

    /// [`Boxes::put`] for results of `BYTES` bytes.
    ///
    /// # Safety
    /// As [`Boxes::put`].
    #[inline(always)]
    unsafe fn fill<const BYTES: u32, const N: usize>(
        &mut self,
        work: &Work<'_>,
        place: &Place,
        column: u32,
        results: [f32; N],
    ) {
        const { assert!(N.is_multiple_of(PART)) };
        let columns = box_columns(work.config, BYTES);
        for part in 0..N / PART {
            let column = column + (part * PART) as u32;
            let at = column % columns;
            let values = core::array::from_fn(|i| results[part * PART + i]);
            // SAFETY: a box is free before it is filled, and filled before it is stored.
            unsafe {
                if at == 0 {
                    self.wait_free(work.config);
                }
                self.write::<BYTES>(work, at, values);
                if at + PART as u32 == columns {
                    self.send(work, place, column - at);
                }
            }
        }
    }

    /// Waits until the copy engine has read what the box held.
    ///
    /// # Safety
    /// Whole storing warps.
    #[inline(always)]
    unsafe fn wait_free(&self, config: &BlackwellConfig) {
        // SAFETY: one lane has all boxes of the warp stored, a group each.
        unsafe {
            if warp::lane_id() == 0 {
                if config.boxes() == 1 {
                    bulk::cp_async_bulk_wait_group_read::<0>();
                } else {
                    bulk::cp_async_bulk_wait_group_read::<1>();
                }
            }
            warp::sync();
        }
    }

    /// Writes a thread's results of columns `at ..` of the box.
    ///
    /// # Safety
    /// The box is free.
    #[inline(always)]
    unsafe fn write<const BYTES: u32>(&self, work: &Work<'_>, at: u32, values: [f32; PART]) {
        let lane = warp::lane_id();
        let start = self.base + self.offset;
        let swizzle = box_swizzle(work.config, false, BYTES);
        let row = lane * box_columns(work.config, BYTES) * BYTES + at * BYTES;
        let chunk = |i: u32| start + swizzle.apply((row + i * CHUNK_BYTES as u32) as usize) as u32;
        // A row of the result holds one value of each lane.
        let cell = |i: usize| start + ((at + i as u32) * warp::LANES + lane) * BYTES;
        let swapped = work.params.swapped != 0;
        let sink = &work.params.epilogue.sink;
        // SAFETY: `put` chooses `BYTES` by this. It spares each size the code of the other.
        unsafe { hint::assert_unchecked(epilogue::is_wide(sink) == (BYTES == WIDE)) };
        // SAFETY: inside the box, each place one thread's; the type's size is `BYTES`.
        unsafe {
            match (Bits::of(sink, values), swapped) {
                (Bits::Single(bits), true) => {
                    for i in 0..PART {
                        memory::st_shared_b32(cell(i), bits[i]);
                    }
                }
                (Bits::Single([a, b, c, d, e, f, g, h]), false) => {
                    memory::st_shared_v4_b32(chunk(0), [a, b, c, d]);
                    memory::st_shared_v4_b32(chunk(1), [e, f, g, h]);
                }
                (Bits::Half(pairs), true) => {
                    for i in 0..PART {
                        memory::st_shared_b16(cell(i), (pairs[i / 2] >> (16 * (i % 2))) as u16);
                    }
                }
                (Bits::Half(pairs), false) => memory::st_shared_v4_b32(chunk(0), pairs),
            }
        }
    }

    /// Has the full box stored, whose first column is `column`, and goes on to the next.
    ///
    /// # Safety
    /// Whole storing warps, which have written all of it.
    #[inline(always)]
    unsafe fn send(&mut self, work: &Work<'_>, place: &Place, column: u32) {
        fence::fence_proxy_async_shared_cta();
        let (x, y) = (place.x - warp::lane_id(), place.y + column);
        let [n, m] = if work.params.swapped != 0 { [x, y] } else { [y, x] };
        let at = [n as i32, m as i32, place.matrix as i32];
        // SAFETY: what all lanes wrote is known to the one behind the barrier, and fenced
        // for the copy engine; a box may reach out of the result. The group is closed also
        // where there is nothing to store: boxes are counted by groups.
        unsafe {
            warp::sync();
            if warp::lane_id() == 0 {
                if x < work.x_rows() && y < work.y_rows() {
                    let from = self.base + self.offset;
                    tensor_copy::cp_async_bulk_tensor_3d_global_shared_cta(map(RESULT), at, from);
                }
                bulk::cp_async_bulk_commit_group();
            }
        }
        self.offset = if self.offset == self.last { 0 } else { self.offset + BOX_BYTES };
    }

    /// Waits until all boxes are in memory.
    #[inline(always)]
    pub fn end(self) {
        // SAFETY: by the lane that had them stored.
        unsafe {
            if warp::lane_id() == 0 {
                bulk::cp_async_bulk_wait_group::<0>();
            }
        }
    }
}

/// Applies the epilogue to the sums of columns `column ..` of the thread's row, in the same
/// steps as where threads store results; those that lie outside the result are anything.
///
/// Each lane reads what belongs to one column, and all get it from there.
///
/// # Safety
/// As [`Boxes::put`].
#[inline(always)]
unsafe fn results<const N: usize>(
    work: &Work<'_>,
    place: &Place,
    column: u32,
    sums: [f32; N],
) -> [f32; N] {
    let epilogue = &work.params.epilogue;
    let affine = &epilogue.affine;
    let (unit, swapped) = (decode::unit(work.config), work.params.swapped != 0);
    let (x, y) = (own_row(place), place.y + column + warp::lane_id());
    let (x_exists, y_exists) = (x < work.x_rows(), y < work.y_rows());
    // What belongs to the thread's row of `X`, and to the lane's row of `Y`: swapped, the former is
    // a column of the result.
    let ((n, n_exists), (m, m_exists)) =
        if swapped { ((x, x_exists), (y, y_exists)) } else { ((y, y_exists), (x, x_exists)) };
    // SAFETY: vectors are read where row or column exist.
    let (row, own) = unsafe {
        (
            if m_exists { affine::row_factor(affine, m) } else { affine.alpha },
            if n_exists { affine::column(affine, n) } else { Column::NONE },
        )
    };
    let along_y = if swapped { affine.row_factors != 0 } else { affine::has_columns(affine) };
    if !along_y {
        return sums.map(|sum| affine::result(epilogue, sum, unit, row, own));
    }
    // SAFETY: all lanes take the same branches around what they exchange.
    let broadcast = |value: f32, i: usize| unsafe { warp::broadcast_f32(value, i as u32) };
    if swapped {
        return core::array::from_fn(|i| {
            affine::result(epilogue, sums[i], unit, broadcast(row, i), own)
        });
    }
    core::array::from_fn(|i| {
        let column = Column { factor: broadcast(own.factor, i), bias: broadcast(own.bias, i) };
        affine::result(epilogue, sums[i], unit, row, column)
    })
}
