//! Asynchronous warpgroup products: state and work. PTX ISA 9.7.15.
//!
//! Each warp of a warpgroup computes its own 16 rows of `D`, as an operation of its
//! own that comes after the warp's earlier ones. Registers are read at issue; the
//! sums of an accumulator stay with its operations and come back to the registers
//! when the warp has waited for the group of the last of them. Between, the registers
//! are in flight (see [`Watch`](crate::machine::regs::Watch)).

use super::engine::{StepContext, Work};
use super::groups::GroupWait;
use super::wgmma_panels::SharedPanels;
use super::wgmma_tile::SharedTile;
use crate::diagnostic::{AsyncFault, DiagnosticKind, Exec, Fault};
use crate::machine::Context;
use crate::machine::regs::{LANES, Regs, Slot};
use crate::tensor::aligned::Adder;
use crate::tensor::element::Element;
use crate::tensor::fragment;
use crate::tensor::product::{Addend, FloatColumns, FloatRows, multiply_i32};
use crate::tensor::tile::Tile;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Rows of `D` that a warp computes.
pub(crate) const ROWS: usize = 16;
/// Warps of a warpgroup.
pub(crate) const WARPS: usize = 4;

/// Elements of an accumulator, row-major.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sums {
    F32(Vec<f32>),
    F16(Vec<u16>),
    S32(Vec<i32>),
}

impl Sums {
    /// `D = A * B (+ D)` of elements of these types.
    fn multiply(
        &mut self,
        (a, left): (&FloatRows, Element),
        (b, right): (&FloatColumns, Element),
        addend: Addend,
        saturate: bool,
    ) {
        match self {
            Self::F32(d) => Adder::new(left, right, false).multiply_f32(a, b, addend, d),
            Self::F16(d) => Adder::new(left, right, true).multiply_f16(a, b, addend, d),
            Self::S32(d) => multiply_i32(a, b, addend != Addend::Zero, saturate, d),
        }
    }
}

/// Type of `D`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SumType {
    F32,
    F16,
    S32,
}

/// The accumulator of a warp in its registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Accumulator {
    pub(crate) ty: SumType,
    /// Columns of `D`.
    pub(crate) n: usize,
    pub(crate) slots: Vec<Slot>,
}

impl Accumulator {
    /// Takes the elements out of the registers.
    pub(crate) fn read(&self, regs: &Regs) -> Sums {
        let n = self.n;
        let cells = |lane, index| {
            let (row, column) = fragment::accumulator(lane, index);
            row * n + column
        };
        let words = self.slots.iter().map(|&slot| regs.row32(slot)).enumerate();
        match self.ty {
            SumType::F32 => {
                let mut d = vec![0.0; ROWS * n];
                words.for_each(|(i, row)| {
                    (0..LANES).for_each(|l| d[cells(l, i)] = f32::from_bits(row[l]));
                });
                Sums::F32(d)
            }
            SumType::S32 => {
                let mut d = vec![0; ROWS * n];
                words.for_each(|(i, row)| (0..LANES).for_each(|l| d[cells(l, i)] = row[l] as i32));
                Sums::S32(d)
            }
            SumType::F16 => {
                let mut d = vec![0; ROWS * n];
                words.for_each(|(i, row)| {
                    for l in 0..LANES {
                        d[cells(l, 2 * i)] = row[l] as u16;
                        d[cells(l, 2 * i + 1)] = (row[l] >> 16) as u16;
                    }
                });
                Sums::F16(d)
            }
        }
    }

    fn zeros(&self) -> Sums {
        let count = ROWS * self.n;
        match self.ty {
            SumType::F32 => Sums::F32(vec![0.0; count]),
            SumType::F16 => Sums::F16(vec![0; count]),
            SumType::S32 => Sums::S32(vec![0; count]),
        }
    }

    /// Puts the elements into the registers.
    fn write(&self, sums: &Sums, regs: &mut Regs, mask: u32) {
        let n = self.n;
        let at = |lane, index| {
            let (row, column) = fragment::accumulator(lane, index);
            row * n + column
        };
        for (i, &slot) in self.slots.iter().enumerate() {
            let row: [u32; LANES] = std::array::from_fn(|lane| match sums {
                Sums::F32(d) => d[at(lane, i)].to_bits(),
                Sums::S32(d) => d[at(lane, i)] as u32,
                Sums::F16(d) => {
                    u32::from(d[at(lane, 2 * i)]) | u32::from(d[at(lane, 2 * i + 1)]) << 16
                }
            });
            regs.put(slot, mask, &row);
        }
    }
}

/// `A` of an operation: 16 rows.
#[derive(Debug)]
pub(crate) enum WgmmaA {
    /// Registers: containers, row after row.
    Registers { element: Element, k: usize, bytes: Vec<u8>, negate: bool },
    /// Shared memory.
    Shared(SharedTile),
}

/// `A` of one warp out of its registers: containers, row after row.
pub(crate) fn registers_a(regs: &Regs, slots: &[Slot], element: Element, k: usize) -> Vec<u8> {
    let bits = element.bits();
    let row_bytes = k * bits as usize / 8;
    let mut bytes = vec![0; ROWS * row_bytes];
    for (j, &slot) in slots.iter().enumerate() {
        for (lane, word) in regs.row32(slot).iter().enumerate() {
            let (row, at) = fragment::wgmma_a(0, lane, j, bits);
            let start = row * row_bytes + at * bits as usize / 8;
            bytes[start..start + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

/// One warp's part of `wgmma.mma_async`.
#[derive(Debug)]
pub(crate) struct WarpProduct {
    pub(crate) a: WgmmaA,
    pub(crate) b: SharedTile,
    pub(crate) addend: Addend,
    pub(crate) saturate: bool,
    pub(crate) sums: Rc<RefCell<Sums>>,
    /// Decoded tiles of the cluster.
    pub(crate) cache: SharedPanels,
    pub(crate) panels: Option<(FloatRows, Rc<FloatColumns>)>,
}

impl Work for WarpProduct {
    fn read(&mut self, context: &mut StepContext<'_>) -> Exec {
        let mut rows = FloatRows::default();
        match &self.a {
            WgmmaA::Shared(tile) => tile.tile(&tile.gather(context)?).float_rows(&mut rows),
            WgmmaA::Registers { element, k, bytes, negate } => Tile {
                element: *element,
                container: element.bits(),
                rows: ROWS,
                k: *k,
                bytes,
                negate: *negate,
            }
            .float_rows(&mut rows),
        }
        let bytes = self.b.gather(context)?;
        let columns = self.cache.borrow_mut().columns(&self.b.tile(&bytes));
        self.panels = Some((rows, columns));
        Ok(())
    }

    fn write(&mut self, _: &mut StepContext<'_>) -> Exec {
        if let Some((rows, columns)) = self.panels.take() {
            let left = match &self.a {
                WgmmaA::Registers { element, .. } => *element,
                WgmmaA::Shared(tile) => tile.operand.element,
            };
            let (left, right) = ((&rows, left), (&*columns, self.b.operand.element));
            self.sums.borrow_mut().multiply(left, right, self.addend, self.saturate);
        }
        Ok(())
    }
}

/// An accumulator in flight.
#[derive(Debug)]
struct Batch {
    accumulator: Accumulator,
    sums: Rc<RefCell<Sums>>,
    /// Group of the last operation.
    group: u32,
    pc: usize,
}

/// `A` registers in flight.
#[derive(Debug)]
struct Held {
    slots: Vec<Slot>,
    group: u32,
    pc: usize,
}

/// The operations of a warp in flight.
#[derive(Debug, Default)]
struct InFlight {
    batches: Vec<Batch>,
    held: Vec<Held>,
}

/// The instructions that the warps of a warpgroup have executed.
#[derive(Debug, Clone, Default)]
struct Log {
    /// Number of the first entry.
    base: u64,
    entries: VecDeque<usize>,
    counts: [u64; WARPS],
}

/// State of `wgmma` in a cluster.
#[derive(Debug, Default)]
pub(crate) struct Wgmma {
    /// Decoded tiles.
    pub(crate) panels: SharedPanels,
    warps: Vec<InFlight>,
    logs: Vec<Log>,
    warps_per_cta: usize,
}

impl Wgmma {
    pub(crate) fn reset(&mut self, ctas: usize, warps_per_cta: usize) {
        self.warps_per_cta = warps_per_cta;
        self.warps.clear();
        self.warps.resize_with(ctas * warps_per_cta, InFlight::default);
        self.logs.clear();
        self.logs.resize(ctas * warps_per_cta.div_ceil(WARPS), Log::default());
    }

    /// A warp executes the instruction at `pc`, as the other warps of its
    /// warpgroup must.
    fn log(&mut self, warp: usize, pc: usize) -> Result<(), DiagnosticKind> {
        let (cta, within) = (warp / self.warps_per_cta, warp % self.warps_per_cta);
        let misuse = |required: &str, actual: String| {
            DiagnosticKind::Async(AsyncFault::Operand {
                operand: "warpgroup",
                required: required.to_owned(),
                actual,
            })
        };
        if within / WARPS * WARPS + WARPS > self.warps_per_cta {
            return Err(misuse(
                "four warps, the first a multiple of four",
                format!("a CTA of {} warps", self.warps_per_cta),
            ));
        }
        let log = &mut self.logs[cta * self.warps_per_cta.div_ceil(WARPS) + within / WARPS];
        let count = &mut log.counts[within % WARPS];
        let at = (*count - log.base) as usize;
        *count += 1;
        match log.entries.get(at) {
            None => log.entries.push_back(pc),
            Some(&other) if other == pc => {}
            Some(_) => {
                return Err(misuse(
                    "the same wgmma instructions in all four warps",
                    "another warp of the warpgroup executed a different one".to_owned(),
                ));
            }
        }
        let least = log.counts.iter().min().copied().unwrap_or(0);
        while log.base < least {
            log.entries.pop_front();
            log.base += 1;
        }
        Ok(())
    }

    /// The `wgmma` that has a register in flight.
    pub(super) fn holder(&self, warp: usize, slot: Slot) -> Option<usize> {
        let state = &self.warps[warp];
        let batch = state.batches.iter().find(|b| b.accumulator.slots.contains(&slot));
        let held = || state.held.iter().find(|held| held.slots.contains(&slot));
        batch.map(|batch| batch.pc).or_else(|| held().map(|held| held.pc))
    }

    /// A CTA ended: an instruction that only some warps of a warpgroup executed.
    pub(crate) fn uneven(&self, rank: u32) -> Option<(usize, usize)> {
        let groups = self.warps_per_cta.div_ceil(WARPS);
        let first = rank as usize * groups;
        self.logs[first..first + groups].iter().enumerate().find_map(|(group, log)| {
            let most = log.counts.iter().max()?;
            let ahead = log.counts.iter().position(|count| count == most)?;
            let pc = *log.entries.front()?;
            Some((pc, rank as usize * self.warps_per_cta + group * WARPS + ahead))
        })
    }
}

impl Context<'_> {
    /// Logs a `wgmma` instruction with the warpgroup.
    pub(crate) fn wgmma_log(&mut self) -> Exec {
        let (warp, pc) = (self.warp(), self.pc);
        self.units.wgmma.log(warp, pc).map_err(Fault::warp)
    }

    /// Takes an accumulator for another operation of group `group`: the sums that
    /// are in flight already, or those of the registers. `fresh`: the old elements
    /// do not matter. Checks that nothing else uses the registers.
    pub(crate) fn wgmma_take(
        &mut self,
        accumulator: &Accumulator,
        a: &[Slot],
        group: u32,
        fresh: bool,
    ) -> Exec<Rc<RefCell<Sums>>> {
        let (warp, pc) = (self.warp(), self.pc);
        let chained =
            self.units.wgmma.warps[warp].batches.iter().position(|b| b.accumulator == *accumulator);
        if chained.is_none() {
            self.check_registers(&accumulator.slots, false)?;
            self.check_fenced(&accumulator.slots, "accumulator")?;
        }
        // Others may read the same A, but no accumulator in flight may be one.
        self.check_registers(a, true)?;
        self.check_fenced(a, "matrix A")?;
        if !a.is_empty() {
            self.regs.hold(a, true);
            let held = Held { slots: a.to_vec(), group, pc };
            self.units.wgmma.warps[warp].held.push(held);
        }
        let batches = &mut self.units.wgmma.warps[warp].batches;
        if let Some(at) = chained {
            batches[at].group = group;
            batches[at].pc = pc;
            return Ok(Rc::clone(&batches[at].sums));
        }
        let sums = if fresh { accumulator.zeros() } else { accumulator.read(self.regs) };
        let sums = Rc::new(RefCell::new(sums));
        batches.push(Batch { accumulator: accumulator.clone(), sums: Rc::clone(&sums), group, pc });
        self.regs.hold(&accumulator.slots, false);
        Ok(sums)
    }

    /// The warp has waited for groups: their registers are its own again.
    pub(crate) fn wgmma_finish(&mut self, wait: &GroupWait, mask: u32) {
        let lane = mask.trailing_zeros() as usize;
        let end = self.units.groups.over(wait, lane);
        let state = &mut self.units.wgmma.warps[wait.warp];
        let regs = &mut *self.regs;
        state.held.retain(|held| {
            let over = held.group < end;
            if over {
                regs.let_go(&held.slots, true);
            }
            !over
        });
        state.batches.retain(|batch| {
            let over = batch.group < end;
            if over {
                regs.let_go(&batch.accumulator.slots, false);
                batch.accumulator.write(&batch.sums.borrow(), regs, mask);
            }
            !over
        });
    }
}
