//! The clocks that agents publish to objects and join from them.

use super::clock::Clock;
use super::{AgentId, Races};
use crate::machine::barrier::COUNT;
use crate::machine::units::GroupKind;

/// Something other than a CTA barrier or a flag that orders agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Object {
    /// An mbarrier object: rank and offset.
    Mbarrier(u32, u32),
    /// The cluster barrier.
    Cluster,
    /// A commit group: kind, warp, number.
    Group(u8, usize, u32),
}

/// A place that strong accesses use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flag {
    /// A word of shared memory: rank and offset of the word in words.
    Shared(u32, u32),
    /// Global memory, all of it.
    Global,
    /// Allocations of tensor memory by the CTA of a rank, or by the pair with that
    /// even rank.
    Columns(u32, bool),
}

/// Knowledge that was published in an object that has phases.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// Knowledge of this phase and all before it.
    open: Clock,
    /// Knowledge at the completion of the last phase.
    closed: Clock,
    /// The same of `tcgen05` operations.
    tensor: Clock,
    tensor_closed: Clock,
}

impl Published {
    /// Returns the knowledge that was published when the last phase completed.
    pub(super) fn closed(&self) -> &Clock {
        &self.closed
    }
}

/// A CTA barrier.
#[derive(Debug, Clone, Default)]
pub(super) struct Meeting {
    published: Clock,
    tensor: Clock,
    /// Warps, and their lanes.
    waiting: Vec<(AgentId, u32)>,
}

/// The kind of group under which each `tcgen05.ld` is known by its number: no commit group has it.
const LOADS: u8 = u8::MAX - 1;

impl Races {
    /// Lanes of a warp arrive at a CTA barrier; with `waits` they learn when the barrier
    /// completes.
    pub(crate) fn arrive(
        &mut self,
        rank: u32,
        id: usize,
        (warp, lanes): (AgentId, u32),
        waits: bool,
    ) {
        if self.lanes.all_live(warp, lanes) {
            self.meet_some(warp, lanes);
        }
        self.fence(warp, lanes);
        self.tensor.releases(warp);
        let part = self.part(warp, lanes);
        let meeting = &mut self.meetings[rank as usize * COUNT + id];
        part.join(&self.agents[warp], &mut meeting.published);
        self.tensor.publish(warp, true, &mut meeting.tensor);
        if waits {
            meeting.waiting.push((warp, lanes));
        }
        self.advance(warp);
    }

    /// A CTA barrier completed; `all`, it is one of the whole CTA, for which
    /// exited threads count as arrived.
    pub(crate) fn complete(&mut self, rank: u32, id: usize, all: bool) {
        let meeting = &mut self.meetings[rank as usize * COUNT + id];
        if all {
            meeting.published.join(&self.gone[rank as usize]);
            meeting.tensor.join(&self.tensor.gone[rank as usize]);
        }
        let waiting = std::mem::take(&mut meeting.waiting);
        for &(warp, _) in &waiting {
            self.agents[warp].join(&meeting.published);
            self.fenced[warp].copy(&self.agents[warp]);
            self.tensor.passing[warp].join(&meeting.tensor);
            self.tensor.acquires(warp);
        }
        meeting.published.clear();
        meeting.tensor.clear();
        for (at, &(warp, _)) in waiting.iter().enumerate() {
            // Parts of a warp that came one by one meet here.
            if waiting[..at].iter().all(|&(other, _)| other != warp) {
                let parts = waiting[at..].iter().filter(|&&(other, _)| other == warp);
                self.meet_some(warp, parts.fold(0, |all, &(_, lanes)| all | lanes));
            }
        }
    }

    /// Threads of a warp exit.
    pub(crate) fn exit(&mut self, rank: u32, warp: AgentId, lanes: u32) {
        let part = self.part(warp, lanes);
        part.join(&self.agents[warp], &mut self.gone[rank as usize]);
        part.join(&self.agents[warp], &mut self.ended[rank as usize]);
        self.ended[rank as usize].join(&self.seen[warp]);
        self.tensor.releases(warp);
        let mut gone = std::mem::take(&mut self.tensor.gone[rank as usize]);
        self.tensor.publish(warp, true, &mut gone);
        self.tensor.gone[rank as usize] = gone;
        self.lanes.exit(warp, lanes);
        self.advance(warp);
    }

    /// A fence of lanes of a warp.
    pub(crate) fn fence(&mut self, warp: AgentId, lanes: u32) {
        if !self.seen[warp].is_empty() {
            self.lanes.learn(warp, &self.seen[warp]);
            self.agents[warp].join(&self.seen[warp]);
            self.seen[warp].clear();
        }
        let part = self.part(warp, lanes);
        part.join(&self.agents[warp], &mut self.fenced[warp]);
        self.advance(warp);
    }

    /// A strong read of a flag.
    pub(crate) fn read_flag(&mut self, warp: AgentId, flag: Flag, acquire: bool) {
        if let Some((published, tensor)) = self.flags.get(flag) {
            if acquire {
                self.lanes.learn(warp, published);
                self.agents[warp].join(published);
            } else {
                self.seen[warp].join(published);
            }
            self.tensor.passing[warp].join(tensor);
            if acquire {
                self.tensor.acquires(warp);
            }
        }
    }

    /// A strong write of a flag by lanes of a warp.
    pub(crate) fn write_flag(&mut self, warp: AgentId, lanes: u32, flag: Flag, release: bool) {
        let part = self.part(warp, lanes);
        if release {
            self.tensor.releases(warp);
        }
        let published = self.flags.entry(flag);
        if release {
            part.join(&self.agents[warp], &mut published.0);
        } else {
            published.0.join(&self.fenced[warp]);
        }
        self.tensor.publish(warp, self.lanes.whole(warp, lanes), &mut published.1);
        if release {
            self.advance(warp);
        }
    }

    /// An agent, of a warp some lanes, publishes all that it knows.
    pub(crate) fn release(&mut self, agent: AgentId, lanes: u32, object: Object) {
        let part = self.part(agent, lanes);
        self.tensor.releases(agent);
        let published = self.objects.entry(object).or_default();
        part.join(&self.agents[agent], &mut published.open);
        let whole = agent >= self.warp_agents || self.lanes.whole(agent, lanes);
        self.tensor.publish(agent, whole, &mut published.tensor);
        self.advance(agent);
    }

    /// Lanes of a warp publish what it knew at its last fence: a relaxed arrival.
    pub(crate) fn release_fenced(&mut self, warp: AgentId, lanes: u32, object: Object) {
        let published = self.objects.entry(object).or_default();
        published.open.join(&self.fenced[warp]);
        let whole = self.lanes.whole(warp, lanes);
        self.tensor.publish(warp, whole, &mut published.tensor);
    }

    /// The same at the cluster barrier. On hardware what the lanes did in the shared memory of their
    /// CTA has come about by then; accesses to that of others may be under way.
    pub(crate) fn arrive_relaxed(&mut self, warp: AgentId, lanes: u32, object: Object) {
        if self.strict || self.has_reached_others(warp) {
            return self.release_fenced(warp, lanes, object);
        }
        let part = self.part(warp, lanes);
        let published = self.objects.entry(object).or_default();
        part.join(&self.agents[warp], &mut published.open);
        let whole = self.lanes.whole(warp, lanes);
        self.tensor.publish(warp, whole, &mut published.tensor);
        self.advance(warp);
    }

    /// A phase of an object completed.
    pub(crate) fn close(&mut self, object: Object) {
        let Published { open, closed, tensor, tensor_closed } =
            self.objects.entry(object).or_default();
        closed.copy(open);
        tensor_closed.copy(tensor);
    }

    /// An agent has waited for a completed phase; `relaxed`, a warp that learns at its
    /// next fence.
    pub(crate) fn acquire(&mut self, agent: AgentId, object: Object, relaxed: bool) {
        if agent < self.warp_agents {
            self.learn_of_own_lanes(agent, object);
        }
        if let Some(published) = self.objects.get(&object) {
            let learn = if relaxed { &mut self.seen[agent] } else { &mut self.agents[agent] };
            learn.join(&published.closed);
            self.tensor.learning(agent).join(&published.tensor_closed);
            if !relaxed {
                self.tensor.acquires(agent);
            }
        }
    }

    /// A warp has waited for the groups below `end` of the warps of its warpgroup, `owners`.
    pub(crate) fn acquire_warpgroup(
        &mut self,
        warp: AgentId,
        kind: u8,
        owners: std::ops::Range<AgentId>,
        end: u32,
    ) {
        for owner in owners.clone() {
            let waited = self.waited.entry((warp, owner)).or_default();
            let from = std::mem::replace(waited, end.max(*waited));
            let groups = Object::Group(kind, owner, from)..Object::Group(kind, owner, end);
            if from < end {
                for (_, published) in self.objects.range(groups) {
                    self.agents[warp].join(&published.open);
                }
            }
            // A wait that all four have made is of no more use.
            let all = owners.clone().map(|other| self.waited.get(&(other, owner)).copied());
            let least = all.map(Option::unwrap_or_default).min().unwrap_or(0);
            while let Some((&object, _)) = self
                .objects
                .range(Object::Group(kind, owner, 0)..Object::Group(kind, owner, least))
                .next()
            {
                self.objects.remove(&object);
            }
        }
    }

    /// A `tcgen05.ld` of a warp has read. On hardware it may come to be over without its wait.
    pub(crate) fn publish_load(&mut self, agent: AgentId, warp: AgentId, id: u32) {
        if !self.strict {
            self.release(agent, u32::MAX, Object::Group(LOADS, warp, id));
        }
    }

    /// A warp has used all registers of its `tcgen05.ld`.
    pub(crate) fn acquire_load(&mut self, warp: AgentId, id: u32) {
        if let Some(published) = self.objects.remove(&Object::Group(LOADS, warp, id)) {
            self.agents[warp].join(&published.open);
            self.tensor.known[warp].join(&published.tensor);
        }
    }

    /// A warp has waited for its commit groups of a kind below `end`. `tensor`: they are
    /// of `tcgen05` operations, which are over.
    pub(crate) fn acquire_groups(&mut self, warp: AgentId, kind: u8, end: u32, tensor: bool) {
        let groups = Object::Group(kind, warp, 0)..Object::Group(kind, warp, end);
        let over: Vec<Object> = self.objects.range(groups).map(|(object, _)| *object).collect();
        for object in over {
            if let Some(published) = self.objects.remove(&object) {
                self.agents[warp].join(&published.open);
                if tensor {
                    self.tensor.known[warp].join(&published.tensor);
                }
            }
        }
        if tensor && kind == GroupKind::TensorLoad as u8 {
            let loads = Object::Group(LOADS, warp, 0)..=Object::Group(LOADS, warp, u32::MAX);
            let over: Vec<Object> = self.objects.range(loads).map(|(object, _)| *object).collect();
            over.iter().for_each(|object| drop(self.objects.remove(object)));
        }
    }
}
