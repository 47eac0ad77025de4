//! Split-K: the CTAs of a cluster compute parts of one tile's K, and each stores its own part of the
//! tile, some of the tokens. With many tokens each CTA sends the others their parts of its sums by
//! bulk copies; with few tokens ([`Sm90Config::loads_remote`]) each loads them from shared memory of
//! the other CTAs.

use cuda_std::ptx::{bulk, cluster, fence, mbarrier, special};
use cuda_std::{thread, warp};
use fp4_formats::Divisor;
use fp4_formats::gemm::sm90::config::Sm90Config;

use super::memory::Memory;
use super::sync_consumers;
use crate::gemm::store::Share;

/// The part of this CTA of a cluster of `cluster`, of a tile of so many tokens.
#[inline(always)]
pub fn share(cluster: Divisor, tokens: u32) -> Share {
    Share { cluster, rank: special::cluster_ctarank(), tokens }
}

/// Returns the address of the sums that CTA `rank` has of token `token` of this CTA's part, in the
/// cluster's window if sums are loaded remotely.
#[inline(always)]
pub fn sums(config: &Sm90Config, memory: Memory, part: &Share, rank: u32, token: u32) -> u32 {
    let pitch = config.sum_pitch() * size_of::<f32>() as u32;
    if config.loads_remote() && part.ctas() > 1 {
        return cluster::mapa_shared_cluster_u32(memory.sums(token), rank);
    }
    if rank == part.rank {
        return memory.sums(token);
    }
    let slot = memory.base + config.slot_offset(index(rank, part.rank), part.cluster);
    slot + (token - part.range(part.rank).0) * pitch
}

/// Index of CTA `from` among the CTAs that send to CTA `to`.
#[inline(always)]
fn index(from: u32, to: u32) -> u32 {
    if from < to { from } else { from - 1 }
}

/// Tells the cluster that this CTA's stages are read, so that others may write their sums there.
/// [`exchange`] follows.
///
/// # Safety
/// All consumers of all CTAs of the cluster call this; the barrier `sums_received` is initialised, for one arrival.
#[inline(always)]
pub unsafe fn release_stages(memory: Memory, part: &Share) {
    let (config, received) = (memory.config, memory.sums_received());
    if config.loads_remote() {
        return;
    }
    // SAFETY: the barrier expects one arrival; all consumers of the cluster arrive.
    unsafe {
        if thread::thread_idx_x() == 0 {
            let (first, end) = part.range(part.rank);
            let pitch = config.sum_pitch() * size_of::<f32>() as u32;
            let bytes = (part.ctas() - 1) * (end - first) * pitch;
            mbarrier::mbarrier_arrive_expect_tx_shared_cta_b64(received, bytes);
        }
        warp::sync();
        // Reads of the stages have returned: the arrival alone orders them.
        cluster::barrier_cluster_arrive_relaxed_aligned();
    }
}

/// Sends the other CTAs their parts of the sums, which this thread has put into shared memory, and
/// waits for theirs; or waits until theirs may be loaded. [`finish`] follows when results are
/// stored.
///
/// # Safety
/// As [`release_stages`], after it.
#[inline(always)]
pub unsafe fn exchange(memory: Memory, part: &Share) {
    let (config, received) = (memory.config, memory.sums_received());
    if config.loads_remote() {
        // SAFETY: all consumers of the cluster are here.
        unsafe {
            cluster::barrier_cluster_arrive_release_aligned();
            cluster::barrier_cluster_wait_acquire_aligned();
        }
        return;
    }
    fence::fence_proxy_async_shared_cta();
    // SAFETY: all CTAs of the cluster have released their stages when the wait returns, and expect
    // the bytes. Lane i of the first warp sends to CTA i.
    unsafe {
        cluster::barrier_cluster_wait_acquire_aligned();
        sync_consumers();
        let to = thread::thread_idx_x();
        if to < part.ctas() && to != part.rank {
            let (first, end) = part.range(to);
            let pitch = config.sum_pitch() * size_of::<f32>() as u32;
            if first < end {
                let slot = config.slot_offset(index(part.rank, to), part.cluster);
                bulk::cp_async_bulk_shared_cluster_shared_cta(
                    cluster::mapa_shared_cluster_u32(memory.base + slot, to),
                    memory.base + first * pitch,
                    (end - first) * pitch,
                    cluster::mapa_shared_cluster_u32(received, to),
                );
            }
        }
        warp::sync();
        mbarrier::wait_parity(received, 0);
        warp::sync();
        // The others' sums have arrived, so the copies have read the others' memory.
        cluster::barrier_cluster_arrive_relaxed_aligned();
    }
}

/// Waits until the other CTAs have received or loaded this CTA's sums: then it may end.
///
/// # Safety
/// The same as [`release_stages`], after [`exchange`]. This thread has used all of its loads, so
/// that they have returned.
#[inline(always)]
pub unsafe fn finish(config: &Sm90Config) {
    // SAFETY: all consumers of the cluster are here.
    unsafe {
        if config.loads_remote() {
            // Loads have returned: the arrival alone orders them. The others may end before this
            // CTA's results are in memory.
            cluster::barrier_cluster_arrive_relaxed_aligned();
        }
        cluster::barrier_cluster_wait_acquire_aligned();
    }
}
