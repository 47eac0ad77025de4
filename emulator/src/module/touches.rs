//! The 32-bit registers that an instruction names, for modules whose asynchronous
//! instructions have registers in flight.

use super::scope::{Name, Scopes};
use crate::machine::regs::Class;
use crate::machine::units::RegisterTouch;
use crate::syntax::ast::{Instruction, Operand};

/// Opcodes whose first operand is no destination.
const NO_DESTINATION: [&str; 8] =
    ["st", "red", "bar", "barrier", "nanosleep", "call", "cp", "mbarrier"];

/// The registers of an instruction. Those of `wgmma` are its own matter.
pub(super) fn touches(scopes: &mut Scopes, instruction: &Instruction) -> Box<[RegisterTouch]> {
    if instruction.opcode == "wgmma" {
        return Box::default();
    }
    let mut found = Vec::new();
    let writes = !NO_DESTINATION.contains(&instruction.opcode.as_str());
    for (at, operand) in instruction.operands.iter().enumerate() {
        each(scopes, operand, &mut |scopes, name| {
            let mut add = |reg: super::scope::Reg| {
                if reg.class == Class::R32 {
                    found.push(RegisterTouch { slot: reg.slot(), write: writes && at == 0 });
                }
            };
            match scopes.find(name) {
                Some(Name::Reg(reg)) => add(reg),
                Some(Name::Vector(regs)) => regs.into_iter().for_each(add),
                _ => {}
            }
        });
    }
    found.into_boxed_slice()
}

fn each(scopes: &mut Scopes, operand: &Operand, f: &mut impl FnMut(&mut Scopes, &str)) {
    match operand {
        Operand::Ident(name) => f(scopes, name),
        Operand::Unary { operand, .. } => each(scopes, operand, f),
        Operand::Vector(items) => items.iter().for_each(|item| each(scopes, item, f)),
        Operand::Pair(first, second) => {
            each(scopes, first, f);
            each(scopes, second, f);
        }
        Operand::Address { base, rest, .. } => {
            if let Some(name) = base {
                f(scopes, name);
            }
            rest.iter().for_each(|item| each(scopes, item, f));
        }
        _ => {}
    }
}
