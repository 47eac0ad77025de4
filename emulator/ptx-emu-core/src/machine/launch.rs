//! Launches a kernel: checks the request and places variables. `residency` determines when
//! each cluster runs.

use super::code::{FunctionCode, Instr};
use super::counting::Executed;
use super::dependency::{Advance, Step, overlapped};
use super::findings::Collected;
use super::module::{Module, SharedLayout};
use super::recorder::Tracer;
use super::regs::Pool;
use super::residency::{order, place};
use super::{RANK_SHIFT, SHARED_BASE};
use crate::checks::{Checks, Model};
use crate::diagnostic::Diagnostic;
use crate::memory::{GlobalMemory, MemoryError, Plain};
use crate::trace::Trace;
use crate::{Counters, Gpu, Schedule};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    /// Checks and their consequences.
    pub checks: Checks,
}

/// The reasons why a launch has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The request does not fit the kernel or the machine.
    #[error("launch of `{kernel}`: {field}: required {required}, actual {actual}")]
    BadLaunch {
        /// Kernel asked for.
        kernel: String,
        /// The part of the request.
        field: &'static str,
        /// The required value.
        required: String,
        /// The actual value.
        actual: String,
    },
    /// The module's variables could not be placed.
    #[error("launch of `{kernel}`: {source}")]
    Memory {
        /// Kernel asked for.
        kernel: String,
        /// The reason.
        source: MemoryError,
    },
    /// The reached instructions cannot be noted in the folder that
    /// [`journal::FOLDER`](crate::journal::FOLDER) names.
    #[error("launch of `{kernel}`: {why}")]
    Coverage {
        /// Kernel asked for.
        kernel: String,
        /// The reason.
        why: String,
    },
    /// The kernel did something wrong.
    #[error(transparent)]
    Diagnostic(Box<Diagnostic>),
}

/// The result of a finished launch besides memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchReport {
    /// The counted operations.
    pub counters: Counters,
    /// Findings that did not end the run, the denied ones first: at most [`Checks::most`], one of
    /// each kind and pair of lines.
    pub findings: Vec<Diagnostic>,
    /// Findings beyond that.
    pub findings_left_out: usize,
    /// The text that the kernel printed with `vprintf`, in the order of the clusters.
    pub printed: String,
    /// Executions of each decoded instruction; [`Module::written`] says where those of a function
    /// are.
    pub executed: Vec<Executed>,
}

/// The environment that all warps of a launch share.
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
    pub(crate) checks: Checks,
    /// Findings of the clusters that have ended.
    pub(crate) collected: Collected,
    /// Registers of a thread at launch, if the kernel fixes them.
    pub(crate) registers: Option<u32>,
    /// Clusters take turns, instead of running one by one.
    pub(crate) turns: bool,
    /// Clusters may take over others that have not begun.
    pub(crate) takes_over: bool,
    /// Clusters of the grid.
    pub(crate) clusters: u64,
    /// Clusters that were started or taken over by others.
    pub(crate) taken: AtomicU64,
    /// The progress of the grid, for one that depends on it.
    pub(crate) advance: Arc<Advance>,
    /// The grid that this one depends on, if that may still run.
    pub(crate) before: Option<Arc<Advance>>,
    /// The recorder of a timeline, if one is recorded.
    pub(crate) trace: Option<Tracer>,
}

impl Env<'_> {
    /// Only what PTX ISA promises orders anything.
    #[inline]
    pub(crate) fn is_strict(&self) -> bool {
        self.checks.model == Model::Ptx
    }

    /// Place of a cluster in the order of their beginning.
    pub(crate) fn place_of(&self, cluster: u64) -> u64 {
        place(self.schedule, cluster, self.clusters)
    }

    /// Takes the next cluster of the grid that has not begun.
    pub(crate) fn take_cluster(&self) -> Option<u64> {
        let position = self.taken.fetch_add(1, Relaxed);
        (position < self.clusters).then(|| order(self.schedule, position, self.clusters))
    }

    /// Clusters of the grid that have not begun, where clusters take turns.
    pub(crate) fn clusters_left(&self) -> u64 {
        self.clusters.saturating_sub(self.taken.load(Relaxed))
    }

    /// `%ctaid` of the first CTA of a cluster.
    pub(crate) fn first_cta(&self, cluster: u64) -> [u32; 3] {
        let [x, y, _] = [0, 1, 2].map(|d| u64::from(self.grid[d] / self.cluster[d]));
        let index = [cluster % x, cluster / x % y, cluster / x / y];
        [0, 1, 2].map(|d| index[d] as u32 * self.cluster[d])
    }

    /// A line of the PTX text, trimmed.
    pub(crate) fn source_line(&self, line: u32) -> &str {
        self.module.source_line(line)
    }
}

pub(super) fn product(extent: [u32; 3]) -> u64 {
    extent.iter().map(|&d| u64::from(d)).product()
}

/// A request that fits, and where variables are.
pub(super) struct Prepared {
    checked: Checked,
    globals: Vec<u64>,
    shared: SharedLayout,
    shared_bytes: u32,
}

struct Checked {
    entry: usize,
    registers: Option<u32>,
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
        self.launch_recording(memory, launch, None)
    }

    /// Launches on one host thread, as [`launch`](Self::launch) does, and records a timeline of at
    /// most about `limit` events, also of a launch that goes wrong.
    pub fn launch_traced(
        &self,
        memory: &mut GlobalMemory,
        launch: &Launch<'_>,
        limit: u64,
    ) -> (Result<LaunchReport, LaunchError>, Trace) {
        let (kernel, schedule) = (launch.entry.to_owned(), launch.schedule);
        let tracer = Tracer::new(Trace { kernel, schedule, ..Trace::default() }, limit);
        let launch = Launch { threads: Some(1), ..launch.clone() };
        let result = self.launch_recording(memory, &launch, Some(tracer.clone()));
        (result, tracer.finish())
    }

    fn launch_recording(
        &self,
        memory: &mut GlobalMemory,
        launch: &Launch<'_>,
        trace: Option<Tracer>,
    ) -> Result<LaunchReport, LaunchError> {
        let step = Step { module: self, launch: launch.clone(), programmatic: false };
        let mut reports = overlapped(memory, &[step], trace)?;
        Ok(reports.pop().unwrap_or_default())
    }

    /// Whether a launch fits the kernel and the machine; nothing runs.
    ///
    /// # Errors
    /// [`LaunchError::BadLaunch`].
    pub fn check_launch(&self, launch: &Launch<'_>) -> Result<(), LaunchError> {
        let checked = self.check(launch)?;
        self.check_shared(launch, self.shared_layout(checked.entry).end).map(drop)
    }

    /// The size of a CTA's shared window, `static_bytes` and the dynamic ones, if it fits.
    fn check_shared(&self, launch: &Launch<'_>, static_bytes: u32) -> Result<u32, LaunchError> {
        let shared_bytes =
            SHARED_BASE.saturating_add(static_bytes).saturating_add(launch.dynamic_shared);
        if shared_bytes - SHARED_BASE > self.gpu.shared_per_cta {
            return Err(bad(
                launch,
                "shared memory",
                format!("at most {} bytes", self.gpu.shared_per_cta),
                format!("{static_bytes} static + {} dynamic", launch.dynamic_shared),
            ));
        }
        Ok(shared_bytes)
    }

    /// Checks a request and places the module's variables.
    pub(super) fn prepare(
        &self,
        memory: &mut GlobalMemory,
        launch: &Launch<'_>,
    ) -> Result<Prepared, LaunchError> {
        let checked = self.check(launch)?;
        let failed = |source| LaunchError::Memory { kernel: launch.entry.to_owned(), source };
        let globals = self.place_globals(memory).map_err(failed)?;
        let shared = self.shared_layout(checked.entry);
        let shared_bytes = self.check_shared(launch, shared.end)?;
        Ok(Prepared { checked, globals, shared, shared_bytes })
    }

    /// Returns the environment of a launch's warps.
    pub(super) fn env<'a>(
        &'a self,
        memory: &'a GlobalMemory,
        launch: &Launch<'_>,
        prepared: Prepared,
    ) -> Env<'a> {
        let Prepared { checked, globals, shared, shared_bytes } = prepared;
        let ctas = product(checked.cluster) as u32;
        let clusters = product(launch.grid) / u64::from(ctas);
        Env {
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
            checks: launch.checks,
            collected: Collected::default(),
            registers: checked.registers,
            turns: self.reaches_global_sync(checked.entry),
            takes_over: self.takes_over(checked.entry),
            clusters,
            taken: AtomicU64::new(0),
            advance: Advance::new(product(launch.grid), clusters),
            before: None,
            trace: None,
        }
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
            registers: info.registers(),
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
