//! The byte runs of a tile copy.

use super::Tile;
use super::tile::OUTER;

/// Bytes that a copy moves together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Shared address.
    pub shared: u32,
    /// Global address; `None` outside the tensor, where a load fills and a
    /// store does nothing.
    pub global: Option<u64>,
    /// Length, at least 1.
    pub bytes: u32,
}

/// Iterator over the runs of a [`Tile`]: as long as the row, the bounds of the
/// tensor and the swizzle's chunks allow.
#[derive(Debug, Clone)]
pub struct Runs<'a> {
    tile: &'a Tile,
    /// Step in each dimension above the innermost one.
    index: [u32; OUTER],
    /// Global address at which the current row begins; `None` outside.
    row: Option<u64>,
    /// Shared address at which it begins, before swizzling.
    shared: u32,
    /// Next byte of it.
    at: u32,
    rows_left: u32,
}

impl<'a> Runs<'a> {
    pub(super) fn new(tile: &'a Tile) -> Self {
        let mut runs = Self {
            tile,
            index: [0; OUTER],
            row: None,
            shared: tile.shared,
            at: 0,
            rows_left: tile.rows(),
        };
        runs.row = runs.row_address();
        runs
    }

    fn row_address(&self) -> Option<u64> {
        let outer = self.tile.outer.iter().zip(self.index);
        outer
            .map(|(outer, index)| outer.offset(index))
            .try_fold(self.tile.row_start, |sum, at| at.map(|at| sum.wrapping_add(at)))
    }

    fn next_row(&mut self) {
        self.rows_left -= 1;
        self.at = 0;
        self.shared = self.shared.wrapping_add(self.tile.pitch);
        for (index, outer) in self.index.iter_mut().zip(&self.tile.outer) {
            *index += 1;
            if *index < outer.count {
                break;
            }
            *index = 0;
        }
        self.row = self.row_address();
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    #[inline]
    fn next(&mut self) -> Option<Run> {
        if self.rows_left == 0 {
            return None;
        }
        let tile = self.tile;
        let at = self.at;
        let inside = self.row.filter(|_| tile.valid.contains(&at));
        let mut end = tile.row_bytes;
        if self.row.is_some() {
            let bound = if at < tile.valid.start { tile.valid.start } else { tile.valid.end };
            if at < bound {
                end = end.min(bound);
            }
        }
        let mut unswizzled = at;
        if let Some(payload) = tile.map.payload {
            end = end.min(at - at % payload + payload);
            unswizzled = at / payload * 16 + at % payload;
        }
        let swizzle = tile.map.swizzle;
        if swizzle.chunk() != 0 {
            end = end.min(at + swizzle.chunk() - unswizzled % swizzle.chunk());
        }
        let run = Run {
            shared: swizzle.apply(self.shared.wrapping_add(unswizzled)),
            global: inside.map(|row| row.wrapping_add(at.into())),
            bytes: end - at,
        };
        self.at = end;
        if end == tile.row_bytes {
            self.next_row();
        }
        Some(run)
    }
}

impl std::iter::FusedIterator for Runs<'_> {}
