//! Loading: syntax tree to decoded code.

mod decode;
mod error;
mod examine;
mod function;
mod image;
mod layout;
mod place;
mod pool;
mod reach;
mod scope;
mod shapes;
mod sources;
mod text;
mod touches;
mod types;
mod variables;

pub use error::{LoadError, Unsupported};
pub use examine::{Examination, Examined, entry_names, examine};
pub use sources::SourceLine;
pub use variables::VariableInfo;

pub(crate) use decode::{AddressBase, Decode, Destination, Source};
pub(crate) use error::{Decoded, Reject};
pub(crate) use shapes::unary;
pub(crate) use types::Type;

use crate::Gpu;
use crate::coverage::Counting;
use crate::machine::code::{FunctionCode, Instr};
use crate::machine::units::Touches;
use crate::syntax::{self, ast};
use function::Obstacles;
pub(crate) use layout::SharedLayout;
use layout::{GlobalVariable, Patch, SharedVariable, Symbol};
use pool::PoolBuilder;
use sources::Sources;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use text::Text;

/// A parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamInfo {
    /// Name.
    pub name: String,
    /// Offset in the parameter block, bytes.
    pub offset: u32,
    /// Size, bytes.
    pub size: u32,
    /// Alignment, bytes.
    pub align: u32,
    /// Type and dimensions as declared, without the dot: `u64`, `b8[128]`.
    pub ty: String,
    /// It is declared to point somewhere (`.ptr`).
    pub pointer: bool,
}

/// The properties of a kernel that a launch needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelInfo {
    /// Name.
    pub name: String,
    /// `.reqntid`
    pub reqntid: Option<[u32; 3]>,
    /// `.maxntid`
    pub maxntid: Option<[u32; 3]>,
    /// `.reqnctapercluster`
    pub cluster: Option<[u32; 3]>,
    /// Size of the parameter block, bytes.
    pub param_bytes: u32,
    /// `.maxnreg`
    pub maxnreg: Option<u32>,
    /// `.minnctapersm`
    pub min_ctas_per_sm: Option<u32>,
    /// Parameters in order.
    pub params: Vec<ParamInfo>,
    /// Static shared memory of a CTA, bytes.
    pub static_shared: u32,
    /// It uses dynamic shared memory: an `extern .shared` array of open size.
    pub dynamic_shared: bool,
    pub(crate) function: usize,
}

fn round_up(value: u32, align: u32) -> u32 {
    value.checked_next_multiple_of(align).unwrap_or(u32::MAX)
}

impl KernelInfo {
    /// Registers of a thread at launch, where `setmaxnreg` can know them (PTX
    /// ISA 9.7.19.5): `.maxnreg`, or what `.minnctapersm` CTAs of the stated
    /// size leave of an SM's 65,536.
    pub(crate) fn registers(&self) -> Option<u32> {
        if self.maxnreg.is_some() {
            return self.maxnreg;
        }
        let threads: u32 = self.reqntid.or(self.maxntid)?.iter().product();
        let ctas = self.min_ctas_per_sm?.max(1);
        Some(((1 << 16) / threads.next_multiple_of(32).max(32) / ctas / 8 * 8).min(256))
    }
}

/// A loaded module, ready to launch kernels of.
pub struct Module {
    /// Distinguishes modules that share a memory.
    id: u64,
    text: Text,
    sources: Sources,
    pub(crate) gpu: Gpu,
    /// The module's `.target`.
    pub(crate) target: String,
    pub(crate) code: Vec<Instr>,
    pub(crate) functions: Vec<FunctionCode>,
    /// Where in `code` the instructions of the text are, in its order: reads of
    /// special registers stand between them.
    pub(crate) written: Vec<usize>,
    kernels: Vec<KernelInfo>,
    pool: PoolBuilder,
    globals: Vec<GlobalVariable>,
    shared: Vec<SharedVariable>,
    consts: Vec<u8>,
    /// Names and sizes of `.const` variables.
    constants: Vec<(String, u64)>,
    const_patches: Vec<Patch>,
    symbols: HashMap<String, Symbol>,
    /// Some instruction reads memory through the async proxy.
    pub(crate) async_proxy: bool,
    /// Lanes of a warp may part anywhere. Hardware keeps them together where
    /// nothing diverges, and `activemask` would tell the difference.
    pub(crate) parts: bool,
    /// Some instruction is of `wgmma`.
    pub(crate) wgmma: bool,
    /// Registers of each instruction, if some instruction has registers in flight or may leave
    /// one undefined.
    pub(crate) touches: Vec<Touches>,
    watched: bool,
    /// What is kept of its launches.
    pub(crate) counting: Counting,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("gpu", &self.gpu.name)
            .field("kernels", &self.kernels)
            .field("instructions", &self.code.len())
            .finish_non_exhaustive()
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

    /// As [`load`](Self::load), with one kernel alone: the bodies of functions that it does not
    /// reach are not even read.
    ///
    /// # Errors
    /// As [`load`](Self::load), but of the kernel's part of the module.
    pub fn load_entry(text: &str, gpu: &Gpu, entry: &str) -> Result<Self, LoadError> {
        let mut module =
            Self::decode(&Self::reached(syntax::Outline::new(text)?, entry)?, text, gpu)?;
        module.keep_journal();
        Ok(module)
    }

    /// What of a module a kernel reaches.
    fn reached(outline: syntax::Outline<'_>, entry: &str) -> Result<ast::Module, LoadError> {
        let names = examine::names(&outline.module);
        if !names.iter().any(|name| name == entry) {
            return Err(LoadError::Entry { required: names.join(", "), actual: entry.to_owned() });
        }
        Ok(reach::read_reached(outline, entry)?)
    }

    /// Decodes a tree that was made of `text`, which messages quote.
    pub(crate) fn decode(tree: &ast::Module, text: &str, gpu: &Gpu) -> Result<Self, LoadError> {
        let (module, obstacles) = Self::decode_each(tree, Text::new(text), gpu)?;
        match Obstacles::of_all(obstacles)? {
            unsupported if unsupported.is_empty() => Ok(module),
            unsupported => Err(LoadError::Unsupported(unsupported)),
        }
    }

    /// As [`decode`](Self::decode), with what keeps each function from running besides the module:
    /// a kernel that reaches such a function must not run.
    fn decode_each(
        tree: &ast::Module,
        text: Text,
        gpu: &Gpu,
    ) -> Result<(Self, Vec<Obstacles>), LoadError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
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
        let used = reach::used(tree);
        let mut module = Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            text,
            sources: Sources::new(&tree.files),
            gpu: gpu.clone(),
            target: tree.targets.first().cloned().unwrap_or_default(),
            code: Vec::new(),
            functions: Vec::new(),
            written: Vec::new(),
            kernels: Vec::new(),
            pool: PoolBuilder::default(),
            globals: Vec::new(),
            shared: Vec::new(),
            consts: Vec::new(),
            constants: Vec::new(),
            const_patches: Vec::new(),
            symbols: HashMap::new(),
            async_proxy: false,
            parts: !used.activemask,
            wgmma: used.wgmma,
            touches: Vec::new(),
            watched: used.watched,
            counting: Counting::default(),
        };
        for item in &tree.items {
            if let ast::Item::Variable(variable) = item {
                let symbol = module.declare(variable)?;
                module.symbols.insert(variable.name.clone(), symbol);
            }
        }
        let obstacles = function::decode_all(&mut module, tree)?;
        module.sources.finish();
        for kernel in 0..module.kernels.len() {
            let entry = module.kernels[kernel].function;
            module.kernels[kernel].static_shared = module.shared_layout(entry).end;
            module.kernels[kernel].dynamic_shared = module.uses_dynamic(entry);
        }
        Ok((module, obstacles))
    }

    /// Kernels in source order.
    pub fn entries(&self) -> impl Iterator<Item = &KernelInfo> {
        self.kernels.iter()
    }

    /// A line of the text, from 1, trimmed.
    pub(crate) fn source_line(&self, line: u32) -> &str {
        self.text.line(line)
    }

    /// The line of source that a line of the text comes from, if the text says so.
    pub(crate) fn source_of(&self, line: u32) -> Option<SourceLine> {
        self.sources.of(line)
    }

    /// Adds a variable of module lifetime.
    fn declare(&mut self, variable: &ast::Variable) -> Result<Symbol, LoadError> {
        let (size, align) = layout::size_align(variable)?;
        let bad =
            |field, required, actual| LoadError::declaration(variable, field, required, actual);
        match variable.space {
            ast::Space::Global => {
                let (image, patches) = layout::image(variable, size)?;
                self.globals.push(GlobalVariable {
                    name: variable.name.clone(),
                    size,
                    align: u64::from(align),
                    image,
                    patches,
                });
                Ok(Symbol::Global(self.globals.len() - 1))
            }
            ast::Space::Const => {
                const BANK: u64 = 64 << 10;
                let start = self.consts.len().next_multiple_of(align as usize);
                if start as u64 + size > BANK {
                    return Err(bad("size", "64 KiB of constants", size.to_string()));
                }
                let (image, patches) = layout::image(variable, size)?;
                self.consts.resize(start, 0);
                self.consts.extend(image);
                self.consts.resize(start + size as usize, 0);
                self.constants.push((variable.name.clone(), size));
                self.const_patches.extend(
                    patches
                        .into_iter()
                        .map(|patch| Patch { offset: patch.offset + start, ..patch }),
                );
                Ok(Symbol::Const(start as u32))
            }
            ast::Space::Shared => {
                let size = u32::try_from(size)
                    .ok()
                    .filter(|&size| size <= 1 << 20)
                    .ok_or_else(|| bad("size", "at most 1 MiB", size.to_string()))?;
                self.shared.push(SharedVariable {
                    size,
                    align,
                    dynamic: variable.linkage == ast::Linkage::Extern && size == 0,
                });
                Ok(Symbol::Shared(self.shared.len() - 1))
            }
            other => Err(bad("state space", ".global, .const or .shared", format!("{other:?}"))),
        }
    }

    /// Functions that a kernel may run, itself included.
    fn reachable(&self, entry: usize) -> Vec<usize> {
        let mut seen = HashSet::from([entry]);
        let mut work = vec![entry];
        let mut order = Vec::new();
        while let Some(index) = work.pop() {
            order.push(index);
            let function = &self.functions[index];
            let all = if function.calls_any { 0..self.functions.len() } else { 0..0 };
            for callee in function.calls.iter().copied().chain(all) {
                if seen.insert(callee) {
                    work.push(callee);
                }
            }
        }
        order.sort_unstable();
        order
    }

    /// Whether a kernel communicates through global memory while it runs.
    pub(crate) fn reaches_global_sync(&self, entry: usize) -> bool {
        self.reachable(entry).iter().any(|&index| self.functions[index].global_sync)
    }

    /// Whether a kernel asks for clusters of its grid that have not begun.
    pub(crate) fn takes_over(&self, entry: usize) -> bool {
        self.reachable(entry).iter().any(|&index| self.functions[index].takes_over)
    }

    /// Whether a kernel uses dynamic shared memory.
    pub(crate) fn uses_dynamic(&self, entry: usize) -> bool {
        let reached = self.reachable(entry);
        let mut used = reached.iter().flat_map(|&index| &self.functions[index].shared);
        used.any(|&index| self.shared[index].dynamic)
    }

    /// Places the shared variables a kernel can reach, in order of declaration.
    pub(crate) fn shared_layout(&self, entry: usize) -> SharedLayout {
        let mut used: Vec<usize> = self
            .reachable(entry)
            .into_iter()
            .flat_map(|index| self.functions[index].shared.iter().copied())
            .collect();
        used.sort_unstable();
        used.dedup();
        let mut layout = SharedLayout::default();
        for &index in used.iter().filter(|&&index| !self.shared[index].dynamic) {
            let variable = &self.shared[index];
            let start = round_up(layout.end, variable.align);
            layout.offsets.insert(index, start);
            layout.end = start.saturating_add(variable.size);
        }
        // What does not fit saturates, and is refused at launch.
        let dynamic = || used.iter().filter(|&&index| self.shared[index].dynamic);
        if let Some(align) = dynamic().map(|&index| self.shared[index].align).max() {
            layout.end = round_up(layout.end, align);
        }
        for &index in dynamic() {
            layout.offsets.insert(index, layout.end);
        }
        layout
    }
}
