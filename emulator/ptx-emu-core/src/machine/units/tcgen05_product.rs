//! The work of `tcgen05.mma`: PTX ISA 9.7.16.10.
//!
//! With `cta_group::2` each CTA of the pair has half of the rows of `A` and `D` and of
//! the columns of `B`; all columns of `B` meet all rows. Operands are taken in the
//! operation's read step, which the earlier operations of the thread come before; the
//! accumulator is its own until the write step.

use super::engine::{StepContext, Work};
use super::tensor_memory::{Shared, TensorMemory};
use super::wgmma_tile::SharedTile;
use crate::diagnostic::{Exec, Faults};
use crate::tensor::element::Element;
use crate::tensor::instruction::{Accumulator, InstructionDescriptor, Scaling};
use crate::tensor::product::{
    Addend, FloatColumns, FloatRows, multiply_f16, multiply_f32, multiply_i32,
};
use crate::tensor::tile::{Packing, Tile};
use crate::tensor::tmem::{DataPath, scale, scale_halves};

/// A place in tensor memory: lane and column.
pub(crate) type Cell = (u32, u32);

/// The place of `A`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tcgen05A {
    /// Shared memory of each CTA.
    Shared,
    /// Tensor memory of each CTA.
    Tensor(Cell),
}

/// One CTA's part of a product.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) memory: Shared,
    /// `A`, if it is in shared memory.
    pub(crate) a: Option<SharedTile>,
    /// The CTA's columns of `B`.
    pub(crate) b: SharedTile,
    /// Lanes of `D` that are not written.
    pub(crate) disabled: u128,
    pub(crate) a_bytes: Vec<u8>,
    /// Scales of the rows of `A` and the columns of `B`, each row's along K.
    pub(crate) scales: [Vec<f64>; 2],
}

/// A part of a row of `D` that lies in one lane.
#[derive(Debug, Clone, Copy)]
struct Strip {
    lane: u32,
    column: u32,
    /// Number of its first element in `D`, row-major.
    at: usize,
    width: usize,
}

/// `tcgen05.mma`
#[derive(Debug)]
pub(crate) struct ProductWork {
    pub(crate) descriptor: InstructionDescriptor,
    pub(crate) path: DataPath,
    pub(crate) d: Cell,
    pub(crate) a: Tcgen05A,
    /// Columns of the scales of `A` and `B`.
    pub(crate) scales: Option<(u32, u32)>,
    pub(crate) addend: Addend,
    pub(crate) parts: Vec<Part>,
    /// All columns of `B`.
    pub(crate) b_bytes: Vec<u8>,
}

/// Bits of an element of `A` in tensor memory: 4- and 6-bit types take a byte where
/// types can be mixed.
pub(crate) const fn tensor_container(element: Element, packing: Packing) -> u32 {
    match packing {
        Packing::Padded => 8,
        Packing::Dense => element.bits(),
    }
}

impl ProductWork {
    /// `A` of a CTA out of its tensor memory.
    fn tensor_a(
        &self,
        memory: &TensorMemory,
        (lane, column): Cell,
        faults: &mut Faults,
    ) -> Vec<u8> {
        let kind = self.descriptor.kind;
        let cells = kind.k() as u32 * tensor_container(self.descriptor.a, kind.packing()) / 32;
        let mut bytes = Vec::new();
        for row in 0..self.path.rows() as u32 {
            let lane = lane + self.path.a_lane(row);
            for cell in 0..cells {
                let word = memory.read("matrix A in tensor memory", (lane, column + cell), faults);
                bytes.extend(word.to_le_bytes());
            }
        }
        bytes
    }

    /// The scales of `A`'s rows, each row's along K: a row is multiplied in the quarter
    /// of the lanes that it lies in, with that quarter's copy.
    fn scales_a(
        &self,
        memory: &TensorMemory,
        base: u32,
        scaling: Scaling,
        faults: &mut Faults,
    ) -> Vec<f64> {
        let count = self.descriptor.kind.scale_vec().map_or(0, |vec| vec.count());
        let mut values = Vec::new();
        for row in 0..self.path.rows() as u32 {
            let quarter = row / 32 * 32;
            for index in 0..count as u32 {
                let at = scale(4, row, index + scaling.a_id);
                let lane = at.cell.lane + quarter;
                let word = memory.read("scales of A", (lane, base + at.cell.column), faults);
                values.push(scaling.scale.value((word >> (8 * at.byte)) as u8));
            }
        }
        values
    }

    /// The scales of `B`'s columns. All copies must have been written.
    fn scales_b(
        &self,
        memory: &TensorMemory,
        base: u32,
        scaling: Scaling,
        faults: &mut Faults,
    ) -> Vec<f64> {
        let count = self.descriptor.kind.scale_vec().map_or(0, |vec| vec.count());
        let n = self.descriptor.n as u32;
        let halves = self.path == DataPath::Halves;
        let mut values = Vec::new();
        for column in 0..n {
            for index in 0..count as u32 {
                let index = index + scaling.b_id;
                let (at, copies) = if halves {
                    (scale_halves(n, column, index), 2)
                } else {
                    (scale(n.next_multiple_of(128) / 32, column, index), 4)
                };
                let mut word = 0;
                for copy in (0..copies).rev() {
                    let lane = at.cell.lane + 32 * copy;
                    word = memory.read("scales of B", (lane, base + at.cell.column), faults);
                }
                values.push(scaling.scale.value((word >> (8 * at.byte)) as u8));
            }
        }
        values
    }

    fn tile<'a>(&self, element: Element, rows: usize, negate: bool, bytes: &'a [u8]) -> Tile<'a> {
        let kind = self.descriptor.kind;
        let container = tensor_container(element, kind.packing());
        Tile { element, container, rows, k: kind.k(), bytes, negate }
    }

    /// Returns the place of `D`, except disabled lanes.
    fn strips(&self, disabled: u128) -> Vec<Strip> {
        let (n, width) = (self.descriptor.n, self.path.columns(self.descriptor.n));
        let mut strips = Vec::new();
        for (row, first) in
            (0..self.path.rows()).flat_map(|row| (0..n).step_by(width).map(move |at| (row, at)))
        {
            let cell = self.path.accumulator(n as u32, row as u32, first as u32);
            let lane = (self.d.0 + cell.lane) % 128;
            if disabled >> lane & 1 == 0 {
                let column = self.d.1 + cell.column;
                strips.push(Strip { lane, column, at: row * n + first, width });
            }
        }
        strips
    }

    /// One CTA's rows of `D`.
    fn part(&self, part: &Part, columns: &mut FloatColumns, faults: &mut Faults) {
        let InstructionDescriptor { kind, n, .. } = self.descriptor;
        let mut memory = part.memory.borrow_mut();
        let rows = self.path.rows();
        let mut left = FloatRows::default();
        let InstructionDescriptor { a, negate_a, .. } = self.descriptor;
        self.tile(a, rows, negate_a, &part.a_bytes).float_rows(&mut left);
        if let Some(vec) = kind.scale_vec() {
            let (count, block) = (vec.count(), kind.k() / vec.count());
            let [a, b] = &part.scales;
            left.scale(block, |row, at| a[row * count + at]);
            columns.scale(block, |column, at| b[column * count + at]);
        }
        let strips = self.strips(part.disabled);
        let mut old = vec![0; rows * n];
        if self.addend != Addend::Zero {
            let lanes = strips.iter().fold(0, |lanes, strip| lanes | 1 << strip.lane);
            let columns = (self.d.1, self.path.columns(n) as u32);
            memory.check_known("accumulator D", lanes, columns, faults);
            for strip in &strips {
                let cells = memory.cells(strip.lane, strip.column, strip.width);
                old[strip.at..][..strip.width].copy_from_slice(cells);
            }
        }
        let new: Vec<u32> = match self.descriptor.d {
            Accumulator::F32 => {
                let mut d: Vec<f32> = old.into_iter().map(f32::from_bits).collect();
                multiply_f32(&left, columns, self.addend, &mut d);
                d.into_iter().map(f32::to_bits).collect()
            }
            Accumulator::F16 => {
                let mut d: Vec<u16> = old.into_iter().map(|word| word as u16).collect();
                multiply_f16(&left, columns, self.addend, &mut d);
                d.into_iter().map(u32::from).collect()
            }
            Accumulator::S32 => {
                let mut d: Vec<i32> = old.into_iter().map(|word| word as i32).collect();
                let add = self.addend != Addend::Zero;
                multiply_i32(&left, columns, add, self.descriptor.saturate, &mut d);
                d.into_iter().map(|value| value as u32).collect()
            }
        };
        for strip in &strips {
            memory.fill(strip.lane, strip.column, &new[strip.at..][..strip.width]);
        }
    }
}

impl Work for ProductWork {
    fn read(&mut self, context: &mut StepContext<'_>) -> Exec {
        let mut parts = std::mem::take(&mut self.parts);
        for part in &mut parts {
            let memory = part.memory.borrow();
            part.a_bytes = match (&part.a, self.a) {
                (Some(tile), _) => tile.gather(context)?,
                (None, Tcgen05A::Tensor(cell)) => self.tensor_a(&memory, cell, &mut context.faults),
                (None, Tcgen05A::Shared) => Vec::new(),
            };
            if let (Some((a, b)), Some(scaling)) = (self.scales, self.descriptor.scaling) {
                let faults = &mut context.faults;
                let a = self.scales_a(&memory, a, scaling, faults);
                part.scales = [a, self.scales_b(&memory, b, scaling, faults)];
            }
            self.b_bytes.extend(part.b.gather(context)?);
        }
        self.parts = parts;
        Ok(())
    }

    fn write(&mut self, context: &mut StepContext<'_>) -> Exec {
        let InstructionDescriptor { kind, b, n, negate_b, .. } = self.descriptor;
        let mut columns = FloatColumns::default();
        for (at, part) in self.parts.iter().enumerate() {
            // Each CTA has scales of its own for the columns of `B`.
            if at == 0 || kind.scale_vec().is_some() {
                self.tile(b, n, negate_b, &self.b_bytes).float_columns(&mut columns);
            }
            self.part(part, &mut columns, &mut context.faults);
        }
        Ok(())
    }
}
