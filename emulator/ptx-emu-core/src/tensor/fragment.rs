//! Elements of a matrix in the registers of a warp or warpgroup: PTX ISA 9.7.14.5
//! (`mma.sync`), 9.7.15.5 (`wgmma`), 9.7.14.3 (block scales of `mma.sync`).
//!
//! All shapes but `m8n8k4` of f16 follow one rule. A register holds `E` elements of consecutive k,
//! lowest bits first; lane `l` has row `l / 4` (of `A`, or column of `B`) and k from `E * (l % 4)`.
//! The next register of `A` is 8 rows down if the matrix has 16 rows, and the one after that `4 E`
//! further along K. `wmma` with 32 rows goes on downwards first, too.

/// Row (or column of `B`) and k, or row and column of `D`.
pub type Place = (usize, usize);

/// The registers of one lane that hold `A` or `B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Rows of `A` or columns of `B`: 8 or 16, of `wmma` also 32.
    pub rows: usize,
    /// Elements along K.
    pub k: usize,
    /// Elements per register.
    pub per_register: usize,
}

impl Fragment {
    /// The fragment of elements that take `container` bits in registers of 32 bits,
    /// or of 64-bit elements in 64-bit registers.
    #[must_use]
    pub const fn new(rows: usize, k: usize, container: u32) -> Self {
        let per_register = if container >= 32 { 1 } else { 32 / container as usize };
        Self { rows, k, per_register }
    }

    /// Registers per lane.
    #[must_use]
    pub const fn registers(self) -> usize {
        self.rows * self.k / (32 * self.per_register)
    }

    /// Place of the first element of a register; the others follow along K.
    #[inline(always)]
    #[must_use]
    pub const fn place(self, lane: usize, register: usize) -> Place {
        let halves = self.rows / 8;
        let row = lane / 4 + register % halves * 8;
        let k = (register / halves * 4 + lane % 4) * self.per_register;
        (row, k)
    }
}

/// Place of element `index` of `C` or `D`, any shape but `m8n8k4` of f16: f32, s32
/// and f64 have one element per register, f16 two.
#[inline(always)]
#[must_use]
pub const fn accumulator(lane: usize, index: usize) -> Place {
    (lane / 4 + index / 2 % 2 * 8, index / 4 * 8 + lane % 4 * 2 + index % 2)
}

/// Place of element `index` of the 64-row `D` of `wgmma`, for a lane of warp `warp`
/// of the warpgroup. PTX ISA 9.7.15.5.1.1.
#[inline(always)]
#[must_use]
pub const fn wgmma_accumulator(warp: usize, lane: usize, index: usize) -> Place {
    let (row, column) = accumulator(lane, index);
    (16 * warp + row, column)
}

/// Place of the first element of a register of the 64-row `A` of `wgmma`; the others
/// follow along K. `container` is the width of an element in bits.
#[inline(always)]
#[must_use]
pub const fn wgmma_a(warp: usize, lane: usize, register: usize, container: u32) -> Place {
    let (row, k) = Fragment::new(16, 256 / container as usize, container).place(lane, register);
    (16 * warp + row, k)
}

/// Operand or accumulator layout of `mma.sync.m8n8k4` of f16, in which four groups of
/// eight lanes (a quad of the lower and one of the upper half warp) compute a product
/// each. PTX ISA 9.7.14.5.1.
pub mod quad {
    use super::Place;

    /// The product that a lane takes part in.
    #[inline(always)]
    #[must_use]
    pub const fn group(lane: usize) -> usize {
        lane % 16 / 4
    }

    const fn line(lane: usize) -> usize {
        lane % 4 + lane / 16 * 4
    }

    /// Row of `A` (column of `B`) and k of element `index`, 0..4. `along_k`: the
    /// elements of a lane follow each other along K, as in `.row` of `A` and `.col`
    /// of `B`.
    #[inline(always)]
    #[must_use]
    pub const fn operand(along_k: bool, lane: usize, index: usize) -> Place {
        if along_k { (line(lane), index) } else { (index + lane / 16 * 4, lane % 4) }
    }

    /// Row and column of element `index`, 0..8, of an f16 `C` or `D`.
    #[inline(always)]
    #[must_use]
    pub const fn half(lane: usize, index: usize) -> Place {
        (line(lane), index)
    }

    /// Row and column of element `index`, 0..8, of an f32 `C` or `D`.
    #[inline(always)]
    #[must_use]
    pub const fn single(lane: usize, index: usize) -> Place {
        let row = (lane & 1) + (index & 2) + lane / 16 * 4;
        (row, (index & 4) + (lane & 2) + (index & 1))
    }
}

/// Layouts of `wmma` (PTX ISA 9.7.14.4), which PTX leaves open. `A` and `B` are [`Fragment`]s, of up
/// to 32 rows or columns.
pub mod wmma {
    use super::{Place, accumulator};

    /// Row and column of element `index` of a `C` or `D` of `m` rows: the tiles of `mma.sync` beside
    /// each other, or below each other if there are 32 rows.
    #[inline(always)]
    #[must_use]
    pub const fn result(m: usize, lane: usize, index: usize) -> Place {
        match m {
            8 => (lane / 4, index / 2 * 8 + lane % 4 * 2 + index % 2),
            32 => {
                let (row, column) = accumulator(lane, index % 4);
                (row + index / 4 * 16, column)
            }
            _ => accumulator(lane, index),
        }
    }
}

/// The lane whose register holds the scales of a row of `A`; `thread` is
/// `thread-id-a`, 0 or 1.
#[inline(always)]
#[must_use]
pub const fn scale_lane_a(row: usize, thread: usize) -> usize {
    row % 8 * 4 + thread * 2 + row / 8
}

/// The lane whose register holds the scales of a column of `B`; `thread` is
/// `thread-id-b`, 0 to 3.
#[inline(always)]
#[must_use]
pub const fn scale_lane_b(column: usize, thread: usize) -> usize {
    column * 4 + thread
}
