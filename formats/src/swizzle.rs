//! K-major shared-memory layouts of matrix operands (wgmma, tcgen05, TMA).
//!
//! The unit is a 16-byte chunk; an atom is 8 rows of [`row_bytes`](Swizzle::row_bytes) bytes.
//! Atoms are stacked along rows first, then along K. Within a swizzle period the number of a chunk
//! is XORed with bits of the row, so that 8 rows read at the same K byte use different banks.
//! PTX ISA, "Swizzling Modes" and "Canonical layouts" of shared-memory matrices.

/// Bytes of a chunk, which every swizzle keeps together and in order.
pub const CHUNK_BYTES: usize = 16;

/// The swizzle mode of a K-major operand tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// 16-byte rows, no swizzle.
    #[default]
    None,
    /// 32-byte rows.
    B32,
    /// 64-byte rows.
    B64,
    /// 128-byte rows.
    B128,
}

impl Swizzle {
    /// Every mode, for tests and tables.
    pub const ALL: [Self; 4] = [Self::None, Self::B32, Self::B64, Self::B128];

    /// Bytes of one row of an atom.
    #[inline]
    #[must_use]
    pub const fn row_bytes(self) -> usize {
        match self {
            Self::None => 16,
            Self::B32 => 32,
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }

    /// Bytes of one atom, 8 rows. It is also the distance between 8-row groups that a matrix
    /// descriptor's stride field states, and the alignment at which a tile must start for
    /// [`offset`](Self::offset) to hold, since the hardware swizzles absolute addresses.
    #[inline]
    #[must_use]
    pub const fn atom_bytes(self) -> usize {
        8 * self.row_bytes()
    }

    /// Swizzles a shared-memory address, or an offset from an address aligned to
    /// [`atom_bytes`](Self::atom_bytes). The function is its own inverse.
    #[inline]
    #[must_use]
    pub const fn apply(self, offset: usize) -> usize {
        let mask = self.row_bytes() / CHUNK_BYTES - 1;
        offset ^ (((offset >> 7) & mask) << 4)
    }

    /// Offset in bytes of byte `k_byte` of row `row` in a tile of `rows` rows, from a start
    /// aligned to [`atom_bytes`](Self::atom_bytes). `rows` is a multiple of 8 and above `row`.
    #[inline]
    #[must_use]
    pub const fn offset(self, row: usize, k_byte: usize, rows: usize) -> usize {
        let width = self.row_bytes();
        self.apply((k_byte / width) * (rows * width) + row * width + k_byte % width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applying_twice_gives_the_address_back() {
        for swizzle in Swizzle::ALL {
            for address in 0..8192 {
                assert_eq!(swizzle.apply(swizzle.apply(address)), address, "{swizzle:?} {address}");
            }
        }
    }

    #[test]
    fn a_column_of_eight_rows_covers_all_chunks_of_a_128_byte_row() {
        let mut seen = 0u8;
        for row in 0..8 {
            seen |= 1 << (Swizzle::B128.offset(row, 32, 64) % 128 / CHUNK_BYTES);
        }
        assert_eq!(seen, 0xff);
    }
}
