//! The map of a CTA's shared memory: what is where, in the order of the table in [`sm90`](super).

use cuda_std::ptx::mbarrier;
use fp4_formats::gemm::sm90::config::Sm90Config;
use fp4_formats::gemm::sm90::message::Message;

use crate::pipeline::Ring;

/// Shared addresses of a CTA.
#[derive(Clone, Copy)]
pub struct Memory {
    /// Address of the dynamic shared memory.
    pub base: u32,
    /// The kernel's configuration, which has all offsets.
    pub config: &'static Sm90Config,
    /// The ring of stages.
    ring: Ring,
    /// The barrier `sums_stored`.
    sums_stored: u32,
}

impl Memory {
    /// The map of memory that begins at `base`.
    #[inline(always)]
    pub fn new(base: u32, config: &'static Sm90Config) -> Self {
        let ring = Ring::at(base + config.barriers_offset(), config.stages());
        Self { base, config, ring, sums_stored: base + config.sums_stored_offset() }
    }

    /// Activations of a stage.
    #[inline(always)]
    pub fn activations(self, stage: u32) -> u32 {
        self.base + stage * self.config.activation_bytes()
    }

    /// Weights of a stage.
    #[inline(always)]
    pub fn weights(self, stage: u32) -> u32 {
        self.base + self.config.weights_offset() + stage * self.config.weight_bytes()
    }

    /// Sums of a token.
    #[inline(always)]
    pub fn sums(self, token: u32) -> u32 {
        let pitch = self.config.sum_pitch() * size_of::<f32>() as u32;
        self.base + self.config.sums_offset() + token * pitch
    }

    /// The ring of stages.
    #[inline(always)]
    pub fn ring(self) -> Ring {
        self.ring
    }

    /// The barrier `sums_stored`.
    #[inline(always)]
    pub fn sums_stored(self) -> u32 {
        self.sums_stored
    }

    /// The barrier `sums_received`.
    #[inline(always)]
    pub fn sums_received(self) -> u32 {
        self.base + self.config.sums_received_offset()
    }

    /// The barrier `first_message`.
    #[inline(always)]
    pub fn first_message(self) -> u32 {
        self.base + self.config.first_message_offset()
    }

    /// Initialises the barriers.
    ///
    /// # Safety
    /// One thread of the CTA, once; a fence follows.
    #[inline(always)]
    pub unsafe fn init_barriers(self) {
        let arrivals = self.config.empty_arrivals();
        // SAFETY: the barriers' memory is the CTA's.
        unsafe {
            self.ring().init(1, arrivals);
            mbarrier::mbarrier_init_shared_cta_b64(self.sums_stored(), arrivals);
            // In a grouped product, `first_message` is at the same place.
            mbarrier::mbarrier_init_shared_cta_b64(self.sums_received(), 1);
        }
    }

    /// Message number `index` of a grouped product's tiles.
    #[inline(always)]
    pub fn message(self, index: u32) -> u32 {
        self.base + self.config.messages_offset() + index * size_of::<Message>() as u32
    }

    /// The piece of results of warpgroup `warpgroup`.
    #[inline(always)]
    pub fn results(self, warpgroup: u32) -> u32 {
        self.base + self.config.results_offset() + warpgroup * self.config.result_bytes()
    }
}
