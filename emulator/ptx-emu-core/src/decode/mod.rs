//! The common part of the decoders of instruction families: modifiers, operands,
//! and the shapes `d = f(a, b, c)`.

mod builder;
mod place;
mod reject;
pub(crate) mod scope;
mod shapes;
mod special;
pub(crate) mod touches;

pub(crate) use crate::syntax::Type;
pub(crate) use builder::FunctionBuilder;
pub(crate) use reject::{Decoded, Reject};
pub(crate) use shapes::unary;

use crate::Family;
use crate::machine::code::{Instr, Op};
use crate::machine::module::{Module, Symbol};
use crate::machine::regs::{Bits, Class, Pred, Scalar, Slot};
use crate::num::FloatFlags;
use crate::syntax::ast::{self, Imm, Operand};
use scope::{Name, Reg};
use special::Special;

/// One instruction being decoded.
pub(crate) struct Decode<'a> {
    pub(crate) module: &'a mut Module,
    pub(crate) function: &'a mut FunctionBuilder,
    pub(crate) ins: &'a ast::Instruction,
    /// Modifiers that no decoder has asked for yet.
    used: Vec<bool>,
}

/// A register destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) class: Class,
    pub(crate) slot: Slot,
    /// Register width in bits.
    pub(crate) bits: u32,
}

/// A register or constant source of any class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) class: Class,
    pub(crate) slot: Slot,
}

/// A predicate destination; a sink writes to a scratch register.
pub(crate) type PredTarget = u32;

/// Base of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressBase {
    /// 64-bit row.
    R64(Slot),
    /// 32-bit row.
    R32(Slot),
    /// Start of the local frame.
    Frame,
}

impl<'a> Decode<'a> {
    pub(crate) fn new(
        module: &'a mut Module,
        function: &'a mut FunctionBuilder,
        ins: &'a ast::Instruction,
    ) -> Self {
        Self { module, function, ins, used: vec![false; ins.modifiers.len()] }
    }

    /// The guard predicate.
    pub(crate) fn guard(&mut self) -> Decoded<Pred> {
        match &self.ins.guard {
            None => Ok(Pred::Const(true)),
            Some(guard) => self.pred_named(&guard.register, guard.negated),
        }
    }

    /// Every modifier must have been understood.
    pub(crate) fn finish(&self) -> Decoded<()> {
        match self.used.iter().position(|used| !used) {
            None => Ok(()),
            Some(at) => Err(Reject::unsupported(format!("modifier .{}", self.ins.modifiers[at]))),
        }
    }

    // Modifiers

    /// Whether a modifier is there.
    pub(crate) fn has(&mut self, name: &str) -> bool {
        self.pick(|modifier| (modifier == name).then_some(())).is_some()
    }

    /// The first unused modifier that `choose` accepts.
    pub(crate) fn pick<T>(&mut self, choose: impl Fn(&str) -> Option<T>) -> Option<T> {
        for (modifier, used) in self.ins.modifiers.iter().zip(&mut self.used) {
            if !*used && let Some(found) = choose(modifier) {
                *used = true;
                return Some(found);
            }
        }
        None
    }

    /// The next type modifier.
    pub(crate) fn ty(&mut self) -> Decoded<Type> {
        self.pick(Type::parse).ok_or_else(|| Reject::unsupported("no known type modifier"))
    }

    /// `.ftz`, `.sat`, `.relu`.
    pub(crate) fn flags(&mut self) -> FloatFlags {
        FloatFlags { ftz: self.has("ftz"), sat: self.has("sat"), relu: self.has("relu") }
    }

    /// The type is one the instruction has not.
    pub(crate) fn bad_type<T>(&self, ty: Type) -> Decoded<T> {
        Err(Reject::unsupported(format!("{} of {ty:?}", self.ins.opcode)))
    }

    // Operands

    /// Operand by position.
    pub(crate) fn operand(&self, at: usize) -> Decoded<&'a Operand> {
        self.ins.operands.get(at).ok_or_else(|| {
            Reject::operand(format!(
                "operands: required at least {}, actual {}",
                at + 1,
                self.ins.operands.len()
            ))
        })
    }

    /// Number of operands.
    pub(crate) fn count(&self) -> usize {
        self.ins.operands.len()
    }

    /// A fresh register.
    pub(crate) fn scratch<T: Bits>(&mut self) -> Slot {
        self.function.scopes.fresh(T::CLASS, 0).slot()
    }

    /// The predicate row that holds `CC.CF`.
    pub(crate) fn carry_flag(&mut self) -> PredTarget {
        if let Some(flag) = self.function.carry {
            return flag;
        }
        let flag = self.function.scopes.fresh(Class::Pred, 1).index;
        self.function.carry = Some(flag);
        flag
    }

    fn register(&mut self, name: &str) -> Option<Reg> {
        match self.function.scopes.find(name)? {
            Name::Reg(reg) => Some(reg),
            _ => None,
        }
    }

    /// A register as a destination.
    pub(crate) fn destination(&mut self, operand: &Operand) -> Decoded<Option<Destination>> {
        match operand {
            Operand::Sink => Ok(None),
            Operand::Ident(name) => {
                let reg = self.register(name).ok_or_else(|| Reject::UnknownSymbol(name.clone()))?;
                Ok(Some(Destination { class: reg.class, slot: reg.slot(), bits: reg.bits }))
            }
            other => {
                Err(Reject::operand(format!("destination: required a register, actual {other:?}")))
            }
        }
    }

    /// Destination row for values of type `T`.
    pub(crate) fn dst_of<T: Scalar>(&mut self, operand: &Operand) -> Decoded<Slot> {
        let class = <T::Bits as Bits>::CLASS;
        match self.destination(operand)? {
            None => Ok(self.scratch::<T::Bits>()),
            Some(destination) if destination.class == class => Ok(destination.slot),
            Some(destination) => Err(Reject::operand(format!(
                "destination: required a register of {} bits, actual {} bits",
                T::WIDTH,
                destination.bits
            ))),
        }
    }

    /// Destination row of operand `at`.
    pub(crate) fn dst<T: Scalar>(&mut self, at: usize) -> Decoded<Slot> {
        let operand = self.operand(at)?;
        self.dst_of::<T>(operand)
    }

    /// Source row of operand `at`.
    pub(crate) fn src<T: Scalar>(&mut self, at: usize) -> Decoded<Slot> {
        let operand = self.operand(at)?;
        self.src_of::<T>(operand)
    }

    /// Source row for values of type `T`.
    pub(crate) fn src_of<T: Scalar>(&mut self, operand: &Operand) -> Decoded<Slot> {
        let class = <T::Bits as Bits>::CLASS;
        if let Operand::Imm(imm) = operand {
            return self.constant::<T>(*imm);
        }
        let source = self.source(operand, T::WIDTH)?;
        if source.class == class {
            return Ok(source.slot);
        }
        Err(Reject::operand(format!(
            "source {operand:?}: required {} bits, actual a register of class {:?}",
            T::WIDTH,
            source.class
        )))
    }

    /// A 32-bit constant row.
    pub(crate) fn constant_row32(&mut self, value: u32) -> Slot {
        self.module.pool.u32(value)
    }

    /// A 64-bit constant row.
    pub(crate) fn constant_row64(&mut self, value: u64) -> Slot {
        self.module.pool.u64(value)
    }

    fn constant<T: Scalar>(&mut self, imm: Imm) -> Decoded<Slot> {
        let bits = immediate_bits(imm, T::WIDTH, T::FLOAT)?;
        Ok(if <T::Bits as Bits>::CLASS == Class::R64 {
            self.module.pool.u64(bits)
        } else {
            self.module.pool.u32(bits as u32)
        })
    }

    /// A source that is a register, a special register or an address. `bits`
    /// tells how wide an address shall be.
    pub(crate) fn source(&mut self, operand: &Operand, bits: u32) -> Decoded<Source> {
        let (name, offset) = match operand {
            Operand::Ident(name) => (name, 0),
            Operand::SymbolOffset { name, offset } => (name, *offset),
            Operand::Imm(imm) => {
                let value = immediate_bits(*imm, bits, false)?;
                return Ok(if bits == 64 {
                    Source { class: Class::R64, slot: self.module.pool.u64(value) }
                } else {
                    Source { class: Class::R32, slot: self.module.pool.u32(value as u32) }
                });
            }
            other => {
                return Err(Reject::unsupported(format!("operand {other:?} as a source")));
            }
        };
        if offset == 0 {
            if let Some(reg) = self.register(name) {
                return Ok(Source { class: reg.class, slot: reg.slot() });
            }
            if let Some(special) = self.special_named(name)? {
                return Ok(self.special(special));
            }
        }
        let place = self.place(name, offset)?;
        self.address_value(place, bits)
    }

    /// The special register of that name, if the module's target has it.
    fn special_named(&self, name: &str) -> Decoded<Option<Special>> {
        let Some(special) = Special::parse(name, &self.module.gpu) else { return Ok(None) };
        match self.module.language.and_then(|language| language.lacks_register(name)) {
            Some(why) => Err(Reject::unsupported(why)),
            None => Ok(Some(special)),
        }
    }

    /// Reads a special register into a fresh register first.
    fn special(&mut self, special: Special) -> Source {
        let class = special.class();
        let slot = self.function.scopes.fresh(class, 0).slot();
        self.emit(Family::Move, special.read_into(slot));
        Source { class, slot }
    }

    /// Adds an instruction before the one being decoded.
    pub(super) fn emit(&mut self, family: Family, op: Op) {
        self.module.code.push(Instr {
            op,
            guard: Pred::Const(true),
            line: self.ins.pos.line,
            family,
        });
    }

    /// A constant 32-bit operand's value.
    pub(crate) fn known_u32(&self, at: usize) -> Option<u32> {
        match self.ins.operands.get(at)? {
            Operand::Imm(imm) => immediate_bits(*imm, 32, false).ok().map(|bits| bits as u32),
            _ => None,
        }
    }

    /// An operand that must be an integer constant.
    pub(crate) fn constant_u32(&self, at: usize) -> Decoded<u32> {
        self.known_u32(at)
            .ok_or_else(|| Reject::operand(format!("operand {at}: required a constant")))
    }

    fn pred_named(&mut self, name: &str, negated: bool) -> Decoded<Pred> {
        match self.register(name) {
            Some(reg) if reg.class == Class::Pred => Ok(Pred::Register(reg.index, negated)),
            Some(_) => Err(Reject::operand(format!("`{name}`: required a predicate"))),
            // %is_explicit_cluster is a predicate.
            None => match self.special_named(name)? {
                Some(special) if special.class() == Class::Pred => {
                    let reg = self.function.scopes.fresh(Class::Pred, 1);
                    self.emit(Family::Move, special.read_into_pred(reg.index));
                    Ok(Pred::Register(reg.index, negated))
                }
                _ => Err(Reject::UnknownSymbol(name.to_owned())),
            },
        }
    }

    /// A predicate source: `p`, `!p` or a constant.
    pub(crate) fn pred(&mut self, operand: &Operand) -> Decoded<Pred> {
        match operand {
            Operand::Ident(name) => self.pred_named(name, false),
            Operand::Unary { op: '!', operand } => match &**operand {
                Operand::Ident(name) => self.pred_named(name, true),
                other => Err(Reject::operand(format!("!{other:?} as a predicate"))),
            },
            Operand::Imm(Imm::Int { bits, .. }) => Ok(Pred::Const(*bits != 0)),
            other => Err(Reject::operand(format!("{other:?} as a predicate"))),
        }
    }

    /// A predicate destination.
    pub(crate) fn pred_target(&mut self, operand: &Operand) -> Decoded<PredTarget> {
        match operand {
            Operand::Sink => Ok(self.function.scopes.fresh(Class::Pred, 1).index),
            Operand::Ident(name) => match self.register(name) {
                Some(reg) if reg.class == Class::Pred => Ok(reg.index),
                Some(_) => Err(Reject::operand(format!("`{name}`: required a predicate"))),
                None => Err(Reject::UnknownSymbol(name.clone())),
            },
            other => Err(Reject::operand(format!("{other:?} as a predicate destination"))),
        }
    }

    /// `d|p` or only `d`.
    pub(crate) fn pair(operand: &'a Operand) -> (&'a Operand, Option<&'a Operand>) {
        match operand {
            Operand::Pair(first, second) => (first, Some(second)),
            only => (only, None),
        }
    }

    /// Elements of a vector operand, a vector register's components, or the
    /// operand itself.
    pub(crate) fn elements(&mut self, operand: &Operand) -> Vec<Operand> {
        match operand {
            Operand::Vector(items) => items.clone(),
            Operand::Ident(name) => match self.function.scopes.find(name) {
                Some(Name::Vector(regs)) => ["x", "y", "z", "w"][..regs.len().min(4)]
                    .iter()
                    .map(|component| Operand::Ident(format!("{name}.{component}")))
                    .collect(),
                _ => vec![operand.clone()],
            },
            other => vec![other.clone()],
        }
    }

    /// A name that is a local frame variable: its offset and size.
    pub(crate) fn frame_variable(&mut self, name: &str) -> Option<(u32, u32)> {
        match self.function.scopes.find(name)? {
            Name::Frame { offset, bytes } => Some((offset, bytes)),
            _ => None,
        }
    }

    /// A function's index and whether it has a body.
    pub(crate) fn function_named(&self, name: &str) -> Option<usize> {
        match self.module.symbols.get(name)? {
            Symbol::Function(index) => Some(*index),
            _ => None,
        }
    }
}

/// Bits of an immediate in a type of `width` bits.
fn immediate_bits(imm: Imm, width: u32, float: bool) -> Decoded<u64> {
    let bits = match imm {
        Imm::Int { bits, .. } if !float => bits,
        // Decimal integers are not floating-point literals (PTX ISA 4.5.2).
        Imm::Int { .. } => {
            return Err(Reject::operand(
                "immediate: required a floating-point literal, actual an integer",
            ));
        }
        Imm::F32(bits) if width == 64 && float => f64::from(f32::from_bits(bits)).to_bits(),
        Imm::F32(bits) => u64::from(bits),
        Imm::F64(bits) if width == 64 => bits,
        Imm::F64(bits) => u64::from((f64::from_bits(bits) as f32).to_bits()),
    };
    Ok(match width {
        64.. => bits,
        _ => bits & ((1 << width) - 1),
    })
}
