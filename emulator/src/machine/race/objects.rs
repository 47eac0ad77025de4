//! What agents publish and learn, object by object.

use super::clock::Clock;
use super::{AgentId, Races};
use crate::machine::barrier::COUNT;

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

/// What was published in an object that has phases.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// In this phase and all before it.
    open: Clock,
    /// When the last phase completed.
    closed: Clock,
}

/// A CTA barrier.
#[derive(Debug, Clone, Default)]
pub(super) struct Meeting {
    published: Clock,
    waiting: Vec<AgentId>,
}

impl Races {
    /// A warp arrives at a CTA barrier; with `waits` it learns when the barrier
    /// completes.
    pub(crate) fn arrive(&mut self, rank: u32, id: usize, warp: AgentId, waits: bool) {
        self.fence(warp);
        let meeting = &mut self.meetings[rank as usize * COUNT + id];
        meeting.published.join(&self.agents[warp]);
        if waits {
            meeting.waiting.push(warp);
        }
        self.advance(warp);
    }

    /// A CTA barrier completed; `all`, it is one of the whole CTA, for which
    /// exited threads count as arrived.
    pub(crate) fn complete(&mut self, rank: u32, id: usize, all: bool) {
        let meeting = &mut self.meetings[rank as usize * COUNT + id];
        if all {
            meeting.published.join(&self.gone[rank as usize]);
        }
        let waiting = std::mem::take(&mut meeting.waiting);
        for &warp in &waiting {
            self.agents[warp].join(&meeting.published);
            self.fenced[warp].copy(&self.agents[warp]);
        }
        meeting.published.clear();
        for &warp in &waiting {
            self.advance(warp);
        }
    }

    /// Threads of a warp exit.
    pub(crate) fn exit(&mut self, rank: u32, warp: AgentId) {
        self.gone[rank as usize].join(&self.agents[warp]);
        self.advance(warp);
    }

    /// A fence of a warp.
    pub(crate) fn fence(&mut self, warp: AgentId) {
        if !self.seen[warp].is_empty() {
            self.agents[warp].join(&self.seen[warp]);
            self.seen[warp].clear();
        }
        self.fenced[warp].copy(&self.agents[warp]);
        self.advance(warp);
    }

    /// A strong read of a flag.
    pub(crate) fn read_flag(&mut self, warp: AgentId, flag: Flag, acquire: bool) {
        if let Some(published) = self.flags.get(&flag) {
            let learn = if acquire { &mut self.agents[warp] } else { &mut self.seen[warp] };
            learn.join(published);
        }
    }

    /// A strong write of a flag.
    pub(crate) fn write_flag(&mut self, warp: AgentId, flag: Flag, release: bool) {
        let known = if release { &self.agents[warp] } else { &self.fenced[warp] };
        if !known.is_empty() {
            self.flags.entry(flag).or_default().join(known);
        }
        if release {
            self.advance(warp);
        }
    }

    /// An agent publishes all that it knows.
    pub(crate) fn release(&mut self, agent: AgentId, object: Object) {
        self.objects.entry(object).or_default().open.join(&self.agents[agent]);
        self.advance(agent);
    }

    /// A warp publishes what it knew at its last fence: a relaxed arrival.
    pub(crate) fn release_fenced(&mut self, warp: AgentId, object: Object) {
        self.objects.entry(object).or_default().open.join(&self.fenced[warp]);
    }

    /// A phase of an object completed.
    pub(crate) fn close(&mut self, object: Object) {
        let Published { open, closed } = self.objects.entry(object).or_default();
        closed.copy(open);
    }

    /// A warp has waited for a completed phase; `relaxed`, it learns at its
    /// next fence.
    pub(crate) fn acquire(&mut self, warp: AgentId, object: Object, relaxed: bool) {
        if let Some(published) = self.objects.get(&object) {
            let learn = if relaxed { &mut self.seen[warp] } else { &mut self.agents[warp] };
            learn.join(&published.closed);
        }
    }

    /// A warp has waited for its commit groups of a kind below `end`.
    pub(crate) fn acquire_groups(&mut self, warp: AgentId, kind: u8, end: u32) {
        let groups = Object::Group(kind, warp, 0)..Object::Group(kind, warp, end);
        let over: Vec<Object> = self.objects.range(groups).map(|(object, _)| *object).collect();
        for object in over {
            if let Some(published) = self.objects.remove(&object) {
                self.agents[warp].join(&published.open);
            }
        }
    }
}
