//! The map of shared memory: stages, exchange, boxes of results, barriers.

use crate::pipeline::Ring;
use crate::pipeline::ring::MBARRIER_BYTES;
use cuda_std::ptx::{cluster, fence, mbarrier, memory as words};
use cuda_std::warp;
use fp4_formats::gemm::sm100::Sm100Config;
use fp4_formats::gemm::sm100::config::{CONTROL_BYTES, STAGE_ALIGN, STORE_WARPS};
use fp4_formats::layout::TILE_BYTES;
use fp4_formats::ue8m0;

/// Responses of the scheduler that may be under way or unread.
pub const RESPONSES: u32 = 2;

/// Most sets of columns of decoded `X`.
pub const MAX_BUFFERS: u32 = 4;

/// Warps that decode: one for each quarter of tensor memory's lanes.
pub const QUARTERS: u32 = 4;

/// Bytes of a response of the scheduler.
const RESPONSE_BYTES: u32 = 16;

/// Shared addresses of a CTA, the same in each of its cluster.
#[derive(Clone, Copy)]
pub struct Memory {
    /// First stage.
    stages: u32,
    /// Bytes from one to the next.
    stage_stride: u32,
    /// Sums from the other CTAs of a split.
    pub exchange: u32,
    /// Boxes of results of the storing warps.
    pub boxes: u32,
    /// Barriers and everything behind them.
    base: u32,
    /// Numbers of stages, accumulators and sets of decoded `X`.
    depths: [u32; 3],
    /// Bytes of the tile of scales of 1, if there is one.
    ones_bytes: u32,
}

impl Memory {
    /// Lays out dynamic shared memory that begins at `start`.
    #[inline(always)]
    pub fn new(config: &Sm100Config, start: u32) -> Self {
        let stages = (start + STAGE_ALIGN - 1) & !(STAGE_ALIGN - 1);
        let stage_stride = config.stage_stride();
        let exchange = stages + config.stages() * stage_stride;
        let boxes = exchange + config.exchange_bytes();
        let base = boxes + config.boxes_bytes();
        let depths = [config.stages(), config.accumulator_stages(), config.buffers()];
        let ones_bytes = config.ones_bytes();
        let map = Self { stages, stage_stride, exchange, boxes, base, depths, ones_bytes };
        assert!(map.response_offset(RESPONSES) + size_of::<u32>() as u32 <= CONTROL_BYTES);
        map
    }

    /// Returns the offset behind `base` of ring `index`, or of the data behind the rings: of
    /// stages, of accumulators, of responses, of the exchange, of decoded `X`.
    #[inline(always)]
    const fn ring_offset(&self, index: usize) -> u32 {
        let [stages, accumulators, _] = self.depths;
        let rings = [stages, accumulators, RESPONSES, 1, MAX_BUFFERS];
        let (mut offset, mut i) = (0, 0);
        while i < index {
            offset += Ring::bytes(rings[i]);
            i += 1;
        }
        offset
    }

    /// First byte of `stage`.
    #[inline(always)]
    pub const fn stage(&self, stage: u32) -> u32 {
        self.stages + stage * self.stage_stride
    }

    /// The ring of stages: full and empty.
    #[inline(always)]
    pub fn ring(&self) -> Ring {
        Ring::at(self.base, self.depths[0])
    }

    /// The ring of accumulators, `acc_full` and `acc_empty`.
    #[inline(always)]
    pub fn accumulators(&self) -> Ring {
        Ring::at(self.base + self.ring_offset(1), self.depths[1])
    }

    /// The ring of the scheduler's responses, `response_full` and `response_empty`.
    #[inline(always)]
    pub fn responses(&self) -> Ring {
        Ring::at(self.base + self.ring_offset(2), RESPONSES)
    }

    /// The exchange between the CTAs of a split: full is "sums have come", empty is "the
    /// sums that this CTA sent were read".
    #[inline(always)]
    pub fn exchanges(&self) -> Ring {
        Ring::at(self.base + self.ring_offset(3), 1)
    }

    /// The ring of decoded `X` in tensor memory.
    #[inline(always)]
    pub fn decoded(&self) -> Ring {
        Ring::at(self.base + self.ring_offset(4), self.depths[2])
    }

    /// Returns the barrier by which the copying lane signals that it has begun a tile, if clusters
    /// ask for them.
    #[inline(always)]
    pub fn begun(&self) -> u32 {
        self.base + self.ring_offset(5)
    }

    /// The scheduler's response in `stage`.
    #[inline(always)]
    pub fn response(&self, stage: u32) -> u32 {
        self.base + self.response_offset(stage)
    }

    /// Returns the place of tensor memory's address.
    #[inline(always)]
    pub fn tensor_slot(&self) -> u32 {
        self.response(RESPONSES)
    }

    /// The tile of scales of 1.
    #[inline(always)]
    pub fn ones(&self) -> u32 {
        self.base + CONTROL_BYTES
    }

    /// The table of a grouped product's problems.
    #[inline(always)]
    pub fn table(&self) -> u32 {
        self.ones() + self.ones_bytes
    }

    /// Fills the tile of scales of 1.
    ///
    /// # Safety
    /// One whole warp of each CTA, before all threads of the cluster meet.
    #[inline(always)]
    pub unsafe fn fill_ones(&self) {
        const WORDS: usize = TILE_BYTES / warp::LANES as usize / size_of::<u32>();
        let at = self.ones() + warp::lane_id() * (WORDS * size_of::<u32>()) as u32;
        let ones = u32::from_le_bytes([ue8m0::ONE; size_of::<u32>()]);
        // SAFETY: the lane's part of the tile.
        unsafe { words::st_shared_v4_b32(at, [ones; WORDS]) };
        // The tensor core reads it.
        fence::fence_proxy_async_shared_cta();
    }

    #[inline(always)]
    const fn response_offset(&self, stage: u32) -> u32 {
        let first = (self.ring_offset(5) + MBARRIER_BYTES).next_multiple_of(RESPONSE_BYTES);
        first + RESPONSE_BYTES * stage
    }

    /// Initialises all barriers.
    ///
    /// # Safety
    /// One thread of the CTA, once, before all threads of the cluster meet.
    #[inline(always)]
    pub unsafe fn init(&self, config: &Sm100Config) {
        // Copying lane, product lane (one a pair), store and decode warps, and the one that loads
        // tokens, of each CTA.
        let decoders = if config.decodes() { QUARTERS } else { 0 };
        let loaders = u32::from(config.loads_tokens());
        let listeners = config.cluster() * (1 + STORE_WARPS + decoders + loaders)
            + config.cluster() / config.cta_group;
        let others = config.k_parts() - 1;
        // SAFETY: the barriers' bytes are the CTA's own.
        unsafe {
            self.ring().init(1 + loaders, config.multicast);
            self.accumulators().init(1, STORE_WARPS * config.cta_group);
            // Clusters do not ask for tiles of grouped products.
            if !config.is_grouped() {
                self.responses().init(1, listeners);
                mbarrier::mbarrier_init_shared_cta_b64(self.begun(), 1);
            }
            if decoders > 0 {
                self.decoded().init(QUARTERS * config.cta_group, 1);
            }
            if others > 0 {
                self.exchanges().init(STORE_WARPS * others, STORE_WARPS * others);
            }
        }
        fence::fence_mbarrier_init_release_cluster();
    }
}

/// Arrives once at this CTA's `barrier` in CTA `rank`. The arrival means that the thread has
/// finished its reads of memory that may be overwritten, or that it has written tensor memory and
/// executed `fence::before_thread_sync`; it publishes no writes to memory.
///
/// # Safety
/// The barrier expects the arrival; the CTA has not ended.
#[inline(always)]
pub unsafe fn arrive_at(barrier: u32, rank: u32) {
    let there = cluster::mapa_shared_cluster_u32(barrier, rank);
    // SAFETY: the caller guarantees that the barrier expects the arrival and that the CTA runs.
    unsafe { mbarrier::mbarrier_arrive_release_cta_shared_cluster_b64(there) }
}

/// Arrives as [`arrive_at`] does and publishes all writes of the thread, also to that CTA's memory.
/// It waits until they are complete, so it is too slow for every K step.
///
/// # Safety
/// The same as [`arrive_at`].
#[inline(always)]
pub unsafe fn publish_at(barrier: u32, rank: u32) {
    let there = cluster::mapa_shared_cluster_u32(barrier, rank);
    // SAFETY: the caller guarantees that the barrier expects the arrival and that the CTA runs.
    unsafe { mbarrier::mbarrier_arrive_shared_cluster_b64(there) }
}
