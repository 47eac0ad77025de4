//! A launch that can be repeated any number of times from the same memory. Exploring
//! schedules and checking mutants are based on it.

use ptx_emu_bundle::{Compare, OutputReport};
use ptx_emu_core::trace::Trace;
use ptx_emu_core::{
    Checks, GlobalMemory, Gpu, Launch, LaunchError, LaunchReport, LoadError, MemoryError, Module,
    Schedule, Step, launch_sequence,
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
    /// A launch before it, on the same memory.
    pub earlier: Option<Earlier>,
}

/// The launch before in the stream. The experiment's has the attribute of
/// programmatic dependence: it may begin before this one has ended.
pub struct Earlier {
    /// Its module, loaded for the experiment's machine.
    pub module: Module,
    /// Kernel.
    pub entry: String,
    /// CTAs in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a CTA in x, y, z.
    pub block: [u32; 3],
    /// The whole parameter block.
    pub params: Vec<u8>,
}

impl std::fmt::Debug for Earlier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { entry, grid, block, params, .. } = self;
        let mut fields = f.debug_struct("Earlier");
        fields.field("entry", entry).field("grid", grid).field("block", block);
        fields.field("params", params).finish_non_exhaustive()
    }
}

impl Earlier {
    fn launch(&self, conditions: &Conditions) -> Launch<'_> {
        Launch {
            entry: &self.entry,
            grid: self.grid,
            block: self.block,
            cluster: None,
            dynamic_shared: 0,
            params: &self.params,
            schedule: conditions.schedule,
            threads: conditions.threads,
            instruction_limit: conditions.instruction_limit,
            checks: conditions.checks,
        }
    }
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
    /// The required bytes afterwards, `bytes` long, if they are known.
    pub expected: Option<(Vec<u8>, Compare)>,
}

/// The conditions of one run of an [`Experiment`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Conditions {
    /// Schedule.
    pub schedule: Schedule,
    /// Host threads; `None`: as many as the host has cores.
    pub threads: Option<usize>,
    /// Warp instructions that one cluster may run; `None`: any number.
    pub instruction_limit: Option<u64>,
    /// Checks and their levels.
    pub checks: Checks,
}

/// The result of one run of an [`Experiment`].
#[derive(Debug)]
pub struct Outcome {
    /// The report of the launch.
    pub report: LaunchReport,
    /// Memory afterwards.
    pub memory: GlobalMemory,
    /// Outputs, in the experiment's order.
    pub outputs: Vec<Contents>,
}

/// The bytes of a [`Watched`] range after a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The first byte that was never written, if there is one.
    pub unwritten: Option<usize>,
}

impl Experiment {
    /// Loads the kernel's part of the module.
    ///
    /// # Errors
    /// The same as [`Module::load_entry`].
    pub fn load(&self) -> Result<Module, LoadError> {
        Module::load_entry(&self.ptx, &self.gpu, &self.entry)
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
            checks: conditions.checks,
        }
    }

    /// Runs `module`, the experiment's or a variant of it, on a copy of the memory.
    ///
    /// # Errors
    /// A launch that is refused or goes wrong, memory that the host does not
    /// hold, or an output outside every allocation.
    pub fn run(&self, module: &Module, conditions: &Conditions) -> Result<Outcome, LaunchError> {
        let mut memory = self.memory.duplicate().map_err(|source| self.memory_error(source))?;
        let report = self.execute(module, &mut memory, conditions)?;
        let outputs = self.contents(&memory).map_err(|source| self.memory_error(source))?;
        Ok(Outcome { report, memory, outputs })
    }

    /// Runs `module` once, in the experiment's own memory: no copy is made.
    ///
    /// # Errors
    /// The same as [`run`](Self::run).
    pub fn run_once(
        &mut self,
        module: &Module,
        conditions: &Conditions,
    ) -> Result<Outcome, LaunchError> {
        let mut memory = std::mem::take(&mut self.memory);
        let report = self.execute(module, &mut memory, conditions)?;
        let outputs = self.contents(&memory).map_err(|source| self.memory_error(source))?;
        Ok(Outcome { report, memory, outputs })
    }

    /// Runs as [`run_once`](Self::run_once) does, and records a timeline of at most about `limit`
    /// events; also of a run that goes wrong. The timeline is of this launch alone, which begins
    /// when the earlier one has ended.
    pub fn run_traced(
        &mut self,
        module: &Module,
        conditions: &Conditions,
        limit: u64,
    ) -> (Result<Outcome, LaunchError>, Trace) {
        let mut memory = std::mem::take(&mut self.memory);
        let launch = self.launch(conditions);
        if let Some(earlier) = &self.earlier
            && let Err(error) = earlier.module.launch(&mut memory, &earlier.launch(conditions))
        {
            return (Err(error), Trace::default());
        }
        let (result, trace) = module.launch_traced(&mut memory, &launch, limit);
        let outcome = result.and_then(|report| {
            let outputs = self.contents(&memory).map_err(|source| self.memory_error(source))?;
            Ok(Outcome { report, memory, outputs })
        });
        (outcome, trace)
    }

    /// The launch, with the earlier one if there is one; the report is of the former.
    fn execute(
        &self,
        module: &Module,
        memory: &mut GlobalMemory,
        conditions: &Conditions,
    ) -> Result<LaunchReport, LaunchError> {
        let launch = self.launch(conditions);
        let Some(earlier) = &self.earlier else {
            return module.launch(memory, &launch);
        };
        let first = earlier.launch(conditions);
        let steps = [
            Step { module: &earlier.module, launch: first, programmatic: false },
            Step { module, launch, programmatic: true },
        ];
        // A report per step.
        Ok(launch_sequence(memory, &steps)?.swap_remove(1))
    }

    fn memory_error(&self, source: MemoryError) -> LaunchError {
        LaunchError::Memory { kernel: self.entry.clone(), source }
    }

    /// Returns the contents of the outputs in `memory`.
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
    #[must_use]
    pub fn compare(&self, outputs: &[Contents]) -> Vec<OutputReport> {
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
