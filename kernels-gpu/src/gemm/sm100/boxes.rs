//! A storing warp's boxes of results: filled by its threads, stored by the copy engine.
//! Layout and reasons are in [`fp4_formats::gemm::sm100::store`].

use super::memory::Memory;
use super::results::{Segment, each_eight, segment_columns};
use super::store::TileRow;
use super::{Cta, RESULT, WorkList};
use crate::gemm::epilogue::direct::Bits;
use crate::gemm::epilogue::{self, COLUMNS};
use cuda_std::ptx::{bulk, fence, memory, tensor_copy};
use cuda_std::{thread, warp};
use fp4_formats::FloatType;
use fp4_formats::gemm::sm100::Sm100Config;
use fp4_formats::gemm::sm100::config::CTA_ROWS;
use fp4_formats::gemm::sm100::store::{BOX_BYTES, box_columns, box_swizzle};
use fp4_formats::swizzle::{CHUNK_BYTES, Swizzle};

/// Bytes of results.
const NARROW: u32 = FloatType::F16.bytes();
const WIDE: u32 = FloatType::F32.bytes();

/// The shape of the boxes of results of one size.
struct Size {
    /// Bytes of a result.
    bytes: u32,
    /// Columns of a box.
    columns: u32,
    /// The swizzle of rows, each of which is one thread's.
    swizzle: Swizzle,
}

impl Size {
    #[inline(always)]
    fn new(cta: &Cta<'_, impl WorkList>) -> Self {
        let of = |bytes: u32| {
            let columns = box_columns(cta.config, bytes);
            Self { bytes, columns, swizzle: box_swizzle(cta.config, false, bytes) }
        };
        // Each from a constant.
        if epilogue::is_f32(&cta.params.epilogue.sink) { of(WIDE) } else { of(NARROW) }
    }
}

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
    pub fn new(config: &Sm100Config, memory: &Memory) -> Self {
        let warp = thread::thread_idx_x() / warp::LANES;
        let base = memory.boxes + warp * config.boxes() * BOX_BYTES;
        Self { base, offset: 0, last: (config.boxes() - 1) * BOX_BYTES }
    }

    /// Shared address of the first box.
    #[inline(always)]
    pub fn start(&self) -> u32 {
        self.base
    }

    /// Whether the box with columns `column ..` of each thread's row is stored as a whole. In grouped
    /// and mixed products, a box that reaches over a problem's last token is not.
    #[inline(always)]
    pub fn take<L: WorkList>(cta: &Cta<'_, L>, tile_row: &TileRow, column: u32) -> bool {
        if cta.params.copied == 0 || !L::GROUPED || L::MIXED {
            return cta.params.copied != 0;
        }
        let end = tile_row.end;
        if cta.swapped() {
            let columns = Size::new(cta).columns;
            tile_row.y + (column & !(columns - 1)) + columns <= end
        } else {
            // All warps decide, so that the branch is the same for all lanes.
            tile_row.x - thread::thread_idx_x() + CTA_ROWS <= end
        }
    }

    /// Puts the results of columns `column ..` of each thread's row into the box that they belong
    /// to, which is stored once it is full. Columns of a box come in order.
    ///
    /// # Safety
    /// Whole storing warps. `tile_row` and `column`, a multiple of a part, are of a tile of the
    /// problem; each element is stored once; the box is [taken](Self::take).
    #[inline(always)]
    pub unsafe fn put<L: WorkList>(
        &mut self,
        cta: &Cta<'_, L>,
        tile_row: &TileRow,
        column: u32,
        results: Segment,
    ) {
        let size = Size::new(cta);
        // Boxes have a power of two columns.
        let at = column & (size.columns - 1);
        // SAFETY: a box is free before it is filled, and filled before it is stored; the branches
        // are the same for all lanes.
        unsafe {
            if at == 0 {
                self.wait_free(cta.config);
            }
            each_eight(cta.config, results, |i, values| self.write(cta, &size, at + i, values));
            if at + segment_columns(cta.config) == size.columns {
                self.send(cta, tile_row, column - at);
            }
        }
    }

    /// Waits until the copy engine has read the box.
    ///
    /// # Safety
    /// Whole storing warps.
    #[inline(always)]
    unsafe fn wait_free(&self, config: &Sm100Config) {
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
    unsafe fn write(
        &self,
        cta: &Cta<'_, impl WorkList>,
        size: &Size,
        at: u32,
        values: [f32; COLUMNS],
    ) {
        let lane = warp::lane_id();
        let start = self.base + self.offset;
        let row = (lane * size.columns + at) * size.bytes;
        let chunk =
            |i: u32| start + size.swizzle.apply((row + i * CHUNK_BYTES as u32) as usize) as u32;
        // A row of the result holds one value of each lane.
        let cell = |i: usize, bytes: u32| start + ((at + i as u32) * warp::LANES + lane) * bytes;
        let swapped = cta.swapped();
        // SAFETY: inside the box, each place one thread's; the type's size is `BYTES`.
        unsafe {
            match (Bits::of(&cta.params.epilogue.sink, values), swapped) {
                (Bits::Single(bits), true) => {
                    for i in 0..COLUMNS {
                        memory::st_shared_b32(cell(i, WIDE), bits[i]);
                    }
                }
                (Bits::Single([a, b, c, d, e, f, g, h]), false) => {
                    memory::st_shared_v4_b32(chunk(0), [a, b, c, d]);
                    memory::st_shared_v4_b32(chunk(1), [e, f, g, h]);
                }
                (Bits::Half(pairs), true) => {
                    for i in 0..COLUMNS {
                        let half = (pairs[i / 2] >> (16 * (i % 2))) as u16;
                        memory::st_shared_b16(cell(i, NARROW), half);
                    }
                }
                (Bits::Half(pairs), false) => memory::st_shared_v4_b32(chunk(0), pairs),
            }
        }
    }

    /// Stores the full box, whose first column is `column`, and goes on to the next.
    ///
    /// # Safety
    /// Whole storing warps, which have written all of it.
    #[inline(always)]
    unsafe fn send<L: WorkList>(&mut self, cta: &Cta<'_, L>, tile_row: &TileRow, column: u32) {
        fence::fence_proxy_async_shared_cta();
        let (x, y) = (tile_row.x - warp::lane_id(), tile_row.y + column);
        let [n, m] = if cta.swapped() { [x, y] } else { [y, x] };
        let at = [n as i32, m as i32, tile_row.matrix as i32];
        // SAFETY: what all lanes wrote is known to the one behind the barrier, and fenced
        // for the copy engine; a box may reach out of the result. The group is closed also
        // where there is nothing to store: boxes are counted by groups.
        unsafe {
            warp::sync();
            if warp::lane_id() == 0 {
                if x < cta.x_rows() && y < cta.y_rows() {
                    let from = self.base + self.offset;
                    tensor_copy::cp_async_bulk_tensor_3d_global_shared_cta(
                        cta.map(RESULT),
                        at,
                        from,
                    );
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
