//! Cells of tensor memory: PTX ISA 9.7.16.1. The lane field of an address counts modulo
//! 128. An operation's cells are ranges of [`Home::Tensor`]: 16 lanes of a column are
//! one unit, columns of the same lanes follow each other.

use super::flight::{Home, Range};
use super::wgmma_tile::fault;
use crate::diagnostic::{Faults, TensorFault};
use std::cell::RefCell;
use std::rc::Rc;

/// Lanes.
pub(crate) const LANES: u32 = 128;
/// Columns.
pub(crate) const COLUMNS: u32 = 512;
/// Lanes of a unit of [`Home::Tensor`].
const UNIT: u32 = 16;

/// Lane and column of a tensor memory address.
pub(crate) const fn split(address: u32) -> (u32, u32) {
    (address >> 16 & (LANES - 1), address & 0xffff)
}

/// The lane and column at which a range starts.
pub(crate) const fn place(start: u64) -> (u32, u32) {
    let (unit, column) = (start / COLUMNS as u64, start % COLUMNS as u64);
    (unit as u32 * UNIT, column as u32)
}

/// Cells of `lanes` lanes from `lane` on, in `columns` columns from `column` on.
pub(crate) fn region(
    rank: u32,
    (lane, lanes): (u32, u32),
    (column, columns): (u32, u32),
    ranges: &mut Vec<Range>,
) {
    for unit in lane / UNIT..(lane + lanes).div_ceil(UNIT) {
        let start = u64::from(unit % (LANES / UNIT) * COLUMNS + column);
        ranges.push(Range { home: Home::Tensor(rank), start, bytes: columns.into() });
    }
}

/// Tensor memory of one CTA.
#[derive(Debug, Default)]
pub(crate) struct TensorMemory {
    /// Lane after lane; empty until something is allocated.
    cells: Vec<u32>,
    /// Lanes of each column that were written.
    known: Vec<u128>,
}

impl TensorMemory {
    /// Columns are allocated: nothing is written there.
    pub(crate) fn prepare(&mut self, column: u32, columns: u32) {
        if self.cells.is_empty() {
            self.cells.resize((LANES * COLUMNS) as usize, 0xcbcb_cbcb);
            self.known.resize(COLUMNS as usize, 0);
        }
        self.known[column as usize..(column + columns) as usize].fill(0);
    }

    /// Nothing is written anywhere.
    pub(crate) fn forget(&mut self) {
        self.known.fill(0);
    }

    /// A cell of an allocated column; lanes count modulo 128.
    #[inline(always)]
    pub(crate) fn get(&self, lane: u32, column: u32) -> u32 {
        self.cells[(lane % LANES * COLUMNS + column) as usize]
    }

    /// Whether a cell was written.
    #[inline(always)]
    pub(crate) fn known(&self, lane: u32, column: u32) -> bool {
        self.known[column as usize] >> (lane % LANES) & 1 != 0
    }

    /// A cell that must have been written. The first that was not is a fault.
    #[inline(always)]
    pub(crate) fn read(
        &self,
        operand: &'static str,
        (lane, column): (u32, u32),
        faults: &mut Faults,
    ) -> u32 {
        if !self.known(lane, column) && faults.is_empty() {
            let lane = lane % LANES;
            faults.push(fault(TensorFault::UninitialisedCell { operand, lane, column }));
        }
        self.get(lane, column)
    }

    #[inline(always)]
    pub(crate) fn put(&mut self, lane: u32, column: u32, value: u32) {
        let lane = lane % LANES;
        self.cells[(lane * COLUMNS + column) as usize] = value;
        self.known[column as usize] |= 1 << lane;
    }

    /// The cells of some lanes in `columns` (first, count) must have been written.
    pub(crate) fn check_known(
        &self,
        operand: &'static str,
        lanes: u128,
        columns: (u32, u32),
        faults: &mut Faults,
    ) {
        for column in columns.0..columns.0 + columns.1 {
            let missing = lanes & !self.known[column as usize];
            if missing != 0 {
                let lane = missing.trailing_zeros();
                faults.push(fault(TensorFault::UninitialisedCell { operand, lane, column }));
                return;
            }
        }
    }

    /// Cells of a lane, in columns that follow each other.
    pub(crate) fn cells(&self, lane: u32, column: u32, count: usize) -> &[u32] {
        &self.cells[(lane * COLUMNS + column) as usize..][..count]
    }

    /// Writes cells of a lane.
    pub(crate) fn fill(&mut self, lane: u32, column: u32, values: &[u32]) {
        self.cells[(lane * COLUMNS + column) as usize..][..values.len()].copy_from_slice(values);
        for known in &mut self.known[column as usize..][..values.len()] {
            *known |= 1 << lane;
        }
    }

    /// A copy of something unwritten.
    pub(crate) fn unset(&mut self, lane: u32, column: u32) {
        self.known[column as usize] &= !(1 << (lane % LANES));
    }
}

/// Tensor memory of a CTA, shared by the operations that use it.
pub(crate) type Shared = Rc<RefCell<TensorMemory>>;
