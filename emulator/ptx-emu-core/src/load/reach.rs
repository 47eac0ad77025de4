//! The reach of a kernel in a module: the functions that it may call, by name.

use crate::syntax::ast::{Block, Init, Item, Module, Operand, Statement};
use crate::syntax::{Outline, SyntaxError};
use std::collections::{HashMap, HashSet};

/// The module with the kernel `entry` alone and the functions that it reaches, the only ones
/// whose bodies are read from `text`, which the outline is of. A function whose address a variable holds counts as reached.
///
/// # Errors
/// A body among those that is not PTX.
pub(super) fn read_reached(
    mut outline: Outline,
    text: &str,
    entry: &str,
) -> Result<Module, SyntaxError> {
    let mut aliases: HashMap<String, String> = HashMap::new();
    let mut functions: HashMap<String, Vec<usize>> = HashMap::new();
    let mut work = vec![entry.to_owned()];
    for (at, item) in outline.module.items.iter().enumerate() {
        match item {
            Item::Function(function) => {
                functions.entry(function.name.clone()).or_default().push(at);
            }
            Item::Variable(variable) => {
                if let Some(init) = &variable.init {
                    symbols(init, &mut work);
                }
            }
            Item::Alias { name, target, .. } => {
                aliases.insert(name.clone(), target.clone());
            }
        }
    }
    let mut reached: HashSet<String> = HashSet::new();
    while let Some(name) = work.pop() {
        if reached.contains(&name) {
            continue;
        }
        work.extend(aliases.get(&name).cloned());
        for &at in functions.get(&name).into_iter().flatten() {
            outline.read_body(text, at)?;
            let Item::Function(function) = &outline.module.items[at] else {
                continue;
            };
            if functions.len() == 1 && aliases.is_empty() {
                continue;
            }
            let mut named = Vec::new();
            if let Some(body) = &function.body {
                names(body, &mut named);
            }
            named.retain(|name| functions.contains_key(*name) || aliases.contains_key(*name));
            work.extend(named.into_iter().map(str::to_owned));
        }
        reached.insert(name);
    }
    let mut module = outline.module;
    module.items.retain(|item| match item {
        Item::Function(function) => reached.contains(&function.name),
        Item::Alias { name, .. } => reached.contains(name),
        Item::Variable(_) => true,
    });
    Ok(module)
}

/// The functions that a module's functions name.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// Names by function or alias.
    named: HashMap<String, Vec<String>>,
    /// Functions whose addresses variables hold.
    held: Vec<String>,
    /// Functions whose bodies are not PTX.
    broken: HashMap<String, SyntaxError>,
    /// Functions that no kernel reaches.
    unread: HashSet<String>,
}

impl Graph {
    /// Reads the graph of the functions that some kernels reach.
    pub(super) fn read(outline: &mut Outline, text: &str, entries: &[String]) -> Self {
        let mut graph = Self::default();
        let mut places: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, item) in outline.module.items.iter().enumerate() {
            match item {
                Item::Function(function) => {
                    graph.named.entry(function.name.clone()).or_default();
                    places.entry(function.name.clone()).or_default().push(at);
                }
                Item::Alias { name, target, .. } => {
                    graph.named.entry(name.clone()).or_default().push(target.clone());
                }
                Item::Variable(variable) => {
                    if let Some(init) = &variable.init {
                        symbols(init, &mut graph.held);
                    }
                }
            }
        }
        let mut seen: HashSet<String> = HashSet::new();
        let mut work: Vec<String> = entries.iter().chain(&graph.held).cloned().collect();
        while let Some(name) = work.pop() {
            if seen.contains(&name) {
                continue;
            }
            for at in places.remove(&name).unwrap_or_default() {
                if let Err(error) = outline.read_body(text, at) {
                    graph.broken.insert(name.clone(), error);
                    continue;
                }
                let mut found = Vec::new();
                if let Item::Function(function) = &outline.module.items[at]
                    && let Some(body) = &function.body
                {
                    names(body, &mut found);
                }
                found.sort_unstable();
                found.dedup();
                found.retain(|name| graph.named.contains_key(*name));
                let found: Vec<String> = found.into_iter().map(str::to_owned).collect();
                graph.named.entry(name.clone()).or_default().extend(found);
            }
            work.extend(graph.named.get(&name).into_iter().flatten().cloned());
            seen.insert(name);
        }
        graph.unread = places.into_keys().collect();
        graph
    }

    /// Whether a function's body is among those that no kernel reaches.
    pub(super) fn is_unread(&self, name: &str) -> bool {
        self.unread.contains(name)
    }

    /// Returns the error of a function's body that is not PTX.
    pub(super) fn broken(&self, name: &str) -> Option<&SyntaxError> {
        self.broken.get(name)
    }

    /// Whether the module has a function or an alias of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// Functions and aliases that a kernel reaches, itself included.
    pub(super) fn reached<'g>(&'g self, entry: &str) -> Vec<&'g str> {
        let mut reached: HashSet<&str> = HashSet::new();
        let mut work: Vec<&str> = self.held.iter().map(String::as_str).chain([entry]).collect();
        let mut found = Vec::new();
        while let Some(name) = work.pop() {
            if let Some((name, named)) = self.named.get_key_value(name)
                && reached.insert(name)
            {
                found.push(name.as_str());
                work.extend(named.iter().map(String::as_str));
            }
        }
        found
    }
}

/// Instructions of some families that are among a module's.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Used {
    /// `activemask`
    pub(super) activemask: bool,
    /// `wgmma`
    pub(super) wgmma: bool,
    /// One that leaves registers in flight, or may leave some undefined.
    pub(super) watched: bool,
}

/// Whether a load with this modifier may be one of shared or local memory.
fn may_be_followed(modifier: &str) -> bool {
    !matches!(modifier, "global" | "const") && !modifier.starts_with("param")
}

/// Returns the functions and variables in use.
pub(super) fn used(module: &Module) -> Used {
    fn look(body: &Block, used: &mut Used) {
        for statement in &body.statements {
            match statement {
                Statement::Instruction(instruction) => match instruction.opcode.as_str() {
                    "activemask" => used.activemask = true,
                    "wgmma" => (used.wgmma, used.watched) = (true, true),
                    "shfl" | "ldmatrix" => used.watched = true,
                    "ld" if !instruction.modifiers.iter().any(|m| !may_be_followed(m)) => {
                        used.watched = true;
                    }
                    "tcgen05" if instruction.modifiers.first().is_some_and(|name| name == "ld") => {
                        used.watched = true;
                    }
                    _ => {}
                },
                Statement::Block(inner) => look(inner, used),
                _ => {}
            }
        }
    }
    let mut used = Used::default();
    for item in &module.items {
        if let Item::Function(function) = item
            && let Some(body) = &function.body
        {
            look(body, &mut used);
        }
    }
    used
}

/// Symbols whose addresses an initialiser holds.
fn symbols(init: &Init, found: &mut Vec<String>) {
    named_by(init, &mut |name| found.push(name.to_owned()));
}

fn named_by<'a>(init: &'a Init, found: &mut impl FnMut(&'a str)) {
    match init {
        Init::Symbol { name, .. } => found(name),
        Init::List(items) => items.iter().for_each(|item| named_by(item, found)),
        Init::Field { value, .. } => named_by(value, found),
        Init::Value(_) => {}
    }
}

/// Names in a body that could be functions.
fn names<'a>(body: &'a Block, found: &mut Vec<&'a str>) {
    for statement in &body.statements {
        match statement {
            Statement::Instruction(instruction) => {
                instruction.operands.iter().for_each(|operand| operand_names(operand, found));
            }
            Statement::Block(inner) => names(inner, found),
            Statement::CallTargets { targets, .. } => {
                found.extend(targets.iter().map(String::as_str));
            }
            Statement::Variable(variable) => {
                if let Some(init) = &variable.init {
                    named_by(init, &mut |name| found.push(name));
                }
            }
            Statement::Registers(_)
            | Statement::Label { .. }
            | Statement::Directive(_)
            | Statement::Location(_)
            | Statement::BranchTargets { .. }
            | Statement::CallPrototype { .. } => {}
        }
    }
}

fn operand_names<'a>(operand: &'a Operand, found: &mut Vec<&'a str>) {
    match operand {
        Operand::Ident(name) | Operand::SymbolOffset { name, .. } if !name.starts_with('%') => {
            found.push(name);
        }
        Operand::Vector(items) => items.iter().for_each(|item| operand_names(item, found)),
        Operand::Pair(first, second) => {
            operand_names(first, found);
            operand_names(second, found);
        }
        Operand::Call(call) => {
            found.push(&call.target);
            call.args.iter().for_each(|item| operand_names(item, found));
        }
        _ => {}
    }
}
