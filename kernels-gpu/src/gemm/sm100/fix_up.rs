//! The stream-K fix-up: the clusters that compute the first K steps of a tile, its contributors, send their
//! sums through global memory, as a rule L2, to the one that computes the last, which owns the tile and adds
//! them. The CTAs of a split use shared memory, see [`exchange`](super::exchange).
//!
//! A storing warp sends its rows and raises its flag; the same warp of the owner's CTA of the same rank waits
//! for it. A cluster sends the sums of one tile at most, and first of all it does. So it waits only for
//! clusters with lower numbers, which the hardware starts first.
//!
//! Partial sums are groups of four columns, in each a 16-byte word for every row.

use super::results::{SEGMENT, SEGMENT_COLUMNS, Segment, segment_columns};
use super::store::load;
use super::{Cta, WorkList};
use crate::gemm::flags::{self, FLAG_BYTES};
use cuda_std::ptx::{marker, memory, scoped};
use cuda_std::{thread, warp};
use fp4_formats::gemm::Item;
use fp4_formats::gemm::sm100::config::{CTA_ROWS, STORE_WARPS};

/// Columns of a word, and its bytes.
const WORD: usize = 4;
const WORD_BYTES: u32 = WORD as u32 * size_of::<f32>() as u32;
/// Words that a thread has in flight.
const BATCH: usize = 16;

/// The clusters whose partial sums a tile's owner adds.
#[derive(Clone, Copy)]
pub struct Contributors {
    first: u32,
    end: u32,
}

/// The CTA of cluster `cluster` with the same rows as this one.
#[inline(always)]
fn cta_of(cta: &Cta<'_, impl WorkList>, cluster: u32) -> u32 {
    cluster * cta.config.cluster() + cta.pair_rank()
}

/// Address of the flag of CTA `sender`'s storing warp with this one's rows.
#[inline(always)]
fn flag(cta: &Cta<'_, impl WorkList>, sender: u32) -> u64 {
    let warp = thread::thread_idx_x() / warp::LANES;
    cta.params.flags + u64::from(sender * STORE_WARPS + warp) * FLAG_BYTES
}

/// Address of the thread's word of columns `column ..` of CTA `sender`'s partial sums.
#[inline(always)]
fn place(cta: &Cta<'_, impl WorkList>, sender: u32, column: u32) -> u64 {
    let partials = u64::from(sender) * u64::from(cta.config.partial_bytes());
    let word = column / WORD as u32 * CTA_ROWS + thread::thread_idx_x();
    cta.params.partials + partials + u64::from(word * WORD_BYTES)
}

/// Sends the sums at `d`, all columns of the tile. `give_back` is called when they are read and sent; the lanes
/// of the warp meet in it.
///
/// # Safety
/// Whole storing warps, behind the kernels before; the sums are complete. Once in a launch.
#[inline(always)]
pub unsafe fn send(cta: &Cta<'_, impl WorkList>, d: u32, give_back: impl Fn()) {
    let own = thread::block_idx_x();
    let mut column = 0;
    while column < cta.config.columns {
        // SAFETY: the caller's; the words are the thread's.
        unsafe {
            let sums = load(cta.config, d + column);
            for i in 0..segment_columns(cta.config) as usize / WORD {
                let word = core::array::from_fn(|j| sums[WORD * i + j].to_bits());
                memory::st_global_v4_b32(place(cta, own, column + (WORD * i) as u32), word);
            }
        }
        // Not unrolled: code that runs once per launch should be small.
        column = marker::pin(column + SEGMENT_COLUMNS);
    }
    // The warp's lanes meet here.
    give_back();
    if warp::lane_id() == 0 {
        // SAFETY: the flag is this warp's, whose lanes have sent their words.
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
    let end = thread::block_idx_x() / cta.config.cluster();
    let first = match item {
        Some(item) if item.first > 0 => item.first_cta(&cta.params.schedule),
        Some(_) | None => end,
    };
    if first < end {
        // Lane i waits for contributor i.
        let mut contributor = first + warp::lane_id();
        while contributor < end {
            // SAFETY: the flag of a warp that sends its sums; no other thread waits for it.
            unsafe { flags::wait_for(flag(cta, cta_of(cta, contributor))) };
            contributor += warp::LANES;
        }
        // SAFETY: the caller's.
        unsafe { warp::sync() };
    }
    Contributors { first, end }
}

impl Contributors {
    /// Adds the sums of columns `column ..` of the tile: the owner's `mine`, then the contributors', in the
    /// order of K.
    ///
    /// # Safety
    /// Behind [`wait`].
    #[inline(always)]
    pub unsafe fn add(&self, cta: &Cta<'_, impl WorkList>, column: u32, mine: Segment) -> Segment {
        let words = segment_columns(cta.config) as usize / WORD;
        let together = BATCH / words;
        let mut sums = mine;
        let mut contributor = self.first;
        while contributor < self.end {
            let mut parts = [[0; WORD]; BATCH];
            for g in 0..together {
                let from = contributor + g as u32;
                if from < self.end {
                    for i in 0..words {
                        let at = place(cta, cta_of(cta, from), column + (WORD * i) as u32);
                        // SAFETY: the word is written, and aligned to its size.
                        parts[g * words + i] = unsafe { scoped::ld_relaxed_gpu_global_v4_b32(at) };
                    }
                }
            }
            for g in 0..together {
                if contributor + (g as u32) < self.end {
                    for i in 0..words * WORD {
                        sums[i] += f32::from_bits(parts[g * words + i / WORD][i % WORD]);
                    }
                }
            }
            // Not unrolled, as above.
            contributor = marker::pin(contributor + together as u32);
        }
        sums
    }
}

const _: () = assert!(SEGMENT.is_multiple_of(WORD) && BATCH.is_multiple_of(SEGMENT / WORD));
