//! Families of kernels: what is compiled to one module and loaded together, when one of its kernels
//! is first used. Which kernel belongs to which family follows from the tables of configurations.

use core::fmt;
use core::str::FromStr;

use crate::arch::{Arch, TensorFamily};
use crate::gemm::hopper::Operand;
use crate::gemm::{blackwell, hopper};
use crate::quantize::{AMAX, DEQUANTIZE, Format, QUANTIZE};
use crate::{ceiling, gemv};

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
    /// Dequantising.
    Dequantize,
    /// What is laid out before a GEMM with block-scaled activations.
    GemmPrepare,
    /// GEMM of NVFP4 weights and NVFP4 activations.
    GemmNvfp4,
    /// GEMM of MXFP4 weights and MXFP4 activations.
    GemmMxfp4,
    /// GEMM of NVFP4 weights and f16 activations.
    GemmNvfp4F16,
    /// GEMM of NVFP4 weights and bf16 activations.
    GemmNvfp4Bf16,
    /// GEMM of MXFP4 weights and bf16 activations.
    GemmMxfp4Bf16,
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
        }
    }
}

impl Family {
    /// All families, of whatever architecture.
    pub const ALL: [Self; 11] = [
        Self::Ceiling,
        Self::Gemv,
        Self::QuantizeNvfp4,
        Self::QuantizeMxfp4,
        Self::Dequantize,
        Self::GemmPrepare,
        Self::GemmNvfp4,
        Self::GemmMxfp4,
        Self::GemmNvfp4F16,
        Self::GemmNvfp4Bf16,
        Self::GemmMxfp4Bf16,
    ];

    /// The name of the family and of its module's files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ceiling => "ceiling",
            Self::Gemv => "gemv",
            Self::QuantizeNvfp4 => "quantize_nvfp4",
            Self::QuantizeMxfp4 => "quantize_mxfp4",
            Self::Dequantize => "dequantize",
            Self::GemmPrepare => "gemm_prepare",
            Self::GemmNvfp4 => "gemm_nvfp4",
            Self::GemmMxfp4 => "gemm_mxfp4",
            Self::GemmNvfp4F16 => "gemm_nvfp4_f16",
            Self::GemmNvfp4Bf16 => "gemm_nvfp4_bf16",
            Self::GemmMxfp4Bf16 => "gemm_mxfp4_bf16",
        }
    }

    /// Where the source of its kernels is.
    #[must_use]
    pub const fn operation(self) -> Operation {
        match self {
            Self::Ceiling => Operation::Ceiling,
            Self::Gemv => Operation::Gemv,
            Self::QuantizeNvfp4 | Self::QuantizeMxfp4 => Operation::Quantize,
            Self::Dequantize => Operation::Dequantize,
            Self::GemmPrepare
            | Self::GemmNvfp4
            | Self::GemmMxfp4
            | Self::GemmNvfp4F16
            | Self::GemmNvfp4Bf16
            | Self::GemmMxfp4Bf16 => Operation::Gemm,
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

    /// The family that multiplies weights in `format` with activations of a 16-bit type or, with
    /// `None`, in the same format; none where there are no such kernels.
    #[must_use]
    pub const fn gemm(format: Format, activations: Option<Operand>) -> Option<Self> {
        match (format, activations) {
            (Format::Nvfp4, None) => Some(Self::GemmNvfp4),
            (Format::Nvfp4, Some(Operand::F16)) => Some(Self::GemmNvfp4F16),
            (Format::Nvfp4, Some(Operand::Bf16)) => Some(Self::GemmNvfp4Bf16),
            (Format::Mxfp4, None) => Some(Self::GemmMxfp4),
            (Format::Mxfp4, Some(Operand::F16)) => None,
            (Format::Mxfp4, Some(Operand::Bf16)) => Some(Self::GemmMxfp4Bf16),
        }
    }

    /// Kernels of `arch` with their families, each once.
    pub fn kernels(arch: Arch) -> impl Iterator<Item = (Self, &'static str)> {
        let gemv = gemv::CONFIGS.iter().map(|config| (Self::Gemv, config.name));
        let quantize = QUANTIZE.iter().map(|config| (Self::quantize(config.format), config.name));
        // MXFP4 has no scale of a whole tensor or row.
        let amax = AMAX.iter().map(|config| (Self::QuantizeNvfp4, config.name));
        let dequantize = DEQUANTIZE.iter().map(|config| (Self::Dequantize, config.name));
        let (hopper, blackwell, prepare): (&[_], &[_], &[_]) = match arch.tensor() {
            TensorFamily::Wgmma => (&hopper::CONFIGS, &[], &[]),
            TensorFamily::Tcgen05 => (&[], &blackwell::CONFIGS, &blackwell::prepare::NAMES),
        };
        let hopper = hopper.iter().filter_map(|config| {
            Some((Self::gemm(config.scheme.format, Some(config.scheme.operand))?, config.name))
        });
        let blackwell = blackwell
            .iter()
            .filter_map(|config| Some((Self::gemm(config.format, config.left)?, config.name)));
        core::iter::once((Self::Ceiling, ceiling::NAME))
            .chain(gemv)
            .chain(quantize)
            .chain(amax)
            .chain(dequantize)
            .chain(prepare.iter().map(|name| (Self::GemmPrepare, *name)))
            .chain(hopper)
            .chain(blackwell)
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
                + DEQUANTIZE.len()
                + match arch.tensor() {
                    TensorFamily::Wgmma => hopper::CONFIGS.len(),
                    TensorFamily::Tcgen05 => blackwell::CONFIGS.len() + 2,
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

    #[test]
    fn names_are_read_back() {
        for family in Family::ALL {
            assert_eq!(family.name().parse(), Ok(family));
        }
        assert_eq!("gem".parse::<Family>(), Err(UnknownFamily));
    }
}
