//! Two CTAs of a cluster make tiles of neighbouring rows and the same tokens. Each copies its
//! weights, and its half of the tokens to the same place of both: L2 is read half as often.
//!
//! Both do the same steps, in stages of the same number. A producer that may write a stage of
//! its CTA says so to the other, and sends its half when the other has said the same.
//! Consumers take no notice: their stage is full when its bytes are there, whoever sent them.

use cuda_std::ptx::{cluster, mbarrier};
use cuda_std::thread;
use fp4_formats::gemm::hopper::config::{BARRIER_BYTES, HopperConfig};

use super::tile::Memory;
use crate::pipeline::Cursor;

/// Which of the CTAs that share activations this one is.
#[inline(always)]
pub fn rank(config: &HopperConfig) -> u32 {
    if config.sharers > 1 { thread::block_idx_x() % config.sharers } else { 0 }
}

/// The CTA of rank `rank` of those whose run has this number.
#[inline(always)]
pub fn cta_of(config: &HopperConfig, run: u32) -> u32 {
    run * config.sharers + rank(config)
}

/// All CTAs that share activations, as a copy's mask.
#[inline(always)]
pub fn all(config: &HopperConfig) -> u16 {
    (1 << config.sharers) - 1
}

/// The barriers `ready`, one a stage.
#[derive(Clone, Copy)]
pub struct Ready {
    /// Shared address of the first.
    base: u32,
}

impl Ready {
    #[inline(always)]
    pub fn of(config: &HopperConfig, memory: Memory) -> Self {
        Self { base: memory.base + config.ready_offset() }
    }

    /// Initialises them. One thread, before the cluster's barrier.
    ///
    /// # Safety
    /// They hold no live mbarriers.
    #[inline(always)]
    pub unsafe fn init(self, stages: u32) {
        for stage in 0..stages {
            let barrier = self.base + stage * BARRIER_BYTES;
            // SAFETY: the caller's.
            unsafe { mbarrier::mbarrier_init_shared_cta_b64(barrier, 1) };
        }
    }

    /// Tells the other CTA that it may write its half into this one's stage.
    ///
    /// # Safety
    /// The producer, once a round, when the stage is empty. The barriers of both CTAs are
    /// initialised and known to it.
    #[inline(always)]
    pub unsafe fn tell(self, config: &HopperConfig, stage: u32) {
        let barrier = self.base + stage * BARRIER_BYTES;
        // SAFETY: the caller's; the other CTA waits for this before it ends.
        unsafe {
            let other = cluster::mapa_shared_cluster_u32(barrier, rank(config) ^ 1);
            mbarrier::mbarrier_arrive_shared_cluster_b64(other);
        }
    }

    /// Waits until the other CTA has told the same of its stage in this round.
    ///
    /// # Safety
    /// As [`tell`](Self::tell); `cursor` is the producer's.
    #[inline(always)]
    pub unsafe fn wait<const STAGES: u32>(self, cursor: &Cursor<STAGES>) {
        let barrier = self.base + cursor.stage * BARRIER_BYTES;
        // SAFETY: the caller's. The producer's cursor is a round ahead: that its stages are
        // empty nobody says in the first.
        unsafe { mbarrier::wait_parity_cluster(barrier, cursor.parity ^ 1) }
    }
}
