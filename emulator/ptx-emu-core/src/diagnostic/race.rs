//! Data races.

use super::from;
use crate::readable::instruction;
use crate::sources::SourceLine;
use std::fmt;

/// The kind of an access that races.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RaceAccess {
    /// A weak load.
    Read,
    /// A weak store.
    Write,
    /// A load with `.relaxed`, `.acquire` or `.volatile`.
    StrongRead,
    /// An atomic, or a store with `.relaxed`, `.release` or `.volatile`.
    StrongWrite,
    /// The read of an asynchronous operation.
    AsyncRead,
    /// The write of an asynchronous operation.
    AsyncWrite,
}

impl fmt::Display for RaceAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::StrongRead => "strong read",
            Self::StrongWrite => "strong or atomic write",
            Self::AsyncRead => "asynchronous read",
            Self::AsyncWrite => "asynchronous write",
        })
    }
}

/// The order that two racing accesses lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingOrder {
    /// Both are lanes of one instruction, with different values: nothing could order them.
    OneInstruction,
    /// A `bar.warp.sync`: both are of lanes of one warp.
    WarpBarrier,
    /// A barrier of the CTA that both belong to.
    CtaBarrier,
    /// A barrier of the cluster, whose CTAs are two.
    ClusterBarrier,
    /// The earlier one is of an asynchronous operation.
    Completion,
    /// The same, and a warp has waited for it.
    Release {
        /// `%ctaid` of that warp.
        cta: [u32; 3],
        /// Its number in the CTA.
        warp: u32,
    },
}

impl fmt::Display for MissingOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Release { cta: [x, y, z], warp } => {
                return write!(
                    f,
                    "CTA ({x}, {y}, {z}), warp {warp} has waited for the asynchronous operation, but nothing that it released since then was waited for here"
                );
            }
            Self::OneInstruction => {
                "both lanes execute it at once, and which of the two values stays is undefined"
            }
            Self::WarpBarrier => "no bar.warp.sync of both lanes is between them",
            Self::CtaBarrier => {
                "no CTA barrier of both warps, no mbarrier phase and no released and acquired flag is between them"
            }
            Self::ClusterBarrier => {
                "no barrier.cluster, no mbarrier phase and no released and acquired flag is between them"
            }
            Self::Completion => {
                "no wait for the completion of the asynchronous operation is between them"
            }
        })
    }
}

/// The earlier of two racing accesses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaceSite {
    /// The kind of the access.
    pub kind: RaceAccess,
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// The line, trimmed.
    pub instruction: String,
    /// The line of source that it comes from, where the module says so.
    pub source: Option<SourceLine>,
    /// `%ctaid`.
    pub cta: [u32; 3],
    /// Warp of the CTA.
    pub warp: u32,
    /// Lane, the first where several make up the access.
    pub lane: u32,
}

/// Two accesses to shared or tensor memory that conflict and that nothing orders. The
/// later one in this run is where the [`Diagnostic`](crate::Diagnostic) is; in
/// another run it may be the earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataRace {
    /// First `.shared` address that both touch; in tensor memory, the address of
    /// the first column, and of the first of the 16 lanes that it was looked for in.
    pub address: u64,
    /// Whether it is in tensor memory.
    pub tensor: bool,
    /// The kind of the later access.
    pub kind: RaceAccess,
    /// The later access stores what is there already.
    pub unchanged: bool,
    /// The earlier access.
    pub earlier: RaceSite,
    /// The missing order.
    pub missing: MissingOrder,
}

impl fmt::Display for DataRace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, tensor, kind, unchanged, earlier, missing } = self;
        let space = if *tensor { "tensor memory" } else { "shared" };
        let [x, y, z] = earlier.cta;
        write!(
            f,
            "data race: {kind} of {space} address {address:#x} is not ordered behind the {} by line {} (`{}`{}, CTA ({x}, {y}, {z}), warp {}, lane {}): {missing}",
            earlier.kind,
            earlier.line,
            instruction(&earlier.instruction),
            from(&earlier.source),
            earlier.warp,
            earlier.lane
        )?;
        if *unchanged { write!(f, "; it stores what is there already") } else { Ok(()) }
    }
}
