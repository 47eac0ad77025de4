//! Element types.

use std::fmt;

/// An element type of ggml, by the number that files have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// 0: 32-bit floats.
    F32,
    /// 1: 16-bit floats.
    F16,
    /// 8: blocks of 32 8-bit integers after an F16 scale.
    Q8_0,
    /// 24: 8-bit integers.
    I8,
    /// 25: 16-bit integers.
    I16,
    /// 26: 32-bit integers.
    I32,
    /// 27: 64-bit integers.
    I64,
    /// 28: 64-bit floats.
    F64,
    /// 30: bfloat16.
    Bf16,
    /// 39: blocks of 32 e2m1 codes after a ue8m0 scale.
    Mxfp4,
    /// 40: blocks of 64 e2m1 codes after four ue4m3 scales.
    Nvfp4,
}

/// Types of ggml that are named and not read, by number, as in the package gguf 0.19.
const UNREAD: [(u32, &str); 23] = [
    (2, "Q4_0"),
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (41, "Q1_0"),
];

/// ggml's name of a type that this crate does not read.
pub(crate) fn unread(number: u32) -> Option<&'static str> {
    UNREAD.iter().find(|(own, _)| *own == number).map(|(_, name)| *name)
}

impl Kind {
    /// All types that this crate knows.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Q8_0,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F64,
        Self::Bf16,
        Self::Mxfp4,
        Self::Nvfp4,
    ];

    /// The number in files.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 8,
            Self::I8 => 24,
            Self::I16 => 25,
            Self::I32 => 26,
            Self::I64 => 27,
            Self::F64 => 28,
            Self::Bf16 => 30,
            Self::Mxfp4 => 39,
            Self::Nvfp4 => 40,
        }
    }

    /// The type with this number, if it is known.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// Elements and bytes of a block; rows are a whole number of blocks.
    #[must_use]
    pub const fn block(self) -> (u64, u64) {
        match self {
            Self::F32 | Self::I32 => (1, 4),
            Self::F16 | Self::Bf16 | Self::I16 => (1, 2),
            Self::I8 => (1, 1),
            Self::I64 | Self::F64 => (1, 8),
            Self::Q8_0 => (32, 34),
            Self::Mxfp4 => (32, 17),
            Self::Nvfp4 => (64, 36),
        }
    }

    /// Bytes of a tensor with this shape, outermost dimension first; `None` if the last dimension is no whole
    /// number of blocks, or the size overflows.
    #[must_use]
    pub fn bytes(self, shape: &[u64]) -> Option<u64> {
        let (elements, bytes) = self.block();
        let (&last, leading) = shape.split_last().unwrap_or((&1, &[]));
        let row = last.is_multiple_of(elements).then_some(last / elements)?.checked_mul(bytes)?;
        leading.iter().try_fold(row, |size, &dimension| size.checked_mul(dimension))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Q8_0 => "Q8_0",
            Self::I8 => "I8",
            Self::I16 => "I16",
            Self::I32 => "I32",
            Self::I64 => "I64",
            Self::F64 => "F64",
            Self::Bf16 => "BF16",
            Self::Mxfp4 => "MXFP4",
            Self::Nvfp4 => "NVFP4",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_read_and_unread() {
        for (number, name) in UNREAD {
            assert_eq!(Kind::of(number), None, "{name}");
            assert_eq!(
                UNREAD.iter().filter(|(other, own)| *other == number || *own == name).count(),
                1
            );
        }
        assert_eq!((unread(12), unread(40), unread(99)), (Some("Q4_K"), None, None));
    }
}
