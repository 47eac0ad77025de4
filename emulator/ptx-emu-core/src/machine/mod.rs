//! The machine that runs decoded code: register files, warps as sets of
//! fragments, CTA barriers, clusters and the launch that feeds them.

mod access;
mod barrier;
mod calls;
mod cluster;
pub(crate) mod code;
mod context;
mod counting;
mod dependency;
mod execute;
pub(crate) mod findings;
pub mod journal;
mod launch;
pub(crate) mod module;
pub(crate) mod print;
pub(crate) mod race;
mod recorder;
pub(crate) mod regs;
mod residency;
mod stats;
pub(crate) mod units;
mod warp;

pub(crate) use access::AddressSpace;
pub(crate) use barrier::{Barriers, Reduction};
pub(crate) use context::Context;
pub use counting::{Executed, Executions, FunctionExecutions, Issued};
pub use dependency::{Step, launch_sequence};
pub(crate) use launch::Env;
pub use launch::{Launch, LaunchError, LaunchReport};
pub(crate) use stats::Stats;
pub(crate) use warp::Wait;

/// Windows of the generic address space (PTX ISA 5.1): the top byte of a
/// generic address names the state space, 0 is global memory. On hardware the
/// windows are elsewhere, but programs can only learn that through `cvta`.
pub(crate) mod window {
    /// Shared memory: the low 32 bits are the shared address, CTA rank of the
    /// cluster from bit 24 up.
    pub(crate) const SHARED: u64 = 1 << 56;
    /// Local memory of the executing thread.
    pub(crate) const LOCAL: u64 = 2 << 56;
    /// Kernel parameters.
    pub(crate) const PARAM: u64 = 3 << 56;
    /// Constants.
    pub(crate) const CONST: u64 = 4 << 56;
    /// The part of a generic address that instructions with `.shared::cta` take.
    pub(crate) const LOW: u64 = 0xffff_ffff;
    /// Functions: not memory; `mov` of a function name gives such a value.
    pub(crate) const FUNCTION: u64 = 5 << 56;
    /// Returns the window of an address.
    pub(crate) const fn tag(address: u64) -> u64 {
        address & (0xff << 56)
    }
}

/// First usable byte of a CTA's shared memory; the system reserves the first
/// KiB on `sm_90` and later.
pub(crate) const SHARED_BASE: u32 = 1024;
/// Bits below the CTA rank in a shared address.
pub(crate) const RANK_SHIFT: u32 = 24;
