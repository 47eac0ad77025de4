//! The instructions that launches reached.
//!
//! An instruction is *reached* when a thread executes it, its guard true: a branch counts where it
//! is taken. Counts are of threads.
//!
//! [`Module::count_executions`](ptx_emu_core::Module::count_executions) has a module count over all
//! its launches, those that go wrong included; [`Coverage::of`] returns the counts by line, as a
//! file of the kind that lcov and genhtml read. A line's count is that of its most executed
//! instruction. `ptx-emu run`, `replay`, both also with `--explore`, write it (`--coverage FILE`),
//! and add to what the file holds.
//!
//! For test runs, the environment variable [`FOLDER`] names a folder: every process that launches
//! kernels appends what it reached to its own file there, which [`Reached::read`] sums up.
//! `ptx-emu coverage FOLDER MODULE...` then says what was reached of modules, function by function.
//! Functions are known by target, name and text, so that variants of a module count apart.
//! Launches of mutants (`mutate`) are left out. A list of [`Explanation`]s says why some are not
//! reached; one that is wrong is found ([`Explained`]).

mod explained;
mod flow;
mod lcov;
mod share;

pub use explained::{Explained, Explanation, ParseExplanationsError};
pub use lcov::{Coverage, ParseCoverageError};
pub use ptx_emu_core::journal::FOLDER;
pub use share::{FunctionShare, Reached, ReadReachedError, Unreached};
