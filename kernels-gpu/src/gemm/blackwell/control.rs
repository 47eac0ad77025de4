//! Where things are in shared memory: stages, exchange, boxes of results, barriers.

use crate::pipeline::Ring;
use crate::pipeline::ring::MBARRIER_BYTES;
use cuda_std::ptx::{cluster, fence, mbarrier};
use fp4_formats::gemm::blackwell::BlackwellConfig;
use fp4_formats::gemm::blackwell::config::{CONTROL_BYTES, STAGE_ALIGN, STORE_WARPS};

/// Responses of the scheduler that may be under way or unread.
pub const RESPONSES: u32 = 2;

/// Most sets of columns of decoded `X`.
const MAX_BUFFERS: u32 = 4;

/// Warps that decode: one for each quarter of tensor memory's lanes.
pub const QUARTERS: u32 = 4;

/// Shared addresses of a CTA, the same in each of its cluster.
#[derive(Clone, Copy)]
pub struct Control<const STAGES: u32, const ACCUMULATORS: u32> {
    /// First stage.
    stages: u32,
    /// Bytes from one to the next.
    stage_stride: u32,
    /// Sums from the other CTAs of a split.
    pub exchange: u32,
    /// Boxes of results of the storing warps.
    pub boxes: u32,
    /// Barriers and what follows.
    base: u32,
}

impl<const STAGES: u32, const ACCUMULATORS: u32> Control<STAGES, ACCUMULATORS> {
    const ACCUMULATOR_RING: u32 = Ring::<STAGES>::BYTES;
    const RESPONSE_RING: u32 = Self::ACCUMULATOR_RING + Ring::<ACCUMULATORS>::BYTES;
    const EXCHANGE_RING: u32 = Self::RESPONSE_RING + Ring::<RESPONSES>::BYTES;
    const DECODED_RING: u32 = Self::EXCHANGE_RING + Ring::<1>::BYTES;
    const BEGUN: u32 = Self::DECODED_RING + Ring::<MAX_BUFFERS>::BYTES;
    const RESPONSE_WORDS: u32 = (Self::BEGUN + MBARRIER_BYTES).next_multiple_of(16);
    const TENSOR_SLOT: u32 = Self::RESPONSE_WORDS + 16 * RESPONSES;

    /// In dynamic shared memory that begins at `start`.
    #[inline(always)]
    pub fn new(config: &BlackwellConfig, start: u32) -> Self {
        const { assert!(Self::TENSOR_SLOT + 4 <= CONTROL_BYTES && MBARRIER_BYTES == 8) };
        let stages = (start + STAGE_ALIGN - 1) & !(STAGE_ALIGN - 1);
        let stage_stride = config.stage_stride();
        let exchange = stages + STAGES * stage_stride;
        let boxes = exchange + config.exchange_bytes();
        let base = boxes + config.boxes_bytes();
        Self { stages, stage_stride, exchange, boxes, base }
    }

    /// First byte of `stage`.
    #[inline(always)]
    pub fn stage(&self, stage: u32) -> u32 {
        self.stages + stage * self.stage_stride
    }

    /// The ring of stages: full and empty.
    #[inline(always)]
    pub fn ring(&self) -> Ring<STAGES> {
        Ring::at(self.base)
    }

    /// The ring of accumulators, `acc_full` and `acc_empty`.
    #[inline(always)]
    pub fn accumulators(&self) -> Ring<ACCUMULATORS> {
        Ring::at(self.base + Self::ACCUMULATOR_RING)
    }

    /// The ring of the scheduler's responses, `response_full` and `response_empty`.
    #[inline(always)]
    pub fn responses(&self) -> Ring<RESPONSES> {
        Ring::at(self.base + Self::RESPONSE_RING)
    }

    /// The exchange between the CTAs of a split: full is "sums have come", empty is "the
    /// sums that this CTA sent were read".
    #[inline(always)]
    pub fn exchanges(&self) -> Ring<1> {
        Ring::at(self.base + Self::EXCHANGE_RING)
    }

    /// The ring of decoded `X` in tensor memory.
    #[inline(always)]
    pub fn decoded<const BUFFERS: u32>(&self) -> Ring<BUFFERS> {
        const { assert!(BUFFERS <= MAX_BUFFERS) };
        Ring::at(self.base + Self::DECODED_RING)
    }

    /// The barrier that says that the copying lane has begun a tile, where clusters ask for them.
    #[inline(always)]
    pub fn begun(&self) -> u32 {
        self.base + Self::BEGUN
    }

    /// The scheduler's response in `stage`.
    #[inline(always)]
    pub fn response(&self, stage: u32) -> u32 {
        self.base + Self::RESPONSE_WORDS + 16 * stage
    }

    /// Where the address of tensor memory is.
    #[inline(always)]
    pub fn tensor_slot(&self) -> u32 {
        self.base + Self::TENSOR_SLOT
    }

    /// Initialises all barriers.
    ///
    /// # Safety
    /// One thread of the CTA, once, before all threads of the cluster meet.
    #[inline(always)]
    pub unsafe fn init<const BUFFERS: u32>(&self, config: &BlackwellConfig) {
        // Copying lane, product lane (one a pair), store and decode warps of each CTA.
        let decoders = if config.activations.is_some() { QUARTERS } else { 0 };
        let listeners =
            config.cluster() * (1 + STORE_WARPS + decoders) + config.cluster() / config.cta_group;
        let others = config.k_parts() - 1;
        // SAFETY: the barriers' bytes are the CTA's own.
        unsafe {
            self.ring().init(1, config.multicast);
            self.accumulators().init(1, STORE_WARPS * config.cta_group);
            self.responses().init(1, listeners);
            mbarrier::mbarrier_init_shared_cta_b64(self.begun(), 1);
            if decoders > 0 {
                self.decoded::<BUFFERS>().init(QUARTERS * config.cta_group, 1);
            }
            if others > 0 {
                self.exchanges().init(STORE_WARPS * others, STORE_WARPS * others);
            }
        }
        fence::fence_mbarrier_init_release_cluster();
    }
}

/// One arrival at this CTA's `barrier` in CTA `rank`. It says that the thread has read what may be
/// overwritten, or that it has written tensor memory and executed `fence::before_thread_sync`; it
/// publishes no writes to memory.
///
/// # Safety
/// The barrier expects the arrival; the CTA has not ended.
#[inline(always)]
pub unsafe fn arrive_at(barrier: u32, rank: u32) {
    let there = cluster::mapa_shared_cluster_u32(barrier, rank);
    // SAFETY: the caller guarantees that the barrier expects the arrival and that the CTA runs.
    unsafe { mbarrier::mbarrier_arrive_release_cta_shared_cluster_b64(there) }
}

/// [`arrive_at`] that publishes what the thread has written, also to that CTA's memory. It waits
/// until all of it is there, so this is not for every K step.
///
/// # Safety
/// As [`arrive_at`].
#[inline(always)]
pub unsafe fn publish_at(barrier: u32, rank: u32) {
    let there = cluster::mapa_shared_cluster_u32(barrier, rank);
    // SAFETY: the caller guarantees that the barrier expects the arrival and that the CTA runs.
    unsafe { mbarrier::mbarrier_arrive_shared_cluster_b64(there) }
}
