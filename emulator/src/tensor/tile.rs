//! An operand tile as bytes, rows of K after one another, and its way into panels.
//!
//! PTX ISA 9.7.16.10.4 (packing of 4- and 6-bit types). In a byte the element of
//! lower index is in the low bits.

use super::element::Element;
use super::product::{FloatColumns, FloatRows, IntColumns, IntRows};

/// How codes narrower than a byte lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Back to back: mxf4, mxf4nvf4, and every type of 8 bits or more.
    Dense,
    /// 16 codes in the first 8 or 12 of 16 bytes: 4- and 6-bit types of the f8f6f4
    /// kinds in shared memory. A gathered tile has one code a byte instead.
    Padded,
}

/// A dense operand: `rows` rows of `A`, or columns of `B`, of `k` elements each.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a> {
    /// Type of the elements.
    pub element: Element,
    /// Width of the container of one element in `bytes`: 4, 8, 16 or 32 bits.
    pub container: u32,
    /// Rows of `A` or columns of `B`.
    pub rows: usize,
    /// Elements a row.
    pub k: usize,
    /// `rows * k` containers.
    pub bytes: &'a [u8],
    /// Every element is negated.
    pub negate: bool,
}

impl Tile<'_> {
    /// Bytes that a tile of that size must have.
    #[must_use]
    pub const fn required_bytes(&self) -> usize {
        self.rows * self.k * self.container as usize / 8
    }

    /// Decodes the rows of `A`. A tile with too few bytes reads as zeros.
    pub fn float_rows(&self, panel: &mut FloatRows) {
        let (rows, k) = (self.rows, self.k);
        self.floats(|value| panel.fill(rows, k, value));
    }

    /// Decodes the columns of `B`.
    pub fn float_columns(&self, panel: &mut FloatColumns) {
        let (rows, k) = (self.rows, self.k);
        self.floats_columns(panel, rows, k);
    }

    /// Decodes the rows of an integer `A`, or of a doubled e2m1 one.
    pub fn int_rows(&self, panel: &mut IntRows) {
        match self.container {
            4 => panel.fill(self.rows, self.k, |row, k| self.sign_int(self.nibble(row, k))),
            _ => panel.fill(self.rows, self.k, |row, k| self.sign_int(self.byte(row, k))),
        }
    }

    /// Decodes the columns of an integer `B`, or of a doubled e2m1 one.
    pub fn int_columns(&self, panel: &mut IntColumns) {
        match self.container {
            4 => panel.fill(self.rows, self.k, |row, k| self.sign_int(self.nibble(row, k))),
            _ => panel.fill(self.rows, self.k, |row, k| self.sign_int(self.byte(row, k))),
        }
    }
}
