//! Finds and changes instructions in a syntax tree.

use super::Edit;
use ptx_emu_core::syntax::ast::{
    Block, Function, Imm, Instruction, Item, Module, Operand, Statement,
};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The tree without the kernels other than `entry`.
pub(super) fn only(tree: &Module, entry: &str) -> Module {
    let mut kept = tree.clone();
    kept.items.retain(|item| match item {
        Item::Function(function) => !function.is_entry || function.name == entry,
        Item::Variable(_) | Item::Alias { .. } => true,
    });
    kept
}

/// Functions with a body.
pub(super) fn functions(tree: &Module) -> impl Iterator<Item = (usize, &Function, &Block)> {
    tree.items.iter().enumerate().filter_map(|(index, item)| match item {
        Item::Function(function) => Some((index, function, function.body.as_ref()?)),
        _ => None,
    })
}

/// Instructions of a body in source order, which is also that of decoded code.
pub(super) fn instructions(body: &Block) -> Vec<&Instruction> {
    fn collect<'t>(body: &'t Block, found: &mut Vec<&'t Instruction>) {
        for statement in &body.statements {
            match statement {
                Statement::Instruction(ins) => found.push(ins),
                Statement::Block(inner) => collect(inner, found),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    collect(body, &mut found);
    found
}

/// Registers that only one instruction writes, which moves an integer there, and that.
pub(super) fn constants(instructions: &[&Instruction]) -> BTreeMap<String, Operand> {
    let mut found: BTreeMap<&String, Option<&Operand>> = BTreeMap::new();
    for ins in instructions {
        let Some(Operand::Ident(register)) = ins.operands.first() else { continue };
        let constant = match ins.operands.get(1) {
            Some(number @ Operand::Imm(Imm::Int { .. })) if ins.opcode == "mov" => Some(number),
            _ => None,
        };
        let first = !found.contains_key(register);
        found.insert(register, constant.filter(|_| first && ins.guard.is_none()));
    }
    let known = found.into_iter();
    known.filter_map(|(register, number)| Some((register.clone(), number?.clone()))).collect()
}

/// The instruction; of `mbarrier.init` the count as a number, if a register has a known one.
pub(super) fn with_constant_count<'i>(
    ins: &'i Instruction,
    constants: &BTreeMap<String, Operand>,
) -> Cow<'i, Instruction> {
    let is_init = ins.opcode == "mbarrier" && ins.modifiers.first().is_some_and(|m| m == "init");
    let count = match ins.operands.get(1) {
        Some(Operand::Ident(register)) if is_init => constants.get(register),
        _ => None,
    };
    let Some(count) = count else { return Cow::Borrowed(ins) };
    let mut known = ins.clone();
    known.operands[1] = count.clone();
    Cow::Owned(known)
}

/// The tree with instruction number `ordinal` of the function that is item
/// `function` edited.
pub(super) fn edited(tree: &Module, function: usize, ordinal: usize, edit: &Edit) -> Module {
    let mut tree = tree.clone();
    if let Some(Item::Function(function)) = tree.items.get_mut(function)
        && let Some(body) = &mut function.body
    {
        apply(body, &mut { ordinal }, edit);
    }
    tree
}

/// Edits the instruction that `left` others stand before. True when it was
/// found.
fn apply(body: &mut Block, left: &mut usize, edit: &Edit) -> bool {
    for at in 0..body.statements.len() {
        match &mut body.statements[at] {
            Statement::Instruction(_) if *left == 0 => {
                let new = match edit {
                    Edit::Remove => Vec::new(),
                    Edit::Replace(statements) => statements.clone(),
                };
                body.statements.splice(at..=at, new);
                return true;
            }
            Statement::Instruction(_) => *left -= 1,
            Statement::Block(inner) => {
                let found = apply(inner, left, edit);
                if found {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}
