//! The stream-K fix-up of the storing warps: see [`fix_up`] for its protocol. A run is a cluster's. The CTAs
//! of a split use shared memory, see [`exchange`](super::exchange).
//!
//! A storing warp sends its rows and raises its flag; the same warp of the owner's CTA of the same rank waits
//! for it. A cluster sends the sums of one tile at most, and first of all it does.
//!
//! A vector is four columns of the thread's row.

use super::results::{SEGMENT, SEGMENT_COLUMNS, Segment, segment_columns};
use super::store::load;
use super::{Cta, Sm100, WorkList};
use crate::gemm::cta::Target;
use crate::gemm::fix_up::{self, Contributors, VECTOR};
use crate::gemm::flags;
use cuda_std::ptx::marker;
use cuda_std::{thread, warp};
use fp4_formats::gemm::Item;
use fp4_formats::gemm::sm100::config::{CTA_ROWS, STORE_WARPS};

/// Vectors that a thread has in flight.
const BATCH: usize = 16;

const _: () = assert!(SEGMENT.is_multiple_of(VECTOR) && BATCH.is_multiple_of(SEGMENT / VECTOR));
const _: () = assert!(CTA_ROWS == STORE_WARPS * warp::LANES);

/// Address of the flag of CTA `sender`'s storing warp with this one's rows.
#[inline(always)]
fn flag(cta: &Cta<'_, impl WorkList>, sender: u32) -> u64 {
    let warp = thread::thread_idx_x() / warp::LANES;
    fix_up::flag(cta, sender * STORE_WARPS + warp)
}

/// Sends the sums at `d`, all columns of the tile. `give_back` is called when they are read and sent; the lanes
/// of the warp meet in it.
///
/// # Safety
/// Whole storing warps, behind the kernels before; the sums are complete. Once in a launch.
#[inline(always)]
pub unsafe fn send(cta: &Cta<'_, impl WorkList>, d: u32, give_back: impl Fn()) {
    let own = thread::block_idx_x();
    let to = fix_up::vectors(cta, own);
    let mut column = 0;
    while column < cta.config.columns {
        // SAFETY: the caller's.
        unsafe {
            let sums = load(cta.config, d + column);
            for i in 0..segment_columns(cta.config) as usize / VECTOR {
                let vector = core::array::from_fn(|j| sums[VECTOR * i + j]);
                fix_up::send::<Sm100>(to, column / VECTOR as u32 + i as u32, vector);
            }
        }
        // Not unrolled: code that runs once per launch should be small.
        column = marker::pin(column + SEGMENT_COLUMNS);
    }
    // The warp's lanes meet here.
    give_back();
    if warp::lane_id() == 0 {
        // SAFETY: the flag is this warp's, whose lanes have sent their vectors.
        unsafe { flags::raise(flag(cta, own)) };
    }
}

/// Waits for the partial sums of the contributors to a tile that this cluster owns; there are none if its K
/// is not cut.
///
/// # Safety
/// Whole storing warps, once for each tile.
#[inline(always)]
pub unsafe fn wait(cta: &Cta<'_, impl WorkList>, item: Option<Item>) -> Contributors {
    let mut contributors = Contributors::from(cta, 0);
    contributors.first = match item {
        Some(item) if item.first > 0 => item.first_cta(&cta.params.schedule),
        Some(_) | None => contributors.end,
    };
    if contributors.first < contributors.end {
        // SAFETY: the warp is whole, and meets behind the wait.
        unsafe {
            contributors.wait(warp::lane_id(), |run| flag(cta, Sm100::cta_of(cta, run)));
            warp::sync();
        }
    }
    contributors
}

/// Adds the sums of columns `column ..` of the tile: the owner's `sums`, then the contributors'.
///
/// # Safety
/// Behind [`wait`].
#[inline(always)]
pub unsafe fn add(
    cta: &Cta<'_, impl WorkList>,
    contributors: Contributors,
    column: u32,
    mut sums: Segment,
) -> Segment {
    let vectors = [column as usize / VECTOR, segment_columns(cta.config) as usize / VECTOR];
    // SAFETY: the caller's.
    unsafe {
        contributors.add::<_, _, BATCH>(cta, vectors, |i, vector| {
            for j in 0..VECTOR {
                sums[VECTOR * i + j] += f32::from_bits(vector[j]);
            }
        });
    }
    sums
}
