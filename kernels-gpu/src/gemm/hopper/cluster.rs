//! The CTAs of a cluster share a tile, and each stores its own part of it, some of the tokens.
//! Of many tokens each sends the others their parts of its sums, a piece of memory each; of
//! few tokens ([`HopperConfig::loads_remote`]) each loads them where they are.

use cuda_std::ptx::{bulk, cluster, fence, mbarrier, special};
use cuda_std::{thread, warp};
use fp4_formats::gemm::hopper::config::HopperConfig;

use super::sync_consumers;
use super::tile::Memory;

/// A CTA's share of a tile.
#[derive(Clone, Copy)]
pub struct Share {
    /// CTAs that share the tile, and which this one is.
    pub splits: u32,
    pub rank: u32,
    /// Tokens of the tile that exist.
    pub tokens: u32,
}

impl Share {
    /// The share of the only CTA.
    #[inline(always)]
    pub fn whole(tokens: u32) -> Self {
        Self { splits: 1, rank: 0, tokens }
    }

    /// This CTA's share.
    #[inline(always)]
    pub fn of_cluster(splits: u32, tokens: u32) -> Self {
        Self { splits, rank: special::cluster_ctarank(), tokens }
    }

    /// Tokens that CTA `rank` stores: the first and the one after the last.
    #[inline(always)]
    pub fn part(&self, rank: u32) -> (u32, u32) {
        HopperConfig::part(self.tokens, rank, self.splits)
    }

    /// Address, in the cluster's window where sums are loaded remotely, of the sums that CTA
    /// `rank` has of this CTA's token `token`.
    #[inline(always)]
    pub fn sums(&self, config: &HopperConfig, memory: Memory, rank: u32, token: u32) -> u32 {
        let pitch = config.sum_pitch() * size_of::<f32>() as u32;
        if config.loads_remote() && self.splits > 1 {
            return cluster::mapa_shared_cluster_u32(memory.base + token * pitch, rank);
        }
        if rank == self.rank {
            return memory.base + token * pitch;
        }
        let slot = memory.base + config.slot_offset(index(rank, self.rank), self.splits);
        slot + (token - self.part(self.rank).0) * pitch
    }
}

/// Which of the other CTAs' places in CTA `to` is CTA `from`'s.
#[inline(always)]
fn index(from: u32, to: u32) -> u32 {
    if from < to { from } else { from - 1 }
}

/// Says that this CTA reads its stages no more, once all its consumers do: others may write
/// there. [`exchange`] follows.
///
/// # Safety
/// All consumers, of all CTAs of the cluster; `received` is initialised, for one arrival.
#[inline(always)]
pub unsafe fn offer(config: &HopperConfig, share: &Share, received: u32) {
    if config.loads_remote() {
        return;
    }
    // SAFETY: the caller's.
    unsafe {
        if thread::thread_idx_x() == 0 {
            let (first, end) = share.part(share.rank);
            let pitch = config.sum_pitch() * size_of::<f32>() as u32;
            let bytes = (share.splits - 1) * (end - first) * pitch;
            mbarrier::mbarrier_arrive_expect_tx_shared_cta_b64(received, bytes);
        }
        warp::sync();
        // What was read is used: nothing is to be ordered but the arrival itself.
        cluster::barrier_cluster_arrive_relaxed_aligned();
    }
}

/// Sends the others their parts of the sums, which this thread has put into shared memory,
/// and waits for theirs; or waits until theirs may be loaded. [`part`] follows when they are
/// stored.
///
/// # Safety
/// As [`offer`], after it.
#[inline(always)]
pub unsafe fn exchange(config: &HopperConfig, share: &Share, memory: Memory, received: u32) {
    if config.loads_remote() {
        // SAFETY: the caller's.
        unsafe {
            cluster::barrier_cluster_arrive_release_aligned();
            cluster::barrier_cluster_wait_acquire_aligned();
        }
        return;
    }
    fence::fence_proxy_async_shared_cta();
    // SAFETY: the caller's; all CTAs of the cluster have offered when the wait returns. A
    // lane of the first warp sends to the CTA of its number.
    unsafe {
        cluster::barrier_cluster_wait_acquire_aligned();
        sync_consumers();
        let to = thread::thread_idx_x();
        if to < share.splits && to != share.rank {
            let (first, end) = share.part(to);
            let pitch = config.sum_pitch() * size_of::<f32>() as u32;
            if first < end {
                let slot = config.slot_offset(index(share.rank, to), share.splits);
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
        // What others sent is here: their memory is read.
        cluster::barrier_cluster_arrive_relaxed_aligned();
    }
}

/// Waits until the other CTAs have what this one sent, or have loaded it: then it may end.
///
/// # Safety
/// As [`offer`], after [`exchange`]. `used`: whether this thread has used all that it loaded,
/// and hence has loaded it.
#[inline(always)]
pub unsafe fn part(config: &HopperConfig, used: bool) {
    // SAFETY: the caller's.
    unsafe {
        if config.loads_remote() {
            // Results need not be in memory for the others to end.
            if used {
                cluster::barrier_cluster_arrive_relaxed_aligned();
            } else {
                cluster::barrier_cluster_arrive_release_aligned();
            }
        }
        cluster::barrier_cluster_wait_acquire_aligned();
    }
}
