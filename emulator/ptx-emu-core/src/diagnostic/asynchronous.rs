//! Diagnostics of asynchronous operations.

use super::{TensorFault, from};
use crate::readable::instruction;
use crate::sources::SourceLine;
use crate::tensor_map::{ReplaceError, TensorMapError, TileError};
use std::fmt;

/// An instruction elsewhere that a diagnostic is about too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationSite {
    /// Name of the operation.
    pub name: &'static str,
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// The line, trimmed.
    pub instruction: String,
    /// The line of source that it comes from, where the module says so.
    pub source: Option<SourceLine>,
    /// `%ctaid` of its thread.
    pub cta: [u32; 3],
    /// Warp of the CTA.
    pub warp: u32,
}

impl fmt::Display for OperationSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.cta;
        write!(
            f,
            "{} of line {} (`{}`{}, CTA ({x}, {y}, {z}), warp {})",
            self.name,
            self.line,
            instruction(&self.instruction),
            from(&self.source),
            self.warp
        )
    }
}

/// Misuse of an mbarrier object (PTX ISA 9.7.13.15).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MbarrierFault {
    /// No object is at the address.
    NotInitialised,
    /// Something else was stored over the object.
    Overwritten {
        /// The 64 bits there.
        actual: u64,
    },
    /// `init` of an object that is in use and was not invalidated.
    InUse,
    /// A count outside 1 to 2^20 - 1.
    Count {
        /// The count.
        count: u32,
    },
    /// More arrivals than the phase has pending.
    OverArrival {
        /// Pending arrivals.
        pending: u32,
        /// Arrivals at once.
        count: u32,
    },
    /// `.noComplete` that would complete the phase.
    Completes {
        /// Arrivals at once.
        count: u32,
    },
    /// A tx-count outside -(2^20 - 1) to 2^20 - 1.
    Transactions {
        /// The tx-count.
        tx: i64,
    },
    /// A test of a phase that is older than the one before the present.
    StalePhase {
        /// Phase of the state token.
        asked: u32,
        /// Present phase.
        now: u32,
    },
    /// A waiter that did not run before the phase behind its own ended too: a
    /// test by parity could not tell.
    MissedPhase {
        /// Phase it waited for.
        waited: u64,
        /// Present phase.
        now: u64,
    },
}

impl fmt::Display for MbarrierFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInitialised => write!(f, "not initialised"),
            Self::Overwritten { actual } => {
                write!(f, "overwritten: the object's bits are now {actual:#018x}")
            }
            Self::InUse => write!(f, "initialised again while in use, without inval"),
            Self::Count { count } => {
                write!(f, "count: required 1 to 1048575, actual {count}")
            }
            Self::OverArrival { pending, count } => {
                write!(f, "over-arrival: {count} arrivals, but only {pending} are pending")
            }
            Self::Completes { count } => {
                write!(f, ".noComplete, but {count} arrivals complete the phase")
            }
            Self::Transactions { tx } => {
                write!(f, "tx-count: required -1048575 to 1048575, actual {tx}")
            }
            Self::StalePhase { asked, now } => write!(
                f,
                "phase {asked} asked too late: the object is in phase {now}, and only the one before it can be asked"
            ),
            Self::MissedPhase { waited, now } => write!(
                f,
                "phase missed: the wait is for the end of phase {waited}, but the object went on to phase {now} before the waiter ran"
            ),
        }
    }
}

/// The use of a CTA's shared memory that an operation makes at the CTA's exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftUse {
    /// The operation writes there, or reports to an mbarrier.
    Written,
    /// The operation reads there.
    Source,
    /// A `cp.async` writes there.
    Copy,
}

/// A fault of an asynchronous unit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncFault {
    /// An access to memory that an operation in flight uses.
    InFlight {
        /// First byte of the access, in its state space's numbering.
        address: u64,
        /// Length of the access.
        bytes: u64,
        /// The access writes.
        write: bool,
        /// The operation has yet to read there; otherwise it has yet to write.
        source: bool,
        /// The operation.
        operation: OperationSite,
    },
    /// An access through the async proxy to memory that was written through the
    /// generic one, without a proxy fence between: a read may not see the write,
    /// and a write may come before it.
    MissingProxyFence {
        /// The accessing operation.
        operation: &'static str,
        /// First such byte.
        address: u64,
        /// Whether the access writes.
        write: bool,
        /// The generic access is a read; otherwise it is a write.
        read_before: bool,
        /// The generic access.
        other: OperationSite,
    },
    /// A tensor map that was written on the device is used without
    /// `fence.proxy.tensormap::generic.acquire`.
    MissingTensormapFence {
        /// Address of the map.
        address: u64,
    },
    /// Shared memory written through the async proxy that was read through the generic proxy
    /// before, without a proxy fence between.
    UnfencedRead {
        /// The operation that writes it.
        operation: &'static str,
        /// First byte that it writes.
        address: u64,
        /// The read.
        other: OperationSite,
    },
    /// An mbarrier misused.
    Mbarrier {
        /// Its `shared::cluster` address.
        address: u32,
        /// The fault.
        fault: MbarrierFault,
    },
    /// `barrier.cluster.arrive` and `.wait` out of turn.
    ClusterBarrier {
        /// The requirement of the rule.
        required: &'static str,
    },
    /// Shared or tensor memory of another CTA of the cluster is used, and nothing that this
    /// thread waited for says that the CTA has started.
    Unstarted {
        /// Its rank in the cluster.
        rank: u32,
    },
    /// Shared memory of a CTA that has exited.
    Exited {
        /// Its rank in the cluster.
        rank: u32,
    },
    /// A CTA exits, and no thread of it knows that an access of another CTA to its shared
    /// memory is over.
    Outlasts {
        /// The access.
        operation: OperationSite,
    },
    /// A CTA exits while an operation still uses its shared memory.
    LeftInFlight {
        /// The use that it makes of it.
        left: LeftUse,
        /// The operation.
        operation: OperationSite,
    },
    /// An operand that the instruction cannot use.
    Operand {
        /// The operand.
        operand: &'static str,
        /// The required value.
        required: String,
        /// The actual value.
        actual: String,
    },
    /// 128 bytes that are no tensor map.
    TensorMap(TensorMapError),
    /// A tensor copy that the map does not allow.
    Tile(TileError),
    /// A refused `tensormap.replace`.
    Replace(ReplaceError),
    /// Tensor cores or tensor memory misused.
    Tensor(TensorFault),
    /// An operand of `.shared::cta` that is a generic address.
    GenericShared {
        /// The address.
        address: u64,
    },
    /// `setmaxnreg` with another count than in an earlier warp of the warpgroup.
    UnevenRegisters {
        /// The count there.
        required: u32,
        /// The other warp of the CTA.
        warp: u32,
        /// The count here.
        actual: u32,
    },
    /// `setmaxnreg` misused.
    MaxRegisters {
        /// The requirement of the rule.
        required: String,
        /// The actual event.
        actual: String,
    },
}

impl fmt::Display for AsyncFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight { address, bytes, write, source, operation } => {
                let verb = if *write { "write" } else { "read" };
                let role =
                    if *source { "source, not read yet," } else { "destination, in flight," };
                write!(
                    f,
                    "asynchronous operation in flight: {verb} of {bytes} bytes at {address:#x}, a {role} of {operation}"
                )
            }
            Self::MissingProxyFence { operation, address, write, read_before, other } => write!(
                f,
                "missing proxy fence: {operation} {} {address:#x} through the async proxy, {} through the generic proxy by {other} without fence.proxy.async since",
                if *write { "writes" } else { "reads" },
                if *read_before { "read" } else { "written" }
            ),
            Self::UnfencedRead { operation, address, other } => write!(
                f,
                "missing proxy fence after a read: {operation} writes from {address:#x} on through the async proxy, over what {other} read through the generic proxy, without fence.proxy.async since"
            ),
            Self::MissingTensormapFence { address } => write!(
                f,
                "missing proxy fence: the tensor map at {address:#x} was written on the device and not acquired by fence.proxy.tensormap::generic.acquire since"
            ),
            Self::Mbarrier { address, fault } => write!(f, "mbarrier {address:#x}: {fault}"),
            Self::ClusterBarrier { required } => {
                write!(f, "cluster barrier: required {required}")
            }
            Self::Unstarted { rank } => write!(
                f,
                "CTA not known to have started: nothing orders the start of rank {rank} of the cluster before this use of its memory; a barrier.cluster, or a wait for something that the CTA did, must come first"
            ),
            Self::Exited { rank } => write!(
                f,
                "exited CTA: the shared memory of rank {rank} of the cluster is gone, all its threads have exited"
            ),
            Self::Outlasts { operation } => write!(
                f,
                "exit before remote accesses: nothing orders {operation} to the CTA's shared memory before the exit of the CTA's last thread"
            ),
            Self::LeftInFlight { operation, .. } => write!(
                f,
                "exit with an operation in flight: {operation} still uses the CTA's shared memory, and a thread of the CTA must wait for it first"
            ),
            Self::Operand { operand, required, actual } => {
                write!(f, "{operand}: required {required}, actual {actual}")
            }
            Self::TensorMap(why) => write!(f, "tensor map: {why}"),
            Self::Tile(why) => write!(f, "tensor copy: {why}"),
            Self::Replace(why) => write!(f, "{why}"),
            Self::Tensor(why) => write!(f, "{why}"),
            Self::GenericShared { address } => write!(
                f,
                "generic address in an operand of .shared::cta: required an address of shared memory, actual {address:#x}"
            ),
            Self::UnevenRegisters { required, warp, actual } => write!(
                f,
                "setmaxnreg: required {required}, as warp {warp} of the warpgroup, actual {actual}"
            ),
            Self::MaxRegisters { required, actual } => {
                write!(f, "setmaxnreg: required {required}, actual {actual}")
            }
        }
    }
}
