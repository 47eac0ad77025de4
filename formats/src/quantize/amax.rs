//! Configurations of the amax kernels.

use super::slot;
use crate::{FloatType, WARP};

/// The configuration of one amax kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmaxConfig {
    /// Entry name in the PTX module of either architecture.
    pub name: &'static str,
    /// Type of the input.
    pub input: FloatType,
    /// Whether it takes the maximum of `silu(input) * up` instead of `input`.
    pub silu: bool,
    /// Warps of a CTA.
    pub warps: u32,
    /// CTAs that one SM must hold at the same time; bounds the registers.
    pub min_blocks: u32,
}

impl AmaxConfig {
    /// Threads of a CTA.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        self.warps * WARP
    }

    /// CTAs of a launch: one warp per row if `per_row`, otherwise a few 16-byte loads per
    /// thread; at most one wave of resident CTAs.
    #[must_use]
    pub const fn grid(&self, m: u32, k: u32, per_row: bool, sms: u32) -> u32 {
        let needed = if per_row {
            m.div_ceil(self.warps) as u64
        } else {
            let words = (m as u64 * k as u64 * self.input.bytes() as u64).div_ceil(16);
            words.div_ceil((self.threads() * AMAX_LOADS as u32) as u64)
        };
        let wave = (sms * self.min_blocks) as u64;
        if needed < wave { needed as u32 } else { wave as u32 }
    }
}

/// Independent 16-byte loads (of each operand) that a thread of an amax kernel
/// keeps in flight.
pub const AMAX_LOADS: usize = 4;

/// All amax configurations.
pub const AMAX: [AmaxConfig; 6] = {
    const fn config(name: &'static str, input: FloatType, silu: bool) -> AmaxConfig {
        AmaxConfig { name, input, silu, warps: 8, min_blocks: 4 }
    }
    [
        config("quantize_amax_f32", FloatType::F32, false),
        config("quantize_amax_f16", FloatType::F16, false),
        config("quantize_amax_bf16", FloatType::Bf16, false),
        config("quantize_silu_amax_f32", FloatType::F32, true),
        config("quantize_silu_amax_f16", FloatType::F16, true),
        config("quantize_silu_amax_bf16", FloatType::Bf16, true),
    ]
};

/// The amax configuration for `input`, or with `silu` for the gated product.
#[must_use]
pub const fn amax_config(input: FloatType, silu: bool) -> &'static AmaxConfig {
    &AMAX[slot(input) + if silu { 3 } else { 0 }]
}
