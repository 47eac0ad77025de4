//! Layouts of tensor memory: PTX ISA 9.7.16.2 (layouts of matrices),
//! 9.7.16.8 (`tcgen05.ld`, `.st`), 9.7.16.9 (`.cp`), 9.7.16.10.7 (scales).
//!
//! A cell is 32 bits at a lane (128) and a column (512). Everything here is relative
//! to the address an instruction is given.

/// A 32-bit cell of tensor memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell {
    /// Lane, 0..128.
    pub lane: u32,
    /// Column, 0..512.
    pub column: u32,
}

/// The lanes of the rows of `D` that a CTA holds (PTX ISA 9.7.16.10.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataPath {
    /// 128 rows in 128 lanes: layouts A (`cta_group::2`, M = 256) and D
    /// (`cta_group::1`, M = 128).
    Full,
    /// 64 rows in two halves of the lanes, each with half of the columns: layout B
    /// (`cta_group::2`, M = 128).
    Halves,
    /// 64 rows, 16 in each quarter of the lanes: layout F (`cta_group::1`, M = 64).
    Quarters,
}

impl DataPath {
    /// The layout of an instruction of shape `m` (of the pair with `ctas` 2).
    #[must_use]
    pub const fn of(ctas: u32, m: usize) -> Option<Self> {
        match (ctas, m) {
            (1, 128) | (2, 256) => Some(Self::Full),
            (2, 128) => Some(Self::Halves),
            (1, 64) => Some(Self::Quarters),
            _ => None,
        }
    }

    /// Rows of `D` that one CTA holds.
    #[must_use]
    pub const fn rows(self) -> usize {
        match self {
            Self::Full => 128,
            Self::Halves | Self::Quarters => 64,
        }
    }

    /// Columns of tensor memory that `n` columns of `D` occupy.
    #[must_use]
    pub const fn columns(self, n: usize) -> usize {
        match self {
            Self::Halves => n / 2,
            _ => n,
        }
    }

    /// Cell of element (`row`, `column`) of a `D` of `n` columns, `row` within the
    /// CTA. An f16 element is in the low half.
    #[inline(always)]
    #[must_use]
    pub const fn accumulator(self, n: u32, row: u32, column: u32) -> Cell {
        match self {
            Self::Full => Cell { lane: row, column },
            Self::Halves => Cell { lane: row + column / (n / 2) * 64, column: column % (n / 2) },
            Self::Quarters => Cell { lane: row / 16 * 32 + row % 16, column },
        }
    }

    /// Lane of a row of an `A` in tensor memory; elements follow each other along
    /// the columns, packed in cells from the low bits up. [`Self::Halves`] wants a
    /// copy in the other half of the lanes as well; hardware may read either.
    #[must_use]
    pub const fn a_lane(self, row: u32) -> u32 {
        match self {
            Self::Full | Self::Halves => row,
            Self::Quarters => row / 16 * 32 + row % 16,
        }
    }
}

/// Shape of `tcgen05.ld` and `tcgen05.st`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoadShape {
    /// `.32x32b`
    L32x32b,
    /// `.16x64b`
    L16x64b,
    /// `.16x128b`
    L16x128b,
    /// `.16x256b`
    L16x256b,
    /// `.16x32bx2`: threads from 16 on are this many columns further. Derived, not
    /// covered by golden data.
    L16x32bx2 {
        /// `immHalfSplitoff`
        offset: u32,
    },
}

impl LoadShape {
    /// Registers per thread of `.xN`, also with `.pack::16b` and `.unpack::16b`.
    #[must_use]
    pub const fn registers(self, repeat: u32) -> u32 {
        match self {
            Self::L32x32b | Self::L16x64b | Self::L16x32bx2 { .. } => repeat,
            Self::L16x128b => 2 * repeat,
            Self::L16x256b => 4 * repeat,
        }
    }

    /// Largest `N` of `.xN`.
    #[must_use]
    pub const fn max_repeat(self) -> u32 {
        128 / self.registers(1)
    }

    /// Lanes that the instruction touches.
    #[must_use]
    pub const fn lanes(self) -> u32 {
        match self {
            Self::L32x32b => 32,
            _ => 16,
        }
    }

    /// Cell of a register of a thread of the warp.
    #[inline(always)]
    #[must_use]
    pub const fn cell(self, thread: u32, register: u32) -> Cell {
        let (t, r) = (thread, register);
        match self {
            Self::L32x32b => Cell { lane: t, column: r },
            Self::L16x64b => Cell { lane: t / 4 + 8 * (t & 1), column: 2 * r + (t >> 1 & 1) },
            Self::L16x128b => Cell { lane: t / 4 + 8 * (r & 1), column: 4 * (r / 2) + t % 4 },
            Self::L16x256b => {
                Cell { lane: t / 4 + 8 * (r >> 1 & 1), column: 8 * (r / 4) + 2 * (t % 4) + (r & 1) }
            }
            Self::L16x32bx2 { offset } => Cell { lane: t % 16, column: r + t / 16 * offset },
        }
    }

    /// Cells whose low halves are the low and the high half of a register, with
    /// `.pack::16b` or `.unpack::16b`.
    #[inline(always)]
    #[must_use]
    pub const fn packed_cells(self, thread: u32, register: u32) -> [Cell; 2] {
        let (cell, gap) = match self {
            // The distance of the halves is in cells, whatever they hold.
            Self::L16x32bx2 { offset } => {
                let near = Self::L16x32bx2 { offset: 0 }.cell(thread, register);
                (near, thread / 16 * offset)
            }
            _ => (self.cell(thread, register), 0),
        };
        let column = 2 * cell.column + gap;
        [Cell { lane: cell.lane, column }, Cell { lane: cell.lane, column: column + 1 }]
    }
}

/// Byte of tensor memory that holds a block scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScaleByte {
    /// Cell; lanes 32, 64 and 96 further hold copies.
    pub cell: Cell,
    /// Byte of the cell, 0 the lowest.
    pub byte: u32,
}

/// Returns the place of scale `index` along K of row `row` (a row of `A` or a column of `B`).
/// `groups` is the number of 32-row groups staged: rows, rounded up to 128, / 32. An instruction
/// whose scale id is `id` finds its `index`-th scale at `index + id`.
#[inline(always)]
#[must_use]
pub const fn scale(groups: u32, row: u32, index: u32) -> ScaleByte {
    let column = index / 4 * groups + row / 32;
    ScaleByte { cell: Cell { lane: row % 32, column }, byte: index % 4 }
}

/// Returns the place of the scales of `B` with `cta_group::2` and M = 128: the first half of the
/// columns serves lanes 0 to 63, the second lanes 64 to 127. Derived, not covered by golden data;
/// `n` is the N of the instruction.
#[must_use]
pub const fn scale_halves(n: u32, column: u32, index: u32) -> ScaleByte {
    let half = column / (n / 2);
    let within = column % (n / 2);
    let mut scale = scale((n / 2).div_ceil(32), within, index);
    scale.cell.lane += 64 * half;
    scale
}

/// Shape of `tcgen05.cp`, with its multicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyShape {
    /// `.128x256b`
    C128x256b,
    /// `.4x256b`
    C4x256b,
    /// `.128x128b`
    C128x128b,
    /// `.64x128b.warpx2::02_13`
    C64x128bWarps02,
    /// `.64x128b.warpx2::01_23`
    C64x128bWarps01,
    /// `.32x128b.warpx4`
    C32x128b,
}

impl CopyShape {
    /// The shape that PTX modifiers name, the multicast being empty where the
    /// shape has none.
    #[must_use]
    pub fn parse(shape: &str, multicast: &str) -> Option<Self> {
        Some(match (shape, multicast) {
            ("128x256b", "") => Self::C128x256b,
            ("4x256b", "") => Self::C4x256b,
            ("128x128b", "") => Self::C128x128b,
            ("64x128b", "warpx2::02_13") => Self::C64x128bWarps02,
            ("64x128b", "warpx2::01_23") => Self::C64x128bWarps01,
            ("32x128b", "warpx4") => Self::C32x128b,
            _ => return None,
        })
    }

    /// Rows of the source: a K-major tile of 16-byte chunks.
    #[must_use]
    pub const fn rows(self) -> u32 {
        match self {
            Self::C128x256b | Self::C128x128b => 128,
            Self::C64x128bWarps02 | Self::C64x128bWarps01 => 64,
            Self::C32x128b => 32,
            Self::C4x256b => 4,
        }
    }

    /// Columns that a row fills: a chunk fills four.
    #[must_use]
    pub const fn columns(self) -> u32 {
        match self {
            Self::C128x256b | Self::C4x256b => 8,
            _ => 4,
        }
    }

    /// First lane that a row goes to, how many lanes get it, and their distance.
    #[must_use]
    pub const fn lanes(self, row: u32) -> (u32, u32, u32) {
        match self {
            Self::C128x256b | Self::C128x128b => (row, 1, 0),
            Self::C4x256b => (32 * row, 1, 0),
            Self::C64x128bWarps02 => (row, 2, 64),
            Self::C64x128bWarps01 => (row / 32 * 64 + row % 32, 2, 32),
            Self::C32x128b => (row, 4, 32),
        }
    }
}
