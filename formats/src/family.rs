//! Families of kernels: what is compiled to one module and loaded together, when one of its kernels
//! is first used. Which kernel belongs to which family follows from the tables of configurations.

use core::fmt;
use core::str::FromStr;

use crate::arch::{Arch, TensorFamily};
use crate::gemm::{Problems, sm90, sm100};
use crate::quantize::tokens::TOKENS;
use crate::quantize::{AMAX, DEQUANTIZE, Format, QUANTIZE};
use crate::{HalfType, Operand, ceiling, gemv, moe};

/// A family of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// The kernel that only reads.
    Ceiling,
    /// Matrix times vector.
    Gemv,
    /// Quantising to NVFP4, with the largest magnitudes that it may need.
    QuantizeNvfp4,
    /// Quantising to MXFP4.
    QuantizeMxfp4,
    /// Quantising tokens to e4m3.
    QuantizeTokens,
    /// Dequantising.
    Dequantize,
    /// Launches that lay out the block-scaled activations of a GEMM.
    GemmPrepare,
    /// Launches around the grouped products of a mixture of experts.
    Moe,
    /// GEMM of weights and activations of these types, with tiles of this width.
    Gemm(GemmTypes, TileWidth),
    /// Grouped GEMM of weights and activations of these types, with tiles of this width.
    Grouped(GemmTypes, TileWidth),
    /// Products of sizes of their own in one launch, of weights and activations of these types.
    Mixed(GemmTypes),
}

/// Types of the weights and the activations that a GEMM kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GemmTypes {
    /// NVFP4 weights and NVFP4 activations.
    Nvfp4,
    /// MXFP4 weights and MXFP4 activations.
    Mxfp4,
    /// NVFP4 weights and f16 activations.
    Nvfp4F16,
    /// NVFP4 weights and bf16 activations.
    Nvfp4Bf16,
    /// MXFP4 weights and bf16 activations.
    Mxfp4Bf16,
    /// NVFP4 weights and e4m3 activations.
    Nvfp4E4m3,
    /// MXFP4 weights and e4m3 activations.
    Mxfp4E4m3,
}

impl GemmTypes {
    /// Weights in `format` and activations of a type or, with `None`, in the same format; none where
    /// there are no such kernels.
    const fn of(format: Format, activations: Option<Operand>) -> Option<Self> {
        match (format, activations) {
            (Format::Nvfp4, None) => Some(Self::Nvfp4),
            (Format::Nvfp4, Some(Operand::Half(HalfType::F16))) => Some(Self::Nvfp4F16),
            (Format::Nvfp4, Some(Operand::Half(HalfType::Bf16))) => Some(Self::Nvfp4Bf16),
            (Format::Mxfp4, None) => Some(Self::Mxfp4),
            (Format::Mxfp4, Some(Operand::Half(HalfType::F16))) => None,
            (Format::Mxfp4, Some(Operand::Half(HalfType::Bf16))) => Some(Self::Mxfp4Bf16),
            (Format::Nvfp4, Some(Operand::E4m3)) => Some(Self::Nvfp4E4m3),
            (Format::Mxfp4, Some(Operand::E4m3)) => Some(Self::Mxfp4E4m3),
        }
    }
}

/// Whether a tile's second extent is at most [`TileWidth::NARROW`]. A plan needs one of the two, so
/// a driver that has to compile PTX compiles half the kernels before the first launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TileWidth {
    /// Few tokens: decoding.
    Narrow,
    /// Many tokens: prompts.
    Wide,
}

impl TileWidth {
    /// Tokens (sm_90a) or rows of `Y` (sm_100a) of the widest narrow tile.
    pub const NARROW: u32 = 64;

    const fn of(extent: u32) -> Self {
        if extent <= Self::NARROW { Self::Narrow } else { Self::Wide }
    }
}

/// The folder of the kernels' source that a family's kernels are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// `ceiling`.
    Ceiling,
    /// `gemv`.
    Gemv,
    /// `quantize`.
    Quantize,
    /// `dequantize`.
    Dequantize,
    /// `gemm`.
    Gemm,
    /// `moe`.
    Moe,
}

impl Operation {
    /// The folder's name, which is the value of the `cfg` `gpu_operation`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ceiling => "ceiling",
            Self::Gemv => "gemv",
            Self::Quantize => "quantize",
            Self::Dequantize => "dequantize",
            Self::Gemm => "gemm",
            Self::Moe => "moe",
        }
    }
}

impl Family {
    /// All families, of whatever architecture.
    pub const ALL: [Self; 41] = {
        use GemmTypes::{Mxfp4, Mxfp4Bf16, Mxfp4E4m3, Nvfp4, Nvfp4Bf16, Nvfp4E4m3, Nvfp4F16};
        use TileWidth::{Narrow, Wide};
        [
            Self::Ceiling,
            Self::Gemv,
            Self::QuantizeNvfp4,
            Self::QuantizeMxfp4,
            Self::QuantizeTokens,
            Self::Dequantize,
            Self::GemmPrepare,
            Self::Moe,
            Self::Gemm(Nvfp4, Narrow),
            Self::Gemm(Nvfp4, Wide),
            Self::Gemm(Mxfp4, Narrow),
            Self::Gemm(Mxfp4, Wide),
            Self::Gemm(Nvfp4F16, Narrow),
            Self::Gemm(Nvfp4F16, Wide),
            Self::Gemm(Nvfp4Bf16, Narrow),
            Self::Gemm(Nvfp4Bf16, Wide),
            Self::Gemm(Mxfp4Bf16, Narrow),
            Self::Gemm(Mxfp4Bf16, Wide),
            Self::Gemm(Nvfp4E4m3, Narrow),
            Self::Gemm(Nvfp4E4m3, Wide),
            Self::Gemm(Mxfp4E4m3, Narrow),
            Self::Gemm(Mxfp4E4m3, Wide),
            Self::Grouped(Nvfp4, Narrow),
            Self::Grouped(Nvfp4, Wide),
            Self::Grouped(Mxfp4, Narrow),
            Self::Grouped(Mxfp4, Wide),
            Self::Grouped(Nvfp4F16, Narrow),
            Self::Grouped(Nvfp4F16, Wide),
            Self::Grouped(Nvfp4Bf16, Narrow),
            Self::Grouped(Nvfp4Bf16, Wide),
            Self::Grouped(Mxfp4Bf16, Narrow),
            Self::Grouped(Mxfp4Bf16, Wide),
            Self::Grouped(Nvfp4E4m3, Narrow),
            Self::Grouped(Nvfp4E4m3, Wide),
            Self::Grouped(Mxfp4E4m3, Narrow),
            Self::Grouped(Mxfp4E4m3, Wide),
            Self::Mixed(Nvfp4),
            Self::Mixed(Mxfp4),
            Self::Mixed(Nvfp4F16),
            Self::Mixed(Nvfp4Bf16),
            Self::Mixed(Mxfp4Bf16),
        ]
    };

    /// The name of the family and of its module's files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ceiling => "ceiling",
            Self::Gemv => "gemv",
            Self::QuantizeNvfp4 => "quantize_nvfp4",
            Self::QuantizeMxfp4 => "quantize_mxfp4",
            Self::QuantizeTokens => "quantize_tokens",
            Self::Dequantize => "dequantize",
            Self::GemmPrepare => "gemm_prepare",
            Self::Moe => "moe",
            Self::Gemm(GemmTypes::Nvfp4, TileWidth::Narrow) => "gemm_nvfp4_narrow",
            Self::Gemm(GemmTypes::Nvfp4, TileWidth::Wide) => "gemm_nvfp4_wide",
            Self::Gemm(GemmTypes::Mxfp4, TileWidth::Narrow) => "gemm_mxfp4_narrow",
            Self::Gemm(GemmTypes::Mxfp4, TileWidth::Wide) => "gemm_mxfp4_wide",
            Self::Gemm(GemmTypes::Nvfp4F16, TileWidth::Narrow) => "gemm_nvfp4_f16_narrow",
            Self::Gemm(GemmTypes::Nvfp4F16, TileWidth::Wide) => "gemm_nvfp4_f16_wide",
            Self::Gemm(GemmTypes::Nvfp4Bf16, TileWidth::Narrow) => "gemm_nvfp4_bf16_narrow",
            Self::Gemm(GemmTypes::Nvfp4Bf16, TileWidth::Wide) => "gemm_nvfp4_bf16_wide",
            Self::Gemm(GemmTypes::Mxfp4Bf16, TileWidth::Narrow) => "gemm_mxfp4_bf16_narrow",
            Self::Gemm(GemmTypes::Mxfp4Bf16, TileWidth::Wide) => "gemm_mxfp4_bf16_wide",
            Self::Gemm(GemmTypes::Nvfp4E4m3, TileWidth::Narrow) => "gemm_nvfp4_e4m3_narrow",
            Self::Gemm(GemmTypes::Nvfp4E4m3, TileWidth::Wide) => "gemm_nvfp4_e4m3_wide",
            Self::Gemm(GemmTypes::Mxfp4E4m3, TileWidth::Narrow) => "gemm_mxfp4_e4m3_narrow",
            Self::Gemm(GemmTypes::Mxfp4E4m3, TileWidth::Wide) => "gemm_mxfp4_e4m3_wide",
            Self::Grouped(GemmTypes::Nvfp4, TileWidth::Narrow) => "grouped_nvfp4_narrow",
            Self::Grouped(GemmTypes::Nvfp4, TileWidth::Wide) => "grouped_nvfp4_wide",
            Self::Grouped(GemmTypes::Mxfp4, TileWidth::Narrow) => "grouped_mxfp4_narrow",
            Self::Grouped(GemmTypes::Mxfp4, TileWidth::Wide) => "grouped_mxfp4_wide",
            Self::Grouped(GemmTypes::Nvfp4F16, TileWidth::Narrow) => "grouped_nvfp4_f16_narrow",
            Self::Grouped(GemmTypes::Nvfp4F16, TileWidth::Wide) => "grouped_nvfp4_f16_wide",
            Self::Grouped(GemmTypes::Nvfp4Bf16, TileWidth::Narrow) => "grouped_nvfp4_bf16_narrow",
            Self::Grouped(GemmTypes::Nvfp4Bf16, TileWidth::Wide) => "grouped_nvfp4_bf16_wide",
            Self::Grouped(GemmTypes::Mxfp4Bf16, TileWidth::Narrow) => "grouped_mxfp4_bf16_narrow",
            Self::Grouped(GemmTypes::Mxfp4Bf16, TileWidth::Wide) => "grouped_mxfp4_bf16_wide",
            Self::Grouped(GemmTypes::Nvfp4E4m3, TileWidth::Narrow) => "grouped_nvfp4_e4m3_narrow",
            Self::Grouped(GemmTypes::Nvfp4E4m3, TileWidth::Wide) => "grouped_nvfp4_e4m3_wide",
            Self::Grouped(GemmTypes::Mxfp4E4m3, TileWidth::Narrow) => "grouped_mxfp4_e4m3_narrow",
            Self::Grouped(GemmTypes::Mxfp4E4m3, TileWidth::Wide) => "grouped_mxfp4_e4m3_wide",
            Self::Mixed(GemmTypes::Nvfp4) => "mixed_nvfp4",
            Self::Mixed(GemmTypes::Mxfp4) => "mixed_mxfp4",
            Self::Mixed(GemmTypes::Nvfp4F16) => "mixed_nvfp4_f16",
            Self::Mixed(GemmTypes::Nvfp4Bf16) => "mixed_nvfp4_bf16",
            Self::Mixed(GemmTypes::Mxfp4Bf16) => "mixed_mxfp4_bf16",
            Self::Mixed(GemmTypes::Nvfp4E4m3) => "mixed_nvfp4_e4m3",
            Self::Mixed(GemmTypes::Mxfp4E4m3) => "mixed_mxfp4_e4m3",
        }
    }

    /// Returns the operation, which names the folder of its kernels' source.
    #[must_use]
    pub const fn operation(self) -> Operation {
        match self {
            Self::Ceiling => Operation::Ceiling,
            Self::Gemv => Operation::Gemv,
            Self::QuantizeNvfp4 | Self::QuantizeMxfp4 | Self::QuantizeTokens => Operation::Quantize,
            Self::Dequantize => Operation::Dequantize,
            Self::Moe => Operation::Moe,
            Self::GemmPrepare | Self::Gemm(..) | Self::Grouped(..) | Self::Mixed(..) => {
                Operation::Gemm
            }
        }
    }

    /// The family of GEMM kernels for these problems, types, and second extent of a tile.
    const fn gemm(problems: Problems, types: GemmTypes, extent: u32) -> Self {
        match problems {
            Problems::Uniform => Self::Gemm(types, TileWidth::of(extent)),
            Problems::Grouped => Self::Grouped(types, TileWidth::of(extent)),
            Problems::Mixed => Self::Mixed(types),
        }
    }

    /// The family that quantises to `format`.
    #[must_use]
    pub const fn quantize(format: Format) -> Self {
        match format {
            Format::Nvfp4 => Self::QuantizeNvfp4,
            Format::Mxfp4 => Self::QuantizeMxfp4,
        }
    }

    /// Kernels of `arch` with their families, each once.
    pub fn kernels(arch: Arch) -> impl Iterator<Item = (Self, &'static str)> {
        let gemv = gemv::CONFIGS.iter().map(|config| (Self::Gemv, config.name));
        let quantize = QUANTIZE.iter().map(|config| (Self::quantize(config.format), config.name));
        // MXFP4 has no scale of a whole tensor or row.
        let amax = AMAX.iter().map(|config| (Self::QuantizeNvfp4, config.name));
        let dequantize = DEQUANTIZE.iter().map(|config| (Self::Dequantize, config.name));
        let tokens = TOKENS.iter().map(|config| (Self::QuantizeTokens, config.name));
        let (on_sm90, on_sm100) = match arch.tensor() {
            TensorFamily::Wgmma => (true, false),
            TensorFamily::Tcgen05 => (false, true),
        };
        let sm90 = sm90::all().filter(move |_| on_sm90).filter_map(|config| {
            let types = GemmTypes::of(config.scheme.format, Some(config.scheme.operand))?;
            Some((Self::gemm(config.problems, types, config.tokens), config.name))
        });
        let sm100 = sm100::all().filter(move |_| on_sm100).filter_map(|config| {
            let types = GemmTypes::of(config.format, config.activations)?;
            Some((Self::gemm(config.problems, types, config.columns), config.name))
        });
        let prepare = sm100::prepare::NAMES.iter().filter(move |_| on_sm100);
        core::iter::once((Self::Ceiling, ceiling::NAME))
            .chain(gemv)
            .chain(quantize)
            .chain(amax)
            .chain(tokens)
            .chain(dequantize)
            .chain(moe::NAMES.iter().map(|name| (Self::Moe, *name)))
            .chain(prepare.map(|name| (Self::GemmPrepare, *name)))
            .chain(sm90)
            .chain(sm100)
    }

    /// The family's kernels for `arch`; none where the architecture has no use for it.
    pub fn entries(self, arch: Arch) -> impl Iterator<Item = &'static str> {
        Self::kernels(arch).filter_map(move |(family, name)| (family == self).then_some(name))
    }

    /// The families that `arch` has kernels of.
    pub fn of(arch: Arch) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |family| family.entries(arch).next().is_some())
    }

    /// The family of the kernel `entry` of `arch`.
    #[must_use]
    pub fn of_kernel(arch: Arch, entry: &str) -> Option<Self> {
        Self::kernels(arch).find_map(|(family, name)| (name == entry).then_some(family))
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no family's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFamily;

impl fmt::Display for UnknownFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown family of kernels; known are ")?;
        for (index, family) in Family::ALL.into_iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{family}")?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownFamily {}

impl FromStr for Family {
    type Err = UnknownFamily;

    fn from_str(text: &str) -> Result<Self, UnknownFamily> {
        Self::ALL.into_iter().find(|family| family.name() == text).ok_or(UnknownFamily)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_one_family() {
        for arch in Arch::ALL {
            let configured = 1
                + gemv::CONFIGS.len()
                + QUANTIZE.len()
                + AMAX.len()
                + TOKENS.len()
                + DEQUANTIZE.len()
                + moe::NAMES.len()
                + match arch.tensor() {
                    TensorFamily::Wgmma => sm90::all().count(),
                    TensorFamily::Tcgen05 => sm100::all().count() + sm100::prepare::NAMES.len(),
                };
            assert_eq!(Family::kernels(arch).count(), configured, "{arch}");
            for (family, name) in Family::kernels(arch) {
                assert_eq!(Family::of_kernel(arch, name), Some(family), "{name}");
            }
            let listed: usize = Family::of(arch).map(|family| family.entries(arch).count()).sum();
            assert_eq!(listed, configured, "{arch}");
        }
        assert_eq!(Family::of_kernel(Arch::Sm90a, "gemm"), None);
    }

    /// The name of a kernel begins with its operation, that of a GEMM's also says for which tensor cores.
    #[test]
    fn names_begin_with_the_operation() {
        for arch in Arch::ALL {
            for (family, name) in Family::kernels(arch) {
                let rest = name.strip_prefix(family.operation().name());
                let rest = rest.and_then(|rest| rest.strip_prefix('_')).expect(name);
                let tensor = match (family.operation(), arch.tensor()) {
                    (Operation::Gemm, TensorFamily::Wgmma) => "sm90_",
                    (Operation::Gemm, TensorFamily::Tcgen05) => "sm100_",
                    _ => "",
                };
                assert!(rest.starts_with(tensor), "{name}");
            }
        }
    }

    #[test]
    fn names_are_read_back() {
        for family in Family::ALL {
            assert_eq!(family.name().parse(), Ok(family));
        }
        assert_eq!("gem".parse::<Family>(), Err(UnknownFamily));
    }
}
