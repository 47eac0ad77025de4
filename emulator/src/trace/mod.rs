//! Timelines of launches: the runs and waits of each warp, the cause of the end of each
//! wait, asynchronous operations from issue to completion, and phases of barriers.
//!
//! [`Module::launch_traced`](crate::Module::launch_traced) records a timeline;
//! [`Trace::to_json`] returns it in the Trace Event Format, which Perfetto and
//! Chrome display.
//!
//! The time axis counts *steps*: the warp instructions that the cluster has executed, from 0
//! for each cluster. One step is shown as a microsecond. It is the order of events under one
//! schedule of the emulator, not a time on hardware. A warp's turn is one span, and a wait
//! ends with the turn that ended it.
//!
//! What it can miss: waits of a part of a warp that begin and end within one
//! turn. Repeated failing tests (`test_wait`) are shown as running.

mod export;
mod record;

pub(crate) use record::{Actor, OpenWait, Recorder, Tracer};

/// A timeline.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// Kernel.
    pub kernel: String,
    /// Schedule.
    pub schedule: crate::Schedule,
    /// What was recorded, in no particular order.
    pub(crate) records: Vec<Record>,
    /// Records that did not fit the limit.
    pub dropped: u64,
}

/// A warp, or what is beside the warps of a CTA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// `%ctaid`
    pub(crate) cta: [u32; 3],
    /// `%warpid`
    pub(crate) warp: u32,
}

/// An instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// PTX line.
    pub(crate) number: u32,
    /// Its text.
    pub(crate) text: String,
}

/// Something that happened in one cluster. Times are steps.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    /// Turns of a warp.
    Run { place: Place, from: u64, to: u64, first: Line, last: Line },
    /// A wait.
    Wait {
        place: Place,
        lanes: u32,
        from: u64,
        to: u64,
        line: Line,
        /// In a word or two.
        name: String,
        /// What it waits for, as it stood when the wait began.
        reason: String,
        /// Who or what ended it.
        ended_by: String,
    },
    /// An asynchronous operation.
    Operation {
        place: Place,
        id: u64,
        name: &'static str,
        from: u64,
        /// When its sources had been read.
        read: Option<u64>,
        to: u64,
        line: Line,
        bytes: u64,
        /// It had completed when the launch ended.
        complete: bool,
    },
    /// A barrier's phase or generation ended.
    Phase { place: Place, at: u64, name: String, phase: u64, by: String },
}

impl Record {
    /// Events that it becomes.
    fn events(&self) -> u64 {
        match self {
            Self::Run { .. } | Self::Wait { .. } => 2,
            // With the counter of operations in flight.
            Self::Operation { .. } => 4,
            Self::Phase { .. } => 1,
        }
    }
}

/// Unit that works on an operation of this name.
fn unit(operation: &str) -> &str {
    const UNITS: [(&str, &str); 6] = [
        ("cp.async.bulk.tensor", "tensor copies"),
        ("cp.reduce.async.bulk.tensor", "tensor copies"),
        ("cp.async.bulk", "bulk copies"),
        ("cp.reduce.async.bulk", "bulk copies"),
        ("cp.async", "cp.async"),
        ("wgmma", "wgmma"),
    ];
    if operation.starts_with("tcgen05") {
        return operation.split_inclusive('.').nth(1).map_or("tcgen05", |_| {
            let second = operation.match_indices('.').nth(1).map_or(operation.len(), |(at, _)| at);
            &operation[..second]
        });
    }
    UNITS.iter().find(|(start, _)| operation.starts_with(start)).map_or(operation, |(_, unit)| unit)
}
