//! A function's instructions with where threads go behind each.

use crate::mutate::shape;
use ptx_emu_core::syntax::ast::{Block, Guard, Instruction, Operand, Pos, Statement};
use std::collections::HashMap;

/// The successors of an instruction whose guard is true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// The following one.
    Following,
    /// One of these.
    Branch(Vec<usize>),
    /// Nowhere.
    End,
}

/// An instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// The text, without the numbers of registers, the names of labels and white space.
    pub(super) shape: String,
    /// Whether it has a guard.
    pub(super) guarded: bool,
    /// A label stands before it.
    pub(super) labelled: bool,
    /// The successors.
    pub(super) next: Next,
    /// A launch reached it.
    pub(super) reached: bool,
}

impl Step {
    /// Whether threads that execute it may go elsewhere than to the following one.
    pub(super) fn ends_piece(&self) -> bool {
        self.next != Next::Following
    }
}

/// The instructions of a function in the order of the text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) instructions: Vec<Step>,
}

impl Flow {
    /// Reads the steps of a body; `lines` are the module's, `reached` says which were reached.
    pub(super) fn new(body: &Block, lines: &[&str], reached: impl Fn(usize) -> bool) -> Self {
        let mut found = Found::default();
        found.collect(body, &[]);
        let scopes = &found.scopes;
        let labelled: Vec<usize> = found.labels.values().copied().collect();
        let resolve = |scope: usize, name: &str| {
            let named = |scope: &usize| found.labels.get(&(*scope, name.to_owned())).copied();
            scopes[scope].iter().rev().find_map(named)
        };
        let mut instructions: Vec<Step> = found
            .instructions
            .iter()
            .enumerate()
            .map(|(at, &(instruction, scope))| {
                let mut named: Vec<&str> = Vec::new();
                instruction.operands.iter().for_each(|operand| names(operand, &mut named));
                let lists = named.iter().flat_map(|name| match found.lists.get(*name) {
                    Some(list) => list.iter().map(String::as_str).collect(),
                    None => vec![*name],
                });
                let next = match instruction.opcode.as_str() {
                    "bra" | "brx" => {
                        Next::Branch(lists.filter_map(|name| resolve(scope, name)).collect())
                    }
                    "ret" | "exit" | "trap" => Next::End,
                    _ => Next::Following,
                };
                Step {
                    shape: without_names(&written(instruction, lines)),
                    guarded: instruction.guard.is_some(),
                    labelled: false,
                    next,
                    reached: reached(at),
                }
            })
            .collect();
        for at in labelled {
            if let Some(step) = instructions.get_mut(at) {
                step.labelled = true;
            }
        }
        Self { instructions }
    }
}

/// The parts of a body.
#[derive(Default)]
struct Found<'b> {
    /// Instructions and their scopes.
    instructions: Vec<(&'b Instruction, usize)>,
    /// Scopes around each scope, and itself.
    scopes: Vec<Vec<usize>>,
    /// The instruction behind each label of a scope.
    labels: HashMap<(usize, String), usize>,
    /// Lists of labels.
    lists: HashMap<&'b str, &'b [String]>,
}

impl<'b> Found<'b> {
    fn collect(&mut self, body: &'b Block, around: &[usize]) {
        let scope = self.scopes.len();
        let scopes = [around, &[scope]].concat();
        self.scopes.push(scopes.clone());
        for statement in &body.statements {
            match statement {
                Statement::Instruction(instruction) => self.instructions.push((instruction, scope)),
                Statement::Block(inner) => self.collect(inner, &scopes),
                Statement::Label { name, .. } => {
                    self.labels.insert((scope, name.clone()), self.instructions.len());
                }
                Statement::BranchTargets { name, targets, .. } => {
                    self.lists.insert(name, targets);
                }
                Statement::Registers(_)
                | Statement::Variable(_)
                | Statement::Directive(_)
                | Statement::Location(_)
                | Statement::CallTargets { .. }
                | Statement::CallPrototype { .. } => {}
            }
        }
    }
}

/// Names among an operand.
fn names<'o>(operand: &'o Operand, found: &mut Vec<&'o str>) {
    if let Operand::Ident(name) = operand {
        found.push(name);
    }
}

/// An instruction as it is written, as far as it is on one line.
fn written(instruction: &Instruction, lines: &[&str]) -> String {
    let Pos { line, column } = instruction.pos;
    let line = lines.get(line as usize - 1).copied().unwrap_or_default();
    let behind = line.get(column as usize - 1..).unwrap_or_default();
    let text = behind.split([';', '\n']).next().unwrap_or_default();
    match &instruction.guard {
        Some(Guard { negated, register }) => {
            format!("@{}{register} {text};", if *negated { "!" } else { "" })
        }
        None => format!("{text};"),
    }
}

/// A text with `$` for each label that begins so, and `%r` for each register of that kind, with one
/// space between words.
fn without_names(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = shape(&words.join(" "));
    let mut parts = line.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.push('$');
        text.push_str(part.trim_start_matches(is_name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_lose_numbers_and_labels() {
        for (text, expected) in
            [("@%p5 bra \t$L__BB0_6;", "@%p bra $;"), ("mov.b32 \t%r214, -1;", "mov.b32 %r, -1;")]
        {
            assert_eq!(without_names(text), expected);
        }
    }
}
