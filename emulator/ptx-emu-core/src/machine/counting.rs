//! Counts of the executions of each instruction: those that a module keeps, and the process's
//! [`journal`].
//!
//! Costs: the machine counts executions anyway. A module that keeps counts adds those of each
//! launch.

use super::journal::{self, Journal};
use super::module::Module;
use crate::sources::SourceLine;
use std::sync::Mutex;

/// The counts that a module keeps of its launches.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    /// Threads that executed each instruction, over all launches.
    threads: Option<Mutex<Vec<u64>>>,
    /// Functions as the journal knows them, if there is one.
    journal: Option<Journal>,
}

/// The number of executions of an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executions {
    /// Line of the PTX.
    pub line: u32,
    /// Line of the source that it comes from, if the PTX says so.
    pub source: Option<SourceLine>,
    /// Threads that executed it, its guard true, over all launches.
    pub threads: u64,
}

/// The number of executions of a decoded instruction in a launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Executed {
    /// Warps, their parts one by one where a warp has diverged; the guard may have been false for
    /// all threads.
    pub warps: u64,
    /// Threads, the guard true.
    pub threads: u64,
    /// Executions by the first lane of a warp. No two of them can be one warp's execution, however warps
    /// diverge.
    pub first_lanes: u64,
}

impl Executed {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.warps += other.warps;
        self.threads += other.threads;
        self.first_lanes += other.first_lanes;
    }
}

/// The number of executions of a line's instruction in a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Issued {
    /// Line of the PTX.
    pub line: u32,
    /// The counts.
    pub executed: Executed,
}

/// The executions of a kernel's or function's instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionExecutions {
    /// Name.
    pub name: String,
    /// Its instructions in the order of the text; there is at least one.
    pub instructions: Vec<Executions>,
}

/// The instructions of a decoded function's text.
struct Written<'m> {
    /// Function.
    name: &'m str,
    /// Indices in the code, in the order of the text.
    code: &'m [usize],
}

impl Module {
    /// Counts executions from now on.
    pub fn count_executions(&mut self) {
        self.counting.threads = Some(Mutex::new(vec![0; self.code.len()]));
    }

    /// Returns the executions of instructions by the launches since
    /// [`count_executions`](Self::count_executions), of the kernels and functions that are loaded,
    /// function by function in the order of the text. Nothing, if executions are not counted.
    #[must_use]
    pub fn executions(&self) -> Vec<FunctionExecutions> {
        let Some(threads) = &self.counting.threads else { return Vec::new() };
        let threads = threads.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let functions = self.written_functions().map(|Written { name, code }| {
            let instructions = code.iter().map(|&pc| {
                let line = self.code[pc].line;
                Executions { line, source: self.source_of(line), threads: threads[pc] }
            });
            FunctionExecutions { name: name.to_owned(), instructions: instructions.collect() }
        });
        functions.collect()
    }

    /// Returns a launch's executions of the instructions of the kernels and functions that are
    /// loaded, in the order of the code. `executed`:
    /// [`LaunchReport::executed`](crate::LaunchReport::executed).
    pub fn issued(&self, executed: &[Executed]) -> impl Iterator<Item = Issued> {
        self.written.iter().map(move |&pc| {
            let executed = executed.get(pc).copied().unwrap_or_default();
            Issued { line: self.code[pc].line, executed }
        })
    }

    /// Functions with instructions, in the order of the code.
    fn written_functions(&self) -> impl Iterator<Item = Written<'_>> {
        let ends = self.functions.iter().skip(1).map(|function| function.start);
        let ends = ends.chain([usize::MAX]);
        self.functions.iter().zip(ends).filter_map(|(function, end)| {
            let at = |pc: usize| self.written.partition_point(|&written| written < pc);
            let code = &self.written[at(function.start)..at(end)];
            (!code.is_empty()).then_some(Written { name: &function.name, code })
        })
    }

    /// Indices in the decoded code of the instructions of a function's text, in their order. Empty
    /// for a function without instructions or that the module lacks.
    #[must_use]
    pub fn written(&self, function: &str) -> &[usize] {
        let mut functions = self.written_functions();
        functions.find(|found| found.name == function).map_or(&[], |found| found.code)
    }

    /// Lets the launches of a module that is loaded go to the journal, if there is one.
    pub(crate) fn keep_journal(&mut self) {
        if journal::is_kept() {
            let functions = self.written_functions().map(|Written { name, code }| {
                let lines = code.iter().map(|&pc| self.source_line(self.code[pc].line));
                (journal::key(&self.target, name, lines), code.to_vec())
            });
            self.counting.journal = Some(Journal::new(functions.collect()));
        }
    }

    /// Notes how many threads of a launch executed each instruction.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub(crate) fn note_executed(&self, executed: &[Executed]) -> Result<(), String> {
        if let Some(threads) = &self.counting.threads {
            let mut sums = threads.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            for (sum, executed) in sums.iter_mut().zip(executed) {
                *sum += executed.threads;
            }
        }
        match &self.counting.journal {
            Some(journal) => journal.note(executed),
            None => Ok(()),
        }
    }
}
