//! Tensor memory of a cluster: allocations, fences, loads under way. PTX ISA 9.7.16.7,
//! 9.7.16.8, 9.7.16.11.
//!
//! Every CTA has 128 lanes of 512 columns of its own: CTAs of an SM meet in it only
//! through `alloc`, and here they are never short of each other's columns.

use super::Site;
use super::engine::OpId;
use super::wgmma_tile::fault;
use super::{AsyncFault, Units};
use crate::diagnostic::{DiagnosticKind, Exec, Fault, TensorFault};
use crate::machine::Context;
use crate::machine::launch::Env;
use crate::machine::regs::{LANES as THREADS, Regs, Slot};
use std::cell::RefCell;
use std::rc::Rc;

pub(crate) use super::tensor_cells::{COLUMNS, LANES, Shared, TensorMemory, place, region, split};

/// Smallest allocation.
const LEAST: u32 = 32;

/// Columns that a CTA holds.
#[derive(Debug, Clone, Copy)]
struct Allocation {
    column: u32,
    columns: u32,
    site: Site,
}

/// A load whose registers have not been waited for.
#[derive(Debug)]
struct Load {
    slots: Vec<Slot>,
    pc: usize,
    /// Lanes that load.
    mask: u32,
    /// Its operation, once that is issued.
    id: Option<OpId>,
    values: Rc<RefCell<Vec<[u32; THREADS]>>>,
}

impl Load {
    /// Its registers get their values.
    fn finish(&self, regs: &mut Regs) {
        regs.let_go(&self.slots, false);
        for (slot, row) in self.slots.iter().zip(self.values.borrow().iter()) {
            regs.put(*slot, self.mask, row);
        }
    }
}

/// A load whose registers have their values and have not all been used.
#[derive(Debug)]
struct Unused {
    id: OpId,
    /// Places in the register file that nothing has read.
    rows: Vec<usize>,
}

/// The condition of an `alloc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColumnsWait {
    pub(crate) rank: u32,
    pub(crate) columns: u32,
    /// Whether the other CTA of the pair takes part.
    pub(crate) pair: bool,
}

/// Allocation of one CTA.
#[derive(Debug, Default)]
struct Holder {
    allocations: Vec<Allocation>,
    /// Size of the last allocation.
    last: Option<u32>,
    relinquished: bool,
    /// Columns that the CTA of a pair has asked for, and what both got.
    asked: Option<(u32, Site)>,
    granted: Option<u32>,
}

/// Tensor memory of a cluster.
#[derive(Debug, Default)]
pub(crate) struct TensorUnit {
    memories: Vec<Shared>,
    holders: Vec<Holder>,
    /// The `cta_group` that the kernel uses.
    group: Option<u32>,
    /// Loads by warp.
    loads: Vec<Vec<Load>>,
    /// Loads by warp that may come to be as good as waited for.
    unused: Vec<Vec<Unused>>,
}

fn misuse(operand: &'static str, required: impl Into<String>, actual: impl ToString) -> Box<Fault> {
    let fault =
        AsyncFault::Operand { operand, required: required.into(), actual: actual.to_string() };
    Fault::warp(DiagnosticKind::Async(fault))
}

impl TensorUnit {
    pub(crate) fn reset(&mut self, ctas: usize, warps: usize) {
        self.memories.resize_with(ctas, Shared::default);
        self.memories.iter().for_each(|memory| memory.borrow_mut().forget());
        self.holders.clear();
        self.holders.resize_with(ctas, Holder::default);
        self.group = None;
        self.loads.clear();
        self.loads.resize_with(warps, Vec::new);
        self.unused.clear();
        self.unused.resize_with(warps, Vec::new);
    }

    /// The tensor memory of a CTA.
    pub(crate) fn memory(&self, rank: u32) -> Shared {
        Rc::clone(&self.memories[rank as usize])
    }

    /// All `tcgen05` instructions of a kernel have one `cta_group`. Ranks of the
    /// CTAs that an instruction of the CTA of `rank` works on, the even one first.
    pub(crate) fn ranks(&mut self, group: u32, rank: u32) -> Exec<Vec<u32>> {
        let used = *self.group.get_or_insert(group);
        if used != group {
            return Err(misuse(
                "cta_group",
                format!("{used}, as the kernel's other tcgen05 instructions"),
                group,
            ));
        }
        if group == 1 {
            return Ok(vec![rank]);
        }
        let pair = vec![rank & !1, rank | 1];
        if pair[1] as usize >= self.memories.len() {
            let actual = format!("a cluster of {} CTAs", self.memories.len());
            return Err(misuse("cta_group::2", "a cluster of CTA pairs", actual));
        }
        Ok(pair)
    }

    fn free(&self, ranks: &[u32], columns: u32) -> Option<u32> {
        (0..COLUMNS).step_by(LEAST as usize).find(|&column| {
            column + columns <= COLUMNS
                && ranks.iter().all(|&rank| {
                    self.holders[rank as usize]
                        .allocations
                        .iter()
                        .all(|a| column + columns <= a.column || a.column + a.columns <= column)
                })
        })
    }

    fn grant(&mut self, rank: u32, column: u32, columns: u32, site: Site) {
        self.memories[rank as usize].borrow_mut().prepare(column, columns);
        self.holders[rank as usize].allocations.push(Allocation { column, columns, site });
    }

    /// `alloc`: the first column, or `None` when it has to wait.
    pub(crate) fn allocate(&mut self, wait: ColumnsWait, site: Site) -> Exec<Option<u32>> {
        let ColumnsWait { rank, columns, pair } = wait;
        let holder = &mut self.holders[rank as usize];
        if let Some(column) = holder.granted.take() {
            return Ok(Some(column));
        }
        if !columns.is_power_of_two() || !(LEAST..=COLUMNS).contains(&columns) {
            return Err(misuse("tcgen05.alloc: columns", "a power of two from 32 to 512", columns));
        }
        if holder.relinquished {
            return Err(misuse(
                "tcgen05.alloc",
                "no allocation after relinquish_alloc_permit",
                "one",
            ));
        }
        if holder.asked.is_none() {
            if let Some(last) = holder.last.filter(|&last| columns > last) {
                let required = format!("at most {last}, as the CTA's last allocation");
                return Err(misuse("tcgen05.alloc: columns", required, columns));
            }
            holder.last = Some(columns);
        }
        if !pair {
            let column = self.free(&[rank], columns);
            if let Some(column) = column {
                self.grant(rank, column, columns, site);
            }
            return Ok(column);
        }
        self.holders[rank as usize].asked = Some((columns, site));
        let other = rank ^ 1;
        let Some((theirs, their_site)) = self.holders[other as usize].asked else {
            return Ok(None);
        };
        if theirs != columns {
            let required = format!("{theirs}, as the other CTA of the pair");
            return Err(misuse("tcgen05.alloc: columns", required, columns));
        }
        let Some(column) = self.free(&[rank, other], columns) else {
            return Ok(None);
        };
        self.grant(rank, column, columns, site);
        self.grant(other, column, columns, their_site);
        self.holders[rank as usize].asked = None;
        self.holders[other as usize].asked = None;
        self.holders[other as usize].granted = Some(column);
        Ok(Some(column))
    }

    /// Whether an `alloc` that waits can go on.
    pub(crate) fn may_allocate(&self, wait: &ColumnsWait) -> bool {
        let ColumnsWait { rank, columns, pair } = *wait;
        let both = [rank, rank ^ 1];
        if !pair {
            return self.free(&both[..1], columns).is_some();
        }
        self.holders[rank as usize].granted.is_some()
            || self.holders[both[1] as usize].asked.is_some() && self.free(&both, columns).is_some()
    }

    /// `dealloc`
    pub(crate) fn deallocate(&mut self, rank: u32, address: u32, columns: u32) -> Exec {
        let (lane, column) = split(address);
        let allocations = &mut self.holders[rank as usize].allocations;
        let found = allocations.iter().position(|a| a.column == column && a.columns == columns);
        match found.filter(|_| lane == 0) {
            Some(at) => {
                allocations.swap_remove(at);
                Ok(())
            }
            None => {
                let held: Vec<String> = allocations
                    .iter()
                    .map(|a| format!("{} columns at {:#x}", a.columns, a.column))
                    .collect();
                let required = format!("one of the CTA's allocations ({})", held.join(", "));
                let actual = format!("{columns} columns at {address:#x}");
                Err(misuse("tcgen05.dealloc", required, actual))
            }
        }
    }

    /// `relinquish_alloc_permit`
    pub(crate) fn relinquish(&mut self, rank: u32) -> Exec {
        if std::mem::replace(&mut self.holders[rank as usize].relinquished, true) {
            return Err(misuse(
                "tcgen05.relinquish_alloc_permit",
                "once in a CTA",
                "a second time",
            ));
        }
        Ok(())
    }

    /// Columns must be allocated in a CTA.
    pub(crate) fn check_allocated(
        &self,
        operand: &'static str,
        rank: u32,
        column: u32,
        columns: u32,
    ) -> Exec {
        let allocations = &self.holders[rank as usize].allocations;
        let mut at = column;
        while at < column + columns {
            match allocations.iter().find(|a| (a.column..a.column + a.columns).contains(&at)) {
                Some(a) => at = a.column + a.columns,
                None => {
                    let kind = TensorFault::Unallocated { operand, column, columns, rank };
                    return Err(fault(kind));
                }
            }
        }
        Ok(())
    }

    /// A load was issued.
    pub(crate) fn add_load(
        &mut self,
        warp: usize,
        pc: usize,
        mask: u32,
        slots: Vec<Slot>,
    ) -> Rc<RefCell<Vec<[u32; THREADS]>>> {
        let values = Rc::default();
        let load = Load { slots, pc, mask, id: None, values: Rc::clone(&values) };
        self.loads[warp].push(load);
        values
    }

    /// The last load of a warp was issued as an operation.
    pub(crate) fn load_issued(&mut self, warp: usize, id: OpId) {
        if let Some(load) = self.loads[warp].last_mut() {
            load.id = Some(id);
        }
    }

    /// The loads of a warp have been waited for.
    pub(crate) fn finish_loads(&mut self, warp: usize, regs: &mut Regs) {
        self.loads[warp].drain(..).for_each(|load| load.finish(regs));
        self.unused[warp].clear();
        regs.watch.expects_uses(false);
    }

    /// Registers of a warp are used, or written if `write`: the loads all of whose registers have
    /// been used now. One of which a register is written before it is used will never be among
    /// them.
    fn used(&mut self, warp: usize, row: usize, write: bool) -> Vec<OpId> {
        let mut over = Vec::new();
        self.unused[warp].retain_mut(|load| {
            let Some(at) = load.rows.iter().position(|&other| other == row) else { return true };
            if write {
                return false;
            }
            load.rows.swap_remove(at);
            if load.rows.is_empty() {
                over.push(load.id);
            }
            !load.rows.is_empty()
        });
        over
    }

    /// The load that has a register in flight.
    pub(crate) fn load_of(&self, warp: usize, slot: Slot) -> Option<usize> {
        self.loads[warp].iter().find(|load| load.slots.contains(&slot)).map(|load| load.pc)
    }
}

impl Context<'_> {
    /// The values of a load are needed, of the one that has a register in flight or of all:
    /// registers depend on their loads without a wait. Other users of the tensor memory must wait
    /// for its `wait::ld`, behind which the load's reads are over.
    pub(crate) fn deliver_load(&mut self, slot: Option<Slot>) -> Exec {
        let warp = self.warp();
        let wanted = |load: &Load| slot.is_none_or(|slot| load.slots.contains(&slot));
        while let Some(at) = self.units.tensor.loads[warp].iter().position(wanted) {
            let load = self.units.tensor.loads[warp].remove(at);
            if let Some(id) = load.id {
                self.with_units(|units, machine| units.read_now(id, machine))?;
            }
            load.finish(self.regs);
            if let (Some(id), Some(races)) = (load.id, &self.units.races)
                && !races.is_strict()
            {
                let rows = load.slots.iter().filter_map(|&slot| self.regs.absolute(slot)).collect();
                self.units.tensor.unused[warp].push(Unused { id, rows });
                self.regs.watch.expects_uses(true);
            }
        }
        Ok(())
    }

    /// The executing instruction reads a register, or writes it. On hardware a load whose registers
    /// have all been read is over, as behind its `wait::ld`.
    #[cold]
    pub(crate) fn used_register(&mut self, row: usize, write: bool) {
        let warp = self.warp();
        for id in self.units.tensor.used(warp, row, write) {
            if let Some(races) = &mut self.units.races {
                races.acquire_load(warp, id as u32);
            }
        }
        if self.units.tensor.unused[warp].is_empty() {
            self.regs.watch.expects_uses(false);
        }
    }
}

impl Units {
    /// A CTA ends: its tensor memory must be free.
    pub(crate) fn check_freed(&self, env: &Env<'_>, rank: u32) -> Exec {
        match self.tensor.holders[rank as usize].allocations.first() {
            None => Ok(()),
            Some(&Allocation { column, columns, site }) => {
                let operation = self.site(env, "tcgen05.alloc", site);
                let fault = fault(TensorFault::NotFreed { column, columns, operation });
                self.report(env, (site.pc, site.warp), fault.at(site))
            }
        }
    }
}
