//! A module as the machine runs it: decoded code, kernels, variables and constants.

mod image;
mod layout;
mod pool;
mod text;
mod variables;

pub use variables::VariableInfo;

pub(crate) use layout::{Relocation, SharedLayout, Symbol, function_address, size_align};
pub(crate) use text::Text;

use super::code::{FunctionCode, Instr};
use super::counting::Counting;
use super::units::Touches;
use crate::Gpu;
use crate::language::Language;
use crate::load_error::LoadError;
use crate::sources::{SourceLine, Sources};
use crate::syntax::ast;
use layout::{GlobalVariable, Patch, SharedVariable};
use pool::PoolBuilder;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Whether it is declared to point somewhere (`.ptr`).
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
    /// Whether it uses dynamic shared memory: an `extern .shared` array of open size.
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
    pub(crate) sources: Sources,
    pub(crate) gpu: Gpu,
    /// The module's `.target`.
    pub(crate) target: String,
    /// Its `.version` and `.target`, if the target has the form `sm_NN`.
    pub(crate) language: Option<Language>,
    pub(crate) code: Vec<Instr>,
    pub(crate) functions: Vec<FunctionCode>,
    /// Indices in `code` of the text's instructions, in its order: reads of special registers stand
    /// between them.
    pub(crate) written: Vec<usize>,
    pub(crate) kernels: Vec<KernelInfo>,
    pub(crate) pool: PoolBuilder,
    globals: Vec<GlobalVariable>,
    shared: Vec<SharedVariable>,
    consts: Vec<u8>,
    /// Names and sizes of `.const` variables.
    constants: Vec<(String, u64)>,
    const_patches: Vec<Patch>,
    pub(crate) symbols: HashMap<String, Symbol>,
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
    /// Registers are watched: see `touches`.
    pub(crate) watched: bool,
    /// Indices in `code` of loads whose elements are words of 8 bytes.
    pub(crate) words: HashSet<usize>,
    /// The counts that are kept of its launches.
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
    /// A module for `gpu` without code, kernels and variables so far; `files` are those that the
    /// text names, by their index.
    pub(crate) fn empty(text: Text, files: &[(u32, String)], target: String, gpu: &Gpu) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            text,
            sources: Sources::new(files),
            gpu: gpu.clone(),
            target,
            language: None,
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
            parts: true,
            wgmma: false,
            touches: Vec::new(),
            watched: false,
            words: HashSet::new(),
            counting: Counting::default(),
        }
    }

    /// Works out what follows from the code, which is complete.
    pub(crate) fn finish(&mut self) {
        self.sources.finish();
        for kernel in 0..self.kernels.len() {
            let entry = self.kernels[kernel].function;
            self.kernels[kernel].static_shared = self.shared_layout(entry).end;
            self.kernels[kernel].dynamic_shared = self.uses_dynamic(entry);
        }
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
    pub(crate) fn declare(&mut self, variable: &ast::Variable) -> Result<Symbol, LoadError> {
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
        // A size that does not fit saturates, and is refused at launch.
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
