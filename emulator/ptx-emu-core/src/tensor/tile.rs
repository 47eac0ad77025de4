//! A gathered operand tile with consecutive rows of K, and its conversion to panels.
//! PTX ISA 9.7.16.10.4 (packing of 4- and 6-bit types): in a byte, the element of
//! lower index is in the low bits.

use super::element::Element;
use super::product::{FloatColumns, FloatRows};
use crate::num::{bfloat, half};

/// The packing of codes narrower than a byte in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Back to back: mxf4, mxf4nvf4, and every type of 8 bits or more.
    Dense,
    /// 16 codes at the start of every 16 bytes: all types of the f8f6f4 kinds, where
    /// 4-bit codes are followed by 8 and 6-bit codes by 4 bytes of padding.
    Padded,
}

/// A dense operand: rows of `A`, or columns of `B`, each of `k` consecutive elements.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a> {
    /// Type of the elements.
    pub element: Element,
    /// Width of the container of one element in `bytes`: 4, 8, 16 or 32 bits. Codes
    /// are in the low bits of their container.
    pub container: u32,
    /// Rows of `A` or columns of `B`.
    pub rows: usize,
    /// Elements per row.
    pub k: usize,
    /// `rows * k` containers; what is missing reads as zeros.
    pub bytes: &'a [u8],
    /// Every element is negated.
    pub negate: bool,
}

/// Evaluates `$fill` with `$value` a function from row and k to the number there.
/// One copy of the loop for each decoder is what makes decoding cheap.
macro_rules! with_numbers {
    ($tile:expr, $value:ident => $fill:expr) => {{
        let tile = $tile;
        let sign = if tile.negate { -1.0 } else { 1.0 };
        match (tile.container, tile.element) {
            (4, element) => {
                let table = element.table();
                let $value = |row, k| table[usize::from(tile.nibble(row, k))] * sign;
                $fill
            }
            (8, element) => {
                let table = element.table();
                let $value = |row, k| table[usize::from(tile.byte(row, k))] * sign;
                $fill
            }
            (16, Element::F16) => {
                let $value = |row, k| f64::from(half::to_f32(tile.half(row, k))) * sign;
                $fill
            }
            (16, _) => {
                let $value = |row, k| f64::from(bfloat::to_f32(tile.half(row, k))) * sign;
                $fill
            }
            (_, element) => {
                let $value = |row, k| element.value(tile.word(row, k)) * sign;
                $fill
            }
        }
    }};
}

impl Tile<'_> {
    /// Decodes the rows of `A`.
    pub fn float_rows(&self, panel: &mut FloatRows) {
        if let Some(pairs) = self.pairs() {
            return panel.fill_pairs(self.rows, self.k, |row, at| pairs[self.pair(row, at)]);
        }
        with_numbers!(self, value => panel.fill(self.rows, self.k, value));
    }

    /// Decodes the columns of `B`.
    pub fn float_columns(&self, panel: &mut FloatColumns) {
        if let Some(pairs) = self.pairs() {
            return panel.fill_pairs(self.rows, self.k, |row, at| pairs[self.pair(row, at)]);
        }
        with_numbers!(self, value => panel.fill(self.rows, self.k, value));
    }

    /// The numbers of a byte, if each has two and no row ends within one.
    fn pairs(&self) -> Option<[[f64; 2]; 256]> {
        if self.container != 4 || !self.k.is_multiple_of(2) {
            return None;
        }
        let sign = if self.negate { -1.0 } else { 1.0 };
        let table = self.element.table();
        Some(std::array::from_fn(|byte| [table[byte & 0xf] * sign, table[byte >> 4] * sign]))
    }

    /// The byte of a pair of elements.
    #[inline(always)]
    fn pair(&self, row: usize, at: usize) -> usize {
        let [byte] = self.at(row * (self.k / 2) + at);
        byte.into()
    }

    #[inline(always)]
    fn at<const N: usize>(&self, index: usize) -> [u8; N] {
        let from = index * N;
        self.bytes.get(from..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    #[inline(always)]
    fn nibble(&self, row: usize, k: usize) -> u8 {
        let index = row * self.k + k;
        let [byte] = self.at(index / 2);
        byte >> (index % 2 * 4) & 0xf
    }

    #[inline(always)]
    fn byte(&self, row: usize, k: usize) -> u8 {
        let [byte] = self.at(row * self.k + k);
        byte
    }

    #[inline(always)]
    fn half(&self, row: usize, k: usize) -> u16 {
        u16::from_le_bytes(self.at(row * self.k + k))
    }

    #[inline(always)]
    fn word(&self, row: usize, k: usize) -> u32 {
        u32::from_le_bytes(self.at(row * self.k + k))
    }
}
