//! The mutation check: whether each synchronisation of a kernel is needed, and whether the
//! emulator would notice its absence.
//!
//! One synchronisation at a time is removed or weakened in the kernel's syntax
//! tree: CTA, warp and cluster barriers, counts, mbarrier initial counts,
//! arrivals, byte counts, waits and parities, fences of every kind, commits,
//! group waits, `griddepcontrol.wait`, and the semantics of atomics, loads,
//! stores, arrivals and waits. Each mutant runs under `eager`, `lazy` and a
//! number of seeds until there is a diagnostic or a wrong output. A mutant without
//! either survives: either the synchronisation is not needed, or the emulator
//! (or the input) cannot show the fault. A list of [`Equivalent`]s has the mutants that
//! are known not to be faults, with the reasons.
//!
//! Limits: weakened scopes, barriers on another number, fences exchanged for weaker ones, and
//! mutants of code that the launch does not reach, which are reported as such.

mod check;
mod equivalents;
mod operators;
mod tree;

pub use check::{MutateError, MutateOptions, list, mutate, mutate_all};
pub use equivalents::{Equivalent, EquivalentsError};
pub(crate) use equivalents::{glob, shape};

use crate::explore::Finding;
use ptx_emu_core::Schedule;
use ptx_emu_core::syntax::ast::Statement;
use std::fmt;

/// The change of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mutation {
    /// The instruction is left out; a wait ends at once.
    Remove,
    /// A CTA barrier for so many more threads.
    BarrierCount(i64),
    /// An mbarrier that expects so many more arrivals.
    InitCount(i64),
    /// So many more bytes in a tx-count.
    Bytes(i64),
    /// A wait for the other parity.
    Parity,
    /// A wait that leaves so many more groups in flight.
    Groups(i64),
    /// A bulk wait only for the sources.
    SourcesOnly,
    /// `cp.async.mbarrier.arrive` with or without `.noinc`, whichever it had not.
    Increment,
    /// Release or acquire semantics made relaxed.
    Relaxed,
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remove => f.write_str("remove"),
            Self::BarrierCount(by) => write!(f, "threads {by:+}"),
            Self::InitCount(by) => write!(f, "count {by:+}"),
            Self::Bytes(by) => write!(f, "bytes {by:+}"),
            Self::Parity => f.write_str("parity"),
            Self::Groups(by) => write!(f, "groups {by:+}"),
            Self::SourcesOnly => f.write_str("sources only"),
            Self::Increment => f.write_str("noinc"),
            Self::Relaxed => f.write_str("relaxed"),
        }
    }
}

/// A change to the syntax tree.
#[derive(Debug, Clone)]
enum Edit {
    Remove,
    Replace(Vec<Statement>),
}

/// A mutant and its fate.
#[derive(Debug, Clone, PartialEq)]
pub struct Mutant {
    /// Function that was changed.
    pub function: String,
    /// Line of the PTX text.
    pub line: u32,
    /// The line, trimmed.
    pub instruction: String,
    /// The change.
    pub mutation: Mutation,
    /// The number among the mutants with that instruction and mutation, from 1.
    pub occurrence: usize,
    /// The line without the numbers of its registers, which change with the compiler.
    pub shape: String,
    /// The number among the mutants with that shape and mutation, from 1.
    pub alike: usize,
    /// A digest, four hexadecimal digits, of the shapes of the two synchronising instructions before this one
    /// and of the two behind it: a change of the kernel elsewhere leaves it alone.
    pub place: String,
    /// The number among the mutants with that shape, mutation and place, from 1.
    pub nth: usize,
    /// The fate.
    pub fate: Fate,
    /// The reason why it makes no difference, if it is known to make none.
    pub equivalent: Option<String>,
}

/// The fate of a mutant.
#[derive(Debug, Clone, PartialEq)]
pub enum Fate {
    /// The run went wrong.
    Caught {
        /// Under which schedule first.
        schedule: Schedule,
        /// The finding.
        finding: Finding,
    },
    /// Nothing went wrong under any schedule.
    Survived,
    /// The launch never executes the instruction.
    NotReached,
    /// Not run: [`MutateOptions::at_most`] are others.
    LeftOut,
    /// The mutant cannot be loaded: it is none.
    Refused(String),
}

/// Mutants of a launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Mutants {
    /// Kernel.
    pub kernel: String,
    /// Seeds tried besides `eager` and `lazy`.
    pub seeds: u64,
    /// All of them, in the order of the text.
    pub mutants: Vec<Mutant>,
}

impl Mutants {
    /// Mutants that were run and are not known to be no faults.
    #[must_use]
    pub fn counted(&self) -> usize {
        let run = |m: &&Mutant| matches!(m.fate, Fate::Caught { .. } | Fate::Survived);
        self.mutants.iter().filter(run).filter(|m| m.equivalent.is_none()).count()
    }

    /// Returns the number of [`counted`](Self::counted) mutants that were caught.
    #[must_use]
    pub fn caught(&self) -> usize {
        let caught = |m: &&Mutant| matches!(m.fate, Fate::Caught { .. });
        self.mutants.iter().filter(caught).filter(|m| m.equivalent.is_none()).count()
    }

    /// Survivors without a known reason.
    pub fn unexplained(&self) -> impl Iterator<Item = &Mutant> {
        self.mutants.iter().filter(|m| m.fate == Fate::Survived && m.equivalent.is_none())
    }

    /// Mutants that were caught although they are listed as no faults: the list
    /// is wrong about them.
    pub fn contradicted(&self) -> impl Iterator<Item = &Mutant> {
        let caught = |m: &&Mutant| matches!(m.fate, Fate::Caught { .. });
        self.mutants.iter().filter(caught).filter(|m| m.equivalent.is_some())
    }

    /// Whether at least `percent` of the counted ones were caught, and the list
    /// of equivalents is right about all.
    #[must_use]
    pub fn passes(&self, percent: u32) -> bool {
        self.caught() * 100 >= self.counted() * percent as usize
            && self.contradicted().next().is_none()
    }
}
