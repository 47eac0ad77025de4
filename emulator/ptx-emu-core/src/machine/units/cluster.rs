//! Life of a cluster's CTAs: `barrier.cluster` (PTX ISA 9.7.13.3) and exits.
//!
//! The cluster barrier completes when every thread that has not exited has
//! arrived. A thread arrives once and waits once, in turns; anything else is
//! reported. Shared memory of a CTA whose threads have all exited is gone.

use crate::diagnostic::{AsyncFault, DiagnosticKind, Exec, Fault};

/// Lanes of one warp at the cluster barrier.
#[derive(Debug, Clone, Copy, Default)]
struct Lanes {
    /// Arrived in the present generation.
    arrived: u32,
    /// Arrived and have not waited.
    owing: u32,
}

/// Cluster barrier and live threads.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    /// Live threads of each CTA.
    live: Vec<u32>,
    arrived: u32,
    generation: u64,
    warps: Vec<Lanes>,
    /// Lanes of each warp that have not exited.
    lanes_left: Vec<u32>,
}

fn misuse(required: &'static str, lanes: u32) -> Box<Fault> {
    let kind = DiagnosticKind::Async(AsyncFault::ClusterBarrier { required });
    Fault::lane(kind, lanes.trailing_zeros())
}

impl ClusterState {
    pub(crate) fn reset(&mut self, ctas: usize, warps: usize, threads: u32) {
        self.live.clear();
        self.live.resize(ctas, threads);
        self.warps.clear();
        self.warps.resize(warps, Lanes::default());
        let per_cta = warps / ctas.max(1);
        self.lanes_left.clear();
        self.lanes_left.extend((0..warps).map(|warp| {
            let before = 32 * (warp % per_cta.max(1)) as u32;
            threads.saturating_sub(before).min(32)
        }));
        self.arrived = 0;
        self.generation = 0;
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Describes the wait of the barrier, for a deadlock report.
    pub(crate) fn describe(&self) -> String {
        let live: u32 = self.live.iter().sum();
        format!("the cluster barrier ({} of {live} threads arrived)", self.arrived)
    }

    /// `barrier.cluster.arrive`
    pub(crate) fn arrive(&mut self, warp: usize, lanes: u32) -> Exec {
        let state = &mut self.warps[warp];
        if state.owing & lanes != 0 {
            return Err(misuse("barrier.cluster.wait between two arrivals", state.owing & lanes));
        }
        state.owing |= lanes;
        state.arrived |= lanes;
        self.arrived += lanes.count_ones();
        self.settle();
        Ok(())
    }

    /// `barrier.cluster.wait`: true when done, else it has to wait.
    pub(crate) fn wait(&mut self, warp: usize, lanes: u32) -> Exec<bool> {
        let state = &mut self.warps[warp];
        if lanes & !state.owing != 0 {
            return Err(misuse("barrier.cluster.arrive before the wait", lanes & !state.owing));
        }
        if state.arrived & lanes != 0 {
            return Ok(false);
        }
        state.owing &= !lanes;
        Ok(true)
    }

    /// Whether a warp has exited.
    pub(crate) fn is_gone(&self, warp: usize) -> bool {
        self.lanes_left[warp] == 0
    }

    /// Threads of a CTA exit. True when they were its last.
    pub(crate) fn exit(&mut self, rank: u32, warp: usize, lanes: u32) -> bool {
        let count = lanes.count_ones();
        self.lanes_left[warp] -= count;
        let live = &mut self.live[rank as usize];
        *live -= count;
        let last = *live == 0;
        let state = &mut self.warps[warp];
        self.arrived -= (state.arrived & lanes).count_ones();
        state.arrived &= !lanes;
        self.settle();
        last
    }

    fn settle(&mut self) {
        let live: u32 = self.live.iter().sum();
        if self.arrived != 0 && self.arrived == live {
            self.arrived = 0;
            self.generation += 1;
            self.warps.iter_mut().for_each(|lanes| lanes.arrived = 0);
        }
    }

    /// A CTA whose shared memory is used must not have exited.
    pub(crate) fn check_alive(&self, rank: u32) -> Exec {
        if self.live.get(rank as usize).is_some_and(|&live| live != 0) {
            return Ok(());
        }
        Err(Fault::warp(DiagnosticKind::Async(AsyncFault::Exited { rank })))
    }
}
