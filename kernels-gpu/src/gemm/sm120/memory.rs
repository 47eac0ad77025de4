//! The map of a CTA's shared memory: what is where, in the order of the table in [`sm120`](super).

use fp4_formats::gemm::sm120::config::Sm120Config;

/// Shared addresses of a CTA.
#[derive(Clone, Copy)]
pub struct Memory {
    /// Address of the dynamic shared memory.
    pub base: u32,
    /// The kernel's configuration, which has all offsets.
    pub config: &'static Sm120Config,
}

impl Memory {
    /// A stage.
    #[inline(always)]
    pub fn stage(self, stage: u32) -> u32 {
        self.base + stage * self.config.stage_bytes()
    }

    /// Sums of a token of a strip.
    #[inline(always)]
    pub fn sums(self, token: u32) -> u32 {
        self.base + token * self.config.sum_pitch() * size_of::<f32>() as u32
    }
}
