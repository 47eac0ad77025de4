//! The queue of operations in flight and the schedule that completes them.
//!
//! An operation is issued, *reads* its sources, then *writes* its destinations
//! and signals its completion. Between issue and completion any other
//! instruction of the cluster may run: `eager` does both steps at issue, `lazy`
//! does them when a wait cannot go on without them, the latest issued first,
//! `random` at seeded points. An operation that must come after others
//! ([`Operation::after`]) begins when they have completed.
//!
//! Limits: a step is indivisible, though hardware may show a part of a copy early; operations of
//! other clusters are not looked at.

use super::flight::{Home, Range, Role};
use super::groups::{GroupKind, Membership};
use super::interface::flight_kind;
use super::mbarrier::{At, BYTES};
use super::{Awaited, Publisher, Units};
use crate::Schedule;
use crate::diagnostic::{Exec, Fault, Faults, Site};
use crate::machine::Stats;
use crate::machine::launch::Env;
use crate::machine::race::{AgentId, Kind, Object, Origin};
use crate::memory::Plain;
use std::fmt;

/// Instructions of the cluster after which even the lazy schedule completes an
/// operation, so that a loop that looks at memory comes to an end.
const PATIENCE: u64 = 1 << 20;
/// Failing tests of one barrier after which the lazy and random schedules help
/// the operations that it waits for.
const TESTS: u32 = 8;

/// The object by which race detection knows all completed `cp.async` of a warp: no commit group has
/// that number.
const ALL_COPIES: fn(usize) -> Object = |warp| Object::Group(u8::MAX, warp, 0);

/// Number of an operation, in order of issue.
pub(crate) type OpId = u64;

/// The state that a step of an operation may access.
pub(crate) struct StepContext<'a> {
    /// Shared memory of each CTA of the cluster, by rank.
    pub(crate) shared: &'a mut [Plain],
    pub(crate) env: &'a Env<'a>,
    pub(crate) stats: &'a mut Stats,
    /// Faults of a step that went on behind them.
    pub(crate) faults: Faults,
}

/// The two steps of an operation. `write` comes after `read`; both are called
/// once.
pub(crate) trait Work: fmt::Debug {
    /// Takes the sources.
    fn read(&mut self, context: &mut StepContext<'_>) -> Exec;
    /// Makes the destinations visible.
    fn write(&mut self, context: &mut StepContext<'_>) -> Exec;
}

/// An operation without data of its own: only its completion matters.
#[derive(Debug)]
pub(crate) struct Nothing;

impl Work for Nothing {
    fn read(&mut self, _: &mut StepContext<'_>) -> Exec {
        Ok(())
    }

    fn write(&mut self, _: &mut StepContext<'_>) -> Exec {
        Ok(())
    }
}

/// The signal of a completed operation to an mbarrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// `complete_tx` of so many bytes.
    Transaction(At, u32),
    /// Arrivals.
    Arrive(At, u32),
}

impl Signal {
    pub(super) fn at(self) -> At {
        match self {
            Self::Transaction(at, _) | Self::Arrive(at, _) => at,
        }
    }
}

/// An asynchronous operation.
#[derive(Debug)]
pub(crate) struct Operation {
    /// The name in diagnostics.
    pub(crate) name: &'static str,
    pub(crate) site: Site,
    /// Lanes that issued it.
    pub(crate) lanes: u32,
    pub(crate) reads: Vec<Range>,
    pub(crate) writes: Vec<Range>,
    /// Whether it is of the async proxy: earlier generic writes need a proxy fence.
    pub(crate) async_proxy: bool,
    /// Its writes are atomic: those of several operations may overlap.
    pub(crate) atomic: bool,
    /// The commit group it belongs to.
    pub(crate) group: Option<Membership>,
    /// Operations that must have completed before it begins.
    pub(crate) after: Vec<OpId>,
    /// The signals of its completion.
    pub(crate) signals: Vec<Signal>,
    pub(crate) work: Box<dyn Work>,
}

impl Operation {
    /// Returns the bytes that it brings from global memory to the shared memory of CTAs, by rank.
    fn loads(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let global = self.reads.iter().any(|range| range.home == Home::Global);
        let writes = if global { self.writes.as_slice() } else { &[] };
        writes.iter().filter_map(|range| match range.home {
            Home::Shared(rank) => Some((rank as usize, range.bytes)),
            Home::Global | Home::Tensor(_) => None,
        })
    }
}

/// An operation in the queue.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) id: OpId,
    pub(crate) operation: Operation,
    /// Its agent in race detection.
    agent: Option<AgentId>,
    /// The sources have been read.
    pub(crate) has_read: bool,
    issued: u64,
}

impl Queued {
    /// Returns its use of memory that an access of `range` would disturb.
    fn meets(&self, range: &Range, write: bool) -> Option<Role> {
        let hits = |ranges: &[Range]| ranges.iter().any(|r| r.overlaps(range));
        if hits(&self.operation.writes) {
            Some(Role::Destination)
        } else if write && !self.has_read && hits(&self.operation.reads) {
            Some(Role::Source)
        } else {
            None
        }
    }
}

impl Units {
    /// Whether operations are in flight.
    #[inline(always)]
    pub(crate) fn busy(&self) -> bool {
        self.flight.busy()
    }

    /// Takes up an operation. `clock` is the cluster's.
    pub(crate) fn issue(
        &mut self,
        context: &mut StepContext<'_>,
        clock: u64,
        operation: Operation,
    ) -> Exec<OpId> {
        self.events += 1;
        if operation.async_proxy {
            self.check_proxies(context.env, &operation)?;
        }
        self.check_overlap(context.env, &operation)?;
        let id = self.next_id;
        self.next_id += 1;
        self.flight.add(&operation);
        for (rank, bytes) in operation.loads() {
            if rank >= self.loading.len() {
                self.loading.resize(rank + 1, 0);
            }
            self.loading[rank] += bytes;
            let most = &mut context.stats.asynchronous.most_bytes_in_flight;
            *most = self.loading[rank].max(*most);
        }
        let agent = self.races.as_mut().map(|races| {
            let warp = operation.site.warp;
            let kind = operation.group.map(|group| group.kind);
            let agent =
                races.new_agent(warp, operation.lanes, kind.is_some_and(GroupKind::of_tensor));
            // It comes after the completed operations of its warp that it is ordered
            // behind; those under way are among what it waits for.
            let strict = context.env.is_strict();
            for earlier in kind.into_iter().flat_map(|kind| kind.ordered_behind(strict)) {
                races.acquire(agent, Object::Group(*earlier as u8, warp, 0), false);
            }
            agent
        });
        if let Some(trace) = &mut self.trace {
            trace.issued(context.env, clock, id, &operation);
        }
        self.queue.push(Queued { id, operation, agent, has_read: false, issued: clock });
        let index = self.queue.len() - 1;
        match self.schedule {
            Schedule::Eager => self.complete(index, context)?,
            Schedule::Lazy => {}
            Schedule::Random(_) => {
                if self.random.below(4) == 0 && self.may_begin(index) {
                    self.read(index, context)?;
                }
            }
        }
        Ok(id)
    }

    fn may_begin(&self, index: usize) -> bool {
        let after = &self.queue[index].operation.after;
        after.is_empty() || !self.queue[..index].iter().any(|other| after.contains(&other.id))
    }

    /// The read step of a queued operation.
    fn read(&mut self, index: usize, context: &mut StepContext<'_>) -> Exec {
        let queued = &mut self.queue[index];
        if queued.has_read {
            return Ok(());
        }
        queued.has_read = true;
        self.events += 1;
        if let Some(trace) = &mut self.trace {
            trace.read(queued.id);
        }
        let site = queued.operation.site;
        queued.operation.work.read(context).map_err(|fault| fault.at(site))?;
        self.report_step(context, site)?;
        let queued = &mut self.queue[index];
        if let Some(agent) = queued.agent {
            let reads = std::mem::take(&mut queued.operation.reads);
            let group = queued.operation.group;
            let looked = self.look(context.env, (agent, None), site, &reads, Kind::Read);
            self.publish_group(agent, site.warp, group);
            if let (Some(GroupKind::TensorLoad), Some(races)) =
                (group.map(|group| group.kind), &mut self.races)
            {
                races.publish_load(agent, site.warp, self.queue[index].id as u32);
            }
            self.queue[index].operation.reads = reads;
            looked?;
        }
        Ok(())
    }

    /// The read step of an operation now, if it is in flight and has not read yet.
    pub(crate) fn read_now(&mut self, id: OpId, context: &mut StepContext<'_>) -> Exec {
        match self.queue.iter().position(|queued| queued.id == id) {
            Some(index) => self.read(index, context),
            None => Ok(()),
        }
    }

    /// The write step: the operation leaves the queue.
    fn write(&mut self, index: usize, context: &mut StepContext<'_>) -> Exec {
        let Queued { id, operation, .. } = &self.queue[index];
        let kind = operation.group.map(|group| group.kind);
        let before = self.trace.as_mut().map(|trace| trace.completes(context.env, *id, kind));
        let result = self.finish(index, context);
        if let (Some(trace), Some(before)) = (&mut self.trace, before) {
            trace.actor = before;
        }
        result
    }

    fn finish(&mut self, index: usize, context: &mut StepContext<'_>) -> Exec {
        let Queued { id, mut operation, agent, .. } = self.queue.remove(index);
        self.events += 1;
        self.flight.remove(&operation);
        for (rank, bytes) in operation.loads() {
            self.loading[rank] -= bytes;
        }
        let site = operation.site;
        operation.work.write(context).map_err(|fault| fault.at(site))?;
        self.report_step(context, site)?;
        let kind = operation.group.map(|group| group.kind);
        if let Some(agent) = agent {
            let access = if operation.atomic { Kind::StrongWrite } else { Kind::Write };
            let proxy = operation.async_proxy.then_some(operation.name);
            self.look(context.env, (agent, proxy), site, &operation.writes, access)?;
            self.publish_group(agent, site.warp, operation.group);
        }
        for range in &operation.writes {
            if let Home::Shared(rank) = range.home {
                // `cp.async` writes through the generic proxy (9.7.9.25.3).
                if operation.group.is_some_and(|group| group.kind == GroupKind::Copy) {
                    self.proxies.copied(rank, range.start, range.bytes, site);
                } else {
                    self.proxies.clean(rank, range.start, range.bytes);
                }
            }
        }
        for signal in operation.signals {
            let at = signal.at();
            let shared = &mut context.shared[at.rank as usize];
            self.cluster.check_alive(at.rank).map_err(|fault| fault.at(site))?;
            let publisher = agent.map(Publisher::Agent);
            if let Some(agent) = agent {
                let home = Home::Shared(at.rank);
                let object = Range { home, start: at.offset.into(), bytes: BYTES as u64 };
                self.look(context.env, (agent, None), site, &[object], Kind::StrongWrite)?;
            }
            self.with_barrier(at, publisher, |barriers| match signal {
                Signal::Transaction(at, bytes) => {
                    barriers.complete_tx(shared, at, i64::from(bytes))
                }
                Signal::Arrive(at, count) => {
                    barriers.arrive(shared, at, count, Default::default()).map(|_| ())
                }
            })
            .map_err(|kind| Fault::lane(kind, site.lane).at(site))?;
        }
        if let (Some(agent), Some(GroupKind::TensorCommit)) = (agent, kind) {
            // Its arrivals too come before those of a commit that is ordered behind it.
            self.publish_group(agent, site.warp, operation.group);
        }
        if let (Some(agent), Some(races)) = (agent, &mut self.races) {
            for later in self.queue.iter().filter(|q| q.operation.after.contains(&id)) {
                if let Some(later) = later.agent {
                    races.order(later, agent);
                }
            }
            races.retire(agent);
        }
        Ok(())
    }

    /// Tells race detection about accesses of an operation; `proxy`, the name of one that writes
    /// through the async proxy.
    fn look(
        &mut self,
        env: &Env<'_>,
        (agent, proxy): (AgentId, Option<&'static str>),
        site: Site,
        ranges: &[Range],
        kind: Kind,
    ) -> Exec {
        let Some(mut races) = self.races.as_mut() else {
            return Ok(());
        };
        let origin = Origin { pc: site.pc, warp: site.warp, lane: site.lane };
        for range in ranges {
            let span = (range.start, range.bytes);
            let looked = match range.home {
                Home::Shared(rank) if proxy.is_some() => {
                    let (looked, read) = races.proxy_write(agent, origin, kind, rank, span);
                    if let (Some(read), Some(name)) = (read, proxy) {
                        self.read_unfenced(env, (site, name), (rank, range.start), read)?;
                        let Some(again) = &mut self.races else { break };
                        races = again;
                    }
                    looked
                }
                Home::Shared(rank) => races.access(agent, origin, kind, rank, span),
                Home::Tensor(rank) => races.tensor_access(agent, origin, kind, rank, span),
                Home::Global => Ok(()),
            };
            let Err(found) = looked else { continue };
            self.raced(env, (site.pc, site.warp), Some(site), &found)?;
            let Some(again) = &mut self.races else { break };
            races = again;
        }
        Ok(())
    }

    /// Reports what a step of an operation found.
    fn report_step(&self, context: &mut StepContext<'_>, site: Site) -> Exec {
        let mut faults = std::mem::take(&mut context.faults).into_iter();
        faults.try_for_each(|fault| self.report(context.env, (site.pc, site.warp), fault.at(site)))
    }

    /// An operation comes after all completed `cp.async` of its warp too.
    pub(crate) fn after_copies(&mut self, id: OpId, warp: usize) {
        let queued = self.queue.iter().find(|queued| queued.id == id);
        if let (Some(races), Some(agent)) = (&mut self.races, queued.and_then(|q| q.agent)) {
            races.acquire(agent, ALL_COPIES(warp), false);
        }
    }

    /// Publishes the knowledge of an operation to the waiters of its group.
    fn publish_group(&mut self, agent: AgentId, warp: usize, group: Option<Membership>) {
        if let (Some(group), Some(races)) = (group, &mut self.races) {
            races.release(agent, u32::MAX, Object::Group(group.kind as u8, warp, group.index));
            if group.kind.in_order() {
                races.close(Object::Group(group.kind as u8, warp, group.index));
            }
            if group.kind == GroupKind::Copy {
                races.release(agent, u32::MAX, ALL_COPIES(warp));
                races.close(ALL_COPIES(warp));
            }
        }
    }

    /// Both steps of an operation that may begin.
    fn complete(&mut self, index: usize, context: &mut StepContext<'_>) -> Exec {
        self.read(index, context)?;
        self.write(index, context)
    }

    /// An operation that may begin, on the way to the one at `index`.
    fn first_needed(&self, mut index: usize) -> usize {
        loop {
            let after = &self.queue[index].operation.after;
            // Dependencies are older, so this ends.
            match self.queue[..index].iter().rposition(|other| after.contains(&other.id)) {
                Some(earlier) => index = earlier,
                None => return index,
            }
        }
    }

    /// Lets time pass between two turns of the cluster's warps.
    pub(crate) fn tick(&mut self, context: &mut StepContext<'_>, clock: u64) -> Exec {
        match self.schedule {
            Schedule::Eager => {}
            Schedule::Lazy => {
                while self.queue.first().is_some_and(|q| clock.saturating_sub(q.issued) > PATIENCE)
                {
                    self.complete(0, context)?;
                }
            }
            Schedule::Random(_) => {
                while !self.queue.is_empty() && self.random.below(2) == 0 {
                    self.random_step(context)?;
                }
            }
        }
        Ok(())
    }

    /// One step of one operation, any that is legal.
    fn random_step(&mut self, context: &mut StepContext<'_>) -> Exec {
        let picked = self.random.below(self.queue.len());
        let index = self.first_needed(picked);
        if self.queue[index].has_read {
            self.write(index, context)
        } else if self.random.below(2) == 0 {
            self.read(index, context)
        } else {
            self.complete(index, context)
        }
    }

    /// Makes progress towards one of `awaited`, because nothing else can run.
    /// False when nothing is in flight.
    pub(crate) fn force(
        &mut self,
        context: &mut StepContext<'_>,
        awaited: &[Awaited],
    ) -> Exec<bool> {
        if self.queue.is_empty() {
            return Ok(false);
        }
        if let Schedule::Random(_) = self.schedule {
            self.random_step(context)?;
            return Ok(true);
        }
        let wanted = awaited.iter().find_map(|awaited| {
            let index = self.queue.iter().rposition(|queued| self.serves(queued, awaited))?;
            Some((index, awaited.reads_only()))
        });
        let (index, reads_only) = wanted.unwrap_or((self.queue.len() - 1, false));
        let first = self.first_needed(index);
        if reads_only && first == index {
            self.read(index, context)?;
        } else {
            self.complete(first, context)?;
        }
        Ok(true)
    }

    /// Whether the completion of an operation brings a wait nearer its end.
    fn serves(&self, queued: &Queued, awaited: &Awaited) -> bool {
        match awaited {
            Awaited::Phase { at, .. } => {
                queued.operation.signals.iter().any(|signal| signal.at() == *at)
            }
            Awaited::Groups(wait) => self.groups.blocks(wait, queued),
            Awaited::Cluster { .. }
            | Awaited::Registers { .. }
            | Awaited::Columns(_)
            | Awaited::Grid => false,
        }
    }

    /// A test of a barrier failed: a thread that spins must see an end.
    pub(crate) fn tested(&mut self, context: &mut StepContext<'_>, awaited: Awaited) -> Exec {
        if self.events != self.tests_at {
            self.tests_at = self.events;
            self.tests = 0;
        }
        self.tests += 1;
        if self.tests >= TESTS {
            self.force(context, &[awaited])?;
        }
        Ok(())
    }

    /// Completes everything: the end of the cluster.
    pub(crate) fn drain(&mut self, context: &mut StepContext<'_>) -> Exec {
        while !self.queue.is_empty() {
            let index = self.first_needed(self.queue.len() - 1);
            self.complete(index, context)?;
        }
        Ok(())
    }

    /// Whether a wait is over.
    pub(crate) fn over(&self, awaited: &Awaited) -> bool {
        match awaited {
            Awaited::Phase { at, phase, .. } => {
                self.barriers.phase(*at).is_none_or(|now| now != *phase)
            }
            Awaited::Groups(wait) => {
                !self.groups.uncommitted(wait)
                    && !self.queue.iter().any(|q| self.groups.blocks(wait, q))
            }
            Awaited::Cluster { generation } => self.cluster.generation() != *generation,
            Awaited::Registers { rank, wanted } => self.registers.free(*rank) >= *wanted,
            Awaited::Columns(wait) => self.tensor.may_allocate(wait),
            Awaited::Grid => self.before.as_ref().is_none_or(|grid| grid.ended()),
        }
    }

    /// Operations of some kinds and a warp, some lane of `lanes` among the issuers.
    pub(crate) fn issued_by(&self, kinds: &[GroupKind], warp: usize, lanes: u32) -> Vec<OpId> {
        self.queue
            .iter()
            .filter(|q| {
                q.operation.group.is_some_and(|group| kinds.contains(&group.kind))
                    && q.operation.site.warp == warp
                    && q.operation.lanes & lanes != 0
            })
            .map(|q| q.id)
            .collect()
    }

    /// The newest operation of a kind and warp, some lane of `lanes` among the issuers.
    pub(crate) fn last_issued(&self, kind: GroupKind, warp: usize, lanes: u32) -> Option<OpId> {
        let issued = |q: &&Queued| {
            q.operation.group.is_some_and(|group| group.kind == kind)
                && q.operation.site.warp == warp
                && q.operation.lanes & lanes != 0
        };
        self.queue.iter().rev().find(issued).map(|q| q.id)
    }

    /// The operation in flight that an access of `range` disturbs.
    pub(crate) fn disturbed(&self, range: &Range, write: bool) -> Option<(&Queued, Role)> {
        if !self.flight.may_touch(range, write) {
            return None;
        }
        self.queue.iter().find_map(|queued| Some((queued, queued.meets(range, write)?)))
    }

    /// Whether memory that an operation uses is in use by others than those that it comes after.
    fn check_overlap(&self, env: &Env<'_>, new: &Operation) -> Exec {
        let others: Vec<&Queued> =
            self.queue.iter().filter(|queued| !new.after.contains(&queued.id)).collect();
        if others.is_empty() {
            return Ok(());
        }
        for write in [false, true] {
            let ranges = if write { &new.writes } else { &new.reads };
            for range in ranges.iter().filter(|range| self.flight.may_touch(range, write)) {
                for queued in &others {
                    if write && new.atomic && queued.operation.atomic {
                        continue;
                    }
                    let Some(role) = queued.meets(range, write) else { continue };
                    let Site { pc, warp, lane } = new.site;
                    let line = env.code[queued.operation.site.pc].line;
                    if self.is_known(env, flight_kind(range), pc, line) {
                        continue;
                    }
                    let kind = self.in_flight(env, queued, role, range, write);
                    self.report(env, (pc, warp), Fault::lane(kind, lane))?;
                }
            }
        }
        Ok(())
    }
}
