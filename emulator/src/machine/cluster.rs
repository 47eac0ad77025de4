//! A cluster: CTAs that live together, their warps interleaved by the schedule.

use super::context::Place;
use super::launch::Env;
use super::regs::{FULL, LANES};
use super::warp::{AtFault, Surroundings, Wait, Warp};
use super::{Barriers, Stats};
use crate::Schedule;
use crate::diagnostic::{Diagnostic, DiagnosticKind, Fault, Waiter};
use crate::memory::Plain;
use crate::schedule::SplitMix;

/// Instructions a warp runs at most before another ready one does, in the
/// orderly schedules. Long, because a change costs cache misses; finite,
/// because a warp may spin on what another one does.
const TURN: u64 = 1 << 14;
/// Longest turn of the random schedule.
const RANDOM_TURN: usize = 64;

/// How a slice of a cluster's execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All threads exited.
    Done,
    /// The slice is used up.
    More,
}

/// A running cluster.
pub(crate) struct Cluster {
    index: u64,
    warps: Vec<Warp>,
    shared: Vec<Plain>,
    barriers: Vec<Barriers>,
    clock: u64,
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
            clock: 0,
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
        self.next = 0;
        let seed = match env.schedule {
            Schedule::Random(seed) => seed,
            Schedule::Eager | Schedule::Lazy => 0,
        };
        self.random = SplitMix::new(seed, index);
        self.barriers.clear();
        self.barriers.resize(ctas, Barriers::new(threads));
        if self.shared.len() == ctas {
            self.shared.iter_mut().for_each(Plain::poison);
        } else {
            self.shared = vec![Plain::poisoned(env.shared_bytes as usize); ctas];
        }
        for rank in 0..ctas {
            let within = unflatten(rank as u64, env.cluster);
            let cta = [0, 1, 2].map(|d| id[d] * env.cluster[d] + within[d]);
            let linear = index * ctas as u64 + rank as u64;
            for warp in 0..warps {
                let mut place = Place {
                    cta,
                    cluster: id,
                    cta_in_cluster: within,
                    rank: rank as u32,
                    warp: warp as u32,
                    sm: (linear % u64::from(env.gpu.sms)) as u32,
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

    /// Runs for about `slice` warp instructions.
    pub(crate) fn run(
        &mut self,
        env: &Env<'_>,
        stats: &mut Stats,
        slice: u64,
    ) -> Result<Progress, Box<Diagnostic>> {
        let end = self.clock.saturating_add(slice);
        while self.clock < end {
            let Some((index, turn)) = self.choose(env.schedule) else {
                if self.warps.iter().all(Warp::done) {
                    return Ok(Progress::Done);
                }
                return Err(self.deadlock(env));
            };
            let turn = turn.min(env.limit.saturating_sub(self.clock).max(1));
            let warp = &mut self.warps[index];
            let mut around = Surroundings {
                shared: &mut self.shared,
                barriers: &mut self.barriers[warp.place.rank as usize],
                env,
                stats,
                clock: self.clock,
            };
            let ran =
                warp.run(&mut around, turn).map_err(|fault| diagnose(env, &warp.place, fault))?;
            self.clock += ran.max(1);
            if self.clock > env.limit && !warp.done() {
                let pc = warp.fragments[0].pc;
                let kind = DiagnosticKind::InstructionLimit { limit: env.limit };
                return Err(diagnose(env, &warp.place, (pc, Fault::warp(kind))));
            }
        }
        Ok(Progress::More)
    }

    /// Next warp and the length of its turn.
    fn choose(&mut self, schedule: Schedule) -> Option<(usize, u64)> {
        let count = self.warps.len();
        let ready = |index: usize| {
            let warp: &Warp = &self.warps[index];
            warp.ready(&self.barriers[warp.place.rank as usize])
        };
        match schedule {
            Schedule::Eager => {
                let index = (0..count).map(|k| (self.next + k) % count).find(|&i| ready(i))?;
                self.next = (index + 1) % count;
                Some((index, TURN))
            }
            Schedule::Lazy => {
                let last = count - 1;
                let index =
                    (0..count).map(|k| last - (self.next + k) % count).find(|&i| ready(i))?;
                self.next = (last - index + 1) % count;
                Some((index, TURN))
            }
            Schedule::Random(_) => {
                let from = self.random.below(count);
                let turn = 1 + self.random.below(RANDOM_TURN) as u64;
                let index = (0..count).map(|k| (from + k) % count).find(|&i| ready(i))?;
                Some((index, turn))
            }
        }
    }

    /// Why nothing can run.
    fn deadlock(&self, env: &Env<'_>) -> Box<Diagnostic> {
        if let Some((warp, fault)) =
            self.warps.iter().find_map(|warp| Some((warp, warp.stuck(env.code)?)))
        {
            return diagnose(env, &warp.place, fault);
        }
        let waiting: Vec<Waiter> = self
            .warps
            .iter()
            .flat_map(|warp| {
                let barriers = &self.barriers[warp.place.rank as usize];
                warp.fragments.iter().map(|fragment| Waiter {
                    cta: warp.place.cta,
                    warp: warp.place.warp,
                    lanes: fragment.mask,
                    // A fragment waits behind the barrier instruction.
                    line: env.code[fragment.pc - 1].line,
                    reason: match fragment.wait {
                        Wait::Barrier { id, .. } => barriers.describe(id),
                        _ => "lanes of its warp".to_owned(),
                    },
                })
            })
            .collect();
        let first = self.warps.iter().find(|warp| !warp.done());
        let (place, pc) =
            first.map_or((&self.warps[0].place, 0), |warp| (&warp.place, warp.fragments[0].pc - 1));
        diagnose(env, place, (pc, Fault::warp(DiagnosticKind::Deadlock { waiting })))
    }
}

/// Adds the place to a fault.
fn diagnose(env: &Env<'_>, place: &Place, (pc, fault): AtFault) -> Box<Diagnostic> {
    let line = env.code[pc].line;
    Box::new(Diagnostic {
        kind: fault.kind,
        kernel: env.functions[env.entry].name.clone(),
        line,
        instruction: env.source_line(line).to_owned(),
        cta: place.cta,
        warp: place.warp,
        lane: fault.lane,
        access: fault.access,
        schedule: env.schedule,
    })
}

fn unflatten(index: u64, extent: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(extent[0]), u64::from(extent[1]));
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}
