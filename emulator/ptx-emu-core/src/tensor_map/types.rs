//! The enumerations of `cuTensorMapEncodeTiled`.
//!
//! Names are the driver's (`cuda.h`, "Tensor Map Object Management") without
//! their `CU_TENSOR_MAP_*_` prefix; numbers are the driver's too.

use std::fmt;
use std::str::FromStr;

/// A name that is none of an enumeration's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: required one of {required}, actual `{actual}`")]
pub struct UnknownName {
    /// Enumeration.
    pub what: &'static str,
    /// Its names.
    pub required: String,
    /// The name given.
    pub actual: String,
}

macro_rules! enumeration {
    ($(#[$meta:meta])* $name:ident, $what:literal {
        $($(#[$doc:meta])* $variant:ident = $text:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// Every value, in the driver's numbering from 0.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The driver's name, without prefix.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The value of a driver number.
            #[must_use]
            pub fn from_number(number: u32) -> Option<Self> {
                Self::ALL.get(number as usize).copied()
            }

            /// The driver's number.
            #[must_use]
            pub const fn number(self) -> u32 {
                self as u32
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                Self::ALL.iter().copied().find(|value| value.name() == text).ok_or_else(|| {
                    let names: Vec<&str> = Self::ALL.iter().map(|value| value.name()).collect();
                    UnknownName {
                        what: $what,
                        required: names.join(", "),
                        actual: text.to_owned(),
                    }
                })
            }
        }
    };
}

enumeration! {
    /// Element type of a tensor (`CUtensorMapDataType`).
    ElementType, "dtype" {
        /// 8-bit unsigned integers.
        U8 = "UINT8",
        /// 16-bit unsigned integers.
        U16 = "UINT16",
        /// 32-bit unsigned integers.
        U32 = "UINT32",
        /// 32-bit signed integers.
        S32 = "INT32",
        /// 64-bit unsigned integers.
        U64 = "UINT64",
        /// 64-bit signed integers.
        S64 = "INT64",
        /// Half precision.
        F16 = "FLOAT16",
        /// Single precision.
        F32 = "FLOAT32",
        /// Double precision.
        F64 = "FLOAT64",
        /// bfloat16.
        Bf16 = "BFLOAT16",
        /// Single precision; copies flush subnormals to zero.
        F32Ftz = "FLOAT32_FTZ",
        /// tf32 in 32 bits; copies round to it.
        Tf32 = "TFLOAT32",
        /// tf32 in 32 bits; copies round to it and flush subnormals to zero.
        Tf32Ftz = "TFLOAT32_FTZ",
        /// 4-bit elements, packed in global and shared memory.
        U4Align8 = "16U4_ALIGN8B",
        /// 4-bit elements; in shared memory 8 bytes of them, then a gap of 8.
        U4Align16 = "16U4_ALIGN16B",
        /// 6-bit elements; in shared memory 12 bytes of them, then a gap of 4.
        U6Align16 = "16U6_ALIGN16B",
    }
}

impl ElementType {
    /// Size of an element in global memory, bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::U8 => 8,
            Self::U16 | Self::F16 | Self::Bf16 => 16,
            Self::U32 | Self::S32 | Self::F32 | Self::F32Ftz | Self::Tf32 | Self::Tf32Ftz => 32,
            Self::U64 | Self::S64 | Self::F64 => 64,
            Self::U4Align8 | Self::U4Align16 => 4,
            Self::U6Align16 => 6,
        }
    }

    /// Whether elements are smaller than a byte.
    #[must_use]
    pub const fn is_sub_byte(self) -> bool {
        self.bits() < 8
    }

    /// Whether a floating-point type, for which NaN fill exists.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F16
                | Self::F32
                | Self::F64
                | Self::Bf16
                | Self::F32Ftz
                | Self::Tf32
                | Self::Tf32Ftz
        )
    }

    /// Bytes of data in each 16 bytes of shared memory, where there are gaps.
    #[must_use]
    pub const fn padded_payload(self) -> Option<u32> {
        match self {
            Self::U4Align16 => Some(8),
            Self::U6Align16 => Some(12),
            _ => None,
        }
    }
}

enumeration! {
    /// Interleaved layout (`CUtensorMapInterleave`).
    Interleave, "interleave" {
        /// None.
        None = "NONE",
        /// Channels in slices of 16 bytes.
        B16 = "16B",
        /// Channels in slices of 32 bytes.
        B32 = "32B",
    }
}

enumeration! {
    /// Swizzle of shared memory (`CUtensorMapSwizzle`).
    Swizzle, "swizzle" {
        /// None.
        None = "NONE",
        /// 16-byte chunks within 32 bytes.
        B32 = "32B",
        /// 16-byte chunks within 64 bytes.
        B64 = "64B",
        /// 16-byte chunks within 128 bytes.
        B128 = "128B",
        /// 32-byte chunks within 128 bytes.
        B128Atom32 = "128B_ATOM_32B",
        /// 32-byte chunks within 128 bytes, and the 8-byte halves of each 16
        /// bytes exchanged in every other row.
        B128Atom32Flip8 = "128B_ATOM_32B_FLIP_8B",
        /// 64-byte chunks within 128 bytes.
        B128Atom64 = "128B_ATOM_64B",
    }
}

enumeration! {
    /// L2 fetch size (`CUtensorMapL2promotion`); a hint without effect here.
    L2Promotion, "l2" {
        /// None.
        None = "NONE",
        /// 64 bytes.
        B64 = "L2_64B",
        /// 128 bytes.
        B128 = "L2_128B",
        /// 256 bytes.
        B256 = "L2_256B",
    }
}

enumeration! {
    /// The fill of a load outside the tensor (`CUtensorMapFloatOOBfill`).
    Fill, "oob" {
        /// Zeros.
        Zero = "NONE",
        /// NaNs, a special one that products may treat as zero.
        Nan = "NAN_REQUEST_ZERO_FMA",
    }
}
