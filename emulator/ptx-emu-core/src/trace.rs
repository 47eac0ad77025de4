//! Timelines of launches: the runs and waits of each warp, the cause of the end of each
//! wait, asynchronous operations from issue to completion, and phases of barriers.
//!
//! [`Module::launch_traced`](crate::Module::launch_traced) records a timeline.
//!
//! The time axis counts *steps*: the warp instructions that the cluster has executed, from 0
//! for each cluster. One step is shown as a microsecond. It is the order of events under one
//! schedule of the emulator, not a time on hardware. A warp's turn is one span, and a wait
//! ends with the turn that ended it.
//!
//! Limits: waits of a part of a warp that begin and end within one turn. Repeated failing tests
//! (`test_wait`) are shown as running.

/// A timeline.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// Kernel.
    pub kernel: String,
    /// Schedule.
    pub schedule: crate::Schedule,
    /// The records, in no particular order.
    pub records: Vec<Record>,
    /// Records that did not fit the limit.
    pub dropped: u64,
}

/// A warp, or what is beside the warps of a CTA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// `%ctaid`
    pub cta: [u32; 3],
    /// `%warpid`
    pub warp: u32,
}

/// An instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// PTX line.
    pub number: u32,
    /// Its text.
    pub text: String,
}

/// Something that happened in one cluster. Times are steps.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// Turns of a warp.
    Run {
        /// The warp.
        place: Place,
        /// Step before its first instruction.
        from: u64,
        /// Step after its last instruction.
        to: u64,
        /// The line before.
        first: Line,
        /// The line afterwards.
        last: Line,
    },
    /// A wait.
    Wait {
        /// The warp.
        place: Place,
        /// The lanes that wait, a bit for each.
        lanes: u32,
        /// The begin.
        from: u64,
        /// The end.
        to: u64,
        /// Instruction that waits.
        line: Line,
        /// A word or two.
        name: String,
        /// The reason of the wait, as it stood when the wait began.
        reason: String,
        /// The one that ended it.
        ended_by: String,
    },
    /// An asynchronous operation.
    Operation {
        /// The warp that issued it.
        place: Place,
        /// Its number in order of issue, within the cluster.
        id: u64,
        /// The instruction's name.
        name: &'static str,
        /// The time of issue.
        from: u64,
        /// The time when its sources had been read.
        read: Option<u64>,
        /// The time of completion.
        to: u64,
        /// Instruction that issued it.
        line: Line,
        /// Bytes that it writes, or reads if that is more.
        bytes: u64,
        /// Whether it had completed when the launch ended.
        complete: bool,
    },
    /// A barrier's phase or generation ended.
    Phase {
        /// The CTA, and its first warp.
        place: Place,
        /// The time.
        at: u64,
        /// The barrier.
        name: String,
        /// Number of the phase.
        phase: u64,
        /// The one that ended it.
        by: String,
    },
}

impl Trace {
    /// Whether events were left out because of the limit.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.dropped != 0
    }
}

impl Record {
    /// Returns its place.
    #[must_use]
    pub fn place(&self) -> &Place {
        match self {
            Self::Run { place, .. }
            | Self::Wait { place, .. }
            | Self::Operation { place, .. }
            | Self::Phase { place, .. } => place,
        }
    }

    /// Events that it becomes.
    pub(crate) fn events(&self) -> u64 {
        match self {
            Self::Run { .. } | Self::Wait { .. } => 2,
            // With the counter of operations in flight.
            Self::Operation { .. } => 4,
            Self::Phase { .. } => 1,
        }
    }
}
