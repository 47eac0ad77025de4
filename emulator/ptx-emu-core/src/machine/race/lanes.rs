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
use crate::machine::access::lanes;
use std::cell::Cell;

/// Lanes of a warp.
const LANES: usize = 32;

/// Epochs of a warp up to which each of its lanes knows of each other one.
type Rows = Box<[[u32; LANES]; LANES]>;

/// Knowledge of the lanes of each warp.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Lanes that have not exited.
    live: Vec<u32>,
    /// Epoch of the warp up to which each lane knows of all.
    together: Vec<u32>,
    /// Knowledge beyond that, of lanes that met without the others.
    met: Vec<Option<Rows>>,
    /// Lanes may be at different places: by the promises of PTX always, on hardware since a branch.
    parted: Vec<bool>,
    /// `parted` of a warp whose lanes meet.
    strict: bool,
    /// The last epoch in which each warp accessed shared memory.
    pub(super) accessed: Vec<u32>,
    /// Lanes have exited that had not met all others since they accessed something: what those do who
    /// remain says nothing of it.
    left: Vec<bool>,
    /// Agents of lanes that have published alone; 0: none. The next agent stands for their
    /// fenced reads.
    agents: Vec<u16>,
    /// There are such.
    any: bool,
}

impl Lanes {
    /// CTAs of `threads` threads begin.
    pub(super) fn start(&mut self, ctas: usize, warps_per_cta: usize, threads: u32, strict: bool) {
        let live = |warp: usize| match (threads as usize).saturating_sub(warp * LANES) {
            rest if rest < LANES => (1 << rest) - 1,
            _ => u32::MAX,
        };
        self.live.clear();
        for _ in 0..ctas {
            self.live.extend((0..warps_per_cta).map(live));
        }
        let warps = ctas * warps_per_cta;
        self.together.clear();
        self.together.resize(warps, STARTED);
        self.met.clear();
        self.met.resize(warps, None);
        self.strict = strict;
        self.parted.clear();
        self.parted.resize(warps, strict);
        self.accessed.clear();
        self.accessed.resize(warps, 0);
        self.left.clear();
        self.left.resize(warps, false);
        self.agents.clear();
        self.agents.resize(warps * LANES, 0);
        self.any = false;
    }

    /// Lanes exit.
    pub(super) fn exit(&mut self, warp: AgentId, mask: u32) {
        self.live[warp] &= !mask;
        self.left[warp] |= self.strict && self.accessed[warp] > self.together[warp];
    }

    /// Whether these lanes of a warp speak for all.
    pub(super) fn all(&self, warp: AgentId, mask: u32) -> bool {
        self.live[warp] & !mask == 0 && !self.left[warp]
    }

    /// Whether these are all lanes of a warp that have not exited.
    pub(super) fn all_live(&self, warp: AgentId, mask: u32) -> bool {
        self.live[warp] & !mask == 0
    }

    /// Whether `mask` stands for the whole warp.
    pub(super) fn whole(&self, warp: AgentId, mask: u32) -> bool {
        !self.parted[warp] || self.all(warp, mask)
    }

    /// Whether lanes of an agent are told apart: it is a warp whose lanes are parted.
    #[inline(always)]
    pub(super) fn are_parted(&self, agent: AgentId) -> bool {
        self.parted.get(agent).is_some_and(|&parted| parted)
    }

    /// All lanes of a warp met in an epoch.
    fn meet(&mut self, warp: AgentId, epoch: u32) {
        self.together[warp] = epoch;
        self.met[warp] = None;
        self.parted[warp] = self.strict;
    }

    /// Some lanes of a warp met in an epoch: each knows what the others did and knew.
    fn meet_some(&mut self, warp: AgentId, mask: u32, epoch: u32) {
        let rows = self.met[warp].get_or_insert_with(|| Box::new([[0; LANES]; LANES]));
        let here = || (0..LANES).filter(|lane| mask >> lane & 1 != 0);
        let mut all = [0; LANES];
        for lane in here() {
            for (all, known) in all.iter_mut().zip(&rows[lane]) {
                *all = (*all).max(*known);
            }
        }
        here().for_each(|lane| all[lane] = epoch);
        here().for_each(|lane| rows[lane] = all);
    }

    /// A warp learns what its own lanes have published: each lane then knows what all did that
    /// published.
    pub(super) fn learn(&mut self, warp: AgentId, published: &Clock) {
        if self.left[warp] {
            return;
        }
        let whole = published.get(warp);
        let live = self.live[warp];
        let by_lane = (0..LANES).filter(|lane| live >> lane & 1 != 0).map(|lane| {
            match self.agents[warp * LANES + lane] {
                0 => whole,
                agent => whole.max(published.get(agent.into())),
            }
        });
        self.together[warp] = by_lane.min().unwrap_or(0).max(self.together[warp]);
    }

    /// The epoch up to which a lane of a warp that knows `clock` knows of another one, beyond
    /// `together`.
    fn known_of(&self, clock: &Clock, warp: AgentId, (lane, other): (usize, usize)) -> u32 {
        let met = self.met[warp].as_ref().map_or(0, |rows| rows[lane][other]);
        match self.agents[warp * LANES + other] {
            0 => met,
            agent => met.max(clock.get(agent.into())),
        }
    }
}

/// The part of a warp's knowledge that some lanes publish.
#[derive(Debug, Clone)]
pub(super) struct Part {
    warp: AgentId,
    /// Epoch of the warp up to which it is all; `None`: everything.
    together: Option<u32>,
    /// Agents of its lanes, with the epochs of the warp up to which it is what they did.
    lanes: Vec<(AgentId, u32)>,
}

impl Part {
    /// Adds it to a clock.
    pub(super) fn join(&self, known: &Clock, into: &mut Clock) {
        let before = into.get(self.warp);
        into.join(known);
        if let Some(together) = self.together {
            into.set(self.warp, before.max(together));
            for &(lane, epoch) in &self.lanes {
                into.set(lane, epoch.max(into.get(lane)));
            }
        }
    }
}

/// A clock, and what it says of single lanes.
pub(super) struct Known<'a> {
    pub(super) clock: &'a Clock,
    pub(super) lanes: &'a Lanes,
    /// Lanes of the agent are not told apart: all that it did comes before.
    pub(super) whole: bool,
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

    /// Whether an access of the same agent to these bytes comes before a new one.
    #[inline(always)]
    pub(super) fn own_before(
        &self,
        old: &Record,
        new: &Record,
        bytes: impl Iterator<Item = usize>,
    ) -> bool {
        self.whole
            || old.epoch <= self.lanes.together[usize::from(old.agent)]
            || old.is_by_one() && old.has_lanes_of(new)
            || self.own_by_lane(old, new, bytes)
    }

    /// The same lane by lane.
    #[cold]
    fn own_by_lane(
        &self,
        old: &Record,
        new: &Record,
        mut bytes: impl Iterator<Item = usize>,
    ) -> bool {
        let warp = usize::from(old.agent);
        bytes.all(|byte| {
            let (theirs, mine) = (old.lanes_at(byte), new.lanes_at(byte));
            lanes(theirs).all(|other| {
                lanes(mine).all(|lane| {
                    lane == other
                        || self.lanes.known_of(self.clock, warp, (lane, other)) >= old.epoch
                })
            })
        })
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
            lanes(old.lanes_at(byte)).all(|lane| {
                let agent = agents[lane];
                agent != 0 && self.clock.get(usize::from(agent) + beside) >= old.epoch
            })
        })
    }
}

impl Races {
    /// Returns the knowledge that lanes of an agent, a warp or an operation, publish.
    pub(super) fn part(&mut self, agent: AgentId, mask: u32) -> Part {
        let now = self.agents[agent].get(agent);
        let mut part = Part { warp: agent, together: None, lanes: Vec::new() };
        if agent >= self.warp_agents || self.lanes.whole(agent, mask) {
            return part;
        }
        let together = self.lanes.together[agent];
        for lane in 0..LANES {
            let epoch = if mask >> lane & 1 != 0 {
                now
            } else {
                let met = self.lanes.met[agent].as_ref();
                let known = |rows: &Rows| lanes(mask).map(|of| rows[of][lane]).max();
                met.and_then(known).unwrap_or(0)
            };
            if epoch <= together {
                continue;
            }
            let at = agent * LANES + lane;
            if self.lanes.agents[at] == 0 {
                // Without numbers for it the lane stands for its warp.
                let Ok(new) = u16::try_from(self.agents.len()) else { return part };
                self.agents.extend([Clock::default(), Clock::default()]);
                self.lanes.agents[at] = new;
                self.lanes.any = true;
            }
            part.lanes.push((self.lanes.agents[at].into(), epoch));
        }
        part.together = Some(together);
        part
    }

    /// A warp learns from an object in which all its lanes may have published: then each knows
    /// what all did before, as where they met.
    pub(super) fn learn_of_own_lanes(&mut self, warp: AgentId, object: Object) {
        if let Some(published) = self.objects.get(&object) {
            self.lanes.learn(warp, published.closed());
        }
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

    /// All lanes of a warp met: each knows what all did.
    pub(crate) fn meet(&mut self, warp: AgentId) {
        self.lanes.meet(warp, self.agents[warp].get(warp));
        self.tensor.meet(warp);
        self.advance(warp);
    }

    /// Lanes of a warp met.
    pub(crate) fn meet_some(&mut self, warp: AgentId, mask: u32) {
        if self.lanes.all(warp, mask) {
            return self.meet(warp);
        }
        self.lanes.meet_some(warp, mask, self.agents[warp].get(warp));
        self.tensor.meet(warp);
        self.advance(warp);
    }

    /// A branch parts the lanes of a warp. On hardware they were together until now.
    pub(crate) fn branch(&mut self, warp: AgentId) {
        if !self.lanes.parted[warp] {
            self.meet(warp);
            self.lanes.parted[warp] = true;
        }
    }

    /// Lanes of a warp execute an instruction with `.sync` or `.aligned` together. By the promises
    /// of PTX it orders nothing.
    #[inline(always)]
    pub(crate) fn synchronised(&mut self, warp: AgentId, mask: u32) {
        if self.may_join(warp) {
            self.meet_some(warp, mask);
        }
    }

    /// Whether lanes of a warp are parted and such an instruction brings them together.
    #[inline(always)]
    pub(crate) fn may_join(&self, warp: AgentId) -> bool {
        !self.strict && self.lanes.parted[warp]
    }

    /// Whether lanes of a warp may go apart where nothing parts them.
    pub(crate) fn may_part(&self, warp: AgentId) -> bool {
        self.lanes.parted[warp]
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
