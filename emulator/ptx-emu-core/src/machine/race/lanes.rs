//! Lanes of a warp. A warp is one agent, but what a few of its lanes publish is only what
//! they did themselves, and what all lanes did before they last met at a barrier (PTX ISA
//! 9.7.13.2: `bar.warp.sync` orders the accesses of its threads; no other instruction of
//! warps does).
//!
//! An agent of its own stands for what a lane that publishes alone did: where a clock knows
//! too little of the warp, the lanes of the access are looked up.

use super::clock::Clock;
use super::shadow::{Kind, Record};
use super::{AgentId, Object, Races, STARTED};
use std::cell::Cell;

/// Most lanes that publish on their own; more are taken for the whole warp.
const MOST: usize = 4;
/// Lanes of a warp.
const LANES: usize = 32;

/// Knowledge of the lanes of each warp.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Lanes that have not exited.
    live: Vec<u32>,
    /// Epoch of the warp up to which each lane knows of all.
    together: Vec<u32>,
    /// Agents of lanes that have published alone; 0: none. The next agent stands for their
    /// fenced reads.
    agents: Vec<u16>,
    /// There are such.
    any: bool,
}

impl Lanes {
    /// CTAs of `threads` threads begin.
    pub(super) fn start(&mut self, ctas: usize, warps_per_cta: usize, threads: u32) {
        let live = |warp: usize| match (threads as usize).saturating_sub(warp * LANES) {
            rest if rest < LANES => (1 << rest) - 1,
            _ => u32::MAX,
        };
        self.live.clear();
        for _ in 0..ctas {
            self.live.extend((0..warps_per_cta).map(live));
        }
        self.together.clear();
        self.together.resize(ctas * warps_per_cta, STARTED);
        self.agents.clear();
        self.agents.resize(ctas * warps_per_cta * LANES, 0);
        self.any = false;
    }

    /// Lanes exit.
    pub(super) fn exit(&mut self, warp: AgentId, mask: u32) {
        self.live[warp] &= !mask;
    }

    /// Whether `mask` stands for the whole warp.
    pub(super) fn whole(&self, warp: AgentId, mask: u32) -> bool {
        self.live[warp] & !mask == 0 || mask.count_ones() as usize > MOST
    }
}

/// The part of a warp's knowledge that some lanes publish.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    warp: AgentId,
    /// Epoch of the warp up to which it is all; `None`: everything.
    together: Option<u32>,
    /// The warp's epoch.
    now: u32,
    lanes: [AgentId; MOST],
    count: usize,
}

impl Part {
    /// Adds it to a clock.
    pub(super) fn join(&self, known: &Clock, into: &mut Clock) {
        let before = into.get(self.warp);
        into.join(known);
        if let Some(together) = self.together {
            into.set(self.warp, before.max(together));
            for &lane in &self.lanes[..self.count] {
                into.set(lane, self.now);
            }
        }
    }
}

/// A clock, and what it says of single lanes.
pub(super) struct Known<'a> {
    pub(super) clock: &'a Clock,
    pub(super) lanes: &'a Lanes,
    /// A write through the async proxy: number of warps, and a generic read there that no proxy
    /// fence follows.
    pub(super) unfenced: Option<(usize, &'a Cell<Option<Record>>)>,
}

impl Known<'_> {
    /// Whether an access to these bytes comes before.
    #[inline(always)]
    pub(super) fn knows(&self, old: &Record, bytes: impl Iterator<Item = usize>) -> bool {
        self.clock.get(old.agent.into()) >= old.epoch
            || self.lanes.any && self.by_lane(old, 0, bytes)
    }

    /// Notes an access that comes before if it is a generic read that needs a proxy fence and
    /// has none.
    #[inline(always)]
    pub(super) fn check_fenced(&self, old: &Record, bytes: impl Iterator<Item = usize>) {
        if let Some((warps, unfenced)) = self.unfenced
            && matches!(old.kind, Kind::Read | Kind::StrongRead)
            && usize::from(old.agent) < warps
            && self.clock.get(usize::from(old.agent) + warps) < old.epoch
            && !(self.lanes.any && self.by_lane(old, 1, bytes))
        {
            unfenced.set(Some(*old));
        }
    }

    /// The same of agents of lanes, or with `beside` 1, of those for their fenced reads.
    #[cold]
    fn by_lane(
        &self,
        old: &Record,
        beside: AgentId,
        mut bytes: impl Iterator<Item = usize>,
    ) -> bool {
        let first = usize::from(old.agent) * LANES;
        let Some(agents) = self.lanes.agents.get(first..first + LANES) else {
            return false;
        };
        bytes.all(|byte| {
            old.only_lane_at(byte).is_some_and(|lane| {
                let agent = agents[lane as usize % LANES];
                agent != 0 && self.clock.get(usize::from(agent) + beside) >= old.epoch
            })
        })
    }
}

impl Races {
    /// Returns the knowledge that lanes of an agent, a warp or an operation, publish.
    pub(super) fn part(&mut self, agent: AgentId, mask: u32) -> Part {
        let now = self.agents[agent].get(agent);
        let mut part = Part { warp: agent, together: None, now, lanes: [0; MOST], count: 0 };
        if agent >= self.warp_agents || self.lanes.whole(agent, mask) {
            return part;
        }
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let at = agent * LANES + lane;
            if self.lanes.agents[at] == 0 {
                // Without numbers for it the lane stands for its warp.
                let Ok(new) = u16::try_from(self.agents.len()) else { return part };
                self.agents.extend([Clock::default(), Clock::default()]);
                self.lanes.agents[at] = new;
                self.lanes.any = true;
            }
            part.lanes[part.count] = self.lanes.agents[at].into();
            part.count += 1;
        }
        part.together = Some(self.lanes.together[agent]);
        part
    }

    /// A warp learns from an object in which all its lanes may have published: then each knows
    /// what all did before, as where they met.
    pub(super) fn learn_of_own_lanes(&mut self, warp: AgentId, object: Object) {
        let Some(published) = self.objects.get(&object) else { return };
        let closed = published.closed();
        let (together, live) = (self.lanes.together[warp], self.lanes.live[warp]);
        let whole = closed.get(warp);
        let by_lane = (0..LANES).filter(|lane| live >> lane & 1 != 0).map(|lane| {
            match self.lanes.agents[warp * LANES + lane] {
                0 => whole,
                agent => whole.max(closed.get(agent.into())),
            }
        });
        self.lanes.together[warp] = by_lane.min().unwrap_or(0).max(together);
    }

    /// A `fence.proxy.async` of lanes of a warp: generic reads that they know of come before
    /// what the async proxy does behind it. An agent beside each warp, and beside each lane that
    /// publishes alone, stands for those reads, so that whoever learns of the fence knows them.
    pub(crate) fn fence_reads(&mut self, warp: AgentId, mask: u32) {
        let part = self.part(warp, mask);
        let mut known = Clock::default();
        part.join(&self.agents[warp], &mut known);
        let lanes = self.lanes.agents.iter().filter(|&&agent| agent != 0);
        let lanes = lanes.map(|&agent| (usize::from(agent), usize::from(agent) + 1));
        let pairs = (0..self.warp_agents).map(|of| (of, of + self.warp_agents)).chain(lanes);
        let clock = &mut self.agents[warp];
        for (of, beside) in pairs {
            let epoch = known.get(of);
            if epoch > clock.get(beside) {
                clock.set(beside, epoch);
            }
        }
        self.advance(warp);
    }

    /// Lanes of a warp met: each knows what all did.
    pub(crate) fn meet(&mut self, warp: AgentId) {
        self.lanes.together[warp] = self.agents[warp].get(warp);
        self.tensor.meet(warp);
        self.advance(warp);
    }

    /// Whether `agent` knows what lanes of a warp did in an epoch.
    pub(crate) fn knows(&self, agent: AgentId, warp: AgentId, lanes: u32, epoch: u32) -> bool {
        agent == warp || self.known_to(&self.agents[agent], warp, lanes, epoch)
    }

    /// The same of a clock.
    pub(super) fn known_to(&self, clock: &Clock, warp: AgentId, lanes: u32, epoch: u32) -> bool {
        let agents = &self.lanes.agents[warp * LANES..][..LANES];
        clock.get(warp) >= epoch
            || agents.iter().enumerate().all(|(lane, &agent)| {
                lanes >> lane & 1 == 0 || agent != 0 && clock.get(agent.into()) >= epoch
            })
    }

    /// The epoch that an agent is in.
    pub(crate) fn epoch(&self, agent: AgentId) -> u32 {
        self.agents[agent].get(agent)
    }
}
