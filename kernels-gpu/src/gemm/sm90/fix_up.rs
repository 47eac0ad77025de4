//! The stream-K fix-up of the consumers: see [`fix_up`] for its protocol. The CTAs of a split-K cluster use
//! shared memory, see [`split_k`](super::split_k).
//!
//! A contributor sends its partial sums of a tile before it computes anything else, as a rule long before the
//! owner needs them. If a stage has room for a batch of vectors, the owner's producer copies them into stages
//! behind the tile's last step, while that is multiplied ([`copy`], [`add_copied`]). Elsewhere the consumers
//! wait for them and load them ([`add_partials`]); few sums [show by
//! themselves](Sm90Config::marks_partials) that they are there, which saves a fence, a flag and a wait.

use cuda_std::ptx::{bulk, fence, marker, memory};
use cuda_std::{thread, warp};
use fp4_formats::gemm::sm90::config::{
    CONSUMER_THREADS, PARTIAL_BATCH, PARTIAL_VECTOR, Sm90Config,
};

use super::{Cta, Sm90, multicast, sync_consumers};
use crate::gemm::cta::Target;
use crate::gemm::fix_up::{self, Contributors, VECTOR, VECTOR_BYTES};
use crate::gemm::flags;
use crate::gemm::work::WorkList;
use crate::pipeline::Cursor;

/// Vectors that a thread has in flight, or that a stage holds of each thread.
const BATCH: usize = PARTIAL_BATCH as usize;

/// Marked vectors that a thread has in flight: few, as their code runs once and should be short.
const MARKED_BATCH: usize = 4;

const _: () = assert!(VECTOR == PARTIAL_VECTOR as usize);

/// Tokens of a vector: a thread has two rows of two of eight tokens. And of the vectors that are in flight,
/// which are sent together, or not at all.
const VECTOR_TOKENS: u32 = 8;
const BATCH_TOKENS: u32 = BATCH as u32 * VECTOR_TOKENS;

/// Sends this CTA's partial sums of a tile of `width` tokens.
///
/// # Safety
/// All consumers call this; the preceding kernels of the stream have ended.
#[inline(always)]
pub unsafe fn send<L: WorkList, const SUMS: usize, const BLOCKS: usize>(
    own: &Cta<'_, L>,
    width: u32,
    sums: &[[f32; SUMS]; BLOCKS],
) {
    let cta = thread::block_idx_x();
    let to = fix_up::vectors(own, cta);
    for block in 0..BLOCKS {
        for i in 0..SUMS / VECTOR {
            if is_beyond(own.config, i, width) {
                continue;
            }
            let vector = core::array::from_fn(|j| sums[block][i * VECTOR + j]);
            let index = (block * (SUMS / VECTOR) + i) as u32;
            // SAFETY: inside the CTA's partial sums.
            unsafe {
                if own.config.marks_partials() {
                    fix_up::send_marked::<Sm90>(to, index, vector);
                } else {
                    fix_up::send::<Sm90>(to, index, vector);
                }
            }
        }
    }
    if own.config.marks_partials() {
        return;
    }
    // SAFETY: all consumers are here; the flag is this CTA's.
    unsafe {
        sync_consumers();
        if thread::thread_idx_x() == 0 {
            flags::raise(fix_up::flag(own, cta));
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
pub unsafe fn copy<L: WorkList>(own: &Cta<'_, L>, cursor: &mut Cursor, first: u32) {
    let (config, memory) = (own.config, own.memory);
    let ring = memory.ring();
    let bytes = config.partial_batch_bytes();
    let policy = bulk::createpolicy_fractional_l2_evict_first_b64();
    let Contributors { end, .. } = Contributors::from(own, first);
    let mut contributor = marker::pin(first);
    while contributor < end {
        let cta = Sm90::cta_of(own, contributor);
        // SAFETY: the contributor's flag, for which this thread alone waits.
        unsafe { flags::wait_for(fix_up::flag(own, cta)) };
        // The copies read what the contributor's threads have stored.
        fence::fence_proxy_async_global();
        let mut from = fix_up::partials(own, cta);
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
pub unsafe fn add_copied<L: WorkList, const SUMS: usize, const BLOCKS: usize>(
    own: &Cta<'_, L>,
    cursor: &mut Cursor,
    first: u32,
    sums: &mut [[f32; SUMS]; BLOCKS],
) {
    let (config, memory) = (own.config, own.memory);
    let ring = memory.ring();
    let Contributors { end, .. } = Contributors::from(own, first);
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
pub unsafe fn add_partials<L: WorkList, const SUMS: usize, const BLOCKS: usize>(
    own: &Cta<'_, L>,
    first: u32,
    width: u32,
    sums: &mut [[f32; SUMS]; BLOCKS],
) {
    let config = own.config;
    let contributors = Contributors::from(own, first);
    let vectors = const { BLOCKS * SUMS / VECTOR };
    if config.marks_partials() {
        let add = |i, vector| add(sums, i, vector);
        // SAFETY: all lanes are here; the contributors send all their vectors to the same thread of the owner.
        unsafe { contributors.take::<_, _, MARKED_BATCH>(own, vectors, add) };
        return;
    }
    // SAFETY: the first warp waits, and converges again; all consumers are here.
    unsafe {
        if thread::thread_idx_x() < warp::LANES {
            let flag = |run| fix_up::flag(own, Sm90::cta_of(own, run));
            contributors.wait(thread::thread_idx_x(), flag);
        }
        warp::sync();
        sync_consumers();
    }
    let mut contributor = contributors.first;
    while contributor < contributors.end {
        let from = fix_up::vectors(own, Sm90::cta_of(own, contributor));
        for batch in 0..vectors.div_ceil(BATCH) {
            let count = BATCH.min(vectors - batch * BATCH);
            if is_beyond(config, batch * BATCH % (SUMS / VECTOR), width) {
                continue;
            }
            let mut parts = [[0; VECTOR]; BATCH];
            for i in 0..count {
                // SAFETY: the contributor has sent the vector.
                parts[i] = unsafe { fix_up::load::<Sm90>(from, (batch * BATCH + i) as u32) };
            }
            for i in 0..count {
                add(sums, batch * BATCH + i, parts[i]);
            }
        }
        contributor += 1;
    }
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
