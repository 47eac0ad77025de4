//! Which tile comes when.

use super::BlackwellConfig;

/// Rows of tiles that are walked together, so that CTAs at work at one time share rows
/// of both operands in L2.
pub const BAND: u32 = 8;

/// The tiles of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Tiles along the rows of `X`.
    pub x: u32,
    /// Tiles along the rows of `Y`; those of one cluster count as one.
    pub y: u32,
    /// Tiles of all batch entries.
    pub count: u32,
}

/// One tile: its place along `X`, along `Y`, and its batch entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Index along `X`.
    pub x: u32,
    /// Index along `Y`.
    pub y: u32,
    /// Batch entry.
    pub batch: u32,
}

impl Tiling {
    /// The tiles of `batch` products of `x_rows` by `y_rows` results.
    #[inline(always)]
    #[must_use]
    pub const fn new(config: &BlackwellConfig, x_rows: u32, y_rows: u32, batch: u32) -> Self {
        let (x, y) = (x_rows.div_ceil(config.rows()), y_rows.div_ceil(config.cluster_columns()));
        Self { x, y, count: x * y * batch }
    }

    /// As [`Tiling::new`]; none if the tiles, or the CTAs of a grid with a cluster for
    /// each, cannot be counted in 31 bits, a launch's limit.
    #[must_use]
    pub const fn checked(
        config: &BlackwellConfig,
        x_rows: u32,
        y_rows: u32,
        batch: u32,
    ) -> Option<Self> {
        let (x, y) = (x_rows.div_ceil(config.rows()), y_rows.div_ceil(config.cluster_columns()));
        let count = x as u64 * y as u64;
        let count = match count.checked_mul(batch as u64) {
            Some(count) if count <= (i32::MAX as u32 / config.cluster()) as u64 => count as u32,
            _ => return None,
        };
        Some(Self { x, y, count })
    }

    /// Tile `index`, below [`Tiling::count`]: batch entries one after the other, in each
    /// bands of [`BAND`] tile rows, in each band column after column.
    #[inline(always)]
    #[must_use]
    pub const fn tile(&self, index: u32) -> Tile {
        let each = self.x * self.y;
        let (batch, rest) = (index / each, index % each);
        let band_tiles = BAND * self.y;
        let (band, rest) = (rest / band_tiles, rest % band_tiles);
        let first = band * BAND;
        let rows = if self.x - first < BAND { self.x - first } else { BAND };
        Tile { x: first + rest % rows, y: rest / rows, batch }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::CONFIGS;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_tile_comes_once() {
        for (x, y, l) in [(1, 1, 1), (129, 1, 3), (1025, 300, 2), (7168, 128, 1), (4000, 4000, 1)] {
            let tiling = Tiling::new(&CONFIGS[0], x, y, l);
            let tiles: HashSet<_> = (0..tiling.count)
                .map(|i| tiling.tile(i))
                .map(|t| {
                    assert!(t.x < tiling.x && t.y < tiling.y && t.batch < l);
                    (t.x, t.y, t.batch)
                })
                .collect();
            assert_eq!(tiles.len(), tiling.count as usize);
        }
    }
}
