//! Records events while a cluster runs.

use super::units::{At, GroupKind, Home, OpId, Operation, Range, Site};
use super::{Env, Wait};
use crate::trace::{Line, Place, Record, Trace};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The log into which the recorders of a launch's clusters put their records.
#[derive(Debug, Clone)]
pub(crate) struct Tracer(Arc<Mutex<Log>>);

#[derive(Debug)]
struct Log {
    trace: Trace,
    /// Events that still fit.
    room: u64,
}

impl Tracer {
    /// An empty timeline for at most `limit` events.
    pub(crate) fn new(trace: Trace, limit: u64) -> Self {
        Self(Arc::new(Mutex::new(Log { trace, room: limit })))
    }

    /// The timeline; all clusters have ended.
    pub(crate) fn finish(self) -> Trace {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut log.trace)
    }

    fn push(&self, record: Record) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match log.room.checked_sub(record.events()) {
            Some(room) => {
                log.room = room;
                log.trace.records.push(record);
            }
            None => {
                // Nothing later either, so that the timeline is whole up to the cut.
                log.room = 0;
                log.trace.dropped += 1;
            }
        }
    }
}

/// The actor of the recorded events.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Actor {
    /// A warp of the cluster, at an instruction.
    Warp(usize, Option<usize>),
    /// An operation.
    Operation(OpId, &'static str, Site),
    /// Nobody in particular.
    None,
}

/// A wait that has not ended.
#[derive(Debug)]
pub(crate) struct OpenWait {
    pub(crate) warp: usize,
    pub(crate) lanes: u32,
    pub(crate) pc: usize,
    pub(crate) wait: Wait,
    pub(crate) since: u64,
    pub(crate) name: String,
    pub(crate) reason: String,
    line: Line,
}

/// An operation that has not completed.
#[derive(Debug)]
struct OpenOperation {
    name: &'static str,
    site: Site,
    line: Line,
    from: u64,
    read: Option<u64>,
    bytes: u64,
}

/// Records one cluster. Operations that are open when it is dropped ended with the launch.
#[derive(Debug)]
pub(crate) struct Recorder {
    tracer: Tracer,
    /// The cluster's clock, as far as it is known.
    pub(crate) now: u64,
    pub(crate) actor: Actor,
    /// Places of the warps.
    places: Vec<Place>,
    runs: Vec<Option<(u64, u64, Line, Line)>>,
    pub(crate) waits: Vec<OpenWait>,
    operations: BTreeMap<OpId, OpenOperation>,
    /// Phases of mbarriers that ended, when and by whom.
    ended: Vec<(At, u64, u64, Actor)>,
    /// The one that ended the latest phase of each mbarrier.
    phases: BTreeMap<(u32, u32), String>,
    /// The operation of a kind that completed last, by warp.
    groups: BTreeMap<(usize, u8), String>,
    /// Generations of CTA barriers, by rank, that were seen.
    pub(crate) generations: Vec<[u64; 16]>,
    pub(crate) cluster_generation: u64,
}

fn line(env: &Env<'_>, pc: usize) -> Line {
    let number = env.code.get(pc).map_or(0, |instr| instr.line);
    Line { number, text: env.source_line(number).to_owned() }
}

fn place_of(place: &Place) -> String {
    let [x, y, z] = place.cta;
    format!("CTA ({x}, {y}, {z}) warp {}", place.warp)
}

impl Recorder {
    /// Makes a recorder for a cluster of these CTAs.
    pub(crate) fn new(tracer: Tracer, ctas: &[[u32; 3]], warps_per_cta: usize) -> Self {
        let places: Vec<Place> = ctas
            .iter()
            .flat_map(|&cta| (0..warps_per_cta as u32).map(move |warp| Place { cta, warp }))
            .collect();
        Self {
            tracer,
            now: 0,
            actor: Actor::None,
            runs: vec![None; places.len()],
            places,
            waits: Vec::new(),
            operations: BTreeMap::new(),
            ended: Vec::new(),
            phases: BTreeMap::new(),
            groups: BTreeMap::new(),
            generations: vec![[0; 16]; ctas.len()],
            cluster_generation: 0,
        }
    }

    /// The actor in words.
    pub(crate) fn actor_name(&self, env: &Env<'_>) -> String {
        let at = |site: &Site| line(env, site.pc).number;
        match &self.actor {
            Actor::Warp(warp, None) => place_of(&self.places[*warp]),
            Actor::Warp(warp, Some(pc)) => {
                format!("{}, line {}", place_of(&self.places[*warp]), line(env, *pc).number)
            }
            Actor::Operation(id, name, site) => {
                format!("{name} (operation {id}, line {})", at(site))
            }
            Actor::None => "the end of other work".to_owned(),
        }
    }

    /// A warp ran from `from` to `to`; turns in a row are one span.
    pub(crate) fn ran(
        &mut self,
        env: &Env<'_>,
        warp: usize,
        (from, to): (u64, u64),
        pcs: (usize, usize),
    ) {
        let last = line(env, pcs.1);
        if let Some((_, end, _, old)) = &mut self.runs[warp] {
            if *end == from {
                *end = to;
                *old = last;
                return;
            }
            self.end_run(warp);
        }
        self.runs[warp] = Some((from, to, line(env, pcs.0), last));
    }

    fn end_run(&mut self, warp: usize) {
        if let Some((from, to, first, last)) = self.runs[warp].take() {
            let place = self.places[warp];
            self.tracer.push(Record::Run { place, from, to, first, last });
        }
    }

    /// A wait begins.
    pub(crate) fn begin_wait(
        &mut self,
        env: &Env<'_>,
        wait: (usize, u32, usize, Wait),
        names: (String, String),
    ) {
        let (warp, lanes, pc, wait) = wait;
        let (name, reason) = names;
        let since = self.now;
        self.waits.push(OpenWait {
            warp,
            lanes,
            pc,
            wait,
            since,
            name,
            reason,
            line: line(env, pc),
        });
    }

    /// A wait ends.
    pub(crate) fn end_wait(&mut self, wait: OpenWait, ended_by: String) {
        self.tracer.push(Record::Wait {
            place: self.places[wait.warp],
            lanes: wait.lanes,
            from: wait.since,
            to: self.now,
            line: wait.line,
            name: wait.name,
            reason: wait.reason,
            ended_by,
        });
    }

    /// Names the one that ended the latest phase of an mbarrier.
    pub(crate) fn phase_ended_by(&self, at: At) -> Option<String> {
        self.phases.get(&(at.rank, at.offset)).cloned()
    }

    /// Names the warp's operation of a kind that completed last.
    pub(crate) fn group_ended_by(&self, warp: usize, kind: GroupKind) -> Option<String> {
        self.groups.get(&(warp, kind as u8)).cloned()
    }

    /// A warp of the cluster executes the instruction at `pc`.
    pub(crate) fn acts(&mut self, warp: usize, clock: u64, pc: usize) {
        self.now = self.now.max(clock);
        self.actor = Actor::Warp(warp, Some(pc));
    }

    /// An mbarrier's phase ended.
    pub(crate) fn phase(&mut self, at: At, phase: u64) {
        self.ended.push((at, phase, self.now, self.actor.clone()));
    }

    /// Names who ended the mbarriers' phases since the last call.
    pub(crate) fn settle_phases(&mut self, env: &Env<'_>) {
        let (now, actor) = (self.now, self.actor.clone());
        for (at, phase, when, by) in std::mem::take(&mut self.ended) {
            (self.now, self.actor) = (when, by);
            let by = self.actor_name(env);
            self.phases.insert((at.rank, at.offset), by.clone());
            self.instant(at.rank, format!("mbarrier {:#x}", at.address()), phase, by);
        }
        (self.now, self.actor) = (now, actor);
    }

    /// A barrier of a CTA moved on.
    pub(crate) fn instant(&mut self, rank: u32, name: String, phase: u64, by: String) {
        let per_cta = self.places.len() / self.generations.len().max(1);
        let place = self.places[rank as usize * per_cta];
        self.tracer.push(Record::Phase { place, at: self.now, name, phase, by });
    }

    /// An operation is issued.
    pub(crate) fn issued(&mut self, env: &Env<'_>, clock: u64, id: OpId, operation: &Operation) {
        self.now = self.now.max(clock);
        let (name, site) = (operation.name, operation.site);
        let sum = |ranges: &[Range]| -> u64 {
            let memory = ranges.iter().filter(|range| !matches!(range.home, Home::Tensor(_)));
            memory.map(|range| range.bytes).sum()
        };
        let bytes = sum(&operation.writes).max(sum(&operation.reads));
        let line = line(env, site.pc);
        let from = self.now;
        self.operations.insert(id, OpenOperation { name, site, line, from, read: None, bytes });
    }

    /// An operation has read its sources.
    pub(crate) fn read(&mut self, id: OpId) {
        let now = self.now;
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.read = Some(now);
        }
    }

    /// An operation completes: it acts from now on. Gives back who acted before.
    pub(crate) fn completes(&mut self, env: &Env<'_>, id: OpId, group: Option<GroupKind>) -> Actor {
        let Some(operation) = self.operations.remove(&id) else {
            return self.actor.clone();
        };
        let (name, site) = (operation.name, operation.site);
        self.close(id, operation, true);
        let before = std::mem::replace(&mut self.actor, Actor::Operation(id, name, site));
        if let Some(kind) = group {
            let by = self.actor_name(env);
            self.groups.insert((site.warp, kind as u8), by);
        }
        before
    }

    fn close(&mut self, id: OpId, operation: OpenOperation, complete: bool) {
        let OpenOperation { name, site, line, from, read, bytes } = operation;
        let (place, to) = (self.places[site.warp], self.now);
        self.tracer.push(Record::Operation {
            place,
            id,
            name,
            from,
            read,
            to,
            line,
            bytes,
            complete,
        });
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        for warp in 0..self.runs.len() {
            self.end_run(warp);
        }
        for wait in std::mem::take(&mut self.waits) {
            self.end_wait(wait, "nobody: the launch ended".to_owned());
        }
        for (id, operation) in std::mem::take(&mut self.operations) {
            self.close(id, operation, false);
        }
    }
}
