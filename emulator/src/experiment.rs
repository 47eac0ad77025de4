//! A launch that can be run any number of times, each from the same memory:
//! what exploring schedules and checking mutants have in common.

use crate::bundle::{Compare, OutputReport};
use crate::trace::Trace;
use crate::{
    GlobalMemory, Gpu, Launch, LaunchError, LaunchReport, LoadError, MemoryError, Module, Schedule,
};

/// A kernel launch, the memory that it starts from, and what to look at
/// afterwards.
#[derive(Debug)]
pub struct Experiment {
    /// PTX text.
    pub ptx: String,
    /// Machine.
    pub gpu: Gpu,
    /// Kernel.
    pub entry: String,
    /// CTAs in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a CTA in x, y, z.
    pub block: [u32; 3],
    /// CTAs of a cluster; `None`: as the kernel requires.
    pub cluster: Option<[u32; 3]>,
    /// Dynamic shared memory of a CTA, bytes.
    pub dynamic_shared: u32,
    /// The whole parameter block.
    pub params: Vec<u8>,
    /// Memory before the launch; it stays as it is.
    pub memory: GlobalMemory,
    /// Ranges of memory that are compared.
    pub outputs: Vec<Watched>,
}

/// A range of memory that the launch writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Watched {
    /// Name for messages.
    pub name: String,
    /// Address.
    pub addr: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// What must be there afterwards, `bytes` long, where that is known.
    pub expected: Option<(Vec<u8>, Compare)>,
}

/// How to run an [`Experiment`] once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conditions {
    /// Schedule.
    pub schedule: Schedule,
    /// Host threads; `None`: as many as the host has cores.
    pub threads: Option<usize>,
    /// Warp instructions that one cluster may run; `None`: any number.
    pub instruction_limit: Option<u64>,
}

/// What one run of an [`Experiment`] left.
#[derive(Debug)]
pub struct Outcome {
    /// What was done.
    pub report: LaunchReport,
    /// Memory afterwards.
    pub memory: GlobalMemory,
    /// Outputs, in the experiment's order.
    pub outputs: Vec<Contents>,
}

/// What a [`Watched`] range held after a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The first byte that was never written, if there is one.
    pub unwritten: Option<usize>,
}

impl Experiment {
    /// Loads the module.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(&self) -> Result<Module, LoadError> {
        Module::load(&self.ptx, &self.gpu)
    }

    /// The launch under `conditions`.
    #[must_use]
    pub fn launch(&self, conditions: &Conditions) -> Launch<'_> {
        Launch {
            entry: &self.entry,
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            dynamic_shared: self.dynamic_shared,
            params: &self.params,
            schedule: conditions.schedule,
            threads: conditions.threads,
            instruction_limit: conditions.instruction_limit,
        }
    }

    /// Runs `module`, the experiment's or a variant of it, on a copy of the memory.
    ///
    /// # Errors
    /// A launch that is refused or goes wrong, memory that the host does not
    /// hold, or an output outside every allocation.
    pub fn run(&self, module: &Module, conditions: &Conditions) -> Result<Outcome, LaunchError> {
        let mut memory = self.memory.duplicate().map_err(|source| self.memory_error(source))?;
        let report = module.launch(&mut memory, &self.launch(conditions))?;
        let outputs = self.contents(&memory).map_err(|source| self.memory_error(source))?;
        Ok(Outcome { report, memory, outputs })
    }

    /// Runs `module` once, in the experiment's own memory: no copy is made.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_once(
        &mut self,
        module: &Module,
        conditions: &Conditions,
    ) -> Result<Outcome, LaunchError> {
        let mut memory = std::mem::take(&mut self.memory);
        let report = module.launch(&mut memory, &self.launch(conditions))?;
        let outputs = self.contents(&memory).map_err(|source| self.memory_error(source))?;
        Ok(Outcome { report, memory, outputs })
    }

    /// As [`run_once`](Self::run_once), with a timeline of at most about `limit`
    /// events; also of a run that goes wrong.
    pub fn run_traced(
        &mut self,
        module: &Module,
        conditions: &Conditions,
        limit: u64,
    ) -> (Result<Outcome, LaunchError>, Trace) {
        let mut memory = std::mem::take(&mut self.memory);
        let launch = self.launch(conditions);
        let (result, trace) = module.launch_traced(&mut memory, &launch, limit);
        let outcome = result.and_then(|report| {
            let outputs = self.contents(&memory).map_err(|source| self.memory_error(source))?;
            Ok(Outcome { report, memory, outputs })
        });
        (outcome, trace)
    }

    fn memory_error(&self, source: MemoryError) -> LaunchError {
        LaunchError::Memory { kernel: self.entry.clone(), source }
    }

    /// What the outputs hold in `memory`.
    pub(crate) fn contents(&self, memory: &GlobalMemory) -> Result<Vec<Contents>, MemoryError> {
        let one = |watched: &Watched| {
            let bytes = memory.read_raw(watched.addr, watched.bytes)?;
            let unwritten = match memory.read(watched.addr, watched.bytes) {
                Err(MemoryError::Uninitialised { addr, .. }) => {
                    Some((addr - watched.addr) as usize)
                }
                _ => None,
            };
            Ok(Contents { bytes, unwritten })
        };
        self.outputs.iter().map(one).collect()
    }

    /// The outputs compared with what is expected of them; those of which
    /// nothing is known are left out.
    pub(crate) fn compare(&self, outputs: &[Contents]) -> Vec<OutputReport> {
        let pairs = self.outputs.iter().zip(outputs);
        pairs
            .filter_map(|(watched, actual)| {
                let (expected, compare) = watched.expected.as_ref()?;
                Some(OutputReport::new(
                    &watched.name,
                    *compare,
                    expected,
                    &actual.bytes,
                    actual.unwritten,
                ))
            })
            .collect()
    }

    /// The first output that is not what is expected of it.
    pub(crate) fn wrong(&self, outputs: &[Contents]) -> Option<OutputReport> {
        self.compare(outputs).into_iter().find(|report| report.mismatches != 0)
    }

    /// The first output that differs from `reference`, another run's, byte by
    /// byte.
    pub(crate) fn different(
        &self,
        outputs: &[Contents],
        reference: &[Contents],
    ) -> Option<OutputReport> {
        let triples = self.outputs.iter().zip(outputs).zip(reference);
        triples.filter(|((_, actual), reference)| actual != reference).find_map(
            |((watched, actual), reference)| {
                let unwritten =
                    actual.unwritten.filter(|_| actual.unwritten != reference.unwritten);
                let report = OutputReport::new(
                    &watched.name,
                    Compare::Exact,
                    &reference.bytes,
                    &actual.bytes,
                    unwritten,
                );
                (report.mismatches != 0).then_some(report)
            },
        )
    }
}
