//! Instructions, one file per family, with decoding and semantics next to each other. A family says
//! which instructions are its own ([`Instructions`]); each module head states which sections of the
//! PTX ISA it models and which errors it can miss. An instruction that belongs to no family is
//! reported as unsupported when a module is loaded, and so is one that the module's target lacks
//! ([`language`](crate::language)).

mod atom;
mod bits;
mod bulk;
mod cluster;
mod compare;
mod control;
mod cp_async;
mod cvt;
mod double;
mod float;
mod grid;
mod half;
mod hint;
mod int;
mod matrix;
mod mbarrier;
mod mem;
mod mma;
mod mov;
mod sync;
mod system_call;
mod tcgen05;
mod tcgen05_data;
mod tcgen05_mma;
mod tensormap;
mod tma;
mod warp;
mod wgmma;
mod wmma;

use crate::Family;
use crate::decode::{Decode, Decoded, Reject, Type};
use crate::language::misshapen;
use crate::machine::code::Op;
use crate::syntax::ast::Instruction;

/// Instructions that are decoded in one place.
struct Instructions {
    /// Whether an instruction is one of these. No instruction is of two families.
    accepts: fn(&Instruction) -> bool,
    /// Decodes one that is.
    decode: fn(&mut Decode<'_>) -> Decoded<(Family, Op)>,
}

/// All that are modelled, the frequent ones first.
const ALL: [Instructions; 28] = [
    mov::INSTRUCTIONS,
    mem::INSTRUCTIONS,
    int::INSTRUCTIONS,
    bits::INSTRUCTIONS,
    bits::LOGIC,
    half::INSTRUCTIONS,
    float::INSTRUCTIONS,
    double::INSTRUCTIONS,
    cvt::INSTRUCTIONS,
    compare::INSTRUCTIONS,
    control::INSTRUCTIONS,
    mbarrier::INSTRUCTIONS,
    wgmma::INSTRUCTIONS,
    tcgen05::INSTRUCTIONS,
    cp_async::INSTRUCTIONS,
    warp::INSTRUCTIONS,
    sync::INSTRUCTIONS,
    cluster::STORES,
    cluster::BARRIER,
    cluster::INSTRUCTIONS,
    tensormap::INSTRUCTIONS,
    tensormap::FENCE,
    grid::INSTRUCTIONS,
    atom::INSTRUCTIONS,
    mma::INSTRUCTIONS,
    wmma::INSTRUCTIONS,
    matrix::INSTRUCTIONS,
    hint::INSTRUCTIONS,
];

/// Decodes one instruction, if the module's target has it.
pub(crate) fn decode(d: &mut Decode<'_>) -> Decoded<(Family, Op)> {
    if let Some(why) = d.module.language.and_then(|language| language.lacks(d.ins)) {
        return Err(Reject::unsupported(why));
    }
    let decoded = match ALL.iter().find(|some| (some.accepts)(d.ins)) {
        Some(some) => (some.decode)(d)?,
        None => return Err(Reject::unsupported(format!("instruction {}", d.ins.opcode))),
    };
    match d.module.language.and_then(|_| misshapen(d.ins)) {
        Some(why) => Err(Reject::unsupported(why)),
        None => Ok(decoded),
    }
}

/// The first modifier, without its dot; nothing if there is none.
fn first_modifier(ins: &Instruction) -> &str {
    ins.modifiers.first().map_or("", String::as_str)
}

/// The type of an instruction whose last type modifier is that of its operands.
fn last_type(ins: &Instruction) -> Option<Type> {
    ins.modifiers.iter().rev().find_map(|name| Type::parse(name))
}

/// Arithmetic that integers and all floating-point types share.
fn is_arithmetic(opcode: &str) -> bool {
    matches!(opcode, "add" | "sub" | "mul" | "fma" | "mad" | "div" | "abs" | "neg" | "min" | "max")
}

/// Functions of floating-point types.
fn is_function(opcode: &str) -> bool {
    matches!(
        opcode,
        "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" | "copysign" | "testp"
    )
}

/// Either.
fn is_numeric(opcode: &str) -> bool {
    is_arithmetic(opcode) || is_function(opcode)
}

#[cfg(test)]
mod tests {
    use super::ALL;
    use crate::syntax::ast::{Block, Item, Statement};

    /// Every form that 67 kernels of other projects use is of one family.
    #[test]
    fn families_do_not_overlap() {
        let forms = include_str!("../../../../tests/data/ptx/forms.txt");
        let mut seen = 0;
        for line in forms.lines().filter(|line| !line.starts_with('#')) {
            let Some(form) = line.split_whitespace().nth(2) else { continue };
            let text = format!(
                ".version 9.0\n.target sm_100a\n.address_size 64\n.func f() {{ {form} %r1; }}"
            );
            let tree = crate::syntax::parse(&text).expect("an instruction");
            let Some(Item::Function(function)) = tree.items.first() else { panic!("{form}") };
            let Some(Block { statements, .. }) = &function.body else { panic!("{form}") };
            let [Statement::Instruction(ins)] = statements.as_slice() else { panic!("{form}") };
            let families = ALL.iter().filter(|some| (some.accepts)(ins)).count();
            assert_eq!(families, 1, "{form}");
            seen += 1;
        }
        assert!(seen > 300, "{seen} forms");
    }
}
