//! Configurations of the dequantise kernels.

use super::{Format, slot};
use crate::layout::ScaleLayout;
use crate::{FloatType, WARP};

/// The configuration of one dequantise kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DequantizeConfig {
    /// Entry name in the PTX module of either architecture.
    pub name: &'static str,
    /// Format that it reads.
    pub format: Format,
    /// Type of the result.
    pub output: FloatType,
    /// Warps of a CTA.
    pub warps: u32,
    /// CTAs that one SM must hold at the same time; bounds the registers.
    pub min_blocks: u32,
}

impl DequantizeConfig {
    /// Threads of a CTA.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        self.warps * WARP
    }

    /// Elements that one 16-byte store writes.
    #[must_use]
    pub const fn unit(&self) -> u32 {
        16 / self.output.bytes()
    }

    /// Whether a block's scales are found without its row and column.
    #[must_use]
    pub const fn is_flat(layout: ScaleLayout, by_row: bool) -> bool {
        matches!(layout, ScaleLayout::Linear) && !by_row
    }

    /// CTAs of a launch. Each thread has one store if that is at most `SPREAD_BLOCKS` CTAs per
    /// SM, so that small matrices use as many threads as possible, and otherwise
    /// [`DEQUANTIZE_UNITS`]. In the 128x4 layout, whose rows and columns are costly to compute, it
    /// is at most one wave of resident CTAs.
    #[must_use]
    pub const fn grid(&self, m: u32, k: u32, layout: ScaleLayout, sms: u32) -> u32 {
        let units = m as u64 * (k / self.unit()) as u64;
        let spread = units.div_ceil(self.threads() as u64);
        if spread <= (sms * SPREAD_BLOCKS) as u64 {
            return spread as u32;
        }
        let needed = units.div_ceil((self.threads() * DEQUANTIZE_UNITS as u32) as u64);
        let most = match layout {
            // Threads are counted in 32 bits.
            ScaleLayout::Linear => u32::MAX / self.threads(),
            ScaleLayout::Blocked128x4 => sms * self.min_blocks,
        } as u64;
        if needed < most { needed as u32 } else { most as u32 }
    }
}

/// CTAs per SM up to which each thread has one store.
const SPREAD_BLOCKS: u32 = 4;

/// 16-byte units of the result that a thread of a dequantise kernel processes together.
pub const DEQUANTIZE_UNITS: usize = 2;

/// All dequantise configurations.
pub const DEQUANTIZE: [DequantizeConfig; 6] = {
    const fn config(name: &'static str, format: Format, output: FloatType) -> DequantizeConfig {
        DequantizeConfig { name, format, output, warps: 8, min_blocks: 8 }
    }
    [
        config("dequantize_nvfp4_f32", Format::Nvfp4, FloatType::F32),
        config("dequantize_nvfp4_f16", Format::Nvfp4, FloatType::F16),
        config("dequantize_nvfp4_bf16", Format::Nvfp4, FloatType::Bf16),
        config("dequantize_mxfp4_f32", Format::Mxfp4, FloatType::F32),
        config("dequantize_mxfp4_f16", Format::Mxfp4, FloatType::F16),
        config("dequantize_mxfp4_bf16", Format::Mxfp4, FloatType::Bf16),
    ]
};

/// The dequantise configuration from `format` to `output`.
#[must_use]
pub const fn dequantize_config(format: Format, output: FloatType) -> &'static DequantizeConfig {
    let first = match format {
        Format::Nvfp4 => 0,
        Format::Mxfp4 => 3,
    };
    &DEQUANTIZE[first + slot(output)]
}
