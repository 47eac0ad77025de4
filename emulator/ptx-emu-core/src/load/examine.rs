//! The kernels of a module that run on a machine, and the obstacles of the others.

use super::function::Obstacles;
use super::reach::Graph;
use crate::Gpu;
use crate::load_error::{LoadError, Unsupported};
use crate::machine::module::{KernelInfo, Module, Symbol, Text};
use crate::syntax::{self, Outline, ast};
use std::collections::{HashMap, HashSet};

/// The contents of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Examination {
    /// `.version`, major and minor.
    pub version: (u32, u32),
    /// `.target` list: the architecture first.
    pub targets: Vec<String>,
    /// Its kernels, in source order.
    pub entries: Vec<Examined>,
}

/// The needs of a kernel, or the reason why it cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Examined {
    /// Name.
    pub name: String,
    /// Its properties, and everything that it reaches and that is not modelled.
    pub outcome: Result<(KernelInfo, Vec<Unsupported>), LoadError>,
}

impl Examined {
    /// Whether it can be launched.
    #[must_use]
    pub fn loads(&self) -> bool {
        self.outcome.as_ref().is_ok_and(|(_, unsupported)| unsupported.is_empty())
    }
}

/// Names of a module's kernels, in source order; their bodies are not read.
///
/// # Errors
/// Text that is not PTX.
pub fn entry_names(text: &str) -> Result<Vec<String>, syntax::SyntaxError> {
    Ok(names(&syntax::Outline::new(text)?.module))
}

/// Says of each kernel of a module, or only of `entry`, whether it loads by itself, with the
/// functions that it reaches. Each function is read and decoded once.
///
/// # Errors
/// Text that is not PTX outside the bodies of functions, or an entry that the module lacks.
pub fn examine(text: &str, gpu: &Gpu, entry: Option<&str>) -> Result<Examination, LoadError> {
    let outline = Outline::new(text)?;
    let names = names(&outline.module);
    let (version, targets) = (outline.module.version, outline.module.targets.clone());
    let entries = match entry {
        Some(entry) if names.iter().any(|name| name == entry) => {
            vec![alone(outline, text, gpu, entry)]
        }
        Some(entry) => {
            let required = names.join(", ");
            return Err(LoadError::Entry { required, actual: entry.to_owned() });
        }
        None => together(outline, text, gpu, names),
    };
    Ok(Examination { version, targets, entries })
}

/// A kernel alone: no other is read.
fn alone(outline: Outline, text: &str, gpu: &Gpu, name: &str) -> Examined {
    let outcome = Module::reached(outline, text, name)
        .and_then(|tree| Module::decode_each(&tree, Text::new(text), gpu))
        .and_then(|(module, obstacles)| {
            let unsupported = Obstacles::of_all(obstacles)?;
            if let Some(kernel) = module.entries().find(|kernel| kernel.name == name) {
                module.check_static_shared(kernel)?;
            }
            Ok((module.into_kernel(name)?, unsupported))
        });
    Examined { name: name.to_owned(), outcome }
}

/// All kernels.
fn together(mut outline: Outline, text: &str, gpu: &Gpu, names: Vec<String>) -> Vec<Examined> {
    let graph = Graph::read(&mut outline, text, &names);
    let mut tree = outline.module;
    // An alias of nothing concerns those who use it.
    let mut dangling: HashSet<String> = HashSet::new();
    tree.items.retain(|item| match item {
        ast::Item::Alias { name, target, .. } if !graph.has(target) => {
            dangling.insert(name.clone());
            false
        }
        ast::Item::Function(function) => !graph.is_unread(&function.name),
        ast::Item::Alias { target, .. } => !graph.is_unread(target),
        ast::Item::Variable(_) => true,
    });
    let (module, obstacles) = match Module::decode_each(&tree, Text::new(text), gpu) {
        Ok(decoded) => decoded,
        Err(error) => {
            let refused = |name| Examined { name, outcome: Err(error.clone()) };
            return names.into_iter().map(refused).collect();
        }
    };
    drop(tree);
    let kernels: HashMap<&str, &KernelInfo> =
        module.entries().map(|kernel| (kernel.name.as_str(), kernel)).collect();
    let one = |name: String| {
        let reached = graph.reached(&name);
        if let Some(error) = reached.iter().find_map(|name| graph.broken(name)) {
            return Examined { name, outcome: Err(error.clone().into()) };
        }
        let index = |name: &&str| match module.symbols.get(*name) {
            Some(Symbol::Function(index)) => Some(*index),
            _ => None,
        };
        let mut functions: Vec<usize> = reached.iter().filter_map(index).collect();
        functions.sort_unstable();
        functions.dedup();
        // One that calls through a pointer may call any function that it reaches, and no other:
        // the module does not know which these are. An alias of nothing has its own error.
        let by_itself = functions.iter().any(|&index| module.functions[index].calls_any)
            || reached.iter().any(|name| dangling.contains(*name));
        if by_itself && let Ok(outline) = Outline::new(text) {
            return alone(outline, text, gpu, &name);
        }
        let obstacles = functions.iter().map(|&index| obstacles[index].clone()).collect();
        let outcome = Obstacles::of_all(obstacles).and_then(|unsupported| {
            let missing = || LoadError::Entry { required: String::new(), actual: name.clone() };
            let kernel = kernels.get(name.as_str()).copied().ok_or_else(missing)?;
            module.check_static_shared(kernel)?;
            Ok((kernel.clone(), unsupported))
        });
        Examined { name, outcome }
    };
    names.into_iter().map(one).collect()
}

impl Module {
    /// The properties of a kernel.
    fn into_kernel(self, name: &str) -> Result<KernelInfo, LoadError> {
        let found = self.kernels.into_iter().find(|kernel| kernel.name == name);
        found.ok_or_else(|| LoadError::Entry { required: String::new(), actual: name.to_owned() })
    }
}

pub(super) fn names(tree: &ast::Module) -> Vec<String> {
    let name = |item: &ast::Item| match item {
        ast::Item::Function(function) if function.is_entry => Some(function.name.clone()),
        _ => None,
    };
    // A kernel may be declared before it is defined.
    let mut seen = HashSet::new();
    tree.items.iter().filter_map(name).filter(|name| seen.insert(name.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::function::tests::DECODED;
    use super::*;

    const HEAD: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n";

    /// Kernels that call one function each, of which every third also calls the next one; kernels
    /// that do not load, each in its way.
    fn many(count: usize) -> String {
        let mut text = HEAD.to_owned();
        text += ".extern .shared .align 16 .b8 dynamic[];\n.global .u64 held[] = {kept};\n";
        text += ".func kept() { ret; }\n";
        for at in 0..count {
            let next = (at + 1) % count;
            let more = if at % 3 == 0 { format!("call f{next};") } else { String::new() };
            let own = format!(".shared .b8 own[{}];", at + 1);
            text += &format!(
                ".func f{at}();
                 .visible .entry k{at}(.param .u64 p) .reqntid {}, 1, 1 {{ call f{at}; ret; }}
                 .func f{at}() {{ {own} .reg .u32 %a; mov.u32 %a, own; {more} ret; }}\n",
                at % 7 + 1
            );
        }
        // Nobody reaches it.
        text += ".func alone() { call kept; } .alias alone_too, alone;\n";
        text += ".visible .entry uses_dynamic() { .reg .b32 %a; mov.u32 %a, dynamic; ret; }
            .visible .entry unsupported() { call unknown; ret; }
            .func unknown() { wmma.fill.sync.aligned.m16n16k16.f32 {}; tex.1d.v4.f32.s32 {}; ret; }
            .visible .entry undeclared() { mov.u32 %a, 1; ret; }
            .visible .entry broken() { mov.u32 , ; ret; }
            .visible .entry large(.param .b8 p[40000]) { ret; }
            .visible .entry through_pointer() { .reg .b64 %a; mov.u64 %a, held;
                ld.global.u64 %a, [%a]; p: .callprototype _ (); call %a, p; ret; }
            .alias other, f1;
            .visible .entry by_alias() { call other; ret; }
            .alias nothing, missing;
            .visible .entry by_nothing() { call nothing; ret; }\n";
        text
    }

    #[test]
    fn all_kernels_together_are_as_each_by_itself() {
        let text = many(8);
        let all = examine(&text, &Gpu::h200(), None).expect("an outline");
        assert_eq!(all.entries.len(), 8 + 8);
        let loads = all.entries.iter().filter(|entry| entry.loads()).count();
        assert_eq!(loads, 8 + 3, "{:#?}", all.entries);
        for found in &all.entries {
            let alone = examine(&text, &Gpu::h200(), Some(&found.name)).expect("an outline");
            let mut expected = alone.entries[0].clone();
            // The place of the function in what was decoded.
            if let (Ok((expected, _)), Ok((found, _))) = (&mut expected.outcome, &found.outcome) {
                expected.function = found.function;
            }
            assert_eq!(*found, expected);
        }
    }

    /// Bodies that `work` decodes.
    fn decoded<T>(work: impl FnOnce() -> T) -> usize {
        DECODED.set(0);
        work();
        DECODED.get()
    }

    #[test]
    fn no_more_is_decoded_than_is_reached() {
        let text = many(300);
        let gpu = Gpu::h200();
        // k1 calls f1; what the variable holds counts, too.
        let load = |name: &str| Module::load_entry(&text, &gpu, name).expect("it loads");
        assert_eq!(decoded(|| load("k1")), 3);
        assert_eq!(decoded(|| load("k0")), 4);
        assert_eq!(decoded(|| examine(&text, &gpu, Some("k1"))), 3);
        assert_eq!(decoded(|| entry_names(&text)), 0);
        // Each once; two of the kernel that calls through a pointer again; not the one with too
        // many parameters.
        assert_eq!(decoded(|| examine(&text, &gpu, None)), 2 * 300 + 1 + 8 + 2);
    }
}
