//! Registers whose values nothing defines: what a shuffle takes from a lane that does not take
//! part (PTX ISA 9.7.9.6). Copying one, or computing with it, makes the result undefined too;
//! that anything depends on it is what is reported: an address, a value stored, a branch, a
//! barrier, an operand of another unit.
//!
//! Limits: undefined values that arguments of calls pass on. Results that do not depend on an undefined operand, a
//! product with 0 for example, count as undefined.

use crate::diagnostic::{DiagnosticKind, Exec, Fault};
use crate::machine::Context;
use crate::machine::code::Op;
use crate::machine::regs::{Class, Pred, Regs, Slot};
use crate::machine::units::{RegisterTouch, Site, Touches};

/// The dependence of an instruction's results on its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Role {
    /// All lanes are defined.
    #[default]
    Plain,
    /// `selp`: on one of two.
    Select,
    /// `shfl`: each lane on one.
    Shuffle,
    /// An argument of a call: not known.
    Passes,
}

/// A place in the register file.
type Row = (Class, u32);

/// Lanes of registers with undefined values, each register with the shuffle that is to blame.
#[derive(Debug, Clone, Default)]
pub(crate) struct Undefined(Vec<(Row, u32, usize)>);

impl Undefined {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    fn get(&self, row: Row) -> Option<(u32, usize)> {
        self.0.iter().find(|(at, ..)| *at == row).map(|&(_, lanes, pc)| (lanes, pc))
    }

    /// Sets the undefined lanes: among the lanes of `mask`, those of `lanes`.
    fn set(&mut self, row: Row, mask: u32, lanes: u32, pc: usize) {
        match self.0.iter().position(|(at, ..)| *at == row) {
            Some(at) => {
                let (_, old, origin) = &mut self.0[at];
                *old = *old & !mask | lanes;
                if lanes != 0 {
                    *origin = pc;
                }
                if *old == 0 {
                    self.0.swap_remove(at);
                }
            }
            None if lanes != 0 => self.0.push((row, lanes, pc)),
            None => {}
        }
    }
}

impl Regs {
    /// Undefined lanes of a 32-bit register.
    pub(crate) fn undefined(&self, slot: Slot) -> u32 {
        let row = self.row_of(Class::R32, slot);
        row.and_then(|row| self.watch.undefined.get(row)).map_or(0, |(lanes, _)| lanes)
    }

    /// Marks lanes of a 32-bit register as undefined: among the lanes of `mask`, those of `lanes`,
    /// by the shuffle at `pc`; `None`: by one that is known already.
    pub(crate) fn undefine(&mut self, slot: Slot, mask: u32, lanes: u32, pc: Option<usize>) {
        let Some(row) = self.row_of(Class::R32, slot) else { return };
        let undefined = &mut self.watch.undefined;
        let any = undefined.0.first().map_or(0, |&(_, _, pc)| pc);
        undefined.set(row, mask, lanes, pc.unwrap_or(any));
    }
}

impl Context<'_> {
    fn undefined_in(&self, class: Class, slot: Slot) -> Option<(u32, usize)> {
        self.regs.watch.undefined.get(self.regs.row_of(class, slot)?)
    }

    /// Undefined lanes among the sources of the executing instruction, and whose fault it is.
    fn undefined_sources(&self, touches: &Touches, mask: u32, here: u32) -> Option<(u32, usize)> {
        let guard = match self.env.code[self.pc].guard {
            Pred::Register(index, _) => self.undefined_in(Class::Pred, Slot::register(index)),
            Pred::Const(_) => None,
        };
        let guard = guard.map(|(lanes, pc)| (lanes & here, pc));
        let chosen = match touches.role {
            Role::Select => touches.registers.iter().find(|touch| touch.operand == 3),
            Role::Plain | Role::Shuffle | Role::Passes => None,
        };
        let chosen = chosen.map(|touch| self.regs.pred(Pred::Register(touch.slot.index(), false)));
        let source = |touch: &RegisterTouch| {
            let (lanes, pc) = self.undefined_in(touch.class, touch.slot)?;
            let used = match (chosen, touch.operand) {
                (Some(chosen), 1) => chosen,
                (Some(chosen), 2) => !chosen,
                _ => u32::MAX,
            };
            Some((lanes & used & mask, pc))
        };
        let sources = touches.registers.iter().filter(|touch| !touch.write).filter_map(source);
        let found = guard.into_iter().chain(sources).filter(|(lanes, _)| *lanes != 0);
        found.reduce(|(lanes, pc), (more, _)| (lanes | more, pc))
    }

    /// Follows undefined values through the executing instruction.
    #[cold]
    pub(super) fn trace_undefined(&mut self, touches: &Touches, mask: u32, here: u32) -> Exec {
        if matches!(touches.role, Role::Shuffle | Role::Passes) {
            return Ok(());
        }
        let found = self.undefined_sources(touches, mask, here);
        let computes = matches!(self.env.code[self.pc].op, Op::Alu(_));
        if let (Some((lanes, pc)), false) = (found, computes) {
            let site = Site { pc, warp: self.warp(), lane: 0 };
            let operation = self.units.site(self.env, "shfl.sync", site);
            let kind = DiagnosticKind::UndefinedValue { operation };
            // Said once.
            self.regs.watch.undefined.clear();
            return self.report(Fault::lane(kind, lanes.trailing_zeros()));
        }
        let (lanes, pc) = found.unwrap_or((0, 0));
        for touch in touches.registers.iter().filter(|touch| touch.write) {
            if let Some(row) = self.regs.row_of(touch.class, touch.slot) {
                self.regs.watch.undefined.set(row, mask | lanes, lanes, pc);
            }
        }
        Ok(())
    }
}
