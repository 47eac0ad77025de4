//! The events that a cluster reports to the recorder of its timeline, if there is one.

use super::Cluster;
use crate::machine::Env;
use crate::machine::recorder::{Actor, OpenWait, Recorder};
use crate::machine::units::{Awaited, GroupKind};
use crate::machine::warp::{Fragment, Wait};

impl Cluster {
    /// Warp `index` is about to run: where it is.
    pub(super) fn trace_before(&mut self, index: usize) -> usize {
        let first = self.warps[index].fragments.first().map_or(0, |fragment| fragment.pc);
        if let Some(trace) = &mut self.units.trace {
            trace.now = self.clock;
            trace.actor = Actor::Warp(index, None);
        }
        first
    }

    /// Warp `index` has run since step `from`, when it was at `pc`.
    pub(super) fn trace_after(&mut self, env: &Env<'_>, index: usize, from: u64, pc: usize) {
        let last = self.warps[index].fragments.first().map_or(pc, |fragment| fragment.pc);
        if let Some(trace) = &mut self.units.trace {
            trace.ran(env, index, (from, self.clock), (pc, last));
            // Its last action need not be the one that others waited for.
            trace.actor = Actor::Warp(index, None);
        }
        self.trace_waits(env);
    }

    /// Ends the waits that are over, and begins new ones.
    pub(super) fn trace_waits(&mut self, env: &Env<'_>) {
        let Some(mut trace) = self.units.trace.take() else {
            return;
        };
        trace.now = self.clock;
        trace.settle_phases(env);
        self.trace_generations(env, &mut trace);
        for open in std::mem::take(&mut trace.waits) {
            let same =
                |f: &&Fragment| f.mask == open.lanes && f.pc == open.pc && f.wait == open.wait;
            match self.warps[open.warp].fragments.iter().find(same) {
                Some(fragment) if !self.is_over(open.warp, fragment) => trace.waits.push(open),
                _ => {
                    let ended_by = self.ended_by(env, &trace, &open);
                    trace.end_wait(open, ended_by);
                }
            }
        }
        for (index, warp) in self.warps.iter().enumerate() {
            for fragment in &warp.fragments {
                let known = trace.waits.iter().any(|open| {
                    open.warp == index
                        && open.lanes == fragment.mask
                        && open.pc == fragment.pc
                        && open.wait == fragment.wait
                });
                let waits = !matches!(fragment.wait, Wait::Ready | Wait::Held);
                if waits && !known && !self.is_over(index, fragment) {
                    let names = self.names(index, fragment);
                    trace.begin_wait(
                        env,
                        (index, fragment.mask, fragment.pc, fragment.wait),
                        names,
                    );
                }
            }
        }
        self.units.trace = Some(trace);
    }

    /// CTA and cluster barriers that moved on.
    fn trace_generations(&self, env: &Env<'_>, trace: &mut Recorder) {
        for (rank, barriers) in self.barriers.iter().enumerate() {
            for id in 0..16u8 {
                let now = barriers.generation(id);
                while trace.generations[rank][usize::from(id)] < now {
                    let generation = trace.generations[rank][usize::from(id)];
                    trace.generations[rank][usize::from(id)] += 1;
                    let by = trace.actor_name(env);
                    trace.instant(rank as u32, format!("barrier {id}"), generation, by);
                }
            }
        }
        while trace.cluster_generation < self.units.cluster.generation() {
            let by = trace.actor_name(env);
            trace.instant(0, "cluster barrier".to_owned(), trace.cluster_generation, by);
            trace.cluster_generation += 1;
        }
    }

    fn is_over(&self, warp: usize, fragment: &Fragment) -> bool {
        match fragment.wait {
            Wait::Barrier { id, generation, .. } => {
                let rank = self.warps[warp].place.rank as usize;
                self.barriers[rank].generation(id) != generation
            }
            Wait::Unit(awaited) => self.units.over(&awaited),
            _ => false,
        }
    }

    /// Names the object of a wait, in short and in full.
    fn names(&self, warp: usize, fragment: &Fragment) -> (String, String) {
        match fragment.wait {
            Wait::Barrier { id, .. } => {
                let rank = self.warps[warp].place.rank as usize;
                (format!("barrier {id}"), self.barriers[rank].describe(id))
            }
            Wait::Unit(awaited) => {
                let name = match awaited {
                    Awaited::Phase { at, phase, .. } => {
                        format!("mbarrier {:#x} phase {phase}", at.address())
                    }
                    Awaited::Groups(wait) => match wait.kind {
                        GroupKind::Copy => "cp.async groups".to_owned(),
                        GroupKind::Bulk => "bulk groups".to_owned(),
                        GroupKind::Wgmma => "wgmma groups".to_owned(),
                        _ => "tcgen05".to_owned(),
                    },
                    Awaited::Cluster { .. } => "cluster barrier".to_owned(),
                    Awaited::Registers { .. } => "registers".to_owned(),
                    Awaited::Columns(_) => "tensor memory".to_owned(),
                    Awaited::Grid => "the grid before".to_owned(),
                };
                (name, self.units.describe(&awaited))
            }
            _ => ("lanes of the warp".to_owned(), "lanes of its warp".to_owned()),
        }
    }

    /// Names the one that ended a wait.
    fn ended_by(&self, env: &Env<'_>, trace: &Recorder, open: &OpenWait) -> String {
        let found = match open.wait {
            Wait::Unit(Awaited::Phase { at, limited, .. }) => {
                let Wait::Unit(awaited) = open.wait else { return String::new() };
                if limited && !self.units.over(&awaited) {
                    return "its time limit".to_owned();
                }
                trace.phase_ended_by(at)
            }
            Wait::Unit(Awaited::Groups(wait)) => trace.group_ended_by(wait.warp, wait.kind),
            Wait::Aligned | Wait::Members(_) | Wait::Warp(_) => {
                Some("lanes of its warp".to_owned())
            }
            _ => None,
        };
        found.unwrap_or_else(|| trace.actor_name(env))
    }
}
