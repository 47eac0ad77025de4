//! Finding and changing instructions in a syntax tree.

use super::Edit;
use crate::syntax::ast::{Block, Function, Instruction, Item, Module, Statement};

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
