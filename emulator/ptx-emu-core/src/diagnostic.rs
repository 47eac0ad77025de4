//! Diagnostics: the errors of a kernel that the emulator reports.

mod asynchronous;
mod kind;
mod race;
mod tensor;

pub use asynchronous::{AsyncFault, LeftUse, MbarrierFault, OperationSite};
pub use race::{DataRace, MissingOrder, RaceAccess, RaceSite};
pub use tensor::TensorFault;

use crate::Schedule;
use crate::checks::{Kind, Level};
use crate::readable::{instruction, readable_name};
use crate::sources::SourceLine;
use std::fmt;

/// State space of an access, as diagnostics and counters name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Space {
    /// `.global`
    Global,
    /// `.shared`
    Shared,
    /// `.local`
    Local,
    /// `.const`
    Const,
    /// `.param`
    Param,
}

impl Space {
    /// PTX name without its dot.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Local => "local",
            Self::Const => "const",
            Self::Param => "param",
        }
    }
}

/// The kind of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// A read-modify-write.
    Atomic,
}

/// The allocation at or next to an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationSite {
    /// Name given when it was allocated.
    pub name: String,
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// A memory access that went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Address in its state space's own numbering.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// State space.
    pub space: Space,
    /// Load, store or atomic.
    pub kind: AccessKind,
    /// The allocation that holds the address, or else the nearest one.
    pub allocation: Option<AllocationSite>,
}

/// A warp, or part of one, that waits in a deadlock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// CTA.
    pub cta: [u32; 3],
    /// Warp of the CTA.
    pub warp: u32,
    /// Lanes that wait.
    pub lanes: u32,
    /// PTX line.
    pub line: u32,
    /// The reason of the wait.
    pub reason: String,
}

/// Kinds of diagnostics, with their details.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiagnosticKind {
    /// An access outside every allocation, or across the end of one.
    OutOfBounds,
    /// An access through a pointer that is zero, or an index into what it points to.
    NullPointer,
    /// An access to dynamic shared memory, which the kernel uses and the launch does not give.
    NoDynamicShared,
    /// An address that is not a multiple of the access size.
    Misaligned {
        /// Required multiple, bytes.
        required: u32,
    },
    /// A load of a byte that was never written.
    UninitialisedRead {
        /// Address of the first such byte.
        first: u64,
        /// Line of an instruction that depends on what was loaded, if that is why it is an error.
        user: Option<u32>,
    },
    /// A load of a word of 8 bytes of global memory, of which other bytes were written.
    UninitialisedPadding {
        /// Address of the first byte that was never written.
        first: u64,
    },
    /// A store to `.const` or kernel parameters.
    ReadOnly,
    /// An `.aligned` instruction that part of the warp cannot reach.
    DivergentAligned {
        /// Lanes that executed it.
        present: u32,
        /// Live lanes that did not, and where they are.
        missing: u32,
        /// PTX lines at which the missing lanes are.
        elsewhere: Vec<u32>,
    },
    /// A `.sync` instruction whose member mask names lanes that never come.
    MissingMembers {
        /// Lanes that executed it.
        present: u32,
        /// Lanes its mask names.
        members: u32,
    },
    /// A lane executes a `.sync` instruction whose member mask lacks it.
    NotAMember {
        /// The mask.
        members: u32,
    },
    /// The use of a value that nothing defines.
    UndefinedValue {
        /// The shuffle that took it from a lane that does not take part.
        operation: OperationSite,
    },
    /// A CTA barrier used inconsistently.
    BarrierMismatch {
        /// Barrier number.
        barrier: u32,
        /// The requirement of the rule.
        required: String,
        /// The actual event.
        actual: String,
    },
    /// Nothing can run any more.
    Deadlock {
        /// Everything that waits.
        waiting: Vec<Waiter>,
        /// Clusters of the grid that could not begin, the machine being full.
        unstarted: u64,
    },
    /// A device-side `assert` does not hold.
    Assertion {
        /// Its condition, as the source has it.
        condition: String,
        /// File of the source.
        file: String,
        /// Line there.
        line: u32,
        /// Function of the source.
        function: String,
    },
    /// `free` got an address that `malloc` did not give, or that was freed before.
    InvalidFree {
        /// The address.
        address: u64,
        /// Whether it was freed before.
        twice: bool,
    },
    /// `trap` was executed.
    Trap,
    /// `brkpt` was executed.
    Breakpoint,
    /// An indirect branch or call with a target outside its list.
    BadTarget {
        /// Index or address.
        target: u64,
    },
    /// Too many nested calls or too much local memory.
    StackOverflow {
        /// Call depth.
        depth: u32,
        /// Local memory of a lane, bytes.
        bytes: u64,
    },
    /// Misuse of an asynchronous unit.
    Async(AsyncFault),
    /// Two accesses to shared or tensor memory that nothing orders.
    Race(Box<DataRace>),
    /// The instruction limit of the launch was reached.
    InstructionLimit {
        /// The limit, warp instructions of one cluster.
        limit: u64,
    },
}

/// A fault of a kernel, and where it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The kind of the diagnostic.
    pub kind: DiagnosticKind,
    /// Kernel.
    pub kernel: String,
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// The line, trimmed.
    pub instruction: String,
    /// The line of source that it comes from, where the module says so (`.loc`).
    pub source: Option<SourceLine>,
    /// `%ctaid`.
    pub cta: [u32; 3],
    /// Warp of the CTA.
    pub warp: u32,
    /// First lane concerned, where one is.
    pub lane: Option<u32>,
    /// The access, where there is one.
    pub access: Option<Access>,
    /// Schedule that led here; a run with the same one replays it.
    pub schedule: Schedule,
    /// Its level for the run.
    pub level: Level,
    /// Other findings of the run, the finding that ended it included if one did.
    pub others: Vec<Diagnostic>,
}

impl Diagnostic {
    /// Returns the kind, without the details.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind.kind()
    }

    /// Kind, level, message, advice and place, as `ptx-emu --json` prints them. Other findings of
    /// the run are left out.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "kind": self.kind().name(),
            "level": self.level.to_string(),
            "error": self.to_string(),
            "advice": self.kind().advice(),
            "kernel": self.kernel,
            "kernel_name": readable_name(&self.kernel),
            "line": self.line,
            "source": self.source.as_ref().map(ToString::to_string),
            "instruction": self.instruction,
            "cta": self.cta,
            "warp": self.warp,
            "lane": self.lane,
            "schedule": self.schedule.to_string(),
        })
    }
}

impl std::error::Error for Diagnostic {}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.cta;
        match &self.access {
            Some(access) => write_access(f, &self.kind, access)?,
            None => write_kind(f, &self.kind)?,
        }
        write!(
            f,
            "; kernel `{}`, line {}: `{}`{}, CTA ({x}, {y}, {z}), warp {}",
            readable_name(&self.kernel),
            self.line,
            instruction(&self.instruction),
            from(&self.source),
            self.warp
        )?;
        if let Some(lane) = self.lane {
            write!(f, ", lane {lane}")?;
        }
        write!(f, ", schedule {}", self.schedule)
    }
}

/// Returns the source of an instruction, as a message has it behind the instruction.
fn from(source: &Option<SourceLine>) -> String {
    source.as_ref().map_or_else(String::new, |source| format!(" from {source}"))
}

fn write_access(f: &mut fmt::Formatter<'_>, kind: &DiagnosticKind, access: &Access) -> fmt::Result {
    let verb = match access.kind {
        AccessKind::Read => "read",
        AccessKind::Write => "write",
        AccessKind::Atomic => "atomic access",
    };
    let (bytes, space, address) = (access.bytes, access.space.name(), access.address);
    match kind {
        DiagnosticKind::OutOfBounds => {
            write!(f, "out of bounds: {verb} of {bytes} bytes at {space} address {address:#x}")?
        }
        DiagnosticKind::NullPointer => {
            return write!(
                f,
                "null pointer: {verb} of {bytes} bytes at {space} address {address:#x}"
            );
        }
        DiagnosticKind::NoDynamicShared => {
            return write!(
                f,
                "missing dynamic shared memory: {verb} of {bytes} bytes at {space} address {address:#x}, and the launch gives the kernel none (--dynamic-smem)"
            );
        }
        DiagnosticKind::Misaligned { required } => write!(
            f,
            "misaligned: {verb} of {bytes} bytes at {space} address {address:#x}, which is not a multiple of {required}"
        )?,
        DiagnosticKind::UninitialisedRead { first, user } => {
            write!(
                f,
                "uninitialised read: {verb} of {bytes} bytes at {space} address {address:#x}, of which byte {first:#x} was never written"
            )?;
            if let Some(line) = user {
                write!(f, " and on which line {line} depends")?;
            }
        }
        DiagnosticKind::UninitialisedPadding { first } => write!(
            f,
            "uninitialised padding: {verb} of {bytes} bytes at {space} address {address:#x}, of which byte {first:#x} was never written and others of its word were"
        )?,
        DiagnosticKind::ReadOnly => {
            write!(f, "read-only: {verb} of {bytes} bytes at {space} address {address:#x}")?
        }
        other => write_kind(f, other)?,
    }
    let Some(site) = &access.allocation else {
        return write!(f, ", no allocation near");
    };
    let end = site.start + site.bytes;
    write!(f, ", allocation `{}` [{:#x}, {end:#x})", site.name, site.start)?;
    if address < site.start {
        write!(f, " starts {} bytes after it", site.start - address)
    } else if address >= end {
        write!(f, " ends {} bytes before it", address - end)
    } else if address + u64::from(bytes) > end {
        write!(f, " ends {} bytes into it", end - address)
    } else {
        write!(f, " at offset {}", address - site.start)
    }
}

fn write_kind(f: &mut fmt::Formatter<'_>, kind: &DiagnosticKind) -> fmt::Result {
    match kind {
        DiagnosticKind::OutOfBounds => write!(f, "out of bounds"),
        DiagnosticKind::NullPointer => write!(f, "null pointer"),
        DiagnosticKind::NoDynamicShared => write!(f, "missing dynamic shared memory"),
        DiagnosticKind::Misaligned { required } => {
            write!(f, "misaligned: required a multiple of {required}")
        }
        DiagnosticKind::UninitialisedRead { first, user: _ } => {
            write!(f, "uninitialised read of byte {first:#x}")
        }
        DiagnosticKind::UninitialisedPadding { first } => {
            write!(f, "uninitialised padding at {first:#x}")
        }
        DiagnosticKind::ReadOnly => write!(f, "write to read-only memory"),
        DiagnosticKind::DivergentAligned { present, missing, elsewhere } => {
            write!(
                f,
                "divergent .aligned instruction: lanes {present:#010x} execute it, live lanes {missing:#010x} do not"
            )?;
            if !elsewhere.is_empty() {
                write!(f, " (they are at line")?;
                for line in elsewhere {
                    write!(f, " {line}")?;
                }
                write!(f, ")")?;
            }
            Ok(())
        }
        DiagnosticKind::MissingMembers { present, members } => write!(
            f,
            "missing members: the member mask is {members:#010x}, lanes {:#010x} of it never arrive, {present:#010x} wait",
            members & !present
        ),
        DiagnosticKind::NotAMember { members } => {
            write!(f, "not a member: the executing lane is not in the member mask {members:#010x}")
        }
        DiagnosticKind::UndefinedValue { operation } => write!(
            f,
            "undefined value: this depends on what {operation} took from a lane that does not take part"
        ),
        DiagnosticKind::BarrierMismatch { barrier, required, actual } => {
            write!(f, "barrier mismatch: barrier {barrier}: required {required}, actual {actual}")
        }
        DiagnosticKind::Deadlock { waiting, unstarted } => {
            write!(f, "deadlock: ")?;
            const SHOWN: usize = 8;
            for (i, waiter) in waiting.iter().take(SHOWN).enumerate() {
                let [x, y, z] = waiter.cta;
                let separator = if i == 0 { "" } else { ", " };
                write!(
                    f,
                    "{separator}CTA ({x}, {y}, {z}) warp {} lanes {:#010x} line {} waits for {}",
                    waiter.warp, waiter.lanes, waiter.line, waiter.reason
                )?;
            }
            if waiting.len() > SHOWN {
                write!(f, ", and {} more", waiting.len() - SHOWN)?;
            }
            if *unstarted != 0 {
                write!(f, "; {unstarted} clusters cannot begin, the machine is full")?;
            }
            Ok(())
        }
        DiagnosticKind::Assertion { condition, file, line, function } => {
            write!(f, "assertion failed: `{condition}`, {file}:{line}, {function}")
        }
        DiagnosticKind::InvalidFree { address, twice: true } => {
            write!(f, "invalid free: memory at {address:#x} was freed before")
        }
        DiagnosticKind::InvalidFree { address, twice: false } => {
            write!(f, "invalid free: {address:#x} is no address that malloc gave")
        }
        DiagnosticKind::Trap => write!(f, "trap executed"),
        DiagnosticKind::Breakpoint => write!(f, "breakpoint executed"),
        DiagnosticKind::BadTarget { target } => {
            write!(f, "bad target {target:#x} of an indirect branch or call")
        }
        DiagnosticKind::StackOverflow { depth, bytes } => {
            write!(f, "stack overflow: {depth} nested calls, {bytes} bytes of local memory a lane")
        }
        DiagnosticKind::Async(fault) => write!(f, "{fault}"),
        DiagnosticKind::Race(race) => write!(f, "{race}"),
        DiagnosticKind::InstructionLimit { limit } => {
            write!(f, "instruction limit: more than {limit} warp instructions in one cluster")
        }
    }
}

/// An instruction of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Site {
    /// Instruction.
    pub(crate) pc: usize,
    /// Warp of the cluster.
    pub(crate) warp: usize,
    /// First lane.
    pub(crate) lane: u32,
}

/// A fault as the executing instruction knows it; the warp adds the place.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) kind: DiagnosticKind,
    pub(crate) lane: Option<u32>,
    pub(crate) access: Option<Access>,
    /// The operation at fault, if it is not the executing instruction.
    pub(crate) site: Option<Site>,
}

impl Fault {
    /// A fault of a whole warp.
    pub(crate) fn warp(kind: DiagnosticKind) -> Box<Self> {
        Box::new(Self { kind, lane: None, access: None, site: None })
    }

    /// A fault of one lane.
    pub(crate) fn lane(kind: DiagnosticKind, lane: u32) -> Box<Self> {
        Box::new(Self { kind, lane: Some(lane), access: None, site: None })
    }

    /// The fault of an operation that an earlier instruction issued.
    pub(crate) fn at(mut self: Box<Self>, site: Site) -> Box<Self> {
        self.lane = Some(site.lane);
        self.site = Some(site);
        self
    }
}

/// Faults behind which a step goes on, for who reports them.
pub(crate) type Faults = Vec<Box<Fault>>;

/// Result of executing something.
pub(crate) type Exec<T = ()> = Result<T, Box<Fault>>;
