//! Families of kernels: what is compiled to one module and loaded together, when one of its kernels
//! is first used. Which kernel belongs to which family follows from the tables of configurations.

use core::fmt;
use core::str::FromStr;

use crate::arch::{Arch, TensorFamily};
use crate::gemm::{self, Operands, Problems, sm100};
use crate::quantize::tokens;
use crate::quantize::{AMAX, DEQUANTIZE, Format, QUANTIZE};
use crate::rows::{ROWS, RowsSink};
use crate::{attention, ceiling, gemv, moe};

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
    /// Norm, activation and rotation of rows, to results of this kind.
    Rows(RowsSink),
    /// Dequantising.
    Dequantize,
    /// Attention of one token of each text.
    Attention,
    /// Launches that lay out the block-scaled activations of a GEMM.
    GemmPrepare,
    /// Launches around the grouped products of a mixture of experts.
    Moe,
    /// GEMM of weights and activations of these types, with tiles of this width.
    Gemm(Operands, TileWidth),
    /// Grouped GEMM of weights and activations of these types, with tiles of this width.
    Grouped(Operands, TileWidth),
    /// Products of sizes of their own in one launch, of weights and activations of these types.
    Mixed(Operands),
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
    /// Tokens (sm_80, sm_90a, sm_120f) or rows of `Y` (sm_100a) of the widest narrow tile.
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
    /// `rows`.
    Rows,
    /// `attention`.
    Attention,
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
            Self::Rows => "rows",
            Self::Attention => "attention",
        }
    }
}

/// Picks the name of a family of GEMM kernels by its operands.
macro_rules! names {
    ($operands:ident, $before:literal, $after:literal) => {
        $operands.pick([
            [
                concat!($before, "nvfp4", $after),
                concat!($before, "nvfp4_f16", $after),
                concat!($before, "nvfp4_bf16", $after),
                concat!($before, "nvfp4_e4m3", $after),
            ],
            [
                concat!($before, "mxfp4", $after),
                concat!($before, "mxfp4_f16", $after),
                concat!($before, "mxfp4_bf16", $after),
                concat!($before, "mxfp4_e4m3", $after),
            ],
        ])
    };
}

impl Family {
    /// All families, of whatever architecture.
    pub const ALL: [Self; 48] = {
        use TileWidth::{Narrow, Wide};
        [
            Self::Ceiling,
            Self::Gemv,
            Self::QuantizeNvfp4,
            Self::QuantizeMxfp4,
            Self::QuantizeTokens,
            Self::Rows(RowsSink::Nvfp4),
            Self::Rows(RowsSink::Adaptive),
            Self::Rows(RowsSink::Mxfp4),
            Self::Rows(RowsSink::E4m3),
            Self::Rows(RowsSink::Half),
            Self::Dequantize,
            Self::Attention,
            Self::GemmPrepare,
            Self::Moe,
            Self::Gemm(Operands::NVFP4, Narrow),
            Self::Gemm(Operands::NVFP4, Wide),
            Self::Gemm(Operands::MXFP4, Narrow),
            Self::Gemm(Operands::MXFP4, Wide),
            Self::Gemm(Operands::NVFP4_F16, Narrow),
            Self::Gemm(Operands::NVFP4_F16, Wide),
            Self::Gemm(Operands::NVFP4_BF16, Narrow),
            Self::Gemm(Operands::NVFP4_BF16, Wide),
            Self::Gemm(Operands::MXFP4_BF16, Narrow),
            Self::Gemm(Operands::MXFP4_BF16, Wide),
            Self::Gemm(Operands::NVFP4_E4M3, Narrow),
            Self::Gemm(Operands::NVFP4_E4M3, Wide),
            Self::Gemm(Operands::MXFP4_E4M3, Narrow),
            Self::Gemm(Operands::MXFP4_E4M3, Wide),
            Self::Grouped(Operands::NVFP4, Narrow),
            Self::Grouped(Operands::NVFP4, Wide),
            Self::Grouped(Operands::MXFP4, Narrow),
            Self::Grouped(Operands::MXFP4, Wide),
            Self::Grouped(Operands::NVFP4_F16, Narrow),
            Self::Grouped(Operands::NVFP4_F16, Wide),
            Self::Grouped(Operands::NVFP4_BF16, Narrow),
            Self::Grouped(Operands::NVFP4_BF16, Wide),
            Self::Grouped(Operands::MXFP4_BF16, Narrow),
            Self::Grouped(Operands::MXFP4_BF16, Wide),
            Self::Grouped(Operands::NVFP4_E4M3, Narrow),
            Self::Grouped(Operands::NVFP4_E4M3, Wide),
            Self::Grouped(Operands::MXFP4_E4M3, Narrow),
            Self::Grouped(Operands::MXFP4_E4M3, Wide),
            Self::Mixed(Operands::NVFP4),
            Self::Mixed(Operands::MXFP4),
            Self::Mixed(Operands::NVFP4_F16),
            Self::Mixed(Operands::NVFP4_BF16),
            Self::Mixed(Operands::MXFP4_BF16),
            Self::Mixed(Operands::MXFP4_E4M3),
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
            Self::Rows(RowsSink::Nvfp4) => "rows_nvfp4",
            Self::Rows(RowsSink::Adaptive) => "rows_adaptive",
            Self::Rows(RowsSink::Mxfp4) => "rows_mxfp4",
            Self::Rows(RowsSink::E4m3) => "rows_e4m3",
            Self::Rows(RowsSink::Half) => "rows_half",
            Self::Dequantize => "dequantize",
            Self::Attention => "attention",
            Self::GemmPrepare => "gemm_prepare",
            Self::Moe => "moe",
            Self::Gemm(operands, TileWidth::Narrow) => names!(operands, "gemm_", "_narrow"),
            Self::Gemm(operands, TileWidth::Wide) => names!(operands, "gemm_", "_wide"),
            Self::Grouped(operands, TileWidth::Narrow) => names!(operands, "grouped_", "_narrow"),
            Self::Grouped(operands, TileWidth::Wide) => names!(operands, "grouped_", "_wide"),
            Self::Mixed(operands) => names!(operands, "mixed_", ""),
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
            Self::Attention => Operation::Attention,
            Self::Moe => Operation::Moe,
            Self::Rows(_) => Operation::Rows,
            Self::GemmPrepare | Self::Gemm(..) | Self::Grouped(..) | Self::Mixed(..) => {
                Operation::Gemm
            }
        }
    }

    /// The family of GEMM kernels for these problems, types, and second extent of a tile.
    const fn gemm(problems: Problems, operands: Operands, extent: u32) -> Self {
        match problems {
            Problems::Uniform => Self::Gemm(operands, TileWidth::of(extent)),
            Problems::Grouped => Self::Grouped(operands, TileWidth::of(extent)),
            Problems::Mixed => Self::Mixed(operands),
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
        let tokens = tokens::names().map(|name| (Self::QuantizeTokens, name));
        let rows = ROWS.iter().map(|config| (Self::Rows(config.sink), config.name));
        let attention = attention::ATTENTION.iter().map(|config| (Self::Attention, config.name));
        let tensor = arch.tensor();
        let gemm = gemm::table::kernels(tensor).iter().map(|kernel| {
            let gemm::table::Kernel { name, operands, problems, tile: [_, extent] } = *kernel;
            (Self::gemm(problems, operands, extent), name)
        });
        let prepare: &[_] = match tensor {
            TensorFamily::MmaSync | TensorFamily::MmaSyncScaled | TensorFamily::Wgmma => &[],
            TensorFamily::Tcgen05 => &sm100::prepare::NAMES,
        };
        let ceilings = ceiling::NAMES.into_iter().map(|name| (Self::Ceiling, name));
        ceilings
            .chain(gemv)
            .chain(quantize)
            .chain(amax)
            .chain(tokens)
            .chain(rows)
            .chain(dequantize)
            .chain(attention)
            .chain(moe::NAMES.iter().map(|name| (Self::Moe, *name)))
            .chain(prepare.iter().map(|name| (Self::GemmPrepare, *name)))
            .chain(gemm)
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
    use crate::gemm::{sm80, sm90, sm120};

    #[test]
    fn every_kernel_is_in_one_family() {
        for arch in Arch::ALL {
            let configured = ceiling::NAMES.len()
                + gemv::CONFIGS.len()
                + QUANTIZE.len()
                + AMAX.len()
                + tokens::names().count()
                + ROWS.len()
                + DEQUANTIZE.len()
                + attention::ATTENTION.len()
                + moe::NAMES.len()
                + match arch.tensor() {
                    TensorFamily::MmaSync => sm80::all().count(),
                    TensorFamily::MmaSyncScaled => sm80::all().count() + sm120::all().count(),
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
                    (Operation::Gemm, TensorFamily::MmaSync) => "sm80_",
                    (Operation::Gemm, TensorFamily::MmaSyncScaled) => match family {
                        Family::Gemm(operands, _)
                        | Family::Grouped(operands, _)
                        | Family::Mixed(operands)
                            if operands.activations.is_none_or(|o| o.half().is_none()) =>
                        {
                            "sm120_"
                        }
                        _ => "sm80_",
                    },
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
