//! Control flow: PTX ISA 9.7.12 (`bra`, `brx.idx`, `call`, `ret`, `exit`) and
//! 9.7.19 (`trap`, `brkpt`).
//!
//! `.uni` is only a hint: a branch with it that diverges is executed like one without it. The
//! functions of `system_call` are the only modelled ones among those that a module only declares.

use super::Instructions;
use super::system_call;
use crate::Family;
use crate::decode::{Decode, Decoded, Reject};
use crate::machine::code::{CallSite, Callee, Op, Passed};
use crate::machine::regs::Class;
use crate::syntax::ast::{Call, Operand};

/// Control flow.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| {
        matches!(ins.opcode.as_str(), "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt")
    },
    decode: |d| Ok((Family::Control, decode(d)?)),
};

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    let _ = d.has("uni");
    match d.ins.opcode.as_str() {
        "bra" => {
            let target = d.operand(0)?;
            Ok(Op::Branch(label(d, name_of(target)?)?))
        }
        "brx" => branch_index(d),
        "call" => call(d),
        "ret" => Ok(Op::Return),
        "exit" => Ok(Op::Exit),
        "trap" => Ok(Op::Trap),
        _ => Ok(Op::Breakpoint),
    }
}

fn name_of(operand: &Operand) -> Decoded<&str> {
    match operand {
        Operand::Ident(name) => Ok(name),
        other => Err(Reject::operand(format!("required a label, actual {other:?}"))),
    }
}

fn label(d: &Decode<'_>, name: &str) -> Decoded<usize> {
    d.function.scopes.find_label(name).ok_or_else(|| Reject::UnknownSymbol(name.to_owned()))
}

fn branch_index(d: &mut Decode<'_>) -> Decoded<Op> {
    if !d.has("idx") {
        return Err(Reject::unsupported("brx without .idx"));
    }
    let index = d.src::<u32>(0)?;
    let list = name_of(d.operand(1)?)?;
    let names: Vec<String> = d
        .function
        .scopes
        .find_targets(list)
        .ok_or_else(|| Reject::UnknownSymbol(list.to_owned()))?
        .to_vec();
    let targets = names.iter().map(|name| label(d, name)).collect::<Decoded<Vec<_>>>()?;
    Ok(Op::BranchIndex { index, targets: targets.into() })
}

fn call(d: &mut Decode<'_>) -> Decoded<Op> {
    let Operand::Call(operands) = d.operand(0)? else {
        return Err(Reject::operand("required a call's operands"));
    };
    let Call { returns, target, args, prototype } = &**operands;
    let returns =
        returns.iter().map(|operand| passed(d, operand, true)).collect::<Decoded<Vec<_>>>()?;
    let callee = match d.function_named(target) {
        Some(index) => {
            if !d.module.functions[index].defined {
                let args =
                    args.iter().map(|arg| passed(d, arg, false)).collect::<Decoded<Vec<_>>>()?;
                // Addresses of the heap depend on the order in which threads allocate.
                d.function.global_sync |= system_call::uses_heap(target);
                return system_call::decode(target, &args, &returns).unwrap_or_else(|| {
                    Err(Reject::unsupported(format!("call of external function {target}")))
                });
            }
            d.function.calls.push(index);
            let code = &d.module.functions[index];
            if code.params.len() != args.len() || code.returns.len() != returns.len() {
                return Err(Reject::operand(format!(
                    "call of {target}: required {} arguments and {} results, actual {} and {}",
                    code.params.len(),
                    code.returns.len(),
                    args.len(),
                    returns.len()
                )));
            }
            Callee::Direct(index)
        }
        None => {
            let source = d.source(&Operand::Ident(target.clone()), 64)?;
            if source.class != Class::R64 {
                return Err(Reject::operand("indirect call: required a 64-bit register"));
            }
            d.function.calls_any = true;
            Callee::Indirect(source.slot, targets(d, prototype.as_deref())?)
        }
    };
    let args = args.iter().map(|operand| passed(d, operand, false)).collect::<Decoded<Vec<_>>>()?;
    Ok(Op::Call(Box::new(CallSite { callee, args: args.into(), returns: returns.into() })))
}

/// Functions that an indirect call may reach, if it lists them.
fn targets(d: &Decode<'_>, prototype: Option<&str>) -> Decoded<Option<Box<[usize]>>> {
    let Some(prototype) = prototype else {
        return Ok(None);
    };
    // A list is named by a label of the function or by a variable that holds
    // the addresses; only the former says anything here.
    let Some(Some(names)) = d.function.scopes.find_prototype(prototype) else {
        return Ok(None);
    };
    names
        .iter()
        .map(|name| d.function_named(name).ok_or_else(|| Reject::UnknownSymbol(name.clone())))
        .collect::<Decoded<Vec<usize>>>()
        .map(|list| Some(list.into()))
}

/// An argument or result: a `.param` variable, a register or a constant.
fn passed(d: &mut Decode<'_>, operand: &Operand, result: bool) -> Decoded<Passed> {
    if let Operand::Ident(name) = operand
        && let Some((offset, bytes)) = d.frame_variable(name)
    {
        return Ok(Passed::Frame { offset, bytes });
    }
    if result {
        let Some(target) = d.destination(operand)? else {
            let slot = d.scratch::<u64>();
            return Ok(Passed::R64(slot));
        };
        return register(target.class, target.slot, target.bits);
    }
    let source = d.source(operand, 64)?;
    register(source.class, source.slot, 32)
}

fn register(class: Class, slot: crate::machine::regs::Slot, bits: u32) -> Decoded<Passed> {
    match class {
        Class::R32 => Ok(Passed::R32(slot, bits.div_ceil(8))),
        Class::R64 => Ok(Passed::R64(slot)),
        Class::R128 => Ok(Passed::R128(slot)),
        Class::Pred => Err(Reject::operand("a predicate cannot be passed")),
    }
}
