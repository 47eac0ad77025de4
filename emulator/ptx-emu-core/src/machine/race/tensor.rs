//! The orders of `tcgen05` operations: PTX ISA 9.7.16.6.
//!
//! The asynchronous ones (`mma`, `cp`, `shift`, `ld`, `st`) are not ordered by what orders their
//! threads. At `fence::before_thread_sync`, everything that a thread has waited for, or knows of,
//! becomes part of the knowledge that its synchronisation publishes; from
//! `fence::after_thread_sync` on, the published knowledge of others comes before its own
//! operations. `commit` is such a fence too. Any synchronisation will do, relaxed ones included,
//! and threads between need no fence. Allocation is synchronous: it is ordered as other accesses
//! are.
//!
//! On hardware, what releases is such a fence too, and so is what acquires: a thread that waits
//! for an operation and then arrives, without `.relaxed`, has it ordered before what those do who
//! wait for that without `.relaxed`. `Model::Hardware` takes that for granted.
//!
//! Some kinds of operations of one thread are in order by themselves: see
//! `GroupKind::ordered_behind`.

use super::clock::Clock;
use super::{AgentId, Found, Kind, Known, Origin, Place, Races};

/// The fence that two `tcgen05` operations lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fence {
    /// `fence::before_thread_sync` in the thread of the earlier one, or the meeting of its
    /// warp's lanes behind that.
    Before,
    /// `fence::after_thread_sync` in that of the later one.
    After,
}

/// Knowledge of agents about `tcgen05` operations.
#[derive(Debug, Default)]
pub(super) struct TensorOrder {
    /// Number of warps. Agents with lower numbers are warps, the others are asynchronous operations.
    warp_agents: usize,
    /// Only fences join the clocks of operations and threads.
    strict: bool,
    /// Operations that come before the agent's next one; an operation's own too.
    pub(super) known: Vec<Clock>,
    /// Operations that come before the ones that a warp's synchronisation orders.
    pub(super) passing: Vec<Clock>,
    /// Operations that come before the ones that all its lanes together order.
    pending: Vec<Clock>,
    /// The same of the exited threads of each CTA.
    pub(super) gone: Vec<Clock>,
    /// Memory for a comparison.
    scratch: Clock,
}

impl TensorOrder {
    pub(super) fn start(&mut self, ctas: usize, warp_agents: usize, strict: bool) {
        self.warp_agents = warp_agents;
        self.strict = strict;
        for (clocks, count) in [
            (&mut self.known, warp_agents),
            (&mut self.passing, warp_agents),
            (&mut self.pending, warp_agents),
            (&mut self.gone, ctas),
        ] {
            clocks.clear();
            clocks.resize(count, Clock::default());
        }
    }

    /// An asynchronous operation of a warp in its first epoch; `of_tensor`, of `tcgen05`.
    pub(super) fn issued(&mut self, agent: AgentId, epoch: u32, warp: AgentId, of_tensor: bool) {
        if self.known.len() <= agent {
            self.known.resize(agent + 1, Clock::default());
        }
        let mut clock = std::mem::take(&mut self.known[agent]);
        clock.copy(if of_tensor { &self.known[warp] } else { &self.passing[warp] });
        if of_tensor {
            clock.set(agent, epoch);
        }
        self.known[agent] = clock;
    }

    /// An operation of `tcgen05` goes on in its next epoch.
    pub(super) fn advance(&mut self, agent: AgentId, epoch: u32) {
        if agent >= self.warp_agents && self.known[agent].get(agent) != 0 {
            self.known[agent].set(agent, epoch);
        }
    }

    /// Whether a warp's synchronisation publishes nothing about operations.
    pub(super) fn is_silent(&self, warp: AgentId) -> bool {
        self.passing[warp].is_empty() && self.pending[warp].is_empty()
    }

    /// Adds what the synchronisation of an agent, or of a part of a warp, publishes.
    pub(super) fn publish(&self, agent: AgentId, whole: bool, into: &mut Clock) {
        if agent >= self.warp_agents {
            into.join(&self.known[agent]);
            return;
        }
        into.join(&self.passing[agent]);
        if whole {
            into.join(&self.pending[agent]);
        }
    }

    /// A warp releases what it knows: on hardware, of operations too.
    pub(super) fn releases(&mut self, warp: AgentId) {
        if !self.strict && warp < self.warp_agents {
            self.passing[warp].join(&self.known[warp]);
        }
    }

    /// A warp acquires what others know.
    pub(super) fn acquires(&mut self, warp: AgentId) {
        if !self.strict && warp < self.warp_agents {
            self.known[warp].join(&self.passing[warp]);
        }
    }

    /// The lanes of a warp met.
    pub(super) fn meet(&mut self, warp: AgentId) {
        self.passing[warp].join(&self.pending[warp]);
    }

    /// Returns the clock that learns from an agent's synchronisation.
    pub(super) fn learning(&mut self, agent: AgentId) -> &mut Clock {
        if agent < self.warp_agents { &mut self.passing[agent] } else { &mut self.known[agent] }
    }

    /// Orders the next actions of `agent` behind everything that `after` did.
    pub(super) fn order(&mut self, agent: AgentId, after: AgentId) {
        let clock = std::mem::take(&mut self.known[after]);
        self.learning(agent).join(&clock);
        self.known[after] = clock;
    }
}

impl Races {
    /// `tcgen05.fence::before_thread_sync`
    pub(crate) fn fence_before(&mut self, warp: AgentId, lanes: u32) {
        let whole = self.lanes.whole(warp, lanes);
        let TensorOrder { known, passing, pending, .. } = &mut self.tensor;
        let to = if whole { pending } else { passing };
        to[warp].join(&known[warp]);
    }

    /// `tcgen05.fence::after_thread_sync`
    pub(crate) fn fence_after(&mut self, warp: AgentId) {
        self.tensor.known[warp].join(&self.tensor.passing[warp]);
    }

    /// An access to tensor memory, units of 16 lanes of a column: by an operation, or by a
    /// warp that frees it.
    ///
    /// # Errors
    /// The race, if it is one.
    pub(crate) fn tensor_access(
        &mut self,
        agent: AgentId,
        origin: Origin,
        kind: Kind,
        rank: u32,
        (start, units): (u64, u64),
    ) -> Result<(), Found> {
        let record = self.record(agent, origin, kind);
        let order = &mut self.tensor;
        let mut clock = std::mem::take(&mut order.scratch);
        clock.copy(&self.agents[agent]);
        if agent < self.warp_agents {
            clock.join(&order.known[agent]);
            order.publish(agent, true, &mut clock);
        } else {
            clock.replace(self.warp_agents, &order.known[agent]);
        }
        let found = match self.tensors.get_mut(rank as usize) {
            Some(shadow) => {
                let known =
                    Known { clock: &clock, lanes: &self.lanes, whole: true, unfenced: None };
                shadow.access(start as usize, units as usize, record, &known)
            }
            None => Ok(()),
        };
        self.tensor.scratch = clock;
        found.map_err(|clash| {
            let mut found = self.found(Place::Tensor(rank), clash);
            found.fence = self.missing_fence(&found);
            found
        })
    }

    /// A warp that has waited for the earlier of two racing accesses, an operation's.
    pub(super) fn waited_for(&self, found: &Found) -> Option<AgentId> {
        let old = &found.clash.old;
        let knows = |clock: &Clock| clock.get(old.agent.into()) >= old.epoch;
        let TensorOrder { known, passing, .. } = &self.tensor;
        (0..self.warp_agents).find(|&warp| match found.place {
            Place::Shared(_) => knows(&self.agents[warp]),
            Place::Tensor(_) => knows(&known[warp]) || knows(&passing[warp]),
        })
    }

    /// The fence that would order two accesses, if only one is missing.
    fn missing_fence(&self, found: &Found) -> Option<Fence> {
        let (old, new) = (&found.clash.old, &found.clash.new);
        let knows = |clock: &Clock| clock.get(old.agent.into()) >= old.epoch;
        if found.asynchronous != (true, true) {
            None
        } else if knows(&self.tensor.passing[usize::from(new.warp)]) {
            Some(Fence::After)
        } else {
            knows(&self.agents[usize::from(new.agent)]).then_some(Fence::Before)
        }
    }
}
