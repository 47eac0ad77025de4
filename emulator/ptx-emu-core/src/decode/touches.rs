//! The registers that an instruction names, for modules whose asynchronous instructions have
//! registers in flight, or whose shuffles may leave some undefined.

use super::scope::{Name, Scopes};
use crate::machine::regs::Class;
use crate::machine::units::{RegisterTouch, TouchRole, Touches};
use crate::syntax::ast::{Instruction, Operand};

/// Opcodes whose first operand is no destination, unless that is an address.
const NO_DESTINATION: [&str; 7] = ["st", "red", "bar", "barrier", "nanosleep", "call", "cp"];

/// The registers of an instruction. The registers of `wgmma` are handled with that instruction.
pub(crate) fn touches(scopes: &mut Scopes, instruction: &Instruction) -> Touches {
    let opcode = instruction.opcode.as_str();
    if opcode == "wgmma" {
        return Touches::default();
    }
    let role = match opcode {
        "selp" => TouchRole::Select,
        "and" | "or" | "setp" | "set" => decided(instruction),
        "shfl" => TouchRole::Shuffle,
        "call" => TouchRole::Passes,
        "mma" if !unfollowed(instruction) => TouchRole::Product,
        "st" if instruction.modifiers.iter().any(|m| m.starts_with("param")) => TouchRole::Passes,
        "st" if !instruction
            .modifiers
            .iter()
            .any(|m| m == "async" || m == "bulk" || m == "global") =>
        {
            TouchRole::Store
        }
        _ => TouchRole::Plain,
    };
    let mut found = Vec::new();
    let has_destination = !NO_DESTINATION.contains(&opcode);
    for (at, operand) in instruction.operands.iter().enumerate() {
        let address = matches!(operand, Operand::Address { .. });
        let write = has_destination && at == 0 && !address;
        each(scopes, operand, &mut |scopes, name| {
            let mut add = |reg: super::scope::Reg| {
                let touch = |class, slot| RegisterTouch { class, slot, write, operand: at as u8 };
                match reg.class {
                    Class::R128 => {
                        found.push(touch(Class::R64, reg.slot()));
                        found.push(touch(Class::R64, reg.slot().next()));
                    }
                    class => found.push(touch(class, reg.slot())),
                }
            };
            match scopes.find(name) {
                Some(Name::Reg(reg)) => add(reg),
                Some(Name::Vector(regs)) => regs.into_iter().for_each(add),
                _ => {}
            }
        });
    }
    Touches { role, registers: found.into_boxed_slice() }
}

/// The role of an instruction that combines predicates by `and` or `or`.
fn decided(instruction: &Instruction) -> TouchRole {
    let has = |name: &str| instruction.modifiers.iter().any(|m| m == name);
    let compares = matches!(instruction.opcode.as_str(), "setp" | "set");
    let (value, from) = match instruction.opcode.as_str() {
        "and" if has("pred") => (false, 1),
        "or" if has("pred") => (true, 1),
        _ if compares && has("and") => (false, 3),
        _ if compares && has("or") => (true, 3),
        _ => return TouchRole::Plain,
    };
    let negated = matches!(instruction.operands.get(3), Some(Operand::Unary { .. }));
    TouchRole::Decided { value: value != negated, from }
}

/// Whether a product does not say what is undefined of its result: those of `f64`, of single bits, and
/// of four groups of lanes.
fn unfollowed(instruction: &Instruction) -> bool {
    let named = |m: &String| matches!(m.as_str(), "m8n8k4" | "f64" | "b1");
    instruction.modifiers.iter().any(named)
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
