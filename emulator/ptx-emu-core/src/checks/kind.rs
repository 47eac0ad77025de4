//! Kinds of findings.

use super::{Level, Model};
use std::fmt;
use std::str::FromStr;

/// The course of a run behind a finding, and the levels it has.
#[derive(Clone, Copy)]
enum Class {
    /// The run does not go on.
    Fatal,
    /// The run goes on; both models deny the finding.
    Denied,
    /// The run goes on; both models warn.
    Warned,
    /// The run goes on; the model of PTX denies the finding, the model of hardware has this level.
    Hardware(Level),
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal $class:expr;)+) => {
        /// The kind of a finding, without the details. Every kind has a name that does not change,
        /// and a page that explains it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Kind {
            $($(#[$doc])* $kind,)+
        }

        impl Kind {
            /// All of them.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$kind,)+];
            /// The number of kinds.
            pub(super) const COUNT: usize = [$($name,)+].len();

            /// Its name, in kebab case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ }
            }

            /// The page that explains it: the rule, what hardware does, how to mend it.
            #[must_use]
            pub const fn page(self) -> &'static str {
                match self {
                    $(Self::$kind => include_str!(concat!("../../docs/findings/", $name, ".md")),)+
                }
            }

            /// Returns the advice in one line.
            #[must_use]
            pub fn advice(self) -> String {
                let (_, mending) = self.page().split_once("\n## Mending\n").unwrap_or_default();
                let paragraph = mending.trim_start().split("\n\n").next().unwrap_or_default();
                paragraph.trim_end().replace('\n', " ")
            }

            /// The smallest program that goes wrong so. Without its lines that end in `//-` and
            /// with those that begin with `//+` it is right.
            #[must_use]
            pub const fn program(self) -> &'static str {
                match self {
                    $(Self::$kind => include_str!(concat!("../../docs/findings/", $name, ".ptx")),)+
                }
            }

            const fn class(self) -> Class {
                match self { $(Self::$kind => $class,)+ }
            }
        }
    };
}

kinds! {
    /// An access outside every allocation.
    OutOfBounds "out-of-bounds" Class::Fatal;
    /// An address that is no multiple of what it must be one of.
    Misaligned "misaligned-access" Class::Fatal;
    /// A load of memory that was never written.
    UninitialisedRead "uninitialised-read" Class::Denied;
    /// A load of a word of which only a part was written.
    UninitialisedPadding "uninitialised-padding" Class::Hardware(Level::Warn);
    /// A store to constants or parameters.
    ReadOnlyWrite "read-only-write" Class::Fatal;
    /// Lanes that do not reach an `.aligned` instruction.
    DivergentAligned "divergent-aligned" Class::Fatal;
    /// Members of a mask that never come.
    MissingMembers "missing-members" Class::Fatal;
    /// A lane outside its member mask.
    NotAMember "not-a-member" Class::Fatal;
    /// The use of a value that nothing defines.
    UndefinedValue "undefined-value" Class::Denied;
    /// A CTA barrier used inconsistently.
    BarrierMismatch "barrier-mismatch" Class::Fatal;
    /// Nothing can run any more.
    Deadlock "deadlock" Class::Fatal;
    /// A device-side assertion.
    Assertion "assertion-failed" Class::Fatal;
    /// `free` of something that `malloc` did not give.
    InvalidFree "invalid-free" Class::Fatal;
    /// `trap`
    Trap "trap" Class::Fatal;
    /// `brkpt`
    Breakpoint "breakpoint" Class::Fatal;
    /// An indirect branch or call to somewhere else.
    BadTarget "bad-branch-target" Class::Fatal;
    /// Calls that nest too deep.
    StackOverflow "stack-overflow" Class::Fatal;
    /// The instruction limit of the launch.
    InstructionLimit "instruction-limit" Class::Fatal;
    /// Two accesses to shared memory that nothing orders.
    DataRace "data-race" Class::Denied;
    /// The same, but the later one stores what is there already.
    SameValueRace "same-value-race" Class::Hardware(Level::Allow);
    /// Two accesses to tensor memory that nothing orders.
    TensorMemoryRace "tensor-memory-race" Class::Denied;
    /// An access to memory that an operation in flight uses.
    MemoryInFlight "memory-in-flight" Class::Denied;
    /// The same in tensor memory.
    TensorMemoryInFlight "tensor-memory-in-flight" Class::Denied;
    /// No proxy fence between generic and asynchronous accesses.
    MissingProxyFence "missing-proxy-fence" Class::Denied;
    /// No proxy fence between generic reads and a copy over what they read.
    UnfencedRead "missing-proxy-fence-after-read" Class::Warned;
    /// A tensor map of the device's own making that is not acquired.
    MissingTensormapFence "missing-tensormap-fence" Class::Denied;
    /// No mbarrier there.
    MbarrierNotInitialised "mbarrier-not-initialised" Class::Fatal;
    /// Something was stored over an mbarrier.
    MbarrierOverwritten "mbarrier-overwritten" Class::Fatal;
    /// An mbarrier initialised again while in use.
    MbarrierInitialisedTwice "mbarrier-initialised-twice" Class::Denied;
    /// An impossible count of arrivals.
    MbarrierCount "mbarrier-count" Class::Fatal;
    /// More arrivals than expected.
    MbarrierOverArrival "mbarrier-over-arrival" Class::Fatal;
    /// `.noComplete` that completes.
    MbarrierNoComplete "mbarrier-no-complete" Class::Fatal;
    /// An impossible tx-count.
    MbarrierTransactionCount "mbarrier-transaction-count" Class::Fatal;
    /// A phase that is too long ago.
    MbarrierStalePhase "mbarrier-stale-phase" Class::Fatal;
    /// A waiter that two phases went past.
    MbarrierMissedPhase "mbarrier-missed-phase" Class::Denied;
    /// `barrier.cluster` out of turn.
    ClusterBarrier "cluster-barrier" Class::Fatal;
    /// Memory of a CTA that may not have started.
    PeerNotStarted "peer-not-started" Class::Denied;
    /// Memory of a CTA that has exited.
    PeerExited "peer-exited" Class::Fatal;
    /// A CTA that may exit before accesses to it are over.
    ExitBeforeRemoteAccess "exit-before-remote-access" Class::Denied;
    /// A CTA exits while an operation still writes its memory.
    ExitInFlight "exit-with-operation-in-flight" Class::Fatal;
    /// A CTA exits while an operation still reads its memory.
    ExitSourceInFlight "exit-with-source-in-flight" Class::Hardware(Level::Allow);
    /// A CTA exits while a `cp.async` still writes its own memory.
    ExitCopyInFlight "exit-with-copy-in-flight" Class::Hardware(Level::Warn);
    /// An operand that the instruction cannot use.
    BadOperand "bad-operand" Class::Fatal;
    /// 128 bytes that are no tensor map.
    BadTensorMap "bad-tensor-map" Class::Fatal;
    /// A tensor copy that the map does not allow.
    BadTensorCopy "bad-tensor-copy" Class::Fatal;
    /// A refused `tensormap.replace`.
    BadTensormapReplace "bad-tensormap-replace" Class::Fatal;
    /// `setmaxnreg` misused.
    MaxRegisters "setmaxnreg" Class::Fatal;
    /// `setmaxnreg` with different counts in the warps of a warpgroup.
    UnevenRegisters "setmaxnreg-uneven" Class::Hardware(Level::Allow);
    /// A generic address where one of `.shared::cta` belongs.
    GenericSharedAddress "generic-shared-address" Class::Hardware(Level::Allow);
    /// A descriptor that the instruction does not have.
    BadDescriptor "bad-descriptor" Class::Fatal;
    /// A leading dimension offset that means nothing and is none of the usual ones.
    DescriptorLeadingOffset "descriptor-leading-offset" Class::Hardware(Level::Warn);
    /// Tensor memory that was never written.
    UninitialisedTensorMemory "uninitialised-tensor-memory" Class::Denied;
    /// Tensor memory that is not allocated.
    UnallocatedTensorMemory "unallocated-tensor-memory" Class::Fatal;
    /// Lanes of tensor memory that are another warp's.
    WrongTensorLanes "wrong-tensor-lanes" Class::Fatal;
    /// Lane 0 of tensor memory in the address of a warp whose lanes are others.
    ImpliedTensorLanes "implied-tensor-lanes" Class::Hardware(Level::Allow);
    /// Tensor memory that is not freed.
    TensorMemoryNotFreed "tensor-memory-not-freed" Class::Denied;
    /// Registers that a `wgmma` in flight uses.
    RegistersInFlight "registers-in-flight" Class::Denied;
    /// Registers of a `tcgen05.ld` used before its wait.
    TensorLoadRegisters "tensor-load-registers" Class::Hardware(Level::Allow);
    /// No `wgmma.fence`.
    MissingWgmmaFence "missing-wgmma-fence" Class::Denied;
    /// No fence of `tcgen05`.
    MissingTcgen05Fence "missing-tcgen05-fence" Class::Denied;
}

impl Kind {
    /// The machine cannot go on behind it.
    #[must_use]
    pub const fn is_fatal(self) -> bool {
        matches!(self.class(), Class::Fatal)
    }

    /// Its level by a model, unless another one is asked for.
    #[must_use]
    pub const fn level(self, model: Model) -> Level {
        match (self.class(), model) {
            (Class::Fatal | Class::Denied, _) | (Class::Hardware(_), Model::Ptx) => Level::Deny,
            (Class::Warned, _) => Level::Warn,
            (Class::Hardware(level), Model::Hardware) => level,
        }
    }

    /// Its page, with the program that goes wrong so and what mends it: what `ptx-emu explain`
    /// prints.
    #[must_use]
    pub fn explanation(self) -> String {
        let program: Vec<&str> =
            self.program().lines().filter(|line| !line.starts_with("// ")).collect();
        format!(
            "{}\n\n## Program\n\nRight without the lines that end in `//-` and with those that begin with `//+`.\n\n```\n{}\n```",
            self.page().trim_end(),
            program.join("\n")
        )
    }

    /// Its page's title.
    #[must_use]
    pub fn title(self) -> &'static str {
        self.page().lines().next().map_or("", |line| line.trim_start_matches(['#', ' ']))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no [`Kind`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kind of finding: required one that `ptx-emu explain` lists, actual `{0}`")]
pub struct ParseKindError(String);

impl FromStr for Kind {
    type Err = ParseKindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| ParseKindError(text.to_owned()))
    }
}
