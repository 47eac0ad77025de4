//! Two CTAs of a cluster make tiles of neighbouring rows and the same tokens. Each copies its
//! weights, and its half of the tokens to the same place of both: L2 is read half as often.
//!
//! Both do the same steps, in stages of the same number. A stage is empty, and the sums are
//! stored, when the consumers of both CTAs say so: those of each tell both producers. Consumers
//! take no other notice: their stage is full when its bytes are there, whoever sent them. They may
//! come before the stage's own producer expects them; its arrival is what ends the phase.

use cuda_std::ptx::{cluster, fence, mbarrier};
use cuda_std::{thread, warp};
use fp4_formats::gemm::hopper::config::HopperConfig;

/// Which of the CTAs that share activations this one is.
#[inline(always)]
pub fn rank(config: &HopperConfig) -> u32 {
    if config.sharers > 1 { thread::block_idx_x() % config.sharers } else { 0 }
}

/// The run of a CTA, which those that share activations with it have too.
#[inline(always)]
pub fn run_of(config: &HopperConfig, cta: u32) -> u32 {
    cta / config.sharers
}

/// The CTA of this one's rank of those whose run has this number.
#[inline(always)]
pub fn cta_of(config: &HopperConfig, run: u32) -> u32 {
    run * config.sharers + rank(config)
}

/// All CTAs that share activations, as a copy's mask.
#[inline(always)]
pub fn all(config: &HopperConfig) -> u16 {
    (1 << config.sharers) - 1
}

/// Says that the stage of a barrier `empty` is read, if `reads`: every thread to this CTA's producer
/// (of a warp that arrives as one, tools do not see that its other lanes have read), a lane of
/// each warp to the other CTA's.
///
/// What the other CTA's copies must come after are reads, which have returned what they read, and
/// no writes: that it is told at all orders them. Ordering more than the CTA's would take longer
/// than a step.
///
/// # Safety
/// All consumers, warp by warp converged; `empty` counts
/// [`free_arrivals`](HopperConfig::free_arrivals). The other CTA has not ended.
#[inline(always)]
pub unsafe fn release(config: &HopperConfig, empty: u32, reads: bool) {
    // SAFETY: the caller's.
    unsafe {
        mbarrier::mbarrier_arrive_shared_cta_b64_if(empty, reads);
        if config.sharers > 1 {
            warp::sync();
            let tells = reads && warp::lane_id() == 0;
            mbarrier::mbarrier_arrive_release_cta_shared_cluster_b64_if(
                others(config, empty),
                tells,
            );
        }
    }
}

/// Says the same of the sums with the barrier `free`: that they are stored.
///
/// # Safety
/// As [`release`].
#[inline(always)]
pub unsafe fn free_sums(config: &HopperConfig, free: u32) {
    // Copies overwrite what was stored and loaded here, the other CTA's too.
    if config.sharers > 1 {
        fence::fence_proxy_async();
    } else {
        fence::fence_proxy_async_shared_cta();
    }
    // SAFETY: the caller's.
    unsafe {
        mbarrier::mbarrier_arrive_shared_cta_b64(free);
        if config.sharers > 1 {
            warp::sync();
            if warp::lane_id() == 0 {
                mbarrier::mbarrier_arrive_shared_cluster_b64(others(config, free));
            }
        }
    }
}

/// Producer: waits for what [`free_sums`] says.
///
/// # Safety
/// The barrier is initialised and known to the caller.
#[inline(always)]
pub unsafe fn wait_free(config: &HopperConfig, free: u32, parity: u32) {
    // SAFETY: the caller's.
    unsafe {
        if config.sharers > 1 {
            mbarrier::wait_parity_cluster(free, parity);
        } else {
            mbarrier::wait_parity(free, parity);
        }
    }
}

/// The other CTA's barrier at the place of this one's.
#[inline(always)]
fn others(config: &HopperConfig, barrier: u32) -> u32 {
    cluster::mapa_shared_cluster_u32(barrier, rank(config) ^ 1)
}
