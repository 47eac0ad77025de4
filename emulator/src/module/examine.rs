//! Which kernels of a module run on a machine, and what keeps the others from it.

use super::text::Text;
use super::{KernelInfo, LoadError, Module, Unsupported};
use crate::Gpu;
use crate::syntax::{self, ast};
use std::collections::HashSet;
use std::sync::Arc;

/// What a module holds.
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

/// What a kernel needs, or why it cannot be loaded.
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

/// Decodes each kernel of a module, or only `entry`, by itself, with the functions that it
/// reaches.
///
/// # Errors
/// Text that is not PTX outside the bodies of functions, or an entry that the module lacks.
pub fn examine(text: &str, gpu: &Gpu, entry: Option<&str>) -> Result<Examination, LoadError> {
    let outline = syntax::Outline::new(text)?;
    let mut names = names(&outline.module);
    if let Some(entry) = entry {
        if !names.iter().any(|name| name == entry) {
            return Err(LoadError::Entry { required: names.join(", "), actual: entry.to_owned() });
        }
        names.retain(|name| name == entry);
    }
    let shared = Arc::new(Text::new(text));
    let one = |name: String| {
        let outcome = Module::reached(outline.clone(), &name)
            .and_then(|tree| Module::decode_some(&tree, &shared, gpu))
            .and_then(|(module, unsupported)| {
                let kernel = module.kernels.into_iter().find(|kernel| kernel.name == name);
                let missing = || LoadError::Entry { required: String::new(), actual: name.clone() };
                Ok((kernel.ok_or_else(missing)?, unsupported))
            });
        Examined { name, outcome }
    };
    Ok(Examination {
        version: outline.module.version,
        targets: outline.module.targets.clone(),
        entries: names.into_iter().map(one).collect(),
    })
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
