//! Registers whose values nothing defines: what a shuffle takes from a lane that does not take
//! part (PTX ISA 9.7.9.6), and on hardware what is loaded from shared or local memory that was never
//! written.
//! Copying one, or computing with it, makes the result undefined too; that anything depends on it is
//! what is reported: an address, a branch, a barrier, a value stored to global memory, an operand of
//! another unit.
//!
//! On hardware, a store to shared or local memory makes the bytes there undefined, as if they had never
//! been written, and a row of a product (`mma.sync`) depends on that row of `A`, all of `B`'s column
//! and its `C`. Kernels with `wgmma`, whose registers are not followed, may not load what was never
//! written. By `Model::Ptx` no kernel may.
//!
//! A predicate that decides the result of `and` or `or` makes it defined, as CUB's merge sort needs, which compares what
//! lies behind the end of its keys.
//!
//! Limits: undefined values that registers pass to functions. Other results that do not depend on an undefined
//! operand, a product with 0 for example, count as undefined.

use crate::diagnostic::{DiagnosticKind, Exec, Fault, Space};
use crate::machine::access::lanes;
use crate::machine::code::Op;
use crate::machine::regs::{Class, LANES, Pred, Regs, Slot};
use crate::machine::units::{RegisterTouch, Site, Touches};
use crate::machine::{AddressSpace, Context, window};

/// The dependence of an instruction's results on its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Role {
    /// All lanes are defined.
    #[default]
    Plain,
    /// `selp`: on one of two.
    Select,
    /// `and`, `or` of predicates, and `setp` or `set` with one of them: on nothing else where a predicate among the
    /// operands from `from` on has this value.
    Decided { value: bool, from: u8 },
    /// `shfl`: each lane on one.
    Shuffle,
    /// A store that may be one to shared or local memory: the address alone must be defined.
    Store,
    /// `mma.sync`: rows and columns.
    Product,
    /// An argument of a call: not known.
    Passes,
}

/// A place in the register file.
type Row = (Class, u32);

/// The bytes that a load finds unwritten.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unwritten {
    /// The load marks its registers, so that this is no error yet.
    pub(crate) followed: bool,
    lanes: u32,
    /// Bytes of each lane's access.
    bytes: [u32; LANES],
}

impl Unwritten {
    pub(crate) fn note(&mut self, mask: u32, bytes: u32) {
        self.lanes |= mask;
        for lane in lanes(mask) {
            self.bytes[lane] |= bytes;
        }
    }

    /// Lanes whose access has such bytes.
    pub(crate) fn lanes(&self) -> u32 {
        self.lanes
    }

    /// Such bytes of a lane's access.
    pub(crate) fn bytes(&self, lane: usize) -> u32 {
        self.bytes[lane]
    }
}

/// Lanes of registers with undefined values, each register with the shuffle or load that is to blame.
#[derive(Debug, Clone, Default)]
pub(crate) struct Undefined {
    rows: Vec<(Row, u32, usize)>,
    /// Loads of what was never written, by instruction.
    loads: Vec<(usize, Box<Fault>)>,
}

impl Undefined {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Another warp.
    pub(crate) fn reset(&mut self) {
        self.rows.clear();
        self.loads.clear();
    }

    /// Whether a load of something unwritten is known.
    pub(crate) fn has_load(&self, pc: usize) -> bool {
        self.loads.iter().any(|(at, _)| *at == pc)
    }

    /// A load of something unwritten, and the fault that it is if anything depends on it.
    pub(crate) fn add_load(&mut self, pc: usize, fault: Box<Fault>) {
        self.loads.push((pc, fault));
    }

    fn get(&self, row: Row) -> Option<(u32, usize)> {
        self.rows.iter().find(|(at, ..)| *at == row).map(|&(_, lanes, pc)| (lanes, pc))
    }

    /// Sets the undefined lanes: among the lanes of `mask`, those of `lanes`.
    fn set(&mut self, row: Row, mask: u32, lanes: u32, pc: usize) {
        match self.rows.iter().position(|(at, ..)| *at == row) {
            Some(at) => {
                let (_, old, origin) = &mut self.rows[at];
                *old = *old & !mask | lanes;
                if lanes != 0 {
                    *origin = pc;
                }
                if *old == 0 {
                    self.rows.swap_remove(at);
                }
            }
            None if lanes != 0 => self.rows.push((row, lanes, pc)),
            None => {}
        }
    }
}

impl Regs {
    /// Undefined lanes of a 32-bit register.
    pub(crate) fn undefined(&self, slot: Slot) -> u32 {
        self.undefined_of(Class::R32, slot)
    }

    /// Undefined lanes of a register.
    pub(crate) fn undefined_of(&self, class: Class, slot: Slot) -> u32 {
        if class == Class::R128 {
            return self.undefined_of(Class::R64, slot)
                | self.undefined_of(Class::R64, slot.next());
        }
        let row = self.row_of(class, slot);
        row.and_then(|row| self.watch.undefined.get(row)).map_or(0, |(lanes, _)| lanes)
    }

    /// Marks lanes of a 32-bit register as undefined: among the lanes of `mask`, those of `lanes`,
    /// by the shuffle at `pc`; `None`: by one that is known already.
    pub(crate) fn undefine(&mut self, slot: Slot, mask: u32, lanes: u32, pc: Option<usize>) {
        self.undefine_of((Class::R32, slot), mask, lanes, pc);
    }

    /// The same of a register of any class.
    pub(crate) fn undefine_of(
        &mut self,
        (class, slot): (Class, Slot),
        mask: u32,
        lanes: u32,
        pc: Option<usize>,
    ) {
        if class == Class::R128 {
            self.undefine_of((Class::R64, slot), mask, lanes, pc);
            return self.undefine_of((Class::R64, slot.next()), mask, lanes, pc);
        }
        let Some(row) = self.row_of(class, slot) else { return };
        let undefined = &mut self.watch.undefined;
        let any = undefined.rows.first().map_or(0, |&(_, _, pc)| pc);
        undefined.set(row, mask, lanes, pc.unwrap_or(any));
    }
}

impl Context<'_> {
    fn undefined_in(&self, class: Class, slot: Slot) -> Option<(u32, usize)> {
        let class = if class == Class::R128 { Class::R64 } else { class };
        self.regs.watch.undefined.get(self.regs.row_of(class, slot)?)
    }

    /// Lanes in which a defined predicate among the operands from `from` on has this value.
    fn decided(&self, touches: &Touches, value: bool, from: u8) -> u32 {
        let one = |touch: &RegisterTouch| {
            let raw = self.regs.pred(Pred::Register(touch.slot.index(), !value));
            let (undefined, _) = self.undefined_in(touch.class, touch.slot).unwrap_or_default();
            raw & !undefined
        };
        let predicates = touches
            .registers
            .iter()
            .filter(|touch| !touch.write && touch.class == Class::Pred && touch.operand >= from);
        predicates.map(one).fold(0, |all, lanes| all | lanes)
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
            Role::Plain
            | Role::Decided { .. }
            | Role::Shuffle
            | Role::Store
            | Role::Product
            | Role::Passes => None,
        };
        let chosen = chosen.map(|touch| self.regs.pred(Pred::Register(touch.slot.index(), false)));
        let decided = match touches.role {
            Role::Decided { value, from } => self.decided(touches, value, from),
            _ => 0,
        };
        let source = |touch: &RegisterTouch| {
            let (lanes, pc) = self.undefined_in(touch.class, touch.slot)?;
            let used = match (chosen, touch.operand) {
                (Some(chosen), 1) => chosen,
                (Some(chosen), 2) => !chosen,
                _ => u32::MAX,
            };
            Some((lanes & used & mask & !decided, pc))
        };
        let followed = |touch: &&RegisterTouch| match touches.role {
            Role::Store => touch.operand != 1,
            Role::Product => !(1..4).contains(&touch.operand),
            Role::Plain | Role::Select | Role::Decided { .. } | Role::Shuffle | Role::Passes => {
                true
            }
        };
        let strict = self.env.is_strict();
        let sources = touches.registers.iter().filter(|touch| !touch.write);
        let sources = sources.filter(|touch| strict || followed(touch)).filter_map(source);
        let found = guard.into_iter().chain(sources).filter(|(lanes, _)| *lanes != 0);
        found.reduce(|(lanes, pc), (more, _)| (lanes | more, pc))
    }

    /// Follows undefined values through the executing instruction.
    #[cold]
    pub(super) fn trace_undefined(&mut self, touches: &Touches, mask: u32, here: u32) -> Exec {
        if touches.role == Role::Shuffle {
            return Ok(());
        }
        let found = self.undefined_sources(touches, mask, here);
        if touches.role == Role::Passes {
            // Only what was loaded is known to be passed on for use.
            return match found {
                Some((lanes, pc)) if self.regs.watch.undefined.has_load(pc) => {
                    self.report_undefined(lanes, pc)
                }
                _ => Ok(()),
            };
        }
        let computes = matches!(self.env.code[self.pc].op, Op::Alu(_));
        if let (Some((lanes, pc)), false) = (found, computes) {
            return self.report_undefined(lanes, pc);
        }
        if touches.role == Role::Product && !self.env.is_strict() {
            // It says itself which lanes of its result are undefined.
            return Ok(());
        }
        let (lanes, pc) = found.unwrap_or((0, 0));
        for touch in touches.registers.iter().filter(|touch| touch.write) {
            if let Some(row) = self.regs.row_of(touch.class, touch.slot) {
                self.regs.watch.undefined.set(row, mask | lanes, lanes, pc);
            }
        }
        Ok(())
    }

    /// The executing instruction depends on undefined lanes of a register, for which the
    /// instruction at `pc` is to blame.
    #[cold]
    fn report_undefined(&mut self, lanes: u32, pc: usize) -> Exec {
        let site = Site { pc, warp: self.warp(), lane: 0 };
        let undefined = &mut self.regs.watch.undefined;
        // Said once.
        undefined.rows.clear();
        let loads = &mut undefined.loads;
        if let Some(at) = loads.iter().position(|(load, _)| *load == pc) {
            let (_, mut fault) = loads.swap_remove(at);
            if let DiagnosticKind::UninitialisedRead { user, .. } = &mut fault.kind {
                *user = Some(self.env.code[self.pc].line);
            }
            return self.report(fault.at(site));
        }
        let operation = self.units.site(self.env, "shfl.sync", site);
        let kind = DiagnosticKind::UndefinedValue { operation };
        self.report(Fault::lane(kind, lanes.trailing_zeros()))
    }

    /// Whether a load may find bytes that were never written, and mark its registers.
    #[inline(always)]
    pub(crate) fn follows_loads(&self) -> bool {
        !self.env.is_strict() && self.env.module.watched && !self.env.module.wgmma
    }

    /// Says whether the next load marks its registers with what it finds unwritten.
    #[inline(always)]
    pub(crate) fn follow_loads(&mut self, follow: bool) {
        self.regs.watch.unwritten.followed = follow && self.follows_loads();
    }

    /// Returns the bytes that the last load found unwritten, if it found some.
    #[inline(always)]
    pub(crate) fn take_unwritten(&mut self) -> Option<Unwritten> {
        (self.regs.watch.unwritten.lanes != 0)
            .then(|| std::mem::take(&mut self.regs.watch.unwritten))
    }

    /// A register was stored at the lanes' addresses: what is undefined of it is so there, too.
    #[cold]
    pub(crate) fn stored_undefined(
        &mut self,
        (class, slot): (Class, Slot),
        space: AddressSpace,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
    ) -> Exec {
        let undefined = self.regs.undefined_of(class, slot) & mask;
        let blame = self.undefined_in(class, slot).map(|(_, pc)| pc);
        for lane in lanes(undefined) {
            let addr = addrs[lane];
            let (space, addr) = match (space, window::tag(addr)) {
                (AddressSpace::One(Space::Shared) | AddressSpace::Generic, window::SHARED) => {
                    (Space::Shared, addr & window::LOW)
                }
                (AddressSpace::Generic, window::LOCAL) => (Space::Local, addr & !(0xff << 56)),
                (AddressSpace::Generic, _) => (Space::Global, addr),
                (AddressSpace::Cluster, _) => (Space::Shared, addr),
                (AddressSpace::One(space), _) => (space, addr),
            };
            match space {
                Space::Shared => self.forget_shared(addr, bytes),
                Space::Local => self.local.forget(lane, addr as usize, bytes),
                Space::Global | Space::Param | Space::Const => {
                    return self.report_undefined(undefined, blame.unwrap_or(self.pc));
                }
            }
        }
        Ok(())
    }
}
