//! Loading: syntax tree to decoded code. The families of instructions do the decoding of each one.

mod examine;
mod function;
mod reach;

pub use examine::{Examination, Examined, entry_names, examine};

use crate::Gpu;
use crate::language::Language;
use crate::load_error::LoadError;
use crate::machine::module::{KernelInfo, Module, Text};
use crate::syntax::{self, SyntaxError, ast};
use function::Obstacles;
use std::sync::Arc;

/// The text of a module that was read but for the bodies of its functions, to load kernels one by one: what each
/// costs depends on its own length alone.
#[derive(Debug, Clone)]
pub struct ModuleText {
    text: Arc<str>,
    outline: syntax::Outline,
}

impl ModuleText {
    /// Reads a text.
    ///
    /// # Errors
    /// The first place outside the bodies of functions that is not PTX.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, SyntaxError> {
        let text = text.into();
        let outline = syntax::Outline::new(&text)?;
        Ok(Self { text, outline })
    }

    /// The text itself.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Names of the kernels, in source order.
    #[must_use]
    pub fn entry_names(&self) -> Vec<String> {
        examine::names(&self.outline.module)
    }

    /// Loads one kernel, as [`Module::load_entry`] does.
    ///
    /// # Errors
    /// The same as [`Module::load`], but of the kernel's part of the module.
    pub fn load_entry(&self, gpu: &Gpu, entry: &str) -> Result<Module, LoadError> {
        let tree = Module::reached(self.outline.clone(), &self.text, entry)?;
        let mut module = Module::decode_whole(&tree, Text::new(self.text.clone()), gpu)?;
        module.keep_journal();
        Ok(module)
    }
}

impl Module {
    /// Parses and decodes a module for a machine.
    ///
    /// # Errors
    /// Text that is not PTX, a target that the machine does not run, or a list
    /// of everything in the module that is not modelled.
    pub fn load(text: &str, gpu: &Gpu) -> Result<Self, LoadError> {
        let mut module = Self::decode(&syntax::parse(text)?, text, gpu)?;
        module.keep_journal();
        Ok(module)
    }

    /// Loads one kernel alone, as [`load`](Self::load) does: the bodies of functions that it does
    /// not reach are not even read.
    ///
    /// # Errors
    /// The same as [`load`](Self::load), but of the kernel's part of the module.
    pub fn load_entry(text: &str, gpu: &Gpu, entry: &str) -> Result<Self, LoadError> {
        ModuleText::new(text)?.load_entry(gpu, entry)
    }

    /// Returns the part of a module that a kernel reaches.
    fn reached(
        outline: syntax::Outline,
        text: &str,
        entry: &str,
    ) -> Result<ast::Module, LoadError> {
        let names = examine::names(&outline.module);
        if !names.iter().any(|name| name == entry) {
            return Err(LoadError::Entry { required: names.join(", "), actual: entry.to_owned() });
        }
        Ok(reach::read_reached(outline, text, entry)?)
    }

    /// Decodes a tree that was made of `text`, which messages quote, or a variant of such a tree. Its
    /// launches are not noted in the [`journal`](crate::journal).
    ///
    /// # Errors
    /// The same as [`load`](Self::load).
    pub fn decode(tree: &ast::Module, text: &str, gpu: &Gpu) -> Result<Self, LoadError> {
        Self::decode_whole(tree, Text::new(text), gpu)
    }

    fn decode_whole(tree: &ast::Module, text: Text, gpu: &Gpu) -> Result<Self, LoadError> {
        let (module, obstacles) = Self::decode_each(tree, text, gpu)?;
        match Obstacles::of_all(obstacles)? {
            unsupported if unsupported.is_empty() => {
                module.entries().try_for_each(|kernel| module.check_static_shared(kernel))?;
                Ok(module)
            }
            unsupported => Err(LoadError::Unsupported(unsupported)),
        }
    }

    /// The static shared memory of a kernel must fit the target, as ptxas demands.
    fn check_static_shared(&self, kernel: &KernelInfo) -> Result<(), LoadError> {
        let Some(most) = self.language.map(|language| language.static_shared()) else {
            return Ok(());
        };
        if kernel.static_shared <= most {
            return Ok(());
        }
        Err(LoadError::StaticShared {
            kernel: kernel.name.clone(),
            required: format!("{most} bytes for {}", self.target),
            actual: kernel.static_shared,
        })
    }

    /// Decodes as [`decode`](Self::decode) does, and collects the obstacles of each function
    /// besides the module: a kernel that reaches such a function must not run.
    fn decode_each(
        tree: &ast::Module,
        text: Text,
        gpu: &Gpu,
    ) -> Result<(Self, Vec<Obstacles>), LoadError> {
        if let Some(target) = tree.targets.first()
            && !gpu.accepts(target)
        {
            return Err(LoadError::Target {
                gpu: gpu.name,
                targets: gpu.targets(),
                actual: target.clone(),
            });
        }
        if tree.address_size != 64 {
            return Err(LoadError::AddressSize { actual: tree.address_size });
        }
        let target = tree.targets.first().cloned().unwrap_or_default();
        let language = Language::new(tree.version, &target).filter(|_| !gpu.lax);
        if let Some((major, minor)) = language.and_then(|language| language.version_of_target()) {
            return Err(LoadError::Version {
                required: format!("{major}.{minor} or later for {target}"),
                actual: format!("{}.{}", tree.version.0, tree.version.1),
            });
        }
        let used = reach::used(tree);
        let mut module = Self::empty(text, &tree.files, target, gpu);
        module.language = language;
        module.parts = !used.activemask;
        module.wgmma = used.wgmma;
        module.watched = used.watched;
        for item in &tree.items {
            if let ast::Item::Variable(variable) = item {
                let symbol = module.declare(variable)?;
                module.symbols.insert(variable.name.clone(), symbol);
            }
        }
        let obstacles = function::decode_all(&mut module, tree)?;
        module.finish();
        Ok((module, obstacles))
    }
}
