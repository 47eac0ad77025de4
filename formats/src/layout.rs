//! Layouts of block scales: the place in memory of the scale of block `kb` of row `row`.
//!
//! *Linear* is row-major, with one byte per block and no padding. *128x4* has tiles of 128 rows by
//! 4 scales, 512 bytes each, ordered with K fastest. Within a tile the four groups of 32 rows are
//! interleaved, so that 16 consecutive bytes hold the four scales of each of the rows `r`, `r +
//! 32`, `r + 64` and `r + 96`. cuBLAS and CUTLASS require this layout, and
//! `tcgen05.cp.32x128b.warpx4` copies it to tensor memory without rearrangement (cuBLAS, "1D Block
//! Scaling Factors Layout").

use core::fmt;

/// Rows of one tile of [`ScaleLayout::Blocked128x4`].
pub const TILE_ROWS: usize = 128;
/// Scales along K of one tile of [`ScaleLayout::Blocked128x4`].
pub const TILE_BLOCKS: usize = 4;
/// Bytes of one tile of [`ScaleLayout::Blocked128x4`].
pub const TILE_BYTES: usize = TILE_ROWS * TILE_BLOCKS;

/// The order of a matrix's scales in memory. Scales are one byte each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScaleLayout {
    /// Row-major, `offset = row * kblocks + kb`, no padding.
    #[default]
    Linear,
    /// 512-byte tiles of 128 rows by 4 scales. Rows and K are padded to whole tiles. The padding
    /// bytes belong to no row, and no result depends on their values.
    Blocked128x4,
}

impl ScaleLayout {
    /// Both layouts, for tests and tables.
    pub const ALL: [Self; 2] = [Self::Linear, Self::Blocked128x4];

    /// The layout's name in commands and reports: `linear` or `128x4`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Blocked128x4 => "128x4",
        }
    }

    /// Byte offset of the scale of block `kb` of row `row`, in a matrix of `kblocks` blocks per
    /// row.
    ///
    /// `kb` must be below `kblocks`. The arithmetic cannot overflow for any row of a matrix for
    /// which [`bytes`](Self::bytes) is not an error.
    #[inline]
    #[must_use]
    pub const fn offset(self, row: usize, kb: usize, kblocks: usize) -> usize {
        match self {
            Self::Linear => row * kblocks + kb,
            Self::Blocked128x4 => {
                let tiles_a_row = kblocks.div_ceil(TILE_BLOCKS);
                let tile = (row / TILE_ROWS) * tiles_a_row + kb / TILE_BLOCKS;
                let in_tile = row % TILE_ROWS;
                tile * TILE_BYTES + (in_tile % 32) * 16 + (in_tile / 32) * 4 + kb % TILE_BLOCKS
            }
        }
    }

    /// Bytes of the scales of `rows` rows of `kblocks` blocks, padding included.
    ///
    /// # Errors
    /// [`SizeOverflow`] if the count does not fit `usize`.
    pub const fn bytes(self, rows: usize, kblocks: usize) -> Result<usize, SizeOverflow> {
        let bytes = match self {
            Self::Linear => rows.checked_mul(kblocks),
            Self::Blocked128x4 => {
                match rows.div_ceil(TILE_ROWS).checked_mul(kblocks.div_ceil(TILE_BLOCKS)) {
                    Some(tiles) => tiles.checked_mul(TILE_BYTES),
                    None => None,
                }
            }
        };
        match bytes {
            Some(bytes) => Ok(bytes),
            None => Err(SizeOverflow { rows, columns: kblocks }),
        }
    }
}

impl fmt::Display for ScaleLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A matrix whose size in bytes does not fit `usize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeOverflow {
    /// Rows of the matrix.
    pub rows: usize,
    /// Its columns; of a matrix of scales, blocks per row.
    pub columns: usize,
}

impl fmt::Display for SizeOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a matrix of {} x {} has more bytes than can be addressed",
            self.rows, self.columns
        )
    }
}

impl core::error::Error for SizeOverflow {}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec;

    /// Offsets in every small matrix are distinct for each (row, block) and inside the buffer.
    #[test]
    fn offsets_are_distinct_and_inside() {
        for layout in ScaleLayout::ALL {
            for rows in [1, 2, 31, 32, 33, 127, 128, 129, 260] {
                for kblocks in 1..=9 {
                    let mut seen = vec![false; layout.bytes(rows, kblocks).unwrap()];
                    for row in 0..rows {
                        for kb in 0..kblocks {
                            let at = layout.offset(row, kb, kblocks);
                            assert!(
                                !core::mem::replace(&mut seen[at], true),
                                "{layout} {rows}x{kblocks}: row {row} block {kb} shares byte {at}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn overflow_is_an_error() {
        for layout in ScaleLayout::ALL {
            let error = SizeOverflow { rows: usize::MAX, columns: 1 << 20 };
            assert_eq!(layout.bytes(usize::MAX, 1 << 20), Err(error));
        }
        assert_eq!(ScaleLayout::Blocked128x4.bytes(0, 5), Ok(0));
    }
}
