//! The contract between the quantise, dequantise and amax kernels and whoever
//! launches them: parameter blocks, configuration tables, launch geometry.
//!
//! What the kernels compute is defined in [`recipe`](crate::recipe). Matrices are
//! row-major and dense, [M, K], K a multiple of the format's block.
//!
//! # Device memory that the caller prepares
//! * `tensor` for [`ScaleSource::TensorAmax`] and [`ScaleSource::RowAmax`]: written
//!   by an amax kernel launched before, whose `out` must hold zeros at its start
//!   unless it computes row maxima.
//! * `errors`: one u64 that holds [`NO_ERROR`]. Afterwards it holds the smallest
//!   linear index (`row * K + column`) of an element that is not finite, or still
//!   [`NO_ERROR`].

use crate::gemv::OutputType;
use crate::layout::{ScaleLayout, TILE_BLOCKS, TILE_ROWS};
use crate::recipe::{Mxfp4Recipe, Nvfp4Recipe};
use crate::{BlockFormat, Mxfp4, Nvfp4};

/// Element type of a matrix that is quantised or dequantised.
pub type FloatType = OutputType;

/// Lanes of a warp.
pub const WARP: u32 = 32;

/// What the error word holds while no element was found that is not finite.
pub const NO_ERROR: u64 = u64::MAX;

/// Where the tensor-level scale of NVFP4 comes from. MXFP4 has none, and its
/// kernels ignore it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ScaleSource {
    /// `given` is the recipe's tensor parameter
    /// ([`Nvfp4Recipe::tensor_parameter`]), from calibration; 1 for a single level.
    Given = 0,
    /// `tensor` holds the largest magnitude of the whole matrix.
    TensorAmax = 1,
    /// `tensor` holds the largest magnitude of each row.
    RowAmax = 2,
}

/// A named recipe of either format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recipe {
    /// NVFP4: blocks of 16, e4m3 scales.
    Nvfp4(Nvfp4Recipe),
    /// MXFP4: blocks of 32, ue8m0 scales.
    Mxfp4(Mxfp4Recipe),
}

impl Recipe {
    /// The format it makes.
    #[must_use]
    pub const fn format(self) -> Format {
        match self {
            Self::Nvfp4(_) => Format::Nvfp4,
            Self::Mxfp4(_) => Format::Mxfp4,
        }
    }

    /// What [`QuantizeParams::recipe`] holds.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::Nvfp4(recipe) => recipe as u32,
            Self::Mxfp4(recipe) => recipe as u32,
        }
    }
}

/// A block format as a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// [`Nvfp4`].
    Nvfp4,
    /// [`Mxfp4`].
    Mxfp4,
}

impl Format {
    /// Elements that share a scale.
    #[must_use]
    pub const fn block(self) -> u32 {
        match self {
            Self::Nvfp4 => Nvfp4::BLOCK as u32,
            Self::Mxfp4 => Mxfp4::BLOCK as u32,
        }
    }

    /// The format's name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nvfp4 => Nvfp4::NAME,
            Self::Mxfp4 => Mxfp4::NAME,
        }
    }
}

/// Parameter block of every quantise kernel, passed by value. Addresses are
/// device addresses.
///
/// | field | shape | layout |
/// |---|---|---|
/// | `input`, `up` | [M, K] of the configuration's type | 16-byte aligned |
/// | `codes` | [M, K/2] bytes | 16-byte aligned |
/// | `scales` | [M, K/block] | `blocked`; all padding of 128x4 is written as zero |
/// | `tensor` | [1] or [M] f32 | 4-byte aligned; see [`ScaleSource`] |
/// | `tensor_out` | [1], or [M] for [`ScaleSource::RowAmax`], f32 | 4-byte aligned |
/// | `errors` | one u64 | 8-byte aligned; see the module's head |
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct QuantizeParams {
    /// The matrix; the gate where the configuration is fused with SwiGLU.
    pub input: u64,
    /// What `silu(gate)` is multiplied with; 0 in kernels that do not.
    pub up: u64,
    /// Packed e2m1 codes, element `2j` in the low nibble.
    pub codes: u64,
    /// Block scales.
    pub scales: u64,
    /// Largest magnitudes; 0 for [`ScaleSource::Given`].
    pub tensor: u64,
    /// Where the tensor parameters that were used go; 0 if nobody wants them.
    pub tensor_out: u64,
    /// Where the index of an element that is not finite goes; 0 if nobody asks.
    pub errors: u64,
    /// Rows.
    pub m: u32,
    /// Columns, a multiple of the block.
    pub k: u32,
    /// The recipe's tensor parameter for [`ScaleSource::Given`].
    pub given: f32,
    /// A [`ScaleSource`].
    pub source: u32,
    /// 1 if `scales` is in the 128x4 layout, 0 if linear.
    pub blocked: u32,
    /// [`Recipe::code`]; ignored by configurations made for one recipe.
    pub recipe: u32,
}

/// How one quantise kernel was compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizeConfig {
    /// Entry name in the PTX module of either architecture.
    pub name: &'static str,
    /// Format that it makes.
    pub format: Format,
    /// Type of the input.
    pub input: FloatType,
    /// The one recipe that it was made for, if not the one that
    /// [`QuantizeParams::recipe`] says.
    pub recipe: Option<Nvfp4Recipe>,
    /// Whether it quantises `silu(input) * up` rather than `input`.
    pub silu: bool,
    /// Warps of a CTA.
    pub warps: u32,
    /// CTAs that must fit an SM together; bounds the registers.
    pub min_blocks: u32,
}

impl QuantizeConfig {
    /// Threads of a CTA.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        self.warps * WARP
    }

    /// 16-byte loads that bring a block.
    #[must_use]
    pub const fn chunks(&self) -> u32 {
        self.format.block() * self.input.bytes() / 16
    }

    /// Bytes of static shared memory in which a warp rearranges its blocks, from
    /// the order in which they are loaded (16 consecutive bytes a lane) to a block
    /// a lane. None where a block is two loads: those may as well be made by the
    /// block's lane, since both halves of each sector are asked for at once.
    #[must_use]
    pub const fn staging_bytes(&self) -> u32 {
        if self.chunks() > 2 { self.chunks() * 16 * WARP } else { 0 }
    }

    /// Warps' worth of work: 32 blocks each.
    ///
    /// Linear scales: 32 consecutive blocks of the matrix. 128x4: four
    /// consecutive blocks of eight rows `r + {0, 1, 32, 33, 64, 65, 96, 97}`,
    /// whose scales are 32 consecutive bytes; padding counts as blocks.
    #[must_use]
    pub const fn tasks(&self, m: u32, k: u32, layout: ScaleLayout) -> u64 {
        tasks(m, k / self.format.block(), layout)
    }

    /// CTAs of a launch: one wave of resident ones, at most what the work needs.
    #[must_use]
    pub const fn grid(&self, m: u32, k: u32, layout: ScaleLayout, sms: u32) -> u32 {
        let needed = self.tasks(m, k, layout).div_ceil(self.warps as u64);
        let wave = (sms * self.min_blocks) as u64;
        if needed < wave { needed as u32 } else { wave as u32 }
    }
}

/// [`QuantizeConfig::tasks`] for `blocks` blocks a row.
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

const fn plain(
    name: &'static str,
    input: FloatType,
    recipe: Nvfp4Recipe,
    min_blocks: u32,
) -> QuantizeConfig {
    QuantizeConfig {
        name,
        format: Format::Nvfp4,
        input,
        recipe: Some(recipe),
        silu: false,
        warps: 4,
        min_blocks,
    }
}

const fn any(
    name: &'static str,
    format: Format,
    input: FloatType,
    silu: bool,
    min_blocks: u32,
) -> QuantizeConfig {
    QuantizeConfig { name, format, input, recipe: None, silu, warps: 4, min_blocks }
}

/// All quantise configurations; a kernel for each is in the PTX of both
/// architectures.
pub const QUANTIZE: [QuantizeConfig; 21] = {
    use FloatType::{Bf16, F16, F32};
    use Nvfp4Recipe::{CompressedTensors, ModelOpt, TorchAo, TransformerEngine};
    [
        plain("quantize_nvfp4_torchao_f32", F32, TorchAo, 8),
        plain("quantize_nvfp4_torchao_f16", F16, TorchAo, 8),
        plain("quantize_nvfp4_torchao_bf16", Bf16, TorchAo, 8),
        plain("quantize_nvfp4_te_f32", F32, TransformerEngine, 8),
        plain("quantize_nvfp4_te_f16", F16, TransformerEngine, 8),
        plain("quantize_nvfp4_te_bf16", Bf16, TransformerEngine, 8),
        plain("quantize_nvfp4_modelopt_f32", F32, ModelOpt, 8),
        plain("quantize_nvfp4_modelopt_f16", F16, ModelOpt, 8),
        plain("quantize_nvfp4_modelopt_bf16", Bf16, ModelOpt, 8),
        plain("quantize_nvfp4_ct_f32", F32, CompressedTensors, 8),
        plain("quantize_nvfp4_ct_f16", F16, CompressedTensors, 8),
        plain("quantize_nvfp4_ct_bf16", Bf16, CompressedTensors, 8),
        any("quantize_mxfp4_f32", Format::Mxfp4, F32, false, 6),
        any("quantize_mxfp4_f16", Format::Mxfp4, F16, false, 8),
        any("quantize_mxfp4_bf16", Format::Mxfp4, Bf16, false, 8),
        any("silu_quantize_nvfp4_f32", Format::Nvfp4, F32, true, 6),
        any("silu_quantize_nvfp4_f16", Format::Nvfp4, F16, true, 6),
        any("silu_quantize_nvfp4_bf16", Format::Nvfp4, Bf16, true, 6),
        any("silu_quantize_mxfp4_f32", Format::Mxfp4, F32, true, 4),
        any("silu_quantize_mxfp4_f16", Format::Mxfp4, F16, true, 4),
        any("silu_quantize_mxfp4_bf16", Format::Mxfp4, Bf16, true, 4),
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
    };
    &QUANTIZE[first + slot(input)]
}

/// Place of a type in each group of three configurations.
const fn slot(ty: FloatType) -> usize {
    match ty {
        FloatType::F32 => 0,
        FloatType::F16 => 1,
        FloatType::Bf16 => 2,
    }
}

/// Parameter block of every amax kernel, passed by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct AmaxParams {
    /// [M, K] of the configuration's type, 16-byte aligned; the gate where the
    /// configuration is fused with SwiGLU.
    pub input: u64,
    /// As [`QuantizeParams::up`].
    pub up: u64,
    /// f32, [M] if `per_row`, else [1] that must hold zero before. NaN where a
    /// magnitude is not a number.
    pub out: u64,
    /// Rows.
    pub m: u32,
    /// Columns, a multiple of 16.
    pub k: u32,
    /// 1 for a maximum a row, 0 for one of the whole matrix.
    pub per_row: u32,
}

/// How one amax kernel was compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmaxConfig {
    /// Entry name in the PTX module of either architecture.
    pub name: &'static str,
    /// Type of the input.
    pub input: FloatType,
    /// Whether it looks at `silu(input) * up` rather than `input`.
    pub silu: bool,
    /// Warps of a CTA.
    pub warps: u32,
    /// CTAs that must fit an SM together; bounds the registers.
    pub min_blocks: u32,
}

impl AmaxConfig {
    /// Threads of a CTA.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        self.warps * WARP
    }

    /// CTAs of a launch: a warp a row if `per_row`, else a few 16-byte loads a
    /// thread; one wave of resident CTAs at most.
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
        config("amax_f32", FloatType::F32, false),
        config("amax_f16", FloatType::F16, false),
        config("amax_bf16", FloatType::Bf16, false),
        config("silu_amax_f32", FloatType::F32, true),
        config("silu_amax_f16", FloatType::F16, true),
        config("silu_amax_bf16", FloatType::Bf16, true),
    ]
};

/// The amax configuration for `input`, or with `silu` for the gated product.
#[must_use]
pub const fn amax_config(input: FloatType, silu: bool) -> &'static AmaxConfig {
    &AMAX[slot(input) + if silu { 3 } else { 0 }]
}

/// Parameter block of every dequantise kernel, passed by value.
///
/// The result is `code * (scale * tensor)`: the product of the scales is rounded
/// to f32, then its product with the code, then that to the result's type.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct DequantizeParams {
    /// Packed e2m1 codes, [M, K/2] bytes, 16-byte aligned.
    pub codes: u64,
    /// Block scales, [M, K/block]; padding is not read.
    pub scales: u64,
    /// f32: [1] for [`ScaleSource::TensorAmax`], [M] for
    /// [`ScaleSource::RowAmax`], in both cases multipliers
    /// ([`Nvfp4Recipe::multiplier`]), not maxima; 0 for [`ScaleSource::Given`].
    pub tensor: u64,
    /// Result, [M, K] of the configuration's type, 16-byte aligned.
    pub out: u64,
    /// Rows.
    pub m: u32,
    /// Columns, a multiple of the block.
    pub k: u32,
    /// The multiplier for [`ScaleSource::Given`].
    pub given: f32,
    /// A [`ScaleSource`]: where the multiplier is.
    pub source: u32,
    /// 1 if `scales` is in the 128x4 layout, 0 if linear.
    pub blocked: u32,
}

/// How one dequantise kernel was compiled.
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
    /// CTAs that must fit an SM together; bounds the registers.
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

    /// CTAs of a launch: [`DEQUANTIZE_UNITS`] stores a thread, one wave of
    /// resident CTAs at most.
    #[must_use]
    pub const fn grid(&self, m: u32, k: u32, sms: u32) -> u32 {
        let units = m as u64 * (k / self.unit()) as u64;
        let needed = units.div_ceil((self.threads() * DEQUANTIZE_UNITS as u32) as u64);
        let wave = (sms * self.min_blocks) as u64;
        if needed < wave { needed as u32 } else { wave as u32 }
    }
}

/// Units of 16 bytes of result that a thread of a dequantise kernel has under way
/// together.
pub const DEQUANTIZE_UNITS: usize = 4;

/// All dequantise configurations.
pub const DEQUANTIZE: [DequantizeConfig; 6] = {
    const fn config(name: &'static str, format: Format, output: FloatType) -> DequantizeConfig {
        DequantizeConfig { name, format, output, warps: 8, min_blocks: 6 }
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

#[cfg(test)]
mod tests {
    use super::*;
    use ScaleLayout::{Blocked128x4, Linear};

    #[test]
    fn choices_have_what_was_asked_for() {
        for ty in [FloatType::F32, FloatType::F16, FloatType::Bf16] {
            for silu in [false, true] {
                for recipe in Nvfp4Recipe::ALL {
                    let config = quantize_config(Recipe::Nvfp4(recipe), ty, silu);
                    assert!(config.recipe.is_none_or(|r| r == recipe), "{}", config.name);
                    assert_eq!((config.input, config.silu), (ty, silu), "{}", config.name);
                    assert_eq!(config.format, Format::Nvfp4, "{}", config.name);
                }
                for recipe in Mxfp4Recipe::ALL {
                    let config = quantize_config(Recipe::Mxfp4(recipe), ty, silu);
                    assert_eq!((config.input, config.silu), (ty, silu), "{}", config.name);
                    assert_eq!((config.format, config.recipe), (Format::Mxfp4, None));
                }
                let amax = amax_config(ty, silu);
                assert_eq!((amax.input, amax.silu), (ty, silu), "{}", amax.name);
            }
            for format in [Format::Nvfp4, Format::Mxfp4] {
                let config = dequantize_config(format, ty);
                assert_eq!((config.format, config.output), (format, ty), "{}", config.name);
            }
        }
    }

    #[test]
    fn tasks_cover_the_blocks() {
        assert_eq!(tasks(1, 1, Linear), 1);
        assert_eq!(tasks(3, 11, Linear), 2);
        assert_eq!(tasks(1, 1, Blocked128x4), 16);
        assert_eq!(tasks(129, 5, Blocked128x4), 2 * 16 * 2);
        for layout in ScaleLayout::ALL {
            let m = u32::MAX;
            assert!(tasks(m, m / 32, layout) >= u64::from(m) * u64::from(m / 32) / 32);
        }
    }

    #[test]
    fn grids_are_neither_empty_nor_wider_than_the_work() {
        for config in &QUANTIZE {
            for (m, k) in [(1, 32), (129, 96), (16384, 8192)] {
                for layout in ScaleLayout::ALL {
                    let grid = config.grid(m, k, layout, 132);
                    assert!(grid >= 1 && grid <= 132 * config.min_blocks, "{}", config.name);
                    let tasks = config.tasks(m, k, layout);
                    assert!(u64::from(grid - 1) * u64::from(config.warps) < tasks);
                }
            }
        }
        assert_eq!(amax_config(FloatType::Bf16, false).grid(1, 16, false, 132), 1);
        assert_eq!(amax_config(FloatType::Bf16, false).grid(9, 16, true, 132), 2);
        assert_eq!(dequantize_config(Format::Nvfp4, FloatType::F32).grid(1, 16, 132), 1);
    }
}
