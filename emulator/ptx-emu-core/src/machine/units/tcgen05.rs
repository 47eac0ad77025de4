//! Moving data into, out of and within tensor memory: the work of `tcgen05.ld`, `.st`,
//! `.cp` and `.shift`. PTX ISA 9.7.16.8, 9.7.16.9.

use super::engine::{StepContext, Work};
use super::tensor_memory::Shared;
use crate::diagnostic::Exec;
use crate::machine::regs::LANES as THREADS;
use crate::tensor::element::Element;
use crate::tensor::shared::{Major, Operand, SharedDescriptor};
use crate::tensor::tile::Packing;
use crate::tensor::tmem::{CopyShape, LoadShape};
use std::cell::RefCell;
use std::rc::Rc;

/// The map of `tcgen05.ld` and `.st` from the registers of a warp to cells.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) shape: LoadShape,
    pub(crate) registers: u32,
    /// `.pack::16b`, `.unpack::16b`
    pub(crate) halves: bool,
}

impl Access {
    /// First columns and number of columns of the cells.
    pub(crate) fn columns(&self) -> Vec<(u32, u32)> {
        let widest = |thread: u32| {
            let register = self.registers - 1;
            if self.halves {
                self.shape.packed_cells(thread, register)[1].column + 1
            } else {
                self.shape.cell(thread, register).column + 1
            }
        };
        match self.shape {
            LoadShape::L16x32bx2 { offset } => {
                let width = widest(0);
                vec![(0, width), (offset, width)]
            }
            _ => vec![(0, widest(THREADS as u32 - 1))],
        }
    }
}

/// `tcgen05.ld`
#[derive(Debug)]
pub(crate) struct LoadWork {
    pub(crate) memory: Shared,
    pub(crate) access: Access,
    pub(crate) lane: u32,
    pub(crate) column: u32,
    /// Lanes of the warp that exist.
    pub(crate) mask: u32,
    pub(crate) values: Rc<RefCell<Vec<[u32; THREADS]>>>,
}

impl Work for LoadWork {
    fn read(&mut self, context: &mut StepContext<'_>) -> Exec {
        let memory = self.memory.borrow();
        let faults = &mut context.faults;
        let mut values = self.values.borrow_mut();
        let Access { shape, registers, halves } = self.access;
        for register in 0..registers {
            let mut row = [0; THREADS];
            for (thread, value) in row.iter_mut().enumerate() {
                if self.mask >> thread & 1 == 0 {
                    continue;
                }
                let mut at = |cell: crate::tensor::tmem::Cell| {
                    let cell = (self.lane + cell.lane, self.column + cell.column);
                    memory.read("tcgen05.ld", cell, faults)
                };
                *value = if halves {
                    let [low, high] = shape.packed_cells(thread as u32, register);
                    at(low) & 0xffff | at(high) << 16
                } else {
                    at(shape.cell(thread as u32, register))
                };
            }
            values.push(row);
        }
        Ok(())
    }

    fn write(&mut self, _: &mut StepContext<'_>) -> Exec {
        Ok(())
    }
}

/// `tcgen05.st`
#[derive(Debug)]
pub(crate) struct StoreWork {
    pub(crate) memory: Shared,
    pub(crate) access: Access,
    pub(crate) lane: u32,
    pub(crate) column: u32,
    pub(crate) mask: u32,
    pub(crate) values: Vec<[u32; THREADS]>,
}

impl Work for StoreWork {
    fn read(&mut self, _: &mut StepContext<'_>) -> Exec {
        Ok(())
    }

    fn write(&mut self, _: &mut StepContext<'_>) -> Exec {
        let mut memory = self.memory.borrow_mut();
        let Access { shape, halves, .. } = self.access;
        for (register, row) in self.values.iter().enumerate() {
            for (thread, &value) in row.iter().enumerate() {
                if self.mask >> thread & 1 == 0 {
                    continue;
                }
                let (thread, register) = (thread as u32, register as u32);
                if halves {
                    let [low, high] = shape.packed_cells(thread, register);
                    memory.put(self.lane + low.lane, self.column + low.column, value & 0xffff);
                    memory.put(self.lane + high.lane, self.column + high.column, value >> 16);
                } else {
                    let cell = shape.cell(thread, register);
                    memory.put(self.lane + cell.lane, self.column + cell.column, value);
                }
            }
        }
        Ok(())
    }
}

/// The source tile of `tcgen05.cp` in one CTA.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopySource {
    pub(crate) shape: CopyShape,
    pub(crate) descriptor: SharedDescriptor,
    /// Bits of the elements that are unpacked to bytes: 4 or 6.
    pub(crate) unpack: Option<u32>,
    pub(crate) rank: u32,
}

impl CopySource {
    /// The tile as a K-major operand.
    pub(crate) fn operand(&self) -> Operand {
        let (element, packing) = match self.unpack {
            Some(4) => (Element::E2m1, Packing::Padded),
            Some(_) => (Element::E2m3, Packing::Padded),
            None => (Element::E4m3, Packing::Dense),
        };
        let k = self.shape.columns() as usize * 4;
        Operand { element, packing, major: Major::K, rows: self.shape.rows() as usize, k }
    }
}

/// `tcgen05.cp`: of each CTA from its own shared to its own tensor memory.
#[derive(Debug)]
pub(crate) struct CopyWork {
    pub(crate) sources: Vec<(CopySource, Shared)>,
    pub(crate) lane: u32,
    pub(crate) column: u32,
    /// Cells of each CTA's tile, row after row; `None` for ones never written.
    pub(crate) taken: Vec<Vec<Option<u32>>>,
}

/// The cells of a chunk of 16 bytes; those with unwritten bytes are `None`.
fn chunk_cells(source: &CopySource, chunk: [u8; 16], missing: u64) -> [Option<u32>; 4] {
    let code = u128::from_le_bytes(chunk);
    std::array::from_fn(|cell| {
        let Some(bits) = source.unpack else {
            let known = missing >> (4 * cell) & 0xf == 0;
            return known.then(|| (code >> (32 * cell)) as u32);
        };
        let first = cell as u32 * 4 * bits;
        let used = first / 8..(first + 4 * bits).div_ceil(8);
        if used.clone().any(|byte| missing >> byte & 1 != 0) {
            return None;
        }
        let element = |at: u32| (code >> (first + at * bits)) as u32 & ((1 << bits) - 1);
        Some((0..4).fold(0, |word, at| word | element(at) << (8 * at)))
    })
}

impl Work for CopyWork {
    fn read(&mut self, context: &mut StepContext<'_>) -> Exec {
        for (source, _) in &self.sources {
            let memory = &context.shared[source.rank as usize];
            let mut cells = Vec::new();
            let (rows, chunks) = (source.shape.rows(), source.shape.columns() / 4);
            for row in 0..rows {
                for chunk in 0..chunks {
                    let address = source.descriptor.address(Major::K, row, chunk) as usize;
                    let missing = memory.uninitialised_bits(address, 16) >> (address & 63);
                    let mut bytes = [0; 16];
                    memory.copy_out(address, &mut bytes);
                    cells.extend(chunk_cells(source, bytes, missing));
                }
            }
            context.stats.space(crate::diagnostic::Space::Shared).bytes_read +=
                u64::from(rows * chunks * 16);
            self.taken.push(cells);
        }
        Ok(())
    }

    fn write(&mut self, _: &mut StepContext<'_>) -> Exec {
        for ((source, memory), cells) in self.sources.iter().zip(&self.taken) {
            let mut memory = memory.borrow_mut();
            let columns = source.shape.columns();
            for (at, cell) in cells.iter().enumerate() {
                let (row, column) = (at as u32 / columns, at as u32 % columns);
                let (first, copies, distance) = source.shape.lanes(row);
                for copy in 0..copies {
                    let lane = self.lane + first + copy * distance;
                    match cell {
                        Some(value) => memory.put(lane, self.column + column, *value),
                        None => memory.unset(lane, self.column + column),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Columns that `tcgen05.shift` moves.
pub(crate) const SHIFTED: u32 = 8;
/// Lanes among which it moves them.
pub(crate) const SHIFT_LANES: u32 = 32;

/// `tcgen05.shift.down`: 32 bytes of every lane of a quarter but the last go one lane
/// on (the shape is `.31x256b`).
#[derive(Debug)]
pub(crate) struct ShiftWork {
    pub(crate) memories: Vec<Shared>,
    pub(crate) lane: u32,
    pub(crate) column: u32,
}

impl Work for ShiftWork {
    fn read(&mut self, _: &mut StepContext<'_>) -> Exec {
        Ok(())
    }

    fn write(&mut self, _: &mut StepContext<'_>) -> Exec {
        for memory in &self.memories {
            let mut memory = memory.borrow_mut();
            for column in self.column..self.column + SHIFTED {
                for lane in (self.lane + 1..self.lane + SHIFT_LANES).rev() {
                    if memory.known(lane - 1, column) {
                        let value = memory.get(lane - 1, column);
                        memory.put(lane, column, value);
                    } else {
                        memory.unset(lane, column);
                    }
                }
            }
        }
        Ok(())
    }
}
