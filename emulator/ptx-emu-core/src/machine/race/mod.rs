//! Data races in shared and tensor memory: two accesses to one byte, one of them a write
//! and not both strong, that nothing orders (PTX ISA 8.6, 8.7.1).
//!
//! Happens-before with vector clocks. An *agent* is a warp of the cluster or an
//! asynchronous operation, which starts after what its issuer did before.
//! Agents publish what they know in *objects* and learn from them: CTA barriers
//! (an arrival publishes, the completion teaches all that wait), mbarriers (an
//! arrival or a completed copy publishes, a wait for the completed phase
//! teaches), the cluster barrier, commit groups, and words that strong
//! accesses use as flags. A release access publishes all that its warp knows, a
//! relaxed or volatile one what the warp knew at its last fence; an acquire
//! access learns at once, a relaxed one at the next fence. Barriers count as
//! fences too.
//!
//! | file | what |
//! |---|---|
//! | `clock` | vector clocks |
//! | `shadow` | accesses remembered, by line and byte |
//! | `plain` | the accesses of most programs, in tables |
//! | `stamps` | accesses that need not be looked at again |
//! | `objects` | what agents publish and learn |
//! | `flags` | where they do so by strong accesses |
//! | `lanes` | what single lanes of a warp publish |
//! | `tensor` | what orders operations on tensor memory |
//! | `hooks` | how executing instructions reach all this, reports |
//!
//! A store of what is there already is told apart from other races: hardware gives the same result
//! in either order. It is not remembered, so that later accesses are compared with the earlier
//! store. A `fence.proxy.async` publishes which generic reads come before it, and a bulk copy over
//! what was read asks for that.
//!
//! The start of a CTA comes before all that its warps do. A warp that uses memory of another
//! CTA must have learned of its start; relaxed arrivals and waits are enough for that.
//!
//! Lanes of a warp are told apart where they may be at different places: by `Model::Ptx` always, by
//! `Model::Hardware` from a branch that parts them until they are together again.
//!
//! No program that is free of races is reported. Limits:
//! - races in global memory, which is not looked at;
//! - orders that only this run had: a flag seen in time, a lock taken in turn,
//!   which another schedule may show;
//! - orders taken to hold although PTX does not promise them: exits of threads
//!   order like an arrival at the CTA's barriers; scopes are ignored; all lanes
//!   of a warp share what one of them learned from outside; strong accesses to global
//!   memory are all taken to be of one flag; a store to a flag keeps what
//!   earlier ones published; a `tcgen05.cp` comes after the earlier `tcgen05.mma` of
//!   its thread by `Model::Hardware`;
//! - proxies: see `units::proxy`.
//!
//! Writes and arrivals of other CTAs in a CTA's shared memory must come before its exit: of
//! each warp the last one is remembered. Loads are taken to be over when they are issued.

mod clock;
mod flags;
mod hooks;
mod lanes;
mod objects;
mod plain;
mod shadow;
mod stamps;
mod tensor;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twins;

use clock::Clock;
use flags::Flags;
pub(crate) use hooks::Order;
use lanes::{Known, Lanes};
pub(crate) use objects::{Flag, Object};
use objects::{Meeting, Published};
use plain::Tables;
pub(crate) use shadow::Kind;
use shadow::{Clash, Record, Shadow};
use stamps::Stamps;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
pub(crate) use tensor::Fence;
use tensor::TensorOrder;

/// An agent executes accesses: a warp of the cluster, numbered like it, or an asynchronous
/// operation.
pub(crate) type AgentId = usize;

/// An instruction of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Instruction.
    pub(crate) pc: usize,
    /// Warp of the cluster.
    pub(crate) warp: usize,
    /// Lane, the first of several.
    pub(crate) lane: u32,
}

/// The owner of a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Shared memory of the CTA of a rank.
    Shared(u32),
    /// Tensor memory of the CTA of a rank.
    Tensor(u32),
}

/// Units of a CTA's tensor memory: 16 lanes of a column each.
const TENSOR_UNITS: usize = 8 * 512;

/// The epoch of a warp that is its CTA's start: nothing is accessed in it.
const STARTED: u32 = 1;
/// Agents of asynchronous operations and lanes from which on numbers of ended ones are used again.
const ENOUGH: usize = 512;

/// A race: its place, and the earlier and the later access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    place: Place,
    clash: Clash,
    /// The accesses are by asynchronous operations.
    asynchronous: (bool, bool),
    /// The `tcgen05` fence that would order them.
    fence: Option<Fence>,
    /// The later one stores what is there already.
    unchanged: bool,
    /// Both are of one instruction.
    at_once: bool,
}

impl Found {
    /// Both accesses are of lanes of one warp, by the same instruction.
    fn is_of_one_instruction(&self) -> bool {
        let Clash { old, new, .. } = &self.clash;
        old.agent == new.agent && old.pc == new.pc
    }

    /// Both accesses are a warp's own.
    fn is_of_warps(&self) -> bool {
        self.asynchronous == (false, false)
    }
}

/// Accesses to the shared memory of a cluster, and what orders them.
#[derive(Debug, Default)]
pub(crate) struct Races {
    /// Number of warps. Agents with lower numbers are warps, those with the next numbers stand for
    /// their reads that a proxy fence follows, the others are asynchronous operations or lanes.
    warp_agents: usize,
    warps_per_cta: usize,
    /// Only the promises of PTX hold.
    strict: bool,
    /// Knowledge of each agent. Its own entry is the epoch it is in.
    agents: Vec<Clock>,
    /// Asynchronous agents that have ended, longest first.
    idle: VecDeque<AgentId>,
    /// Knowledge that relaxed writes of a warp publish: the warp's at its last fence.
    fenced: Vec<Clock>,
    /// Knowledge that relaxed reads of a warp saw published since its last fence.
    seen: Vec<Clock>,
    shadows: Vec<Shadow>,
    /// Accesses that the shadows need not remember.
    tables: Vec<Tables>,
    /// Stamps of the words of each CTA's shared memory.
    stamps: Vec<Stamps>,
    /// Shadows of tensor memory, by CTA: 16 lanes of a column are one byte.
    tensors: Vec<Shadow>,
    /// The sixteen barriers of each CTA.
    meetings: Vec<Meeting>,
    /// Knowledge of the exited threads of each CTA.
    gone: Vec<Clock>,
    /// Knowledge with the part that they had only seen.
    ended: Vec<Clock>,
    objects: BTreeMap<Object, Published>,
    /// Groups of a warp that another of its warpgroup has waited for.
    waited: BTreeMap<(AgentId, AgentId), u32>,
    /// Flags with the published knowledge of `tcgen05` operations.
    flags: Flags,
    tensor: TensorOrder,
    lanes: Lanes,
    /// Warp instructions that accessed shared memory, wrapped.
    instructions: u32,
    /// Writes of other CTAs' warps to the shared memory of each CTA, the last of each.
    remote: Vec<Vec<Remote>>,
    /// Nothing is put in tables.
    #[cfg(test)]
    without_tables: bool,
}

/// A write to the shared memory of another CTA.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) pc: usize,
    pub(crate) warp: AgentId,
    pub(crate) lanes: u32,
    epoch: u32,
}

impl Races {
    /// Forgets everything: a cluster of `ctas` CTAs of `threads` threads begins.
    pub(crate) fn start(
        &mut self,
        ctas: usize,
        (warps_per_cta, threads): (usize, u32),
        shared_bytes: usize,
        strict: bool,
    ) {
        self.warp_agents = ctas * warps_per_cta;
        self.warps_per_cta = warps_per_cta;
        self.strict = strict;
        self.agents.clear();
        self.agents.resize(2 * self.warp_agents, Clock::default());
        for clocks in [&mut self.fenced, &mut self.seen] {
            clocks.clear();
            clocks.resize(self.warp_agents, Clock::default());
        }
        for warp in 0..self.warp_agents {
            // Whatever a warp publishes says that it runs.
            self.agents[warp].set(warp, STARTED + 1);
            self.fenced[warp].set(warp, STARTED);
        }
        self.idle.clear();
        self.shadows.resize_with(ctas, Shadow::default);
        self.shadows.iter_mut().for_each(|shadow| shadow.reset(shared_bytes));
        self.tables.resize_with(ctas, Tables::default);
        self.tables.iter_mut().for_each(|tables| tables.reset(shared_bytes, warps_per_cta));
        self.stamps.resize_with(ctas, Stamps::default);
        self.stamps.iter_mut().for_each(|stamps| stamps.reset(shared_bytes));
        self.tensors.resize_with(ctas, Shadow::default);
        self.tensors.iter_mut().for_each(|shadow| shadow.reset(TENSOR_UNITS));
        self.meetings.clear();
        self.meetings.resize(ctas * super::barrier::COUNT, Meeting::default());
        for clocks in [&mut self.gone, &mut self.ended] {
            clocks.clear();
            clocks.resize(ctas, Clock::default());
        }
        self.objects.clear();
        self.waited.clear();
        self.flags.start(ctas, shared_bytes);
        self.tensor.start(ctas, self.warp_agents, strict);
        self.lanes.start(ctas, warps_per_cta, threads, strict);
        self.remote.clear();
        self.remote.resize_with(ctas, Vec::new);
    }

    /// Only the promises of PTX hold.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict
    }

    /// Ends an agent's epoch: what it published does not hold its later
    /// accesses.
    fn advance(&mut self, agent: AgentId) {
        let clock = &mut self.agents[agent];
        let epoch = clock.get(agent).saturating_add(1);
        clock.set(agent, epoch);
        self.tensor.advance(agent, epoch);
    }

    /// An asynchronous operation that comes after all that `lanes` of `after` did so far.
    /// When there are too many, it is `after` itself. `of_tensor`: it is one of `tcgen05`.
    pub(crate) fn new_agent(&mut self, after: AgentId, lanes: u32, of_tensor: bool) -> AgentId {
        // An ended agent's number is used again in its next epoch: whoever
        // knows that one is taken to know the old one too.
        let agent = if self.agents.len() - 2 * self.warp_agents < ENOUGH {
            None
        } else {
            self.idle.pop_front()
        };
        let agent = match agent {
            Some(agent) => agent,
            None if self.agents.len() > usize::from(u16::MAX) => return after,
            None => {
                self.agents.push(Clock::default());
                self.agents.len() - 1
            }
        };
        let epoch = self.agents[agent].get(agent).saturating_add(1);
        let part = self.part(after, lanes);
        let mut clock = std::mem::take(&mut self.agents[agent]);
        clock.clear();
        part.join(&self.agents[after], &mut clock);
        clock.set(agent, epoch);
        self.agents[agent] = clock;
        self.tensor.issued(agent, epoch, after, of_tensor);
        self.advance(after);
        agent
    }

    /// Orders the next actions of `agent` behind everything that `after` did so far.
    pub(crate) fn order(&mut self, agent: AgentId, after: AgentId) {
        if agent != after {
            let clock = std::mem::take(&mut self.agents[after]);
            self.agents[agent].join(&clock);
            self.agents[after] = clock;
            self.tensor.order(agent, after);
            self.advance(after);
        }
    }

    /// An asynchronous operation has ended and published what it had to.
    pub(crate) fn retire(&mut self, agent: AgentId) {
        if agent >= self.warp_agents {
            self.idle.push_back(agent);
        }
    }

    /// An access of `bytes` bytes from `offset` in the window of the CTA of
    /// `rank`.
    ///
    /// # Errors
    /// The race, if it is one.
    pub(crate) fn access(
        &mut self,
        agent: AgentId,
        origin: Origin,
        kind: Kind,
        rank: u32,
        (offset, bytes): (u64, u64),
    ) -> Result<(), Found> {
        let record = self.record(agent, origin, kind);
        if let Some(accessed) = self.lanes.accessed.get_mut(agent) {
            *accessed = record.epoch;
        }
        self.touch(rank, offset as usize, bytes as usize, record)
    }

    /// The same of an operation that writes through the async proxy; also a generic read there
    /// that comes before, but that no proxy fence follows.
    pub(crate) fn proxy_write(
        &mut self,
        agent: AgentId,
        origin: Origin,
        kind: Kind,
        rank: u32,
        (offset, bytes): (u64, u64),
    ) -> (Result<(), Found>, Option<Origin>) {
        let record = self.record(agent, origin, kind);
        let unfenced = Cell::new(None);
        let watch = Some((self.warp_agents, &unfenced));
        let looked = self.touch_noting(rank, offset as usize, bytes as usize, record, watch);
        let read = unfenced.get().map(|read: Record| Origin {
            pc: read.pc as usize,
            warp: read.warp.into(),
            lane: 0,
        });
        (looked, read)
    }

    #[inline(always)]
    fn record(&self, agent: AgentId, origin: Origin, kind: Kind) -> Record {
        let Origin { pc, warp, lane } = origin;
        let epoch = self.agents[agent].get(agent);
        Record::new(agent as u16, epoch, kind, pc as u32, warp as u16, lane)
    }

    #[inline]
    fn touch(
        &mut self,
        rank: u32,
        offset: usize,
        bytes: usize,
        record: Record,
    ) -> Result<(), Found> {
        self.touch_noting(rank, offset, bytes, record, None)
    }

    #[inline]
    fn touch_noting(
        &mut self,
        rank: u32,
        offset: usize,
        bytes: usize,
        record: Record,
        unfenced: Option<(usize, &Cell<Option<Record>>)>,
    ) -> Result<(), Found> {
        let Some(shadow) = self.shadows.get_mut(rank as usize) else {
            return Ok(());
        };
        let place = (offset, bytes);
        self.tables[rank as usize].leave(shadow, place, rank as usize * self.warps_per_cta);
        let clock = &self.agents[usize::from(record.agent)];
        let whole = !self.lanes.are_parted(record.agent.into());
        let known = Known { clock, lanes: &self.lanes, whole, unfenced };
        shadow
            .access(offset, bytes, record, &known)
            .map_err(|clash| self.found(Place::Shared(rank), clash))
    }

    /// Lanes of a warp write, or arrive, in the shared memory of another CTA.
    pub(crate) fn reached(&mut self, rank: u32, warp: AgentId, lanes: u32, pc: usize) {
        let new = Remote { pc, warp, lanes, epoch: self.epoch(warp) };
        let Some(all) = self.remote.get_mut(rank as usize) else { return };
        // Who knows of the new one knows of older ones by the same lanes.
        all.retain(|old| old.warp != warp || old.lanes & !lanes != 0);
        all.push(new);
    }

    /// Whether a warp has written, or arrived, in the shared memory of another CTA since its last
    /// fence.
    fn has_reached_others(&self, warp: AgentId) -> bool {
        let fenced = self.fenced[warp].get(warp);
        self.remote.iter().flatten().any(|remote| remote.warp == warp && remote.epoch > fenced)
    }

    /// An access to the shared memory of a CTA whose threads have all exited that none of
    /// them knew to be over.
    pub(crate) fn outlasts(&self, rank: u32) -> Option<Remote> {
        let ended = &self.ended[rank as usize];
        let over = |old: &&Remote| self.known_to(ended, old.warp, old.lanes, old.epoch);
        self.remote[rank as usize].iter().find(|old| !over(old)).copied()
    }

    /// Whether a warp knows that the CTA of `rank` has started: it has waited for something that
    /// one of its threads did, also for a relaxed arrival.
    pub(crate) fn knows_start(&self, warp: AgentId, rank: u32) -> bool {
        let first = rank as usize * self.warps_per_cta;
        let known = |clock: &Clock, of: AgentId| clock.get(of) >= STARTED;
        (first..first + self.warps_per_cta)
            .any(|of| known(&self.agents[warp], of) || known(&self.seen[warp], of))
    }

    fn found(&self, place: Place, clash: Clash) -> Found {
        let asynchronous = |record: &Record| usize::from(record.agent) >= self.warp_agents;
        let asynchronous = (asynchronous(&clash.old), asynchronous(&clash.new));
        Found { place, clash, asynchronous, fence: None, unchanged: false, at_once: false }
    }
}
