//! The contract between the quantise, dequantise and amax kernels and whoever
//! launches them: parameter blocks, configuration tables, launch geometry.
//!
//! [`recipe`](crate::recipe) defines the computation. Matrices are row-major and dense,
//! `[M, K]`; K is a multiple of the format's block, and M times K is at most 2^40.
//!
//! # Device memory that the caller prepares
//! * `tensor` for [`ScaleSource::TensorAmax`] and [`ScaleSource::RowAmax`] is written
//!   by an earlier launch of an amax kernel, whose `out` must hold zeros at its start
//!   unless it computes row maxima.
//! * `errors` is one u64 that holds [`NO_ERROR`]. Afterwards it holds the smallest
//!   index (`row * K + column`) of an element that is not finite, or still
//!   [`NO_ERROR`].

mod amax;
mod dequantize;
mod kernels;
pub(crate) mod params;
pub mod tokens;

pub use amax::{AMAX, AMAX_LOADS, AmaxConfig, amax_config};
pub use dequantize::{DEQUANTIZE, DEQUANTIZE_UNITS, DequantizeConfig, dequantize_config};
pub use kernels::{
    MAX_ELEMENTS, QUANTIZE, QuantizeConfig, ROW_GROUPS_A_TILE, operand_bytes, quantize_config,
    tasks,
};
pub use params::{AmaxParams, DequantizeParams, QuantizeParams};

use crate::recipe::{AdaptiveRecipe, Mxfp4Recipe, Nvfp4Recipe};
use crate::{BlockFormat, FloatType, Mxfp4, Nvfp4};

/// The value of the error word if all elements are finite.
pub const NO_ERROR: u64 = u64::MAX;

/// The source of the tensor-level scale of NVFP4. MXFP4 has no such scale, and its
/// kernels ignore the source.
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
    /// NVFP4 with adaptive block scaling.
    Adaptive(AdaptiveRecipe),
    /// MXFP4: blocks of 32, ue8m0 scales.
    Mxfp4(Mxfp4Recipe),
}

impl Recipe {
    /// The format of the result.
    #[must_use]
    pub const fn format(self) -> Format {
        match self {
            Self::Nvfp4(_) | Self::Adaptive(_) => Format::Nvfp4,
            Self::Mxfp4(_) => Format::Mxfp4,
        }
    }

    /// The value of [`QuantizeParams::recipe`].
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::Nvfp4(recipe) => recipe as u32,
            Self::Adaptive(recipe) => recipe as u32,
            Self::Mxfp4(recipe) => recipe as u32,
        }
    }

    /// The name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nvfp4(recipe) => recipe.name(),
            Self::Adaptive(recipe) => recipe.name(),
            Self::Mxfp4(recipe) => recipe.name(),
        }
    }

    /// The project whose kind of tensor parameter it has; none for MXFP4, which has no parameter.
    #[must_use]
    pub const fn parameter_of(self) -> Option<Nvfp4Recipe> {
        match self {
            Self::Nvfp4(recipe) => Some(recipe),
            Self::Adaptive(recipe) => Some(recipe.project()),
            Self::Mxfp4(_) => None,
        }
    }

    /// The tensor parameter for a largest magnitude; none for MXFP4.
    #[must_use]
    pub fn tensor_parameter(self, amax: f32) -> Option<f32> {
        match self {
            Self::Nvfp4(recipe) => Some(recipe.tensor_parameter(amax)),
            Self::Adaptive(recipe) => Some(recipe.tensor_parameter(amax)),
            Self::Mxfp4(_) => None,
        }
    }
}

/// A block format as a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// [`Nvfp4`].
    Nvfp4,
    /// [`Mxfp4`].
    Mxfp4,
}

impl Format {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Nvfp4, Self::Mxfp4];

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

/// Index of a type in each group of three configurations.
const fn slot(ty: FloatType) -> usize {
    match ty {
        FloatType::F32 => 0,
        FloatType::F16 => 1,
        FloatType::Bf16 => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScaleLayout::{self, Blocked128x4, Linear};

    #[test]
    fn choices_have_what_was_asked_for() {
        for ty in [FloatType::F32, FloatType::F16, FloatType::Bf16] {
            for silu in [false, true] {
                for recipe in Nvfp4Recipe::ALL {
                    let config = quantize_config(Recipe::Nvfp4(recipe), ty, silu);
                    assert!(config.recipe.is_none_or(|r| r == recipe), "{}", config.name);
                    assert_eq!((config.input, config.silu), (Some(ty), silu), "{}", config.name);
                    assert_eq!(config.format, Format::Nvfp4, "{}", config.name);
                }
                for recipe in Mxfp4Recipe::ALL {
                    let config = quantize_config(Recipe::Mxfp4(recipe), ty, silu);
                    assert_eq!((config.input, config.silu), (Some(ty), silu), "{}", config.name);
                    assert_eq!((config.format, config.recipe), (Format::Mxfp4, None));
                }
                for recipe in AdaptiveRecipe::ALL {
                    let config = quantize_config(Recipe::Adaptive(recipe), ty, silu);
                    assert_eq!((config.input, config.format), (None, Format::Nvfp4));
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
    fn grids_fit_the_work() {
        for config in &QUANTIZE {
            for (m, k) in [(1, 32), (129, 96), (16384, 8192)] {
                for layout in ScaleLayout::ALL {
                    let (ctas, depth) = config.launch(m, k, layout, 132);
                    assert!(depth >= 1 && depth <= config.stages(), "{}", config.name);
                    let tasks = config.tasks(m, k, layout);
                    let chunk = u64::from(depth * config.warps);
                    assert!(ctas >= 1 && u64::from(ctas - 1) * chunk < tasks, "{}", config.name);
                    assert!(config.persistent || u64::from(ctas) * chunk >= tasks);
                    assert!(!config.persistent || ctas <= 132 * config.min_blocks);
                }
            }
        }
        assert_eq!(amax_config(FloatType::Bf16, false).grid(1, 16, false, 132), 1);
        assert_eq!(amax_config(FloatType::Bf16, false).grid(9, 16, true, 132), 2);
        assert_eq!(dequantize_config(Format::Nvfp4, FloatType::F32).grid(1, 16, Linear, 132), 1);
        let config = dequantize_config(Format::Nvfp4, FloatType::Bf16);
        assert_eq!(config.grid(16384, 8192, Blocked128x4, 132), 132 * config.min_blocks);
        assert!(config.grid(16384, 8192, Linear, 132) > 132 * config.min_blocks);
    }
}
