//! The kind of each diagnostic.

use super::{AsyncFault, DiagnosticKind, LeftUse, MbarrierFault, TensorFault};
use crate::checks::Kind;

impl DiagnosticKind {
    /// Returns the kind, without the details.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::OutOfBounds | Self::NullPointer | Self::NoDynamicShared => Kind::OutOfBounds,
            Self::Misaligned { .. } => Kind::Misaligned,
            Self::UninitialisedRead { .. } => Kind::UninitialisedRead,
            Self::UninitialisedPadding { .. } => Kind::UninitialisedPadding,
            Self::ReadOnly => Kind::ReadOnlyWrite,
            Self::DivergentAligned { .. } => Kind::DivergentAligned,
            Self::MissingMembers { .. } => Kind::MissingMembers,
            Self::NotAMember { .. } => Kind::NotAMember,
            Self::UndefinedValue { .. } => Kind::UndefinedValue,
            Self::BarrierMismatch { .. } => Kind::BarrierMismatch,
            Self::Deadlock { .. } => Kind::Deadlock,
            Self::Assertion { .. } => Kind::Assertion,
            Self::InvalidFree { .. } => Kind::InvalidFree,
            Self::Trap => Kind::Trap,
            Self::Breakpoint => Kind::Breakpoint,
            Self::BadTarget { .. } => Kind::BadTarget,
            Self::StackOverflow { .. } => Kind::StackOverflow,
            Self::Async(fault) => fault.kind(),
            Self::Race(race) if race.tensor => Kind::TensorMemoryRace,
            Self::Race(race) if race.unchanged => Kind::SameValueRace,
            Self::Race(_) => Kind::DataRace,
            Self::InstructionLimit { .. } => Kind::InstructionLimit,
        }
    }

    /// Line of the other instruction that it is about, or 0.
    #[must_use]
    pub fn other_line(&self) -> u32 {
        match self {
            Self::Race(race) => race.earlier.line,
            Self::UndefinedValue { operation } => operation.line,
            Self::Async(fault) => fault.other_line(),
            _ => 0,
        }
    }
}

impl AsyncFault {
    fn kind(&self) -> Kind {
        match self {
            Self::InFlight { .. } => Kind::MemoryInFlight,
            Self::MissingProxyFence { .. } => Kind::MissingProxyFence,
            Self::UnfencedRead { .. } => Kind::UnfencedRead,
            Self::MissingTensormapFence { .. } => Kind::MissingTensormapFence,
            Self::Mbarrier { fault, .. } => fault.kind(),
            Self::ClusterBarrier { .. } => Kind::ClusterBarrier,
            Self::Unstarted { .. } => Kind::PeerNotStarted,
            Self::Exited { .. } => Kind::PeerExited,
            Self::Outlasts { .. } => Kind::ExitBeforeRemoteAccess,
            Self::LeftInFlight { left: LeftUse::Written, .. } => Kind::ExitInFlight,
            Self::LeftInFlight { left: LeftUse::Source, .. } => Kind::ExitSourceInFlight,
            Self::LeftInFlight { left: LeftUse::Copy, .. } => Kind::ExitCopyInFlight,
            Self::GenericShared { .. } => Kind::GenericSharedAddress,
            Self::UnevenRegisters { .. } => Kind::UnevenRegisters,
            Self::Operand { .. } => Kind::BadOperand,
            Self::TensorMap(_) => Kind::BadTensorMap,
            Self::Tile(_) => Kind::BadTensorCopy,
            Self::Replace(_) => Kind::BadTensormapReplace,
            Self::Tensor(fault) => fault.kind(),
            Self::MaxRegisters { .. } => Kind::MaxRegisters,
        }
    }

    fn other_line(&self) -> u32 {
        match self {
            Self::InFlight { operation, .. }
            | Self::MissingProxyFence { other: operation, .. }
            | Self::UnfencedRead { other: operation, .. }
            | Self::Outlasts { operation }
            | Self::LeftInFlight { operation, .. }
            | Self::Tensor(
                TensorFault::InFlight { operation, .. }
                | TensorFault::RegistersInFlight { operation, .. }
                | TensorFault::MissingThreadFence { operation, .. }
                | TensorFault::NotFreed { operation, .. },
            ) => operation.line,
            _ => 0,
        }
    }
}

impl MbarrierFault {
    fn kind(&self) -> Kind {
        match self {
            Self::NotInitialised => Kind::MbarrierNotInitialised,
            Self::Overwritten { .. } => Kind::MbarrierOverwritten,
            Self::InUse => Kind::MbarrierInitialisedTwice,
            Self::Count { .. } => Kind::MbarrierCount,
            Self::OverArrival { .. } => Kind::MbarrierOverArrival,
            Self::Completes { .. } => Kind::MbarrierNoComplete,
            Self::Transactions { .. } => Kind::MbarrierTransactionCount,
            Self::StalePhase { .. } => Kind::MbarrierStalePhase,
            Self::MissedPhase { .. } => Kind::MbarrierMissedPhase,
        }
    }
}

impl TensorFault {
    fn kind(&self) -> Kind {
        match self {
            Self::Descriptor { .. } => Kind::BadDescriptor,
            Self::LeadingOffset { .. } => Kind::DescriptorLeadingOffset,
            Self::OutOfBounds { .. } => Kind::OutOfBounds,
            Self::UninitialisedTile { .. } => Kind::UninitialisedRead,
            Self::UninitialisedCell { .. } => Kind::UninitialisedTensorMemory,
            Self::Unallocated { .. } => Kind::UnallocatedTensorMemory,
            Self::WrongLanes { .. } => Kind::WrongTensorLanes,
            Self::ImpliedLanes { .. } => Kind::ImpliedTensorLanes,
            Self::InFlight { .. } => Kind::TensorMemoryInFlight,
            Self::RegistersInFlight { loaded: false, .. } => Kind::RegistersInFlight,
            Self::RegistersInFlight { loaded: true, .. } => Kind::TensorLoadRegisters,
            Self::MissingWgmmaFence { .. } => Kind::MissingWgmmaFence,
            Self::MissingThreadFence { .. } => Kind::MissingTcgen05Fence,
            Self::NotFreed { .. } => Kind::TensorMemoryNotFreed,
        }
    }
}
