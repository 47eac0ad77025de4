//! The stream-K fix-up: the contributors of a tile send their partial sums to the CTA that owns
//! it, through global memory and, as a rule, L2. The CTAs of a split-K cluster use shared memory,
//! see [`split_k`](super::split_k).
//!
//! Thread i of the owner holds the same sums as thread i of a contributor, so partial sums need no
//! rearrangement: each thread sends vectors of four, 256 threads side by side.
//!
//! A contributor sends its partial sums of a tile before it computes anything else, as a rule long before the
//! owner needs them. If a stage has room for a batch of vectors, the owner's producer copies them into stages
//! behind the tile's last step, while that is multiplied ([`copy`], [`add_copied`]). Elsewhere the consumers
//! wait for them and load them ([`add_partials`]).

use cuda_std::ptx::{bulk, fence, marker, memory, scoped};
use cuda_std::{thread, warp};
use fp4_formats::gemm::sm90::config::{
    CONSUMER_THREADS, PARTIAL_BATCH, PARTIAL_VECTOR, Sm90Config,
};

use super::{Cta, multicast, sync_consumers};
use crate::gemm::flags::{self, FLAG_BYTES};
use crate::pipeline::Cursor;

/// Sums of a vector, and its bytes.
const VECTOR: usize = PARTIAL_VECTOR as usize;
const VECTOR_BYTES: u32 = PARTIAL_VECTOR * size_of::<f32>() as u32;
/// Vectors that a thread has in flight, or that a stage holds of each thread.
const BATCH: usize = PARTIAL_BATCH as usize;

/// Address of the partial sums of `cta`.
#[inline(always)]
fn partials<L>(own: &Cta<'_, L>, cta: u32) -> u64 {
    own.params.partials + u64::from(cta) * u64::from(own.config.partial_bytes())
}

/// Address of the flag of `cta`.
#[inline(always)]
fn flag<L>(own: &Cta<'_, L>, cta: u32) -> u64 {
    own.params.flags + u64::from(cta) * FLAG_BYTES
}

/// Address of this thread's first vector of the partial sums of `cta`.
#[inline(always)]
fn place<L>(own: &Cta<'_, L>, cta: u32) -> u64 {
    // Pinned, so that it takes no register during the main loop.
    let offset = marker::pin(thread::thread_idx_x() * VECTOR_BYTES);
    partials(own, cta) + u64::from(offset)
}

/// Tokens of a vector: a thread has two rows of two of eight tokens. And of the vectors that are in flight,
/// which are sent together, or not at all.
const VECTOR_TOKENS: u32 = 8;
const BATCH_TOKENS: u32 = BATCH as u32 * VECTOR_TOKENS;

/// Sends this CTA's partial sums of a tile of `width` tokens.
///
/// # Safety
/// All consumers call this; the preceding kernels of the stream have ended.
#[inline(always)]
pub unsafe fn send<L, const SUMS: usize, const BLOCKS: usize>(
    own: &Cta<'_, L>,
    width: u32,
    sums: &[[f32; SUMS]; BLOCKS],
) {
    let cta = thread::block_idx_x();
    let to = place(own, cta);
    for block in 0..BLOCKS {
        for i in 0..SUMS / VECTOR {
            if is_beyond(own.config, i, width) {
                continue;
            }
            let vector = core::array::from_fn(|j| sums[block][i * VECTOR + j].to_bits());
            let index = (block * (SUMS / VECTOR) + i) as u32;
            // SAFETY: inside the CTA's place.
            unsafe {
                memory::st_global_v4_b32(
                    to + u64::from(index * CONSUMER_THREADS * VECTOR_BYTES),
                    vector,
                );
            }
        }
    }
    // SAFETY: all consumers are here; the flag is this CTA's.
    unsafe {
        sync_consumers();
        if thread::thread_idx_x() == 0 {
            flags::raise(flag(own, cta));
        }
    }
}

/// Whether vector `index` of a block's is in a batch of tokens that a tile of `width` has not.
#[inline(always)]
fn is_beyond(config: &Sm90Config, index: usize, width: u32) -> bool {
    let first = (index / BATCH) as u32 * BATCH_TOKENS;
    config.is_wide() && first > 0 && first >= width
}

/// Producer: copies the partial sums of the contributors, the CTAs of the runs from `first` up to this
/// one's, in this order, into the stages from `cursor` on.
///
/// # Safety
/// The producer's thread; the configuration [copies them](Sm90Config::copies_partials); each of those
/// CTAs sends its partial sums; the preceding kernels of the stream have ended.
#[inline(always)]
pub unsafe fn copy<L>(own: &Cta<'_, L>, cursor: &mut Cursor, first: u32) {
    let (config, memory) = (own.config, own.memory);
    let ring = memory.ring();
    let bytes = config.partial_batch_bytes();
    let policy = bulk::createpolicy_fractional_l2_evict_first_b64();
    let end = multicast::run_of(config, thread::block_idx_x());
    let mut contributor = marker::pin(first);
    while contributor < end {
        let cta = multicast::cta_of(config, contributor, own.rank);
        // SAFETY: the contributor's flag, for which this thread alone waits.
        unsafe { flags::wait_for(flag(own, cta)) };
        // The copies read what the contributor's threads have stored.
        fence::fence_proxy_async_global();
        let mut from = partials(own, cta);
        let mut batch = marker::pin(0);
        while batch < config.partial_bytes() / bytes {
            let full = ring.full(cursor.stage);
            let to = memory.activations(cursor.stage);
            // SAFETY: the stage is empty when the wait returns, and has room for a batch; the batch is
            // inside the contributor's place.
            unsafe {
                ring.wait_empty(cursor);
                ring.expect_bytes(cursor.stage, bytes);
                bulk::cp_async_bulk_shared_cta_global(to, from, bytes, full, policy);
            }
            cursor.advance();
            from += u64::from(bytes);
            batch = marker::pin(batch + 1);
        }
        contributor += 1;
    }
}

/// Adds in the consumers the partial sums that [`copy`] copies. It waits until the stages are full, once per
/// contributor.
///
/// # Safety
/// All consumers call this, warp by warp converged, with the arguments of the producer's call of
/// [`copy`].
#[inline(always)]
pub unsafe fn add_copied<L, const SUMS: usize, const BLOCKS: usize>(
    own: &Cta<'_, L>,
    cursor: &mut Cursor,
    first: u32,
    sums: &mut [[f32; SUMS]; BLOCKS],
) {
    let (config, memory) = (own.config, own.memory);
    let ring = memory.ring();
    let end = multicast::run_of(config, thread::block_idx_x());
    let offset = marker::pin(thread::thread_idx_x() * VECTOR_BYTES);
    let batches = const { BLOCKS * SUMS / VECTOR / BATCH };
    let mut contributor = first;
    while contributor < end {
        for batch in 0..batches {
            // SAFETY: the stage holds the batch when the wait returns, and is not read afterwards.
            unsafe {
                ring.wait_full(cursor);
                let from = memory.activations(cursor.stage) + offset;
                let parts: [[u32; VECTOR]; BATCH] = core::array::from_fn(|i| {
                    memory::ld_shared_v4_b32(from + i as u32 * CONSUMER_THREADS * VECTOR_BYTES)
                });
                multicast::release(config, ring.empty(cursor.stage), true);
                for i in 0..BATCH {
                    add(sums, batch * BATCH + i, parts[i]);
                }
            }
            cursor.advance();
        }
        contributor += 1;
    }
}

/// Adds the partial sums of the contributors, the CTAs of the runs from `first` up to this one's,
/// in this order, of a tile of `width` tokens.
///
/// # Safety
/// As [`send`]; each of those CTAs sends its partial sums.
#[inline(always)]
pub unsafe fn add_partials<L, const SUMS: usize, const BLOCKS: usize>(
    own: &Cta<'_, L>,
    first: u32,
    width: u32,
    sums: &mut [[f32; SUMS]; BLOCKS],
) {
    let config = own.config;
    let cta_of = |contributor| multicast::cta_of(config, contributor, own.rank);
    let end = multicast::run_of(config, thread::block_idx_x());
    // Lane i polls contributor i's flag and, as its only reader, resets it.
    let mut contributor = first + thread::thread_idx_x();
    if thread::thread_idx_x() < warp::LANES {
        while contributor < end {
            // SAFETY: the contributor's flag.
            unsafe { flags::wait_for(flag(own, cta_of(contributor))) };
            contributor += warp::LANES;
        }
    }
    // SAFETY: the warp has converged again; all consumers are here.
    unsafe {
        warp::sync();
        sync_consumers();
    }
    let vectors = const { BLOCKS * SUMS / VECTOR };
    if const { BLOCKS * SUMS / VECTOR >= BATCH } {
        let mut contributor = first;
        while contributor < end {
            let from = place(own, cta_of(contributor));
            for batch in 0..vectors / BATCH {
                if is_beyond(config, batch * BATCH % (SUMS / VECTOR), width) {
                    continue;
                }
                let mut parts = [[0; VECTOR]; BATCH];
                for i in 0..BATCH {
                    let index = (batch * BATCH + i) as u32;
                    // SAFETY: inside the contributor's place, which is written.
                    parts[i] = unsafe { load(from, index) };
                }
                for i in 0..BATCH {
                    add(sums, batch * BATCH + i, parts[i]);
                }
            }
            contributor += 1;
        }
    } else {
        // The sums of several contributors are in flight at a time.
        let together = const { BATCH / (BLOCKS * SUMS / VECTOR) };
        let mut contributor = first;
        while contributor < end {
            let mut parts = [[0; VECTOR]; BATCH];
            for g in 0..together {
                if contributor + (g as u32) < end {
                    let from = place(own, cta_of(contributor + g as u32));
                    for i in 0..vectors {
                        // SAFETY: as above.
                        parts[g * vectors + i] = unsafe { load(from, i as u32) };
                    }
                }
            }
            for g in 0..together {
                if contributor + (g as u32) < end {
                    for i in 0..vectors {
                        add(sums, i, parts[g * vectors + i]);
                    }
                }
            }
            contributor += together as u32;
        }
    }
}

/// Vector `index` of the thread's.
///
/// # Safety
/// It is written, and this thread has observed that.
#[inline(always)]
unsafe fn load(from: u64, index: u32) -> [u32; VECTOR] {
    let address = from + u64::from(index * CONSUMER_THREADS * VECTOR_BYTES);
    // SAFETY: the vector is written, and aligned to its size.
    unsafe { scoped::ld_relaxed_gpu_global_v4_b32(address) }
}

/// Adds vector `index`.
#[inline(always)]
fn add<const SUMS: usize, const BLOCKS: usize>(
    sums: &mut [[f32; SUMS]; BLOCKS],
    index: usize,
    vector: [u32; VECTOR],
) {
    let (block, first) = (index / (SUMS / VECTOR), index % (SUMS / VECTOR) * VECTOR);
    for j in 0..VECTOR {
        sums[block][first + j] += f32::from_bits(vector[j]);
    }
}
