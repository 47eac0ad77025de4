//! A cluster: CTAs that are resident together, whose warps the schedule interleaves.

mod starts;
mod trace;

use super::context::Place;
use super::launch::Env;
use super::regs::{FULL, LANES};
use super::units::{Awaited, StepContext, Units};
use super::warp::{AtFault, Fragment, Surroundings, Wait, Warp};
use super::{Barriers, Stats};
use crate::Schedule;
use crate::checks::Level;
use crate::diagnostic::{Diagnostic, DiagnosticKind, Exec, Fault, Waiter};
use crate::memory::Plain;
use crate::schedule::SplitMix;
use starts::Starts;

/// Instructions a warp runs at most before another ready one does, under `lazy`. Long, because a
/// change costs cache misses; finite, because a warp may spin on what another one does.
const TURN: u64 = 1 << 14;
/// The same under `eager`, which gives all warps their turns as hardware does.
const FAIR_TURN: u64 = 1 << 10;
/// Longest turn of the random schedule.
const RANDOM_TURN: usize = 64;
/// Times that waits with a time limit give up, nothing else happening, before a
/// cluster counts as deadlocked.
const EXPIRIES: u32 = 1024;
/// Slices in which nothing was done after which an operation in flight completes
/// although no thread waits for it.
const QUIET: u32 = 64;

/// The end of a slice of a cluster's execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All threads exited.
    Done,
    /// The slice is over, and something was done in it.
    Worked,
    /// The slice is over; warps only looked for what has not come.
    Idle,
}

/// A running cluster.
pub(crate) struct Cluster {
    index: u64,
    warps: Vec<Warp>,
    shared: Vec<Plain>,
    barriers: Vec<Barriers>,
    units: Units,
    starts: Starts,
    /// Times that waits have given up since `expired_at`, a number of events.
    expiries: u32,
    expired_at: u64,
    clock: u64,
    /// Slices since something was done.
    quiet: u32,
    next: usize,
    random: SplitMix,
}

impl Cluster {
    /// Empty; [`start`](Self::start) fills it.
    pub(crate) fn new() -> Self {
        Self {
            index: 0,
            warps: Vec::new(),
            shared: Vec::new(),
            barriers: Vec::new(),
            units: Units::new(),
            starts: Starts::default(),
            expiries: 0,
            expired_at: 0,
            clock: 0,
            quiet: 0,
            next: 0,
            random: SplitMix::new(0, 0),
        }
    }

    /// Sets up cluster number `index` (x fastest), memory reused.
    pub(crate) fn start(&mut self, env: &Env<'_>, stats: &mut Stats, index: u64) {
        let [cx, cy, cz] = env.cluster;
        let clusters = [env.grid[0] / cx, env.grid[1] / cy, env.grid[2] / cz];
        let id = unflatten(index, clusters);
        let ctas = (cx * cy * cz) as usize;
        let threads = env.block[0] * env.block[1] * env.block[2];
        let warps = threads.div_ceil(LANES as u32) as usize;
        self.index = index;
        self.clock = 0;
        self.quiet = 0;
        self.next = 0;
        let seed = match env.schedule {
            Schedule::Random(seed) => seed,
            Schedule::Eager | Schedule::Lazy => 0,
        };
        self.random = SplitMix::new(seed, index);
        self.starts.reset(ctas, env.schedule, &mut self.random);
        self.barriers.clear();
        self.barriers.resize(ctas, Barriers::new(threads));
        if self.shared.len() == ctas {
            self.shared.iter_mut().for_each(Plain::poison);
        } else {
            self.shared = vec![Plain::poisoned(env.shared_bytes as usize); ctas];
        }
        self.expiries = 0;
        self.expired_at = 0;
        let cta_of = |rank: usize| {
            let within = unflatten(rank as u64, env.cluster);
            [0, 1, 2].map(|d| id[d] * env.cluster[d] + within[d])
        };
        self.units.start(env, index, (0..ctas).map(cta_of).collect());
        for rank in 0..ctas {
            let within = unflatten(rank as u64, env.cluster);
            let number = index * ctas as u64 + rank as u64;
            for warp in 0..warps {
                let mut place = Place {
                    cta: cta_of(rank),
                    cluster: id,
                    cta_in_cluster: within,
                    rank: rank as u32,
                    warp: warp as u32,
                    sm: (number % u64::from(env.gpu.sms)) as u32,
                    tid: [[0; LANES]; 3],
                };
                let mut mask = FULL;
                for lane in 0..LANES {
                    let thread = (warp * LANES + lane) as u32;
                    if thread >= threads {
                        mask &= !(1 << lane);
                    }
                    let tid = unflatten(u64::from(thread), env.block);
                    for (row, component) in place.tid.iter_mut().zip(tid) {
                        row[lane] = component;
                    }
                }
                match self.warps.get_mut(rank * warps + warp) {
                    Some(old) => old.restart(env, place, mask),
                    None => self.warps.push(Warp::new(env, place, mask)),
                }
            }
        }
        stats.clusters += 1;
        stats.ctas += ctas as u64;
        stats.threads += ctas as u64 * u64::from(threads);
    }

    /// Warp instructions run since the start.
    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    /// Runs for about `slice` warp instructions, less if every warp waits or
    /// spins.
    pub(crate) fn run(
        &mut self,
        env: &Env<'_>,
        stats: &mut Stats,
        slice: u64,
    ) -> Result<Progress, Box<Diagnostic>> {
        let progress = self.run_slice(env, stats, slice);
        if matches!(progress, Ok(Progress::Done) | Err(_)) {
            self.hand_over_findings(env);
        }
        progress
    }

    /// The grid's findings get those of the cluster so far.
    pub(crate) fn hand_over_findings(&mut self, env: &Env<'_>) {
        env.collected.add(env.place_of(self.index), self.units.findings.take());
    }

    fn run_slice(
        &mut self,
        env: &Env<'_>,
        stats: &mut Stats,
        slice: u64,
    ) -> Result<Progress, Box<Diagnostic>> {
        let end = self.clock.saturating_add(slice);
        let mut worked = false;
        while self.clock < end {
            if self.units.busy() {
                let clock = self.clock;
                self.with_units(env, stats, |units, context| units.tick(context, clock))?;
            }
            let traced = self.units.trace.is_some();
            if traced {
                self.trace_waits(env);
            }
            self.starts.tick(env.schedule, &mut self.random, self.clock);
            let Some((index, turn)) = self.choose(env.schedule) else {
                if self.starts.start_one(env.schedule, &mut self.random, self.clock) {
                    continue;
                }
                if self.warps.iter().all(Warp::done) {
                    self.with_units(env, stats, Units::drain)?;
                    return Ok(Progress::Done);
                }
                if self.unblock(env, stats)? {
                    worked = true;
                    continue;
                }
                if self.waits_for_grid() {
                    break;
                }
                return Err(self.deadlock(env));
            };
            let turn = turn.min(env.limit.saturating_sub(self.clock).max(1));
            let (from, pc) = (self.clock, if traced { self.trace_before(index) } else { 0 });
            let warp = &mut self.warps[index];
            let may_part = |units: &Units| units.races.as_ref().is_none_or(|r| r.may_part(index));
            if matches!(env.schedule, Schedule::Random(_))
                && env.module.parts
                && may_part(&self.units)
            {
                warp.part_ways(&mut self.random);
            }
            let mut around = Surroundings {
                shared: &mut self.shared,
                barriers: &mut self.barriers[warp.place.rank as usize],
                units: &mut self.units,
                env,
                stats,
                clock: self.clock,
            };
            let ran = match warp.run(&mut around, turn) {
                Ok(ran) => ran,
                Err(fault) => return Err(self.diagnose(env, index, fault)),
            };
            self.clock += ran.max(1);
            self.units.spins.ran(index, ran.max(1));
            if traced {
                self.trace_after(env, index, from, pc);
            }
            let warp = &self.warps[index];
            if self.clock > env.limit && !warp.done() {
                let pc = warp.fragments[0].pc;
                let kind = DiagnosticKind::InstructionLimit { limit: env.limit };
                return Err(self.diagnose(env, index, (pc, Fault::warp(kind))));
            }
            if self.units.spins.spinning(index).is_none() {
                worked = true;
            } else if self.all_spin()
                && !self.starts.start_one(env.schedule, &mut self.random, self.clock)
            {
                break;
            }
        }
        if worked {
            self.quiet = 0;
            return Ok(Progress::Worked);
        }
        self.quiet += 1;
        if self.quiet.is_multiple_of(QUIET) && self.units.busy() {
            // An operation in flight may be the one that the warps look for.
            self.with_units(env, stats, |units, context| units.force(context, &[]))?;
            return Ok(Progress::Worked);
        }
        Ok(Progress::Idle)
    }

    /// Whether something waits for the grid before.
    fn waits_for_grid(&self) -> bool {
        let mut fragments = self.warps.iter().flat_map(|warp| &warp.fragments);
        fragments.any(|fragment| fragment.wait == Wait::Unit(Awaited::Grid))
    }

    /// Whether every warp that has started waits or spins.
    fn all_spin(&self) -> bool {
        (0..self.warps.len())
            .all(|index| self.units.spins.spinning(index).is_some() || !self.ready(index))
    }

    /// Whether a warp can run.
    #[inline(always)]
    fn ready(&self, index: usize) -> bool {
        let warp = &self.warps[index];
        let rank = warp.place.rank;
        self.starts.started(rank) && warp.ready(&self.barriers[rank as usize], &self.units)
    }

    /// Lets the units do something.
    fn with_units<R>(
        &mut self,
        env: &Env<'_>,
        stats: &mut Stats,
        f: impl FnOnce(&mut Units, &mut StepContext<'_>) -> Exec<R>,
    ) -> Result<R, Box<Diagnostic>> {
        let mut context = StepContext { shared: &mut self.shared, env, stats, faults: Vec::new() };
        f(&mut self.units, &mut context).map_err(|fault| {
            let (pc, warp) = fault.site.map_or((0, 0), |site| (site.pc, site.warp));
            self.diagnose(env, warp, (pc, fault))
        })
    }

    /// No warp can run: completes an operation in flight that one waits for, or
    /// else lets waits with a time limit give up. False when neither is there.
    fn unblock(&mut self, env: &Env<'_>, stats: &mut Stats) -> Result<bool, Box<Diagnostic>> {
        let awaited: Vec<Awaited> = self
            .warps
            .iter()
            .flat_map(|warp| &warp.fragments)
            .filter_map(|fragment| match fragment.wait {
                Wait::Unit(awaited) => Some(awaited),
                _ => None,
            })
            .collect();
        if self.with_units(env, stats, |units, context| units.force(context, &awaited))? {
            return Ok(true);
        }
        if self.units.events() != self.expired_at {
            self.expired_at = self.units.events();
            self.expiries = 0;
        }
        self.expiries += 1;
        if self.expiries > EXPIRIES {
            return Ok(false);
        }
        let mut any = false;
        for fragment in self.warps.iter_mut().flat_map(|warp| &mut warp.fragments) {
            if let Wait::Unit(Awaited::Phase { limited: true, .. }) = fragment.wait {
                fragment.wait = Wait::Ready;
                fragment.expired = true;
                any = true;
            }
        }
        Ok(any)
    }

    /// Next warp and the length of its turn.
    fn choose(&mut self, schedule: Schedule) -> Option<(usize, u64)> {
        let count = self.warps.len();
        match schedule {
            Schedule::Eager => {
                let index = (0..count).map(|k| (self.next + k) % count).find(|&i| self.ready(i))?;
                self.next = (index + 1) % count;
                Some((index, FAIR_TURN))
            }
            Schedule::Lazy => {
                let last = count - 1;
                let index =
                    (0..count).map(|k| last - (self.next + k) % count).find(|&i| self.ready(i))?;
                self.next = (last - index + 1) % count;
                Some((index, TURN))
            }
            Schedule::Random(_) => {
                let from = self.random.below(count);
                let turn = 1 + self.random.below(RANDOM_TURN) as u64;
                let index = (0..count).map(|k| (from + k) % count).find(|&i| self.ready(i))?;
                Some((index, turn))
            }
        }
    }

    /// Returns the diagnostic when nothing can run.
    fn deadlock(&self, env: &Env<'_>) -> Box<Diagnostic> {
        // Lanes that wait for others of their warp, which wait for a unit, are
        // not what is wrong.
        let at_unit = |warp: &Warp| {
            warp.fragments.iter().any(|fragment| matches!(fragment.wait, Wait::Unit(_)))
        };
        if let Some((index, fault)) = self
            .warps
            .iter()
            .enumerate()
            .filter(|(_, warp)| !at_unit(warp))
            .find_map(|(index, warp)| Some((index, warp.stuck(env.code)?)))
        {
            return self.diagnose(env, index, fault);
        }
        self.deadlock_of(env, self.waiting(env))
    }

    /// Everything that waits or spins.
    pub(crate) fn waiting(&self, env: &Env<'_>) -> Vec<Waiter> {
        let mut waiting = Vec::new();
        for (index, warp) in self.warps.iter().enumerate() {
            let barriers = &self.barriers[warp.place.rank as usize];
            for fragment in &warp.fragments {
                let mut pc = waits_at(fragment);
                let reason = match fragment.wait {
                    Wait::Barrier { id, .. } => barriers.describe(id),
                    Wait::Unit(awaited) => self.units.describe(&awaited),
                    Wait::Ready => match self.units.spins.spinning(index) {
                        Some(look) => {
                            pc = look.pc;
                            format!(
                                "a change at address {:#x}, where it finds {:#x} again and again",
                                look.address, look.value
                            )
                        }
                        None => "its turn".to_owned(),
                    },
                    _ => "lanes of its warp".to_owned(),
                };
                waiting.push(Waiter {
                    cta: warp.place.cta,
                    warp: warp.place.warp,
                    lanes: fragment.mask,
                    line: env.code[pc].line,
                    reason,
                });
            }
        }
        waiting
    }

    /// The deadlock of what waits, placed at this cluster's first live warp.
    pub(crate) fn deadlock_of(&self, env: &Env<'_>, waiting: Vec<Waiter>) -> Box<Diagnostic> {
        let first = self.warps.iter().position(|warp| !warp.done()).unwrap_or(0);
        let spinning = self.units.spins.spinning(first).map(|look| look.pc);
        let pc = self.warps[first].fragments.first().map_or(0, |fragment| match fragment.wait {
            Wait::Ready => spinning.unwrap_or(fragment.pc),
            _ => waits_at(fragment),
        });
        let unstarted = if env.turns { env.clusters_left() } else { 0 };
        let waiting = together(waiting);
        let kind = DiagnosticKind::Deadlock { waiting, unstarted };
        self.diagnose(env, first, (pc, Fault::warp(kind)))
    }

    /// Adds the place to a fault of a warp, or of the operation it names.
    fn diagnose(&self, env: &Env<'_>, warp: usize, (pc, fault): AtFault) -> Box<Diagnostic> {
        let (pc, warp) = fault.site.map_or((pc, warp), |site| (site.pc, site.warp));
        diagnose(env, &self.warps[warp].place, (pc, fault))
    }
}

/// Lanes of a warp that wait at one place for the same thing, as one.
fn together(waiting: Vec<Waiter>) -> Vec<Waiter> {
    let mut merged: Vec<Waiter> = Vec::with_capacity(waiting.len());
    for waiter in waiting {
        match merged
            .iter_mut()
            .find(|other| Waiter { lanes: waiter.lanes, ..(*other).clone() } == waiter)
        {
            Some(other) => other.lanes |= waiter.lanes,
            None => merged.push(waiter),
        }
    }
    merged
}

/// The instruction that a fragment waits at: CTA barriers are waited for behind
/// theirs.
fn waits_at(fragment: &Fragment) -> usize {
    match fragment.wait {
        Wait::Barrier { .. } => fragment.pc - 1,
        _ => fragment.pc,
    }
}

fn diagnose(env: &Env<'_>, place: &Place, (pc, fault): AtFault) -> Box<Diagnostic> {
    let line = env.code[pc].line;
    Box::new(Diagnostic {
        kind: fault.kind,
        kernel: env.functions[env.entry].name.clone(),
        line,
        instruction: env.source_line(line).to_owned(),
        source: env.module.source_of(line),
        cta: place.cta,
        warp: place.warp,
        lane: fault.lane,
        access: fault.access,
        schedule: env.schedule,
        level: Level::Deny,
        others: Vec::new(),
    })
}

fn unflatten(index: u64, extent: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(extent[0]), u64::from(extent[1]));
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}
