//! Swizzles as permutations of shared addresses.
//!
//! PTX ISA 5.5.7. A swizzle exchanges chunks within a span by an exclusive or
//! of address bits. The pattern depends on absolute shared addresses, not on
//! the start of the box. In terms of CuTe, `B32` is `Swizzle<1,4,3>`, `B64`
//! `Swizzle<2,4,3>`, `B128` `Swizzle<3,4,3>`, `B128Atom32` `Swizzle<2,5,2>` and
//! `B128Atom64` `Swizzle<1,6,1>`.

use super::Swizzle;

impl Swizzle {
    /// Bytes within which chunks change places, which is also the distance of
    /// rows in shared memory; 0 without swizzle.
    #[must_use]
    pub const fn span(self) -> u32 {
        match self {
            Self::None => 0,
            Self::B32 => 32,
            Self::B64 => 64,
            Self::B128 | Self::B128Atom32 | Self::B128Atom32Flip8 | Self::B128Atom64 => 128,
        }
    }

    /// Bytes that stay together; 0 without swizzle.
    #[must_use]
    pub const fn chunk(self) -> u32 {
        match self {
            Self::None => 0,
            Self::B32 | Self::B64 | Self::B128 => 16,
            Self::B128Atom32 => 32,
            Self::B128Atom32Flip8 => 8,
            Self::B128Atom64 => 64,
        }
    }

    /// Returns the place of the byte that would be at `address` without swizzle. Its own inverse.
    #[must_use]
    pub const fn apply(self, address: u32) -> u32 {
        let row = address >> 7;
        address
            ^ match self {
                Self::None => 0,
                Self::B32 => (row & 1) << 4,
                Self::B64 => (row & 3) << 4,
                Self::B128 => (row & 7) << 4,
                Self::B128Atom32 => (row & 3) << 5,
                Self::B128Atom32Flip8 => (row & 3) << 5 | (row & 1) << 3,
                Self::B128Atom64 => (row & 1) << 6,
            }
    }
}
