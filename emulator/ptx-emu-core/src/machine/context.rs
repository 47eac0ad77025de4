//! The context of an executing instruction.

use super::Barriers;
use super::launch::Env;
use super::race::Order;
use super::regs::{LANES, Regs};
use super::stats::Stats;
use super::units::Units;
use crate::memory::{BlockId, Local, Plain};

/// The place of a warp.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    /// `%ctaid`
    pub(crate) cta: [u32; 3],
    /// `%clusterid`
    pub(crate) cluster: [u32; 3],
    /// `%cluster_ctaid`
    pub(crate) cta_in_cluster: [u32; 3],
    /// `%cluster_ctarank`
    pub(crate) rank: u32,
    /// `%warpid`
    pub(crate) warp: u32,
    /// `%smid`
    pub(crate) sm: u32,
    /// `%tid` of each lane, by component.
    pub(crate) tid: [[u32; LANES]; 3],
}

/// The machine as one warp sees it during a turn.
pub(crate) struct Context<'a> {
    pub(crate) regs: &'a mut Regs,
    pub(crate) local: &'a mut Local,
    /// Shared memory of each CTA of the cluster, by rank.
    pub(crate) shared: &'a mut [Plain],
    pub(crate) barriers: &'a mut Barriers,
    pub(crate) units: &'a mut Units,
    pub(crate) env: &'a Env<'a>,
    pub(crate) stats: &'a mut Stats,
    pub(crate) place: &'a Place,
    /// Start of the running frame in local memory.
    pub(crate) frame: u32,
    /// Block that the last global access hit.
    pub(crate) block: BlockId,
    /// Warp instructions the cluster has run: the machine's clock.
    pub(crate) clock: u64,
    /// The executing instruction; not kept up to date for register operations.
    pub(crate) pc: usize,
    /// The instruction has waited long enough: one that may give up does.
    pub(crate) expired: bool,
    /// Ordering semantics of the access being made.
    pub(crate) order: Order,
}
