//! The pairs of formats that products multiply.

use super::table::kernels;
use crate::arch::TensorFamily;
use crate::quantize::Format;
use crate::{HalfType, Operand};

/// The formats of a product's weights and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operands {
    /// Format of the weights.
    pub weights: Format,
    /// Type of the activations; `None` for the weights' format.
    pub activations: Option<Operand>,
}

impl Operands {
    /// NVFP4 weights and activations.
    pub const NVFP4: Self = Self { weights: Format::Nvfp4, activations: None };
    /// MXFP4 weights and activations.
    pub const MXFP4: Self = Self { weights: Format::Mxfp4, activations: None };
    /// NVFP4 weights, f16 activations.
    pub const NVFP4_F16: Self = Self { activations: Some(Operand::F16), ..Self::NVFP4 };
    /// NVFP4 weights, bf16 activations.
    pub const NVFP4_BF16: Self = Self { activations: Some(Operand::BF16), ..Self::NVFP4 };
    /// MXFP4 weights, bf16 activations.
    pub const MXFP4_BF16: Self = Self { activations: Some(Operand::BF16), ..Self::MXFP4 };
    /// NVFP4 weights, e4m3 activations.
    pub const NVFP4_E4M3: Self = Self { activations: Some(Operand::E4m3), ..Self::NVFP4 };
    /// MXFP4 weights, e4m3 activations.
    pub const MXFP4_E4M3: Self = Self { activations: Some(Operand::E4m3), ..Self::MXFP4 };

    /// Every pair that some architecture has kernels for. MXFP4's scales exceed the range of f16.
    pub const ALL: [Self; 7] = [
        Self::NVFP4,
        Self::MXFP4,
        Self::NVFP4_F16,
        Self::NVFP4_BF16,
        Self::MXFP4_BF16,
        Self::NVFP4_E4M3,
        Self::MXFP4_E4M3,
    ];

    /// Returns whether the table of kernels for these tensor cores has the pair.
    pub fn has_kernels(self, tensor: TensorFamily) -> bool {
        kernels(tensor).iter().any(|kernel| kernel.operands == self)
    }

    /// Returns `names`' name of the pair, which are those of `weights` beside blocks, f16, bf16 and e4m3.
    pub(crate) const fn pick(self, [nvfp4, mxfp4]: [[&'static str; 4]; 2]) -> &'static str {
        let names = match self.weights {
            Format::Nvfp4 => nvfp4,
            Format::Mxfp4 => mxfp4,
        };
        match self.activations {
            None => names[0],
            Some(Operand::Half(HalfType::F16)) => names[1],
            Some(Operand::Half(HalfType::Bf16)) => names[2],
            Some(Operand::E4m3) => names[3],
        }
    }
}

/// Makes the [`Operands`] that a table of kernels names so.
macro_rules! operands {
    (nvfp4) => {
        $crate::gemm::Operands::NVFP4
    };
    (mxfp4) => {
        $crate::gemm::Operands::MXFP4
    };
    (nvfp4_f16) => {
        $crate::gemm::Operands::NVFP4_F16
    };
    (nvfp4_bf16) => {
        $crate::gemm::Operands::NVFP4_BF16
    };
    (mxfp4_bf16) => {
        $crate::gemm::Operands::MXFP4_BF16
    };
    (nvfp4_e4m3) => {
        $crate::gemm::Operands::NVFP4_E4M3
    };
    (mxfp4_e4m3) => {
        $crate::gemm::Operands::MXFP4_E4M3
    };
}
pub(super) use operands;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_kernels() {
        for operands in Operands::ALL {
            assert!(
                TensorFamily::ALL.iter().any(|tensor| operands.has_kernels(*tensor)),
                "{operands:?}"
            );
        }
        for kernel in TensorFamily::ALL.iter().flat_map(|&tensor| kernels(tensor)) {
            assert!(Operands::ALL.contains(&kernel.operands), "{kernel:?}");
        }
        // These multiply decoded activations alone.
        assert!(!Operands::NVFP4.has_kernels(TensorFamily::MmaSync));
        assert!(!Operands::NVFP4.has_kernels(TensorFamily::Wgmma));
        assert!(Operands::NVFP4.has_kernels(TensorFamily::MmaSyncScaled));
        assert!(Operands::MXFP4_BF16.has_kernels(TensorFamily::MmaSyncScaled));
    }
}
