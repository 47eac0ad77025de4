//! Launching a kernel: checking the request, placing variables, running the
//! clusters on host threads.

use super::Stats;
use super::cluster::{Cluster, Progress};
use super::code::{FunctionCode, Instr};
use super::regs::Pool;
use super::{RANK_SHIFT, SHARED_BASE};
use crate::diagnostic::Diagnostic;
use crate::memory::{GlobalMemory, MemoryError, Plain};
use crate::module::Module;
use crate::{Counters, Gpu, Schedule};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A kernel launch.
#[derive(Debug, Clone)]
pub struct Launch<'a> {
    /// Kernel.
    pub entry: &'a str,
    /// CTAs in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a CTA in x, y, z.
    pub block: [u32; 3],
    /// CTAs of a cluster in x, y, z; `None`: as the kernel requires, else 1.
    pub cluster: Option<[u32; 3]>,
    /// Dynamic shared memory of a CTA, bytes.
    pub dynamic_shared: u32,
    /// The whole parameter block, as the kernel's `.param` layout has it.
    pub params: &'a [u8],
    /// Interleaving.
    pub schedule: Schedule,
    /// Host threads; `None`: as many as the host has cores. The result does not
    /// depend on it.
    pub threads: Option<usize>,
    /// Warp instructions that one cluster may run; `None`: any number.
    pub instruction_limit: Option<u64>,
}

/// Why a launch gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The request does not fit the kernel or the machine.
    #[error("launch of `{kernel}`: {field}: required {required}, actual {actual}")]
    BadLaunch {
        /// Kernel asked for.
        kernel: String,
        /// Which part of the request.
        field: &'static str,
        /// What it must be.
        required: String,
        /// What it is.
        actual: String,
    },
    /// The module's variables could not be placed.
    #[error("launch of `{kernel}`: {source}")]
    Memory {
        /// Kernel asked for.
        kernel: String,
        /// Why.
        source: MemoryError,
    },
    /// The kernel did something wrong.
    #[error(transparent)]
    Diagnostic(Box<Diagnostic>),
}

/// What a finished launch leaves besides memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchReport {
    /// What was done.
    pub counters: Counters,
}

/// What all warps of a launch see.
pub(crate) struct Env<'a> {
    pub(crate) module: &'a Module,
    pub(crate) code: &'a [Instr],
    pub(crate) functions: &'a [FunctionCode],
    pub(crate) entry: usize,
    pub(crate) gpu: &'a Gpu,
    pub(crate) global: &'a GlobalMemory,
    /// Only one host thread runs.
    pub(crate) exclusive: bool,
    pub(crate) params: Plain,
    pub(crate) consts: Plain,
    /// Constant pool by CTA rank: shared addresses carry the rank.
    pub(crate) pools: Vec<Arc<Pool>>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) cluster: [u32; 3],
    pub(crate) explicit_cluster: bool,
    /// Size of a CTA's shared window, the reserved start included.
    pub(crate) shared_bytes: u32,
    pub(crate) dynamic_shared: u32,
    pub(crate) schedule: Schedule,
    pub(crate) limit: u64,
}

impl Env<'_> {
    /// A line of the PTX text, trimmed.
    pub(crate) fn source_line(&self, line: u32) -> &str {
        self.module.source_line(line)
    }
}

/// Warp instructions of a cluster's slice when clusters take turns.
const SLICE: u64 = 1 << 22;

fn product(extent: [u32; 3]) -> u64 {
    extent.iter().map(|&d| u64::from(d)).product()
}

struct Checked {
    entry: usize,
    cluster: [u32; 3],
    explicit_cluster: bool,
}

impl Module {
    /// Runs a kernel to its end on `memory`.
    ///
    /// Deterministic: memory and counters depend only on the module, the
    /// launch and the memory's contents. Clusters run on several host threads
    /// only if the kernel has no atomics, volatile or ordered accesses to
    /// global memory, whose order would show.
    ///
    /// # Errors
    /// A request that does not fit, or what the kernel did wrong; memory is
    /// then in an unspecified state.
    pub fn launch(
        &self,
        memory: &mut GlobalMemory,
        launch: &Launch<'_>,
    ) -> Result<LaunchReport, LaunchError> {
        let checked = self.check(launch)?;
        let failed = |source| LaunchError::Memory { kernel: launch.entry.to_owned(), source };
        let globals = self.place_globals(memory).map_err(failed)?;
        let shared = self.shared_layout(checked.entry);
        let shared_bytes =
            SHARED_BASE.saturating_add(shared.end).saturating_add(launch.dynamic_shared);
        if shared_bytes - SHARED_BASE > self.gpu.shared_per_cta {
            return Err(bad(
                launch,
                "shared memory",
                format!("at most {} bytes", self.gpu.shared_per_cta),
                format!("{} static + {} dynamic", shared.end, launch.dynamic_shared),
            ));
        }
        memory.reset_touched();
        let ctas = product(checked.cluster) as u32;
        let env = Env {
            module: self,
            code: &self.code,
            functions: &self.functions,
            entry: checked.entry,
            gpu: &self.gpu,
            global: memory,
            exclusive: true,
            params: Plain::from_bytes(launch.params),
            consts: Plain::from_bytes(&self.const_image(&globals)),
            pools: (0..ctas)
                .map(|rank| {
                    Arc::new(self.pool(&globals, &shared, rank << RANK_SHIFT | SHARED_BASE))
                })
                .collect(),
            grid: launch.grid,
            block: launch.block,
            cluster: checked.cluster,
            explicit_cluster: checked.explicit_cluster,
            shared_bytes,
            dynamic_shared: launch.dynamic_shared,
            schedule: launch.schedule,
            limit: launch.instruction_limit.unwrap_or(u64::MAX),
        };
        let clusters = product(launch.grid) / u64::from(ctas);
        let stats = if self.reaches_global_sync(checked.entry) {
            take_turns(&env, clusters)
        } else {
            in_parallel(env, clusters, launch.threads)
        }
        .map_err(LaunchError::Diagnostic)?;
        Ok(LaunchReport { counters: stats.fold(&self.code, memory.touched_bytes()) })
    }

    fn check(&self, launch: &Launch<'_>) -> Result<Checked, LaunchError> {
        let Some(info) = self.entries().find(|info| info.name == launch.entry) else {
            let names: Vec<&str> = self.entries().map(|info| info.name.as_str()).collect();
            return Err(bad(
                launch,
                "entry",
                format!("one of: {}", names.join(", ")),
                launch.entry.to_owned(),
            ));
        };
        let gpu = &self.gpu;
        extents(launch, "grid", launch.grid, gpu.max_grid)?;
        extents(launch, "block", launch.block, gpu.max_block)?;
        let threads = product(launch.block);
        if threads > u64::from(gpu.max_threads_per_cta) {
            return Err(bad(
                launch,
                "block",
                format!("at most {} threads", gpu.max_threads_per_cta),
                format!("{threads} threads"),
            ));
        }
        if let Some(required) = info.reqntid
            && required != launch.block
        {
            return Err(bad(
                launch,
                "block",
                format!("{required:?} (.reqntid)"),
                format!("{:?}", launch.block),
            ));
        }
        if let Some(most) = info.maxntid
            && threads > product(most)
        {
            return Err(bad(
                launch,
                "block",
                format!("at most {} threads (.maxntid)", product(most)),
                format!("{threads} threads"),
            ));
        }
        if launch.params.len() as u64 != u64::from(info.param_bytes) {
            return Err(bad(
                launch,
                "params",
                format!("{} bytes", info.param_bytes),
                format!("{} bytes", launch.params.len()),
            ));
        }
        let cluster = match (info.cluster, launch.cluster) {
            (Some(required), Some(asked)) if required != asked => {
                return Err(bad(
                    launch,
                    "cluster",
                    format!("{required:?} (.reqnctapercluster)"),
                    format!("{asked:?}"),
                ));
            }
            (required, asked) => required.or(asked).unwrap_or([1; 3]),
        };
        extents(launch, "cluster", cluster, [gpu.max_cluster; 3])?;
        if product(cluster) > u64::from(gpu.max_cluster) {
            return Err(bad(
                launch,
                "cluster",
                format!("at most {} CTAs", gpu.max_cluster),
                format!("{cluster:?}"),
            ));
        }
        if (0..3).any(|d| !launch.grid[d].is_multiple_of(cluster[d])) {
            return Err(bad(
                launch,
                "grid",
                format!("a multiple of the cluster {cluster:?}"),
                format!("{:?}", launch.grid),
            ));
        }
        Ok(Checked {
            entry: info.function,
            cluster,
            explicit_cluster: info.cluster.is_some() || launch.cluster.is_some(),
        })
    }
}

fn bad(launch: &Launch<'_>, field: &'static str, required: String, actual: String) -> LaunchError {
    LaunchError::BadLaunch { kernel: launch.entry.to_owned(), field, required, actual }
}

fn extents(
    launch: &Launch<'_>,
    field: &'static str,
    actual: [u32; 3],
    most: [u32; 3],
) -> Result<(), LaunchError> {
    if (0..3).any(|d| actual[d] == 0 || actual[d] > most[d]) {
        return Err(bad(launch, field, format!("1 to {most:?} in x, y, z"), format!("{actual:?}")));
    }
    Ok(())
}

/// Cluster that comes at place `position`.
fn order(schedule: Schedule, position: u64, clusters: u64) -> u64 {
    match schedule {
        Schedule::Eager => position,
        Schedule::Lazy => clusters - 1 - position,
        // A rotation by a seeded amount: every cluster may be the first.
        Schedule::Random(seed) => {
            let shift = crate::schedule::SplitMix::new(seed, u64::MAX).next() % clusters;
            (position + shift) % clusters
        }
    }
}

/// One host thread, clusters take turns: a cluster that has used its slice
/// without ending may be waiting for one that has not begun.
fn take_turns(env: &Env<'_>, clusters: u64) -> Result<Stats, Box<Diagnostic>> {
    let mut stats = Stats::new(env.code.len());
    let mut live: VecDeque<Cluster> = VecDeque::new();
    let mut spare: Option<Cluster> = None;
    let per_cluster = product(env.cluster);
    let threads = product(env.block) as u32;
    let per_sm = (env.gpu.max_threads_per_sm / threads)
        .min(env.gpu.max_ctas_per_sm)
        .min(env.gpu.shared_per_sm / env.shared_bytes)
        .max(1);
    let resident = (u64::from(env.gpu.sms * per_sm) / per_cluster).max(1);
    let mut started = 0;
    loop {
        let mut cluster = if started < clusters && (live.len() as u64) < resident {
            let mut cluster = spare.take().unwrap_or_else(Cluster::new);
            cluster.start(env, &mut stats, order(env.schedule, started, clusters));
            started += 1;
            cluster
        } else if let Some(cluster) = live.pop_front() {
            cluster
        } else {
            return Ok(stats);
        };
        match cluster.run(env, &mut stats, SLICE)? {
            Progress::Done => spare = Some(cluster),
            Progress::More => live.push_back(cluster),
        }
    }
}

/// Host threads take clusters one after the other.
fn in_parallel(
    mut env: Env<'_>,
    clusters: u64,
    threads: Option<usize>,
) -> Result<Stats, Box<Diagnostic>> {
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.unwrap_or_else(available).clamp(1, clusters.min(256) as usize);
    env.exclusive = threads == 1;
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    // The fault of the earliest cluster counts; those before it all run to
    // their end, so it does not depend on the threads.
    let fault: Mutex<Option<(u64, Box<Diagnostic>)>> = Mutex::new(None);
    let total = Mutex::new(Stats::new(env.code.len()));
    let env = &env;
    let work = || {
        let mut stats = Stats::new(env.code.len());
        let mut cluster = Cluster::new();
        while !stop.load(Relaxed) {
            let position = next.fetch_add(1, Relaxed);
            if position >= clusters {
                break;
            }
            cluster.start(env, &mut stats, order(env.schedule, position, clusters));
            if let Err(diagnostic) = cluster.run(env, &mut stats, u64::MAX) {
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
    if let Ok(Some((_, diagnostic))) = fault.into_inner() {
        return Err(diagnostic);
    }
    Ok(total.into_inner().unwrap_or_default())
}
