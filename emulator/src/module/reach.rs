//! What a kernel reaches in a module: the functions that it may call, by name.

use crate::syntax::ast::{Block, Function, Init, Item, Module, Operand, Statement};
use std::collections::{HashMap, HashSet};

/// Leaves out the kernels other than `entry`, and the device functions that it does not reach.
/// A function whose address a variable holds counts as reached.
pub(super) fn keep_reached(tree: &mut Module, entry: &str) {
    let mut reached: HashSet<String> = HashSet::from([entry.to_owned()]);
    let mut aliases: HashMap<&str, &str> = HashMap::new();
    let mut functions: HashMap<&str, Vec<&Function>> = HashMap::new();
    let mut work = vec![entry.to_owned()];
    for item in &tree.items {
        match item {
            Item::Function(function) => functions.entry(&function.name).or_default().push(function),
            Item::Variable(variable) => {
                if let Some(init) = &variable.init {
                    symbols(init, &mut work);
                }
            }
            Item::Alias { name, target, .. } => {
                aliases.insert(name, target);
            }
        }
    }
    while let Some(name) = work.pop() {
        let target = aliases.get(name.as_str()).map(|target| (*target).to_owned());
        let bodies = functions.get(name.as_str()).into_iter().flatten();
        let mut named = Vec::new();
        bodies
            .filter_map(|function| function.body.as_ref())
            .for_each(|body| names(body, &mut named));
        reached.insert(name);
        let known = |name: &&String| {
            functions.contains_key(name.as_str()) || aliases.contains_key(name.as_str())
        };
        let new = named.iter().filter(known).chain(&target).filter(|name| !reached.contains(*name));
        work.extend(new.cloned());
    }
    tree.items.retain(|item| match item {
        Item::Function(function) => reached.contains(&function.name),
        Item::Alias { name, .. } => reached.contains(name),
        Item::Variable(_) => true,
    });
}

/// Symbols whose addresses an initialiser holds.
fn symbols(init: &Init, found: &mut Vec<String>) {
    match init {
        Init::Symbol { name, .. } => found.push(name.clone()),
        Init::List(items) => items.iter().for_each(|item| symbols(item, found)),
        Init::Field { value, .. } => symbols(value, found),
        Init::Value(_) => {}
    }
}

/// Names in a body that could be functions.
fn names(body: &Block, found: &mut Vec<String>) {
    for statement in &body.statements {
        match statement {
            Statement::Instruction(instruction) => {
                instruction.operands.iter().for_each(|operand| operand_names(operand, found));
            }
            Statement::Block(inner) => names(inner, found),
            Statement::CallTargets { targets, .. } => found.extend(targets.iter().cloned()),
            Statement::Variable(variable) => {
                if let Some(init) = &variable.init {
                    symbols(init, found);
                }
            }
            Statement::Registers(_)
            | Statement::Label { .. }
            | Statement::Directive(_)
            | Statement::BranchTargets { .. }
            | Statement::CallPrototype { .. } => {}
        }
    }
}

fn operand_names(operand: &Operand, found: &mut Vec<String>) {
    match operand {
        Operand::Ident(name) | Operand::SymbolOffset { name, .. } if !name.starts_with('%') => {
            found.push(name.clone());
        }
        Operand::Vector(items) => items.iter().for_each(|item| operand_names(item, found)),
        Operand::Pair(first, second) => {
            operand_names(first, found);
            operand_names(second, found);
        }
        Operand::Call { target, args, .. } => {
            found.push(target.clone());
            args.iter().for_each(|item| operand_names(item, found));
        }
        _ => {}
    }
}
