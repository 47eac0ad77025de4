//! Which instructions launches reached.
//!
//! An instruction is *reached* when a thread executes it, its guard true: a branch counts where it
//! is taken. Counts are of threads.
//!
//! [`Module::count_executions`](crate::Module::count_executions) has a module count over all its
//! launches, those that go wrong included; [`Module::coverage`](crate::Module::coverage) returns
//! the counts by line, as a file of the kind that lcov and genhtml read ([`Coverage`]). A line's
//! count is that of its most executed instruction. `ptx-emu run`, `replay`, both also with
//! `--explore`, write it (`--coverage FILE`), and add to what the file holds.
//!
//! For test runs, the environment variable [`FOLDER`] names a folder: every process that launches
//! kernels appends what it reached to a file of its own there, which [`Reached::read`] sums up.
//! `ptx-emu coverage FOLDER MODULE...` then says what was reached of modules, function by function.
//! Functions are known by target, name and text, so that variants of a module count apart.
//! Launches of mutants (`mutate`) are left out. A list of [`Explanation`]s says why some are not
//! reached; one that is wrong is found ([`Explained`]).
//!
//! What it costs: the machine counts executions anyway. Where coverage is wanted, each launch adds
//! its counts up.

mod explained;
mod flow;
mod journal;
mod lcov;
mod share;

pub use explained::{Explained, Explanation, ParseExplanationsError};
pub use journal::FOLDER;
pub use lcov::{Coverage, ParseCoverageError};
pub use share::{FunctionShare, Reached, ReadReachedError, Unreached};

use crate::module::Module;
use journal::Journal;
use std::sync::Mutex;

/// What a module keeps of its launches.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    /// Threads that executed each instruction, over all launches.
    threads: Option<Mutex<Vec<u64>>>,
    /// Functions as the journal knows them, if there is one.
    journal: Option<Journal>,
}

/// The instructions of a decoded function's text.
struct Written<'m> {
    /// Function.
    name: &'m str,
    /// Where in the code they are, in the order of the text.
    code: &'m [usize],
}

impl Module {
    /// Counts executions from now on.
    pub fn count_executions(&mut self) {
        self.counting.threads = Some(Mutex::new(vec![0; self.code.len()]));
    }

    /// What the launches since [`count_executions`](Self::count_executions) reached of the kernels
    /// and functions that are loaded. Instructions without a line of source (`.loc`) are those of
    /// the lines of `ptx`, which names the module's file. Nothing, if executions are not counted.
    #[must_use]
    pub fn coverage(&self, ptx: &str) -> Coverage {
        let mut coverage = Coverage::default();
        let Some(threads) = &self.counting.threads else { return coverage };
        let threads = threads.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for Written { name, code } in self.written_functions() {
            for (at, &pc) in code.iter().enumerate() {
                let line = self.code[pc].line;
                let (file, line) = match self.source_of(line) {
                    Some(source) => (source.file.to_string(), source.line),
                    None => (ptx.to_owned(), line),
                };
                if at == 0 {
                    coverage.function(&file, name, line, threads[pc]);
                }
                coverage.line(&file, line, threads[pc]);
            }
        }
        coverage
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
    pub(crate) fn note_executed(&self, executed: &[(u64, u64)]) -> Result<(), String> {
        if let Some(threads) = &self.counting.threads {
            let mut sums = threads.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            for (sum, (_, threads)) in sums.iter_mut().zip(executed) {
                *sum += threads;
            }
        }
        match &self.counting.journal {
            Some(journal) => journal.note(executed),
            None => Ok(()),
        }
    }
}
