//! The float types of matrices and vectors that are not block-scaled: results, biases, the input of
//! a quantiser and the output of a dequantiser.

/// An IEEE or bfloat type. Kernels take its discriminant as a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum FloatType {
    /// IEEE binary16.
    F16 = 0,
    /// bfloat16.
    Bf16 = 1,
    /// IEEE binary32.
    F32 = 2,
}

/// A 16-bit float type: that of activations beside 4-bit weights, which are decoded to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HalfType {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl HalfType {
    /// The type's name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.float().name()
    }

    /// The type among all float types.
    #[must_use]
    pub const fn float(self) -> FloatType {
        match self {
            Self::F16 => FloatType::F16,
            Self::Bf16 => FloatType::Bf16,
        }
    }
}

/// The type that weights are decoded to and activations are multiplied in, if a kernel decodes
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operand {
    /// A 16-bit float, which holds every weight exactly.
    Half(HalfType),
    /// e4m3: activations with a scale for each token, and weights folded with their block scales
    /// ([`fold`](crate::gemm::fold)).
    E4m3,
}

impl Operand {
    /// f16.
    pub const F16: Self = Self::Half(HalfType::F16);
    /// bf16.
    pub const BF16: Self = Self::Half(HalfType::Bf16);

    /// The type's name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Half(half) => half.name(),
            Self::E4m3 => "fp8",
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Half(half) => half.float().bytes(),
            Self::E4m3 => 1,
        }
    }

    /// The 16-bit float that it is, if it is one.
    #[must_use]
    pub const fn half(self) -> Option<HalfType> {
        match self {
            Self::Half(half) => Some(half),
            Self::E4m3 => None,
        }
    }
}

impl FloatType {
    /// Every type, for tests and tables.
    pub const ALL: [Self; 3] = [Self::F16, Self::Bf16, Self::F32];

    /// The type of this [name](Self::name), if there is one.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.name() == name)
    }

    /// The type's name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_their_types() {
        for ty in FloatType::ALL {
            assert_eq!(FloatType::by_name(ty.name()), Some(ty));
        }
        assert_eq!(FloatType::by_name("f64"), None);
    }
}
