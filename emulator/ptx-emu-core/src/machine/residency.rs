//! The live clusters of a grid, and the one that runs.
//!
//! A kernel whose CTAs cannot look at each other while they run (no atomics, no
//! volatile or ordered accesses to global memory) is run cluster by cluster, on
//! several host threads. For all others, as many clusters as the machine holds
//! are live together and take turns on one host thread, so that persistent,
//! stream-K and flag-spinning kernels make progress. A turn ends when its slice
//! is used up or when every warp of the cluster waits or spins (`units::spin`).
//!
//! `eager` starts clusters in the order of the grid, `lazy` in the opposite
//! order, both with long slices; where clusters can take over others, those that
//! fit begin first, and slices are short; `random` starts at a seeded cluster, and which
//! one runs next and for how long is seeded too. Only live clusters hold state.
//!
//! Grids that overlap (`dependency`) share the machine.
//!
//! Limits: threads that spin with weak loads, which PTX does not promise to end, hang if clusters
//! run one by one.

use super::Stats;
use super::cluster::{Cluster, Progress};
use super::launch::{Env, product};
use crate::Schedule;
use crate::checks::Level;
use crate::diagnostic::Diagnostic;
use crate::schedule::SplitMix;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Warp instructions of a cluster's slice in the orderly schedules.
const SLICE: u64 = 1 << 18;
/// The same while clusters can take over others: then they have to advance about equally, as they
/// do on hardware.
const FAIR_SLICE: u64 = 1 << 10;
/// The longest slice of the random schedule has this many bits.
const RANDOM_BITS: usize = 13;
/// Warp instructions spent on spinning alone, by all clusters together, after
/// which they count as deadlocked: about a second.
const PATIENCE: u64 = 1 << 22;

/// Cluster that comes at place `position`.
pub(super) fn order(schedule: Schedule, position: u64, clusters: u64) -> u64 {
    match schedule {
        Schedule::Eager => position,
        Schedule::Lazy => clusters - 1 - position,
        // A rotation by a seeded amount: every cluster may be the first.
        Schedule::Random(seed) => {
            let shift = SplitMix::new(seed, u64::MAX).next() % clusters;
            (position + shift) % clusters
        }
    }
}

/// Place at which a cluster comes: the inverse of [`order`].
pub(super) fn place(schedule: Schedule, cluster: u64, clusters: u64) -> u64 {
    match schedule {
        Schedule::Eager | Schedule::Lazy => order(schedule, cluster, clusters),
        Schedule::Random(_) => (cluster + clusters - order(schedule, 0, clusters)) % clusters,
    }
}

/// Share of the machine that a cluster takes, in 2^-32 of all of it.
fn share(env: &Env<'_>) -> u64 {
    let gpu = env.gpu;
    let threads = product(env.block) as u32;
    // The register file of an SM has 64 Ki registers, given out a warp at a time.
    let by_registers = env
        .registers
        .map_or(u32::MAX, |each| (1 << 16) / (each.max(1) * threads.next_multiple_of(32)).max(1));
    let per_sm = (gpu.max_threads_per_sm / threads)
        .min(gpu.max_ctas_per_sm)
        .min(gpu.shared_per_sm / env.shared_bytes)
        .min(by_registers)
        .max(1);
    let size = u32::try_from(product(env.cluster)).unwrap_or(u32::MAX);
    let clusters = u64::from(gpu.resident_clusters(size, per_sm)).max(1);
    (1 << 32) / clusters
}

/// The results of grids that ran.
pub(super) struct Ended {
    /// The counts of each.
    pub(super) stats: Vec<Stats>,
    /// The diagnostic that ended them early, with other findings.
    pub(super) fault: Option<Box<Diagnostic>>,
}

/// Returns the diagnostic of a run that ends in the cluster that began at `place`: the first
/// finding up to there that is denied, with the others.
fn with_others(diagnostic: Box<Diagnostic>, env: &Env<'_>, place: u64) -> Box<Diagnostic> {
    let (mut all, _) = env.collected.finish(place, env.checks.most);
    all.push(*diagnostic);
    let first = all.iter().position(|found| found.level == Level::Deny).unwrap_or(0);
    let mut first = Box::new(all.remove(first));
    first.others = all;
    first
}

/// A live cluster and which grid it is of.
type Live = (usize, Box<Cluster>);

/// The live clusters of grids that may overlap.
struct Residents<'a> {
    envs: &'a [Env<'a>],
    schedule: Schedule,
    live: VecDeque<Live>,
    /// Ended ones of each grid, their memory to be used again.
    #[expect(clippy::vec_box, reason = "they come from the queue of live ones and go back")]
    spare: Vec<Vec<Box<Cluster>>>,
    /// The share of the machine that a cluster of each grid takes, and the rest.
    shares: Vec<u64>,
    room: u64,
    /// Grids that do not fit, whose clusters take over others.
    taken_over: Vec<bool>,
    random: SplitMix,
    /// Instructions spent on spinning since something happened.
    idle: u64,
    stats: Vec<Stats>,
}

/// One host thread, live clusters take turns. Each grid may begin when the one
/// before it lets it, and ends in its own time.
pub(super) fn take_turns(envs: &[Env<'_>]) -> Ended {
    let schedule = envs[0].schedule;
    let seed = match schedule {
        Schedule::Random(seed) => seed,
        Schedule::Eager | Schedule::Lazy => 0,
    };
    let mut residents = Residents {
        envs,
        schedule,
        live: VecDeque::new(),
        spare: envs.iter().map(|_| Vec::new()).collect(),
        shares: envs.iter().map(share).collect(),
        taken_over: envs
            .iter()
            .map(|env| env.takes_over && env.clusters > (1 << 32) / share(env))
            .collect(),
        room: 1 << 32,
        // Another stream than those of the clusters.
        random: SplitMix::new(seed, u64::MAX - 1),
        idle: 0,
        stats: envs.iter().map(|env| Stats::new(env.code.len())).collect(),
    };
    while let Some((cluster, slice)) = residents.choose() {
        let grid = cluster.0;
        if let Err(diagnostic) = residents.run(cluster, slice) {
            for (grid, cluster) in &mut residents.live {
                cluster.hand_over_findings(&envs[*grid]);
            }
            let fault = Some(with_others(diagnostic, &envs[grid], u64::MAX));
            return Ended { stats: residents.stats, fault };
        }
    }
    Ended { stats: residents.stats, fault: None }
}

impl Residents<'_> {
    /// The grid whose next cluster can begin, if any: the earliest.
    fn next_grid(&self) -> Option<usize> {
        let grid = (0..self.envs.len()).find(|&grid| self.envs[grid].clusters_left() > 0)?;
        let may = self.envs[grid].before.as_ref().is_none_or(|before| before.released());
        // Dependents are in no hurry.
        let patient = self.schedule == Schedule::Lazy && grid > 0;
        let waits = patient && self.live.iter().any(|(of, _)| *of < grid);
        (may && !waits && self.shares[grid] <= self.room).then_some(grid)
    }

    /// Next cluster, taken from the live ones or begun, and its slice.
    fn choose(&mut self) -> Option<(Live, u64)> {
        let next = self.next_grid();
        match self.schedule {
            Schedule::Eager | Schedule::Lazy => {
                let mut next = next;
                while let Some(grid) = next.filter(|&grid| self.taken_over[grid]) {
                    let begun = self.begin(grid)?;
                    self.live.push_back(begun);
                    next = self.next_grid();
                }
                let begun = next.and_then(|grid| self.begin(grid));
                let live = begun.or_else(|| self.live.pop_front())?;
                let grid = live.0;
                let fair = self.taken_over[grid] && self.envs[grid].clusters_left() > 0;
                Some((live, if fair { FAIR_SLICE } else { SLICE }))
            }
            Schedule::Random(_) => {
                let slice = 1 << self.random.below(RANDOM_BITS);
                let choices = self.live.len() + usize::from(next.is_some());
                let chosen = if choices == 0 { return None } else { self.random.below(choices) };
                let cluster = match self.live.swap_remove_back(chosen) {
                    Some(live) => live,
                    None => self.begin(next?)?,
                };
                Some((cluster, 1 + self.random.below(slice) as u64))
            }
        }
    }

    fn begin(&mut self, grid: usize) -> Option<Live> {
        let env = &self.envs[grid];
        let index = env.take_cluster()?;
        let mut cluster = self.spare[grid].pop().unwrap_or_else(|| Box::new(Cluster::new()));
        cluster.start(env, &mut self.stats[grid], index);
        self.room -= self.shares[grid];
        self.idle = 0;
        Some((grid, cluster))
    }

    fn run(&mut self, (grid, mut cluster): Live, slice: u64) -> Result<(), Box<Diagnostic>> {
        let env = &self.envs[grid];
        let before = cluster.clock();
        match cluster.run(env, &mut self.stats[grid], slice)? {
            Progress::Done => {
                self.idle = 0;
                self.room += self.shares[grid];
                env.advance.end();
                self.spare[grid].push(cluster);
            }
            Progress::Worked => {
                self.idle = 0;
                self.live.push_back((grid, cluster));
            }
            Progress::Idle => {
                self.idle += (cluster.clock() - before).max(1);
                self.live.push_back((grid, cluster));
                if self.idle > PATIENCE {
                    return Err(self.deadlock());
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn deadlock(&self) -> Box<Diagnostic> {
        let waiting = |(grid, cluster): &Live| cluster.waiting(&self.envs[*grid]);
        let all = self.live.iter().flat_map(waiting).collect();
        // Something lives: it has just run.
        let (grid, cluster) = &self.live[0];
        cluster.deadlock_of(&self.envs[*grid], all)
    }
}

/// A cluster on its own, to its end.
fn run_alone(
    cluster: &mut Cluster,
    env: &Env<'_>,
    stats: &mut Stats,
) -> Result<(), Box<Diagnostic>> {
    let mut worked = 0;
    loop {
        match cluster.run(env, stats, u64::MAX)? {
            Progress::Done => return Ok(()),
            Progress::Worked => worked = cluster.clock(),
            Progress::Idle if cluster.clock() - worked > PATIENCE => {
                return Err(cluster.deadlock_of(env, cluster.waiting(env)));
            }
            Progress::Idle => {}
        }
    }
}

/// Host threads take clusters one after the other.
pub(super) fn in_parallel(env: &mut Env<'_>, threads: Option<usize>) -> Ended {
    let clusters = env.clusters;
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.unwrap_or_else(available).clamp(1, clusters.min(256) as usize);
    env.exclusive = threads == 1;
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    // The fault of the earliest cluster counts; those before it all run to
    // their end, so it does not depend on the threads.
    let fault: Mutex<Option<(u64, Box<Diagnostic>)>> = Mutex::new(None);
    let total = Mutex::new(Stats::new(env.code.len()));
    let env = &*env;
    let work = || {
        let mut stats = Stats::new(env.code.len());
        let mut cluster = Cluster::new();
        while !stop.load(Relaxed) {
            let position = next.fetch_add(1, Relaxed);
            if position >= clusters {
                break;
            }
            cluster.start(env, &mut stats, order(env.schedule, position, clusters));
            if let Err(diagnostic) = run_alone(&mut cluster, env, &mut stats) {
                stop.store(true, Relaxed);
                if let Ok(mut first) = fault.lock()
                    && first.as_ref().is_none_or(|(at, _)| position < *at)
                {
                    *first = Some((position, diagnostic));
                }
            }
        }
        if let Ok(mut total) = total.lock() {
            total.merge(&stats);
        }
    };
    if threads == 1 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
    }
    let fault = fault.into_inner().unwrap_or_default();
    let fault = fault.map(|(position, diagnostic)| with_others(diagnostic, env, position));
    Ended { stats: vec![total.into_inner().unwrap_or_default()], fault }
}
