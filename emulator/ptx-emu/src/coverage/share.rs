//! The reached share of modules in test runs, by function.

use super::flow::Flow;
use ptx_emu_core::journal::{EXTENSION, Entry, Key, key};
use ptx_emu_core::syntax::ast::{Block, Item, Location, Statement};
use ptx_emu_core::syntax::{self, SyntaxError};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

/// Instructions that processes reached, from a folder that [`FOLDER`](super::FOLDER) named.
#[derive(Debug, Clone, Default)]
pub struct Reached(HashMap<Key, Vec<bool>>);

/// A folder that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadReachedError {
    /// A file or the folder itself.
    #[error("{}: {source}", .path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A line that no process wrote.
    #[error("{}:{line}: {source}", .path.display())]
    Line {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The fault of its text.
        source: serde_json::Error,
    },
}

/// The share of a function that was reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionShare {
    /// `.target` of its module.
    pub target: String,
    /// Name.
    pub name: String,
    /// Whether it is a kernel.
    pub is_kernel: bool,
    /// Instructions.
    pub instructions: usize,
    /// Instructions that no launch reached, in the order of the text.
    pub unreached: Vec<Unreached>,
    /// All of them.
    pub(super) flow: Flow,
}

impl FunctionShare {
    /// Instructions that were reached.
    #[must_use]
    pub fn reached(&self) -> usize {
        self.instructions - self.unreached.len()
    }

    /// Instructions that were not reached, for a reason that [`Explained::of`](super::Explained::of)
    /// found.
    #[must_use]
    pub fn explained(&self) -> usize {
        self.unreached.iter().filter(|one| one.explained).count()
    }
}

/// An instruction that no launch reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreached {
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// The line, trimmed.
    pub instruction: String,
    /// File and line of the source that it comes from, if the text says so.
    pub source: Option<(String, u32)>,
    /// Whether the reason is known; `false` until [`Explained::of`](super::Explained::of) has
    /// looked.
    pub explained: bool,
    /// Its place among the function's instructions.
    pub(super) at: usize,
}

impl Reached {
    /// Sums up what the processes of test runs wrote.
    ///
    /// # Errors
    /// A folder or a file that cannot be read.
    pub fn read(folder: &Path) -> Result<Self, ReadReachedError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| ReadReachedError::Read { path, source }
        };
        let mut reached = Self::default();
        for file in std::fs::read_dir(folder).map_err(failed(folder))? {
            let path = file.map_err(failed(folder))?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            let text = std::fs::read_to_string(&path).map_err(failed(&path))?;
            for (at, line) in text.lines().enumerate() {
                let entry: Entry = serde_json::from_str(line).map_err(|source| {
                    ReadReachedError::Line { path: path.clone(), line: at + 1, source }
                })?;
                reached.add(entry);
            }
        }
        Ok(reached)
    }

    fn add(&mut self, Entry { key, instructions, reached }: Entry) {
        let all = self.0.entry(key).or_default();
        all.resize(instructions, false);
        for (first, last) in reached {
            if let Some(range) = all.get_mut(first..=last) {
                range.fill(true);
            }
        }
    }

    /// Returns the reached share of each function of a module, in the order of its text.
    ///
    /// # Errors
    /// Text that is not PTX.
    pub fn of(&self, module: &str) -> Result<Vec<FunctionShare>, SyntaxError> {
        let tree = syntax::parse(module)?;
        let lines: Vec<&str> = module.lines().collect();
        let text = |line: u32| lines.get(line as usize - 1).map_or("", |line| line.trim());
        let target = tree.targets.first().cloned().unwrap_or_default();
        let files: HashMap<u32, &String> =
            tree.files.iter().map(|(number, name)| (*number, name)).collect();
        let mut shares = Vec::new();
        for item in &tree.items {
            let Item::Function(function) = item else { continue };
            let Some(body) = &function.body else { continue };
            let mut places = Vec::new();
            collect(body, &mut None, &mut places);
            let keyed = places.iter().map(|(line, _)| text(*line));
            let reached = self.0.get(&key(&target, &function.name, keyed));
            let missed = |at: usize| reached.is_none_or(|all| !all.get(at).is_some_and(|&yes| yes));
            let unreached = places.iter().enumerate().filter(|(at, _)| missed(*at));
            let unreached = unreached.map(|(at, &(line, location))| Unreached {
                at,
                explained: false,
                line,
                instruction: text(line).to_owned(),
                source: location.and_then(|Location { file, line, .. }| {
                    let name = files.get(&file).filter(|_| line != 0)?;
                    Some(((*name).clone(), line))
                }),
            });
            shares.push(FunctionShare {
                target: target.clone(),
                name: function.name.clone(),
                is_kernel: function.is_entry,
                instructions: places.len(),
                unreached: unreached.collect(),
                flow: Flow::new(body, &lines, |at| !missed(at)),
            });
        }
        Ok(shares)
    }
}

/// Lines of the instructions of a body, and what `.loc` stood before each.
fn collect(
    body: &Block,
    location: &mut Option<Location>,
    found: &mut Vec<(u32, Option<Location>)>,
) {
    for statement in &body.statements {
        match statement {
            Statement::Instruction(instruction) => found.push((instruction.pos.line, *location)),
            Statement::Location(at) => *location = Some(*at),
            Statement::Block(inner) => collect(inner, location, found),
            Statement::Registers(_)
            | Statement::Variable(_)
            | Statement::Label { .. }
            | Statement::Directive(_)
            | Statement::BranchTargets { .. }
            | Statement::CallTargets { .. }
            | Statement::CallPrototype { .. } => {}
        }
    }
}
