//! Registers that asynchronous instructions use: `wgmma` (PTX ISA 9.7.15.7) and
//! `tcgen05.ld` (9.7.16.8).
//!
//! Instructions of modules that have such instructions carry the registers
//! that they name ([`Touch`]). Before one of them runs while registers of its warp are
//! in flight, they are compared; and in modules with `wgmma` every write is noted, so
//! that a product without a `wgmma.fence` since is found.
//!
//! Limits: registers of other frames (arguments of calls), lanes that do not take part.

use crate::diagnostic::{AsyncFault, DiagnosticKind, Exec, Fault, TensorFault};
use crate::machine::Context;
use crate::machine::regs::{Class, Regs, Slot};
use crate::machine::units::{Site, TouchRole, Undefined, Unwritten};

/// A register that an instruction names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Touch {
    pub(crate) class: Class,
    pub(crate) slot: Slot,
    pub(crate) write: bool,
    /// Operand in which it stands.
    pub(crate) operand: u8,
}

/// The registers that an instruction names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Touches {
    pub(crate) role: TouchRole,
    pub(crate) registers: Box<[Touch]>,
}

/// A row of the register file.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    /// Fences before its last write.
    written: u32,
    /// Results in flight to it.
    results: u16,
    /// Operations in flight that read it.
    sources: u16,
}

impl Row {
    /// Something in flight uses it.
    const fn held(self) -> bool {
        self.results != 0 || self.sources != 0
    }
}

/// Rows of a warp's register file in flight.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watch {
    rows: Vec<Row>,
    held: usize,
    pub(crate) undefined: Undefined,
    /// The bytes that the load being made finds unwritten.
    pub(crate) unwritten: Unwritten,
    /// Loads of tensor memory are over once their registers are used.
    uses: bool,
    /// `wgmma.fence`s executed.
    fences: u32,
}

impl Watch {
    fn row(&mut self, at: usize) -> &mut Row {
        if self.rows.len() <= at {
            self.rows.resize(at + 1, Row::default());
        }
        &mut self.rows[at]
    }

    fn get(&self, at: usize) -> Row {
        self.rows.get(at).copied().unwrap_or_default()
    }

    /// Whether registers are in flight.
    #[inline(always)]
    pub(crate) fn busy(&self) -> bool {
        self.held != 0 || self.uses || !self.undefined.is_empty()
    }

    /// Whether uses of registers matter.
    pub(super) fn expects_uses(&mut self, uses: bool) {
        self.uses = uses;
    }

    /// Forgets everything: another warp.
    pub(crate) fn reset(&mut self) {
        self.rows.clear();
        self.held = 0;
        self.uses = false;
        self.undefined.reset();
        self.unwritten = Unwritten::default();
        self.fences = 0;
    }

    /// `wgmma.fence`
    pub(crate) fn fence(&mut self) {
        self.fences += 1;
    }
}

impl Regs {
    /// An operation reads these registers (`sources`), or will write them.
    pub(crate) fn hold(&mut self, slots: &[Slot], sources: bool) {
        for at in slots.iter().filter_map(|&slot| self.absolute(slot)).collect::<Vec<_>>() {
            let row = self.watch.row(at);
            *if sources { &mut row.sources } else { &mut row.results } += 1;
            self.watch.held += 1;
        }
    }

    /// The operation is over.
    pub(crate) fn let_go(&mut self, slots: &[Slot], sources: bool) {
        for at in slots.iter().filter_map(|&slot| self.absolute(slot)).collect::<Vec<_>>() {
            let row = self.watch.row(at);
            *if sources { &mut row.sources } else { &mut row.results } -= 1;
            self.watch.held -= 1;
        }
    }
}

impl Context<'_> {
    /// None of the registers may be in flight; `shared`: others may read them.
    pub(crate) fn check_registers(&self, slots: &[Slot], shared: bool) -> Exec {
        if !self.regs.watch.busy() {
            return Ok(());
        }
        let used = |slot: Slot| {
            self.regs.absolute(slot).is_some_and(|at| {
                let row = self.regs.watch.get(at);
                row.results != 0 || row.sources != 0 && !shared
            })
        };
        match slots.iter().find(|&&slot| used(slot)) {
            None => Ok(()),
            Some(&slot) => self.report(self.in_flight_fault(slot)),
        }
    }

    /// `wgmma.fence` must have come since the registers were written.
    pub(crate) fn check_fenced(&self, slots: &[Slot], operand: &'static str) -> Exec {
        let watch = &self.regs.watch;
        let stale = |slot: Slot| {
            self.regs.absolute(slot).is_some_and(|at| watch.get(at).written >= watch.fences)
        };
        if slots.iter().any(|&slot| stale(slot)) {
            let fault = TensorFault::MissingWgmmaFence { operand };
            return self.report(Fault::warp(DiagnosticKind::Async(AsyncFault::Tensor(fault))));
        }
        Ok(())
    }

    /// Compares the registers of the instruction at `pc` with those in flight, and
    /// notes those that it writes.
    #[inline(never)]
    /// `mask`: lanes that execute it, `here`: all that are at it.
    pub(in crate::machine) fn watch(&mut self, pc: usize, mask: u32, here: u32) -> Exec {
        let env = self.env;
        let Some(touches) = env.module.touches.get(pc) else {
            return Ok(());
        };
        self.pc = pc;
        if !self.regs.watch.undefined.is_empty() {
            self.trace_undefined(touches, mask, here)?;
        }
        if mask == 0 {
            return Ok(());
        }
        for touch in touches.registers.iter().filter(|touch| touch.class == Class::R32) {
            let Some(at) = self.regs.absolute(touch.slot) else {
                continue;
            };
            if self.regs.watch.get(at).held() {
                self.report(self.in_flight_fault(touch.slot))?;
                self.deliver_load(Some(touch.slot))?;
            }
            let Watch { rows, fences, .. } = &mut self.regs.watch;
            match rows.get_mut(at) {
                Some(row) if touch.write => row.written = *fences,
                None if touch.write => self.regs.watch.row(at).written = self.regs.watch.fences,
                _ => {}
            }
        }
        // An instruction reads before it writes.
        for write in [false, true] {
            let uses = |touch: &&Touch| touch.class == Class::R32 && touch.write == write;
            for touch in touches.registers.iter().filter(uses) {
                match self.regs.absolute(touch.slot) {
                    Some(at) if self.regs.watch.uses => self.used_register(at, write),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn in_flight_fault(&self, slot: Slot) -> Box<Fault> {
        let warp = self.warp();
        let holder = self.units.wgmma.holder(warp, slot);
        let loaded = holder.is_none();
        let (pc, name, wait) = match holder {
            Some(pc) => (pc, "wgmma.mma_async", "wgmma.wait_group"),
            None => {
                let pc = self.units.tensor.load_of(warp, slot).unwrap_or(self.pc);
                (pc, "tcgen05.ld", "tcgen05.wait::ld")
            }
        };
        let operation = self.units.site(self.env, name, Site { pc, warp, lane: 0 });
        let fault = TensorFault::RegistersInFlight { loaded, operation, wait };
        Fault::warp(DiagnosticKind::Async(AsyncFault::Tensor(fault)))
    }
}
