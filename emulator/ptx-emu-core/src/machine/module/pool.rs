//! Constant pool under construction: immediates are rows, shared between the
//! instructions of a module, so that an operand is always a row.

use super::layout::Relocation;
use crate::machine::regs::{LANES, Pool, Slot};
use std::collections::HashMap;

/// Distinct immediates and addresses of a module.
#[derive(Debug, Default)]
pub(crate) struct PoolBuilder {
    w32: Vec<u32>,
    w64: Vec<u64>,
    index32: HashMap<u32, u32>,
    index64: HashMap<u64, u32>,
    /// Rows whose value is an address plus the number they hold.
    relocations32: Vec<(usize, Relocation)>,
    relocations64: Vec<(usize, Relocation)>,
    relocated32: HashMap<(Relocation, u32), u32>,
    relocated64: HashMap<(Relocation, u64), u32>,
}

impl PoolBuilder {
    pub(crate) fn u32(&mut self, value: u32) -> Slot {
        let rows = &mut self.w32;
        Slot::pooled(*self.index32.entry(value).or_insert_with(|| {
            rows.push(value);
            rows.len() as u32 - 1
        }))
    }

    pub(crate) fn u64(&mut self, value: u64) -> Slot {
        let rows = &mut self.w64;
        Slot::pooled(*self.index64.entry(value).or_insert_with(|| {
            rows.push(value);
            rows.len() as u32 - 1
        }))
    }

    pub(crate) fn address32(&mut self, symbol: Relocation, addend: u32) -> Slot {
        let (rows, relocations) = (&mut self.w32, &mut self.relocations32);
        Slot::pooled(*self.relocated32.entry((symbol, addend)).or_insert_with(|| {
            relocations.push((rows.len(), symbol));
            rows.push(addend);
            rows.len() as u32 - 1
        }))
    }

    pub(crate) fn address64(&mut self, symbol: Relocation, addend: u64) -> Slot {
        let (rows, relocations) = (&mut self.w64, &mut self.relocations64);
        Slot::pooled(*self.relocated64.entry((symbol, addend)).or_insert_with(|| {
            relocations.push((rows.len(), symbol));
            rows.push(addend);
            rows.len() as u32 - 1
        }))
    }

    /// The pool with addresses filled in.
    pub(crate) fn build(&self, address: impl Fn(Relocation) -> u64) -> Pool {
        let mut pool = Pool {
            w32: self.w32.iter().map(|&value| [value; LANES]).collect(),
            w64: self.w64.iter().map(|&value| [value; LANES]).collect(),
        };
        for &(row, symbol) in &self.relocations32 {
            pool.w32[row] = [self.w32[row].wrapping_add(address(symbol) as u32); LANES];
        }
        for &(row, symbol) in &self.relocations64 {
            pool.w64[row] = [self.w64[row].wrapping_add(address(symbol)); LANES];
        }
        pool
    }
}
