//! Asynchronous units of a cluster: operations in flight, mbarriers, commit
//! groups, proxies, the cluster barrier, register pools.
//!
//! | file | what |
//! |---|---|
//! | `engine` | queue of operations, when they read, write and complete |
//! | `flight` | which memory operations in flight use |
//! | `mbarrier` | the mbarrier object |
//! | `groups` | commit groups |
//! | `proxy` | generic writes that the async proxy may not see |
//! | `cluster` | cluster barrier, exits |
//! | `registers` | `setmaxnreg` |
//! | `undefined` | registers whose values nothing defines |
//! | `spin` | threads that look at memory again and again |
//! | `transfer` | the copies themselves |
//! | `wgmma`, `wgmma_watch`, `wgmma_tile`, `wgmma_panels` | warpgroup products, registers in flight, operand tiles, decoded ones |
//! | `tensor_cells`, `tensor_memory`, `tcgen05`, `tcgen05_product` | tensor memory and what works on it |
//! | `interface` | the interface between executing instructions and the units |
//!
//! An instruction issues an [`Operation`] through `Context::issue`. Its [`Work`] reads and writes
//! memory when the engine says so; its ranges are the memory in flight between; others wait for its
//! signals or its group. A waiting instruction is an `Op::Poll` that returns [`Poll::Wait`] with
//! what it waits for, and is executed again when that has come.

mod cluster;
mod engine;
mod flight;
mod groups;
mod interface;
mod mbarrier;
mod proxy;
mod registers;
pub(crate) mod spin;
pub(crate) mod tcgen05;
pub(crate) mod tcgen05_product;
mod tensor_cells;
pub(crate) mod tensor_memory;
mod transfer;
mod undefined;
pub(crate) mod wgmma;
mod wgmma_panels;
pub(crate) mod wgmma_tile;
mod wgmma_watch;

pub(crate) use super::access::lanes;
pub(crate) use crate::diagnostic::Site;
pub(crate) use engine::{Nothing, OpId, Operation, Queued, Signal, StepContext, Work};
pub(crate) use flight::{Home, Range, Role};
pub(crate) use groups::{GroupKind, GroupWait};
pub(in crate::machine) use interface::generic_shared;
pub(crate) use interface::{Reach, Touch};
pub(crate) use mbarrier::{Arrival, At, BYTES as MBARRIER_BYTES, Question};
pub(crate) use proxy::{Fenced, Reader};
pub(crate) use transfer::{Piece, Source, Target, Transfer};
pub(crate) use undefined::{Role as TouchRole, Undefined, Unwritten};
pub(crate) use wgmma_watch::{Touch as RegisterTouch, Touches, Watch};

use super::dependency::Advance;
use super::findings::Findings;
use super::launch::Env;
use super::race::{AgentId, Object, Origin, Races, Remote};
use crate::Schedule;
use crate::checks::Kind;
use crate::diagnostic::{
    AsyncFault, DiagnosticKind, Exec, Fault, LeftUse, OperationSite, TensorFault,
};
use crate::machine::recorder::{Recorder, Tracer};
use crate::schedule::SplitMix;
use cluster::ClusterState;
use flight::Flight;
use groups::Groups;
use mbarrier::Mbarriers;
use proxy::Proxies;
pub(crate) use registers::RANGE as REGISTER_COUNTS;
use registers::Registers;
use spin::Spins;
use std::sync::Arc;
use tensor_memory::{ColumnsWait, TensorUnit};
use wgmma::Wgmma;

/// The event that a blocked instruction waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The end of an mbarrier's phase. `limited`: `try_wait`, which may give up.
    Phase { at: At, phase: u64, limited: bool },
    /// Commit groups.
    Groups(GroupWait),
    /// The cluster barrier's generation to end.
    Cluster { generation: u64 },
    /// Registers of the CTA's pool.
    Registers { rank: u32, wanted: u32 },
    /// Columns of tensor memory.
    Columns(ColumnsWait),
    /// The end of the grid that this one depends on.
    Grid,
}

impl Awaited {
    /// Only the sources of the operations matter.
    fn reads_only(&self) -> bool {
        matches!(self, Self::Groups(wait) if wait.reads_only)
    }
}

/// Outcome of an instruction that may have to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poll {
    /// The instruction is executed.
    Done,
    /// The instruction is executed, and others should run before its thread goes on: it looked for
    /// something that has not come.
    Yield,
    /// The instruction is to be executed again once this has come.
    Wait(Awaited),
}

/// The agents whose clock an operation on an mbarrier publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Publisher {
    /// Knowledge of a warp's lanes; `relaxed`: only the part that it had at its last fence.
    Warp { warp: usize, lanes: u32, relaxed: bool },
    /// Knowledge of an asynchronous operation.
    Agent(AgentId),
}

/// Everything asynchronous of one cluster.
#[derive(Debug)]
pub(crate) struct Units {
    queue: Vec<Queued>,
    next_id: OpId,
    /// Counts everything that a waiting thread might wait for.
    events: u64,
    /// Failing tests of barriers since `tests_at`, a value of `events`.
    tests: u32,
    tests_at: u64,
    schedule: Schedule,
    random: SplitMix,
    pub(crate) flight: Flight,
    /// Bytes that copies in flight bring from global memory to each CTA.
    loading: Vec<u64>,
    pub(crate) barriers: Mbarriers,
    pub(crate) groups: Groups,
    pub(crate) proxies: Proxies,
    pub(crate) cluster: ClusterState,
    pub(crate) registers: Registers,
    pub(crate) wgmma: Wgmma,
    pub(crate) tensor: TensorUnit,
    pub(crate) spins: Spins,
    /// The grid that this one depends on, if that may still run.
    pub(crate) before: Option<Arc<Advance>>,
    /// CTAs that have let dependent grids begin.
    released: Vec<bool>,
    /// Clusters that this one has taken over.
    taken_over: u64,
    /// Present under the schedules that look for races.
    pub(crate) races: Option<Box<Races>>,
    /// Findings that did not end the run.
    pub(crate) findings: Findings,
    /// Present if a timeline is recorded.
    pub(crate) trace: Option<Box<Recorder>>,
    /// Warps that were refused once by `try_wait`, which may return early.
    refused: Vec<u32>,
    /// `%ctaid` of each CTA.
    ctas: Vec<[u32; 3]>,
    warps_per_cta: usize,
}

impl Units {
    pub(crate) fn new() -> Self {
        Self {
            queue: Vec::new(),
            next_id: 0,
            events: 0,
            tests: 0,
            tests_at: 0,
            schedule: Schedule::Eager,
            random: SplitMix::new(0, 0),
            flight: Flight::default(),
            loading: Vec::new(),
            barriers: Mbarriers::default(),
            groups: Groups::default(),
            proxies: Proxies::default(),
            cluster: ClusterState::default(),
            registers: Registers::default(),
            wgmma: Wgmma::default(),
            tensor: TensorUnit::default(),
            spins: Spins::default(),
            before: None,
            released: Vec::new(),
            taken_over: 0,
            races: None,
            findings: Findings::default(),
            trace: None,
            refused: Vec::new(),
            ctas: Vec::new(),
            warps_per_cta: 1,
        }
    }

    /// Ready for cluster number `index` with these CTAs.
    pub(crate) fn start(&mut self, env: &Env<'_>, index: u64, ctas: Vec<[u32; 3]>) {
        let threads: u32 = env.block.iter().product();
        let per_cta = threads.div_ceil(32) as usize;
        let warps = ctas.len() * per_cta;
        self.queue.clear();
        self.loading.clear();
        self.next_id = 0;
        self.events = 0;
        self.tests = 0;
        self.tests_at = 0;
        self.schedule = env.schedule;
        let seed = match env.schedule {
            Schedule::Random(seed) => seed,
            Schedule::Eager | Schedule::Lazy => 0,
        };
        // Another stream than that of the warps' interleaving.
        self.random = SplitMix::new(!seed, index);
        self.flight.reset(ctas.len());
        self.barriers.reset();
        self.groups.reset(warps, per_cta);
        let tracking = env.module.async_proxy;
        self.proxies.reset(tracking, ctas.len(), per_cta, env.shared_bytes as usize);
        self.cluster.reset(ctas.len(), warps, threads);
        self.registers.reset(env.registers, ctas.len(), per_cta);
        self.wgmma.reset(ctas.len(), per_cta);
        self.tensor.reset(ctas.len(), warps);
        self.spins.reset(warps);
        self.before.clone_from(&env.before);
        self.released.clear();
        self.released.resize(ctas.len(), false);
        self.taken_over = 0;
        if env.schedule == Schedule::Eager {
            self.races = None;
        } else {
            let races = self.races.get_or_insert_default();
            let shared_bytes = env.shared_bytes as usize;
            races.start(ctas.len(), (per_cta, threads), shared_bytes, env.is_strict());
        }
        let record = |tracer: &Tracer| Box::new(Recorder::new(tracer.clone(), &ctas, per_cta));
        self.trace = env.trace.as_ref().map(record);
        self.findings.reset();
        self.refused.clear();
        self.refused.resize(warps, 0);
        self.ctas = ctas;
        self.warps_per_cta = per_cta;
    }

    /// Number of a warp in the cluster.
    #[inline]
    pub(crate) fn warp_index(&self, rank: u32, warp: u32) -> usize {
        rank as usize * self.warps_per_cta + warp as usize
    }

    /// `%ctaid` and number in the CTA of a warp of the cluster.
    pub(crate) fn place(&self, warp: usize) -> ([u32; 3], u32) {
        (self.ctas[warp / self.warps_per_cta], (warp % self.warps_per_cta) as u32)
    }

    /// Whether something that a warp waited for says that the CTA of `rank` has started. Under
    /// schedules that do not look for races it is taken to be so.
    pub(crate) fn knows_start(&self, warp: usize, rank: u32) -> bool {
        let own = warp / self.warps_per_cta == rank as usize;
        own || self.races.as_ref().is_none_or(|races| races.knows_start(warp, rank))
    }

    /// Changes whenever something happened that a thread might wait for.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Something happened outside the queue.
    pub(crate) fn happened(&mut self) {
        self.events += 1;
    }

    /// Whether a `try_wait` that could block returns false at once, as it may.
    pub(crate) fn refuses(&mut self, warp: usize, lanes: u32) -> bool {
        match self.schedule {
            Schedule::Eager => false,
            Schedule::Lazy => {
                self.refused[warp] ^= lanes;
                self.refused[warp] & lanes != 0
            }
            Schedule::Random(_) => self.random.below(4) == 0,
        }
    }

    /// Describes the awaited event in words.
    pub(crate) fn describe(&self, awaited: &Awaited) -> String {
        match awaited {
            Awaited::Phase { at, phase, .. } => self.barriers.describe(*at, *phase),
            Awaited::Groups(wait) => match wait.kind {
                GroupKind::Copy => "cp.async groups".to_owned(),
                GroupKind::Bulk => "bulk groups".to_owned(),
                GroupKind::Wgmma => "wgmma groups".to_owned(),
                GroupKind::TensorLoad => "tcgen05 loads".to_owned(),
                GroupKind::TensorStore => "tcgen05 stores".to_owned(),
                _ => "tcgen05 operations".to_owned(),
            },
            Awaited::Cluster { .. } => self.cluster.describe(),
            Awaited::Registers { rank, wanted } => format!(
                "{wanted} registers per thread (the CTA's pool has {})",
                self.registers.free(*rank)
            ),
            Awaited::Grid => self.before.as_ref().map_or_else(String::new, |grid| grid.describe()),
            Awaited::Columns(wait) => format!(
                "{} columns of tensor memory{}",
                wait.columns,
                if wait.pair { ", with the other CTA of the pair" } else { "" }
            ),
        }
    }

    /// Works on an mbarrier, and reports to race detection who publishes there and
    /// whether the phase ended.
    pub(crate) fn with_barrier<R>(
        &mut self,
        at: At,
        publisher: Option<Publisher>,
        f: impl FnOnce(&mut Mbarriers) -> R,
    ) -> R {
        self.events += 1;
        if self.races.is_none() && self.trace.is_none() {
            return f(&mut self.barriers);
        }
        let object = Object::Mbarrier(at.rank, at.offset);
        if let Some(races) = &mut self.races {
            match publisher {
                None => {}
                Some(Publisher::Agent(agent)) => races.release(agent, u32::MAX, object),
                Some(Publisher::Warp { warp, lanes, relaxed: false }) => {
                    races.release(warp, lanes, object);
                }
                Some(Publisher::Warp { warp, lanes, relaxed: true }) => {
                    races.release_fenced(warp, lanes, object);
                }
            }
        }
        let before = self.barriers.phase(at);
        let result = f(&mut self.barriers);
        if self.barriers.phase(at) != before {
            if let Some(races) = &mut self.races {
                races.close(object);
            }
            if let (Some(trace), Some(phase)) = (&mut self.trace, before) {
                trace.phase(at, phase);
            }
        }
        result
    }

    /// A warp waited for the end of an mbarrier's phase.
    pub(crate) fn learn(&mut self, warp: usize, at: At, relaxed: bool) {
        if let Some(races) = &mut self.races {
            races.acquire(warp, Object::Mbarrier(at.rank, at.offset), relaxed);
        }
    }

    /// A warp waited for commit groups.
    pub(crate) fn learn_groups(&mut self, wait: &GroupWait) {
        let Some(races) = &mut self.races else {
            return;
        };
        if wait.kind == GroupKind::Wgmma {
            let end = self.groups.over(wait, wait.lanes.trailing_zeros() as usize);
            let owners = self.groups.together(wait.kind, wait.warp);
            races.acquire_warpgroup(wait.warp, wait.kind as u8, owners, end);
            return;
        }
        for lane in super::access::lanes(wait.lanes) {
            let end = self.groups.over(wait, lane);
            races.acquire_groups(wait.warp, wait.kind as u8, end, wait.kind.of_tensor());
        }
    }

    /// Lanes of a warp arrive at the cluster barrier.
    pub(crate) fn cluster_arrive(&mut self, warp: usize, lanes: u32, relaxed: bool) -> Exec {
        self.events += 1;
        let before = self.cluster.generation();
        if let Some(races) = &mut self.races {
            if relaxed {
                races.arrive_relaxed(warp, lanes, Object::Cluster);
            } else {
                races.release(warp, lanes, Object::Cluster);
            }
        }
        self.cluster.arrive(warp, lanes)?;
        self.close_cluster(before);
        Ok(())
    }

    /// Lanes of a warp wait for the cluster barrier. False when they have to go
    /// on waiting.
    pub(crate) fn cluster_wait(&mut self, warp: usize, lanes: u32) -> Exec<bool> {
        let over = self.cluster.wait(warp, lanes)?;
        if let (true, Some(races)) = (over, &mut self.races) {
            races.acquire(warp, Object::Cluster, false);
            races.meet_some(warp, lanes);
        }
        Ok(over)
    }

    fn close_cluster(&mut self, before: u64) {
        if let Some(races) = &mut self.races
            && self.cluster.generation() != before
        {
            races.close(Object::Cluster);
        }
    }

    /// A waiter whose wait is over must not have slept too long.
    pub(crate) fn check_slept(&self, awaited: &Awaited) -> Exec {
        match awaited {
            Awaited::Phase { at, phase, .. } => {
                self.barriers.check_slept(*at, *phase).map_err(Fault::warp)
            }
            _ => Ok(()),
        }
    }

    /// The cluster takes over another one: how many that are.
    pub(crate) fn take_over(&mut self) -> u64 {
        self.taken_over += 1;
        self.taken_over
    }

    /// A CTA lets dependent grids begin.
    pub(crate) fn release_dependents(&mut self, env: &Env<'_>, rank: u32) {
        if !std::mem::replace(&mut self.released[rank as usize], true) {
            env.advance.release();
        }
    }

    /// Threads exit; the shared memory of a CTA goes with its last one.
    pub(crate) fn exit(
        &mut self,
        env: &Env<'_>,
        rank: u32,
        (pc, warp): (usize, usize),
        lanes: u32,
    ) -> Exec {
        let exiting = (pc, warp);
        self.events += 1;
        let before = self.cluster.generation();
        if let Some(races) = &mut self.races {
            races.release(warp, lanes, Object::Cluster);
        }
        let last = self.cluster.exit(rank, warp, lanes);
        if self.cluster.is_gone(warp) {
            self.groups.exit(warp);
        }
        self.close_cluster(before);
        if !last {
            return Ok(());
        }
        self.release_dependents(env, rank);
        if let Some((pc, warp)) = self.registers.uneven(rank) {
            let kind = DiagnosticKind::Async(AsyncFault::MaxRegisters {
                required: "execution by all warps of the warpgroup".to_owned(),
                actual: "only some of them execute it".to_owned(),
            });
            return Err(Fault::warp(kind).at(Site { pc, warp, lane: 0 }));
        }
        if let Some((pc, warp)) = self.wgmma.uneven(rank) {
            let kind = DiagnosticKind::Async(AsyncFault::Operand {
                operand: "warpgroup",
                required: "the same wgmma instructions in all four warps".to_owned(),
                actual: "only some of them executed it".to_owned(),
            });
            return Err(Fault::warp(kind).at(Site { pc, warp, lane: 0 }));
        }
        self.check_freed(env, rank)?;
        if let Some(Remote { pc, warp, lanes, .. }) =
            self.races.as_ref().and_then(|races| races.outlasts(rank))
        {
            let site = Site { pc, warp, lane: lanes.trailing_zeros() };
            let operation = self.site(env, "an access", site);
            let fault = DiagnosticKind::Async(AsyncFault::Outlasts { operation });
            self.report(env, exiting, Fault::warp(fault))?;
        }
        self.check_left_in_flight(env, exiting, rank)
    }

    /// No operation may use the memory of a CTA that ends.
    fn check_left_in_flight(&self, env: &Env<'_>, at: (usize, usize), rank: u32) -> Exec {
        let home = Home::Shared(rank);
        let uses = |ranges: &[Range]| ranges.iter().any(|r| r.home == home && r.bytes != 0);
        let left = |queued: &Queued| {
            let Operation { writes, signals, reads, group, .. } = &queued.operation;
            if uses(writes) || signals.iter().any(|signal| signal.at().rank == rank) {
                let copy = group.is_some_and(|group| group.kind == GroupKind::Copy);
                Some(if copy { LeftUse::Copy } else { LeftUse::Written })
            } else {
                (!queued.has_read && uses(reads)).then_some(LeftUse::Source)
            }
        };
        for which in [LeftUse::Written, LeftUse::Source, LeftUse::Copy] {
            if let Some(queued) = self.queue.iter().find(|queued| left(queued) == Some(which)) {
                let operation = self.operation_site(env, queued);
                let fault = AsyncFault::LeftInFlight { left: which, operation };
                self.report(env, at, Fault::warp(DiagnosticKind::Async(fault)))?;
            }
        }
        Ok(())
    }

    /// An operation as diagnostics name it.
    pub(crate) fn operation_site(&self, env: &Env<'_>, queued: &Queued) -> OperationSite {
        self.site(env, queued.operation.name, queued.operation.site)
    }

    /// An instruction as diagnostics name it.
    pub(crate) fn site(&self, env: &Env<'_>, name: &'static str, site: Site) -> OperationSite {
        let line = env.code[site.pc].line;
        let (cta, warp) = self.place(site.warp);
        let instruction = env.source_line(line).to_owned();
        let source = env.module.source_of(line);
        OperationSite { name, line, instruction, source, cta, warp }
    }

    fn in_flight(
        &self,
        env: &Env<'_>,
        queued: &Queued,
        role: Role,
        range: &Range,
        write: bool,
    ) -> DiagnosticKind {
        let address = match range.home {
            Home::Global => range.start,
            Home::Shared(rank) => u64::from(rank) << super::RANK_SHIFT | range.start,
            Home::Tensor(_) => {
                let (lane, column) = tensor_memory::place(range.start);
                return DiagnosticKind::Async(AsyncFault::Tensor(TensorFault::InFlight {
                    lane,
                    column,
                    columns: range.bytes as u32,
                    write,
                    source: role == Role::Source,
                    operation: self.operation_site(env, queued),
                }));
            }
        };
        DiagnosticKind::Async(AsyncFault::InFlight {
            address,
            bytes: range.bytes,
            write,
            source: role == Role::Source,
            operation: self.operation_site(env, queued),
        })
    }

    /// A proxy fence of lanes of a warp, for the responses that they know to have been read.
    pub(crate) fn fence_responses(&mut self, warp: usize, lanes: u32) {
        let Some(races) = &self.races else { return };
        let epoch = races.epoch(warp);
        for reader in self.proxies.readers() {
            if races.knows(warp, reader.warp, reader.lanes, reader.epoch) {
                reader.fences.push((warp, lanes, epoch));
            }
        }
    }

    /// Whether those who read what a response overwrites have fenced that.
    pub(crate) fn check_response(
        &mut self,
        env: &Env<'_>,
        (rank, offset): (u32, u32),
        asker: Site,
    ) -> Exec {
        let Some(races) = &self.races else { return Ok(()) };
        let readers = self.proxies.respond(rank, offset.into());
        let unfenced = readers.into_iter().find(|reader| {
            let known = |&(warp, lanes, epoch): &_| races.knows(asker.warp, warp, lanes, epoch);
            !reader.fences.iter().any(known)
        });
        let Some(Reader { pc, warp, lanes, .. }) = unfenced else { return Ok(()) };
        let site = Site { pc, warp, lane: lanes.trailing_zeros() };
        let fault = Fault::lane(
            DiagnosticKind::Async(AsyncFault::MissingProxyFence {
                operation: "clusterlaunchcontrol.try_cancel",
                address: u64::from(rank) << super::RANK_SHIFT | u64::from(offset),
                write: true,
                read_before: true,
                other: self.site(env, "the read", site),
            }),
            asker.lane,
        );
        self.report(env, (asker.pc, asker.warp), fault)
    }

    /// An operation writes through the async proxy to a place of shared memory that `read` read
    /// before, without a proxy fence between.
    #[cold]
    pub(super) fn read_unfenced(
        &self,
        env: &Env<'_>,
        (site, operation): (Site, &'static str),
        (rank, offset): (u32, u64),
        read: Origin,
    ) -> Exec {
        let at = (site.pc, site.warp);
        if self.is_known(env, Kind::UnfencedRead, site.pc, env.code[read.pc].line) {
            return Ok(());
        }
        let fault = AsyncFault::UnfencedRead {
            operation,
            address: u64::from(rank) << super::RANK_SHIFT | offset,
            other: self.site(env, "the read", Site { pc: read.pc, warp: read.warp, lane: 0 }),
        };
        let fault = Fault::lane(DiagnosticKind::Async(fault), site.lane);
        self.report(env, at, fault.at(site))
    }

    /// Whether all that was written where an operation reads or writes through the
    /// async proxy is visible there.
    fn check_proxies(&self, env: &Env<'_>, operation: &Operation) -> Exec {
        if !self.proxies.tracking() {
            return Ok(());
        }
        let reads = operation.reads.iter().map(|range| (range, false));
        let writes = operation.writes.iter().map(|range| (range, true));
        for (range, write) in reads.chain(writes).filter(|(range, _)| range.bytes != 0) {
            let (stale, high) = match range.home {
                Home::Global if write => continue,
                Home::Global => (self.proxies.stale_global(range.start, range.bytes), 0),
                Home::Shared(rank) => (
                    self.proxies.stale_shared(rank, range.start, range.bytes),
                    u64::from(rank) << super::RANK_SHIFT,
                ),
                Home::Tensor(_) => continue,
            };
            if let Some((address, writer)) = stale {
                let Site { pc, warp, lane } = operation.site;
                if self.is_known(env, Kind::MissingProxyFence, pc, env.code[writer.pc].line) {
                    continue;
                }
                let site = Site { pc: writer.pc, warp: writer.warp, lane: 0 };
                let kind = DiagnosticKind::Async(AsyncFault::MissingProxyFence {
                    operation: operation.name,
                    address: address | high,
                    write,
                    read_before: false,
                    other: self.site(env, "the write", site),
                });
                self.report(env, (pc, warp), Fault::lane(kind, lane))?;
            }
        }
        Ok(())
    }
}
