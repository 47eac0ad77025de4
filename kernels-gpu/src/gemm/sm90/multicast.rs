//! Multicast of activations: two CTAs of a cluster compute tiles of neighbouring rows and the same
//! tokens. Each copies its own weights, and one half of the tokens to both CTAs, so that L2 is read
//! half as often for activations.
//!
//! Both CTAs do the same steps, in stages of the same number. A stage is empty, and the sums are
//! stored, when the consumers of both CTAs have arrived: consumers arrive at both producers'
//! barriers. Consumers wait for their own `full` barrier alone. The peer's bytes may complete
//! before the stage's own producer has announced them; its arrival ends the phase.

use cuda_std::ptx::{cluster, fence, marker, mbarrier};
use cuda_std::{thread, warp};
use fp4_formats::gemm::sm90::config::Sm90Config;

use super::memory::Memory;

/// Returns the rank of this CTA in its multicast pair.
#[inline(always)]
pub fn rank(config: &Sm90Config) -> u32 {
    if config.multicast > 1 { thread::block_idx_x() % config.multicast } else { 0 }
}

/// Number of a CTA's run in the schedule; all CTAs of a multicast have the same.
#[inline(always)]
pub fn run_of(config: &Sm90Config, cta: u32) -> u32 {
    cta / config.multicast
}

/// The CTA of run `run` that has rank `rank`.
#[inline(always)]
pub fn cta_of(config: &Sm90Config, run: u32, rank: u32) -> u32 {
    run * config.multicast + rank
}

/// All CTAs of the multicast, as a copy's mask.
#[inline(always)]
pub fn all(config: &Sm90Config) -> u16 {
    (1 << config.multicast) - 1
}

/// Arrives, if `reads`, at a stage's `empty` barrier: this thread has read the stage.
///
/// Every thread arrives at the local barrier. If one lane arrived for its warp, race checkers could
/// not see the other lanes' reads. At the peer's barrier one lane of each warp arrives.
///
/// The peer's copies must come after reads, which have returned, and after no write: the arrival
/// alone orders them, so a release of CTA scope is enough. A release of cluster scope would be a
/// fence of all memory, which takes longer than a step.
///
/// # Safety
/// All consumers call this, warp by warp converged; `empty` expects
/// [`empty_arrivals`](Sm90Config::empty_arrivals). The peer CTA has not ended.
#[inline(always)]
pub unsafe fn release(config: &Sm90Config, empty: u32, reads: bool) {
    // SAFETY: the caller's.
    unsafe { release_as(config, empty, reads, || warp::lane_id() == 0) }
}

/// Whether this thread arrives at the peer's barriers, in a register from before the main loop.
#[inline(always)]
pub fn leads(config: &Sm90Config) -> bool {
    config.multicast > 1 && marker::pin(warp::lane_id()) == 0
}

/// Arrives as [`release`] does; the caller knows whether this thread [leads](leads).
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn release_led(config: &Sm90Config, empty: u32, reads: bool, leads: bool) {
    // SAFETY: the caller's.
    unsafe { release_as(config, empty, reads, || leads) }
}

/// Arrives as [`release`] does, at the peer's barrier where `leads` says so.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn release_as(config: &Sm90Config, empty: u32, reads: bool, leads: impl FnOnce() -> bool) {
    // SAFETY: the barrier is initialised and expects the arrivals; the peer has not ended.
    unsafe {
        mbarrier::mbarrier_arrive_shared_cta_b64_if(empty, reads);
        if config.multicast > 1 {
            warp::sync();
            let arrives = reads && leads();
            mbarrier::mbarrier_arrive_release_cta_shared_cluster_b64_if(
                peer_barrier(config, empty),
                arrives,
            );
        }
    }
}

/// Arrives at the barrier `sums_stored`: this thread has stored its part of the tile's sums.
///
/// # Safety
/// As [`release`].
#[inline(always)]
pub unsafe fn release_sums(memory: Memory) {
    let (config, sums_stored) = (memory.config, memory.sums_stored());
    // Copies of both CTAs overwrite the stages that were stored and loaded here.
    if config.multicast > 1 {
        fence::fence_proxy_async();
    } else {
        fence::fence_proxy_async_shared_cta();
    }
    // SAFETY: the barrier is initialised and expects the arrivals; the peer has not ended.
    unsafe {
        mbarrier::mbarrier_arrive_shared_cta_b64(sums_stored);
        if config.multicast > 1 {
            warp::sync();
            if warp::lane_id() == 0 {
                mbarrier::mbarrier_arrive_shared_cluster_b64(peer_barrier(config, sums_stored));
            }
        }
    }
}

/// Arrives at the cluster's barrier before the CTA ends: all that the peer's copies bring has arrived, and this
/// CTA's last arrivals at the peer's barriers are issued.
///
/// # Safety
/// All consumers of both CTAs call this, warp by warp converged, and wait for the barrier later.
#[inline(always)]
pub unsafe fn arrive_last() {
    // SAFETY: all consumers of both CTAs arrive; the warp converges first.
    unsafe {
        warp::sync();
        cluster::barrier_cluster_arrive_release_aligned();
    }
}

/// Producer: waits until the sums of all CTAs of the multicast are stored.
///
/// # Safety
/// The barrier is initialised and known to the caller.
#[inline(always)]
pub unsafe fn wait_sums_stored(memory: Memory, parity: u32) {
    let sums_stored = memory.sums_stored();
    // SAFETY: the barrier is initialised and known to the caller.
    unsafe {
        if memory.config.multicast > 1 {
            mbarrier::wait_parity_cluster(sums_stored, parity);
        } else {
            mbarrier::wait_parity(sums_stored, parity);
        }
    }
}

/// The peer CTA's barrier at the offset of this CTA's.
#[inline(always)]
fn peer_barrier(config: &Sm90Config, barrier: u32) -> u32 {
    cluster::mapa_shared_cluster_u32(barrier, rank(config) ^ 1)
}
