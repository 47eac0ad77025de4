//! Configurations of the quantise kernels.

#[cfg(doc)]
use super::QuantizeParams;
use super::{Format, Recipe, slot};
use crate::layout::{ScaleLayout, TILE_BLOCKS, TILE_ROWS};
use crate::recipe::Nvfp4Recipe;
use crate::{FloatType, WARP};

/// The configuration of one quantise kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizeConfig {
    /// Entry name in the PTX module of either architecture.
    pub name: &'static str,
    /// Format of the result.
    pub format: Format,
    /// Type of the input; `None` if [`QuantizeParams::element`] chooses it, and
    /// [`QuantizeParams::up`] whether it quantises `silu(input) * up`.
    pub input: Option<FloatType>,
    /// The recipe for which it was compiled, or `None` if [`QuantizeParams::recipe`] chooses it.
    pub recipe: Option<Nvfp4Recipe>,
    /// Whether it quantises `silu(input) * up` instead of `input`.
    pub silu: bool,
    /// Warps of a CTA.
    pub warps: u32,
    /// CTAs that one SM must hold at the same time; bounds the registers.
    pub min_blocks: u32,
    /// Whether CTAs are persistent, which is faster if the arithmetic of a task is large compared
    /// with its memory traffic, so that starting a CTA costs noticeable time.
    pub persistent: bool,
}

impl QuantizeConfig {
    /// Threads of a CTA.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        self.warps * WARP
    }

    /// 16-byte words per block that are copied to shared memory.
    #[must_use]
    pub const fn chunks(&self) -> u32 {
        match self.input {
            Some(input) => self.format.block() * input.bytes() / 16,
            None => 0,
        }
    }

    /// Bytes of shared memory of one task of a warp.
    #[must_use]
    pub const fn stage_bytes(&self) -> u32 {
        operand_bytes(self.chunks()) * if self.silu { 2 } else { 1 }
    }

    /// Tasks of a warp whose input is being copied: enough to hide the latency of
    /// memory, and few enough that [`Self::min_blocks`] CTAs fit one SM.
    #[must_use]
    pub const fn stages(&self) -> u32 {
        if self.stage_bytes() == 0 {
            return 1;
        }
        let fit = RING_BYTES / (self.warps * self.stage_bytes());
        if fit < MOST_STAGES { fit } else { MOST_STAGES }
    }

    /// Bytes of static shared memory.
    #[must_use]
    pub const fn ring_bytes(&self) -> u32 {
        self.warps * self.stages() * self.stage_bytes()
    }

    /// Number of tasks. A task has 32 blocks, one per lane of a warp.
    ///
    /// With linear scales these are 32 consecutive blocks of the matrix. In the 128x4 layout they
    /// are four consecutive blocks of each of the rows `r + {0, 1, 32, 33, 64, 65, 96, 97}`,
    /// whose scales are 32 consecutive bytes; padding counts as blocks.
    #[must_use]
    pub const fn tasks(&self, m: u32, k: u32, layout: ScaleLayout) -> u64 {
        tasks(m, k / self.format.block(), layout)
    }

    /// Returns the unit of the grid: if a persistent kernel has more tasks than CTAs take at a time,
    /// the number of its CTAs is a multiple of it, so that all tasks of a warp are at the same place
    /// in their 128x4 tiles.
    #[must_use]
    pub const fn grid_unit(&self) -> u32 {
        assert!(ROW_GROUPS_A_TILE.is_multiple_of(self.warps));
        ROW_GROUPS_A_TILE / self.warps
    }

    /// The launch on a GPU with `sms` SMs: the number of CTAs, and [`QuantizeParams::depth`].
    ///
    /// The CTAs of a persistent kernel are all resident at the same time and process the tasks in a
    /// grid-stride loop ([`grid_unit`](Self::grid_unit)). A CTA of another kernel processes a few
    /// consecutive tasks per warp and ends, so that the GPU works on one region of memory at a
    /// time. If there are too few tasks for all SMs, it processes fewer per warp.
    #[must_use]
    pub const fn launch(&self, m: u32, k: u32, layout: ScaleLayout, sms: u32) -> (u32, u32) {
        let resident = sms as u64 * self.min_blocks as u64;
        let warps = self.warps as u64;
        let tasks = self.tasks(m, k, layout);
        if self.persistent {
            let needed = tasks.div_ceil(warps);
            if needed <= resident {
                return (needed as u32, 1);
            }
            let unit = self.grid_unit() as u64;
            return (if resident > unit { resident / unit * unit } else { unit } as u32, 1);
        }
        let share = tasks.div_ceil(resident * warps);
        let depth = if share < self.stages() as u64 { share } else { self.stages() as u64 };
        (tasks.div_ceil(warps * depth) as u32, depth as u32)
    }
}

/// Most elements of a matrix, so that the number of tasks plus one round of all CTAs is below
/// 2^32, and the number of CTAs below 2^31.
pub const MAX_ELEMENTS: u64 = 1 << 40;

/// Bytes of one operand of a task with `chunks` 16-byte words per block.
#[must_use]
pub const fn operand_bytes(chunks: u32) -> u32 {
    chunks * 16 * WARP
}

/// [`QuantizeConfig::tasks`] for `blocks` blocks per row.
#[must_use]
pub const fn tasks(m: u32, blocks: u32, layout: ScaleLayout) -> u64 {
    match layout {
        ScaleLayout::Linear => (m as u64 * blocks as u64).div_ceil(WARP as u64),
        ScaleLayout::Blocked128x4 => {
            let row_groups = m.div_ceil(TILE_ROWS as u32) as u64 * ROW_GROUPS_A_TILE as u64;
            row_groups * blocks.div_ceil(TILE_BLOCKS as u32) as u64
        }
    }
}

/// Groups of eight rows in a 128x4 tile.
pub const ROW_GROUPS_A_TILE: u32 = TILE_ROWS as u32 / 8;

/// Most shared memory of a CTA.
const RING_BYTES: u32 = 32 << 10;
/// Most stages of a warp.
const MOST_STAGES: u32 = 4;

const fn plain(
    name: &'static str,
    input: FloatType,
    recipe: Nvfp4Recipe,
    min_blocks: u32,
) -> QuantizeConfig {
    QuantizeConfig {
        name,
        format: Format::Nvfp4,
        input: Some(input),
        recipe: Some(recipe),
        silu: false,
        warps: 4,
        min_blocks,
        persistent: input.bytes() == 2,
    }
}

const fn any(
    name: &'static str,
    format: Format,
    input: FloatType,
    silu: bool,
    min_blocks: u32,
) -> QuantizeConfig {
    QuantizeConfig {
        name,
        format,
        input: Some(input),
        recipe: None,
        silu,
        warps: 4,
        min_blocks,
        persistent: silu || input.bytes() == 2,
    }
}

/// The configuration for [`Recipe::Adaptive`], any type, gated or not.
const ADAPTIVE: QuantizeConfig = QuantizeConfig {
    name: "quantize_nvfp4_4over6",
    format: Format::Nvfp4,
    input: None,
    recipe: None,
    silu: false,
    warps: 4,
    min_blocks: 6,
    persistent: true,
};

/// All quantise configurations. The PTX of each architecture has one kernel for each.
pub const QUANTIZE: [QuantizeConfig; 22] = {
    use FloatType::{Bf16, F16, F32};
    use Nvfp4Recipe::{CompressedTensors, ModelOpt, TorchAo, TransformerEngine};
    [
        plain("quantize_nvfp4_torchao_f32", F32, TorchAo, 6),
        plain("quantize_nvfp4_torchao_f16", F16, TorchAo, 6),
        plain("quantize_nvfp4_torchao_bf16", Bf16, TorchAo, 6),
        plain("quantize_nvfp4_te_f32", F32, TransformerEngine, 6),
        plain("quantize_nvfp4_te_f16", F16, TransformerEngine, 6),
        plain("quantize_nvfp4_te_bf16", Bf16, TransformerEngine, 6),
        plain("quantize_nvfp4_modelopt_f32", F32, ModelOpt, 6),
        plain("quantize_nvfp4_modelopt_f16", F16, ModelOpt, 6),
        plain("quantize_nvfp4_modelopt_bf16", Bf16, ModelOpt, 6),
        plain("quantize_nvfp4_ct_f32", F32, CompressedTensors, 6),
        plain("quantize_nvfp4_ct_f16", F16, CompressedTensors, 6),
        plain("quantize_nvfp4_ct_bf16", Bf16, CompressedTensors, 6),
        any("quantize_mxfp4_f32", Format::Mxfp4, F32, false, 4),
        any("quantize_mxfp4_f16", Format::Mxfp4, F16, false, 5),
        any("quantize_mxfp4_bf16", Format::Mxfp4, Bf16, false, 5),
        any("quantize_silu_nvfp4_f32", Format::Nvfp4, F32, true, 5),
        any("quantize_silu_nvfp4_f16", Format::Nvfp4, F16, true, 5),
        any("quantize_silu_nvfp4_bf16", Format::Nvfp4, Bf16, true, 5),
        any("quantize_silu_mxfp4_f32", Format::Mxfp4, F32, true, 3),
        any("quantize_silu_mxfp4_f16", Format::Mxfp4, F16, true, 4),
        any("quantize_silu_mxfp4_bf16", Format::Mxfp4, Bf16, true, 4),
        ADAPTIVE,
    ]
};

/// The configuration that quantises `input` (or with `silu` the gated product of
/// two such matrices) by `recipe`.
#[must_use]
pub const fn quantize_config(
    recipe: Recipe,
    input: FloatType,
    silu: bool,
) -> &'static QuantizeConfig {
    let first = match (silu, recipe) {
        (false, Recipe::Nvfp4(recipe)) => recipe as usize * 3,
        (false, Recipe::Mxfp4(_)) => 12,
        (true, Recipe::Nvfp4(_)) => 15,
        (true, Recipe::Mxfp4(_)) => 18,
        (_, Recipe::Adaptive(_)) => return &QUANTIZE[21],
    };
    &QUANTIZE[first + slot(input)]
}
