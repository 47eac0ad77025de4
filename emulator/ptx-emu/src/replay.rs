//! Runs a bundle on the emulator.

use crate::experiment::{Conditions, Experiment, Outcome, Watched};
use ptx_emu_bundle::{Bundle, BundleError, OutputReport, PTX_FILE};
use ptx_emu_core::trace::Trace;
use ptx_emu_core::{Checks, Counters, Diagnostic, Gpu, Level, LoadError, Module, Schedule};
use std::path::PathBuf;

/// The options of a replay.
#[derive(Debug, Clone, Default)]
pub struct ReplayOptions {
    /// Machine; `None`: the one that the module's target names.
    pub gpu: Option<Gpu>,
    /// Schedule.
    pub schedule: Schedule,
    /// Warp instructions that one cluster may run; `None`: any number.
    pub instruction_limit: Option<u64>,
    /// Checks and their levels.
    pub checks: Checks,
}

impl ReplayOptions {
    fn conditions(&self) -> Conditions {
        let &Self { schedule, instruction_limit, checks, .. } = self;
        Conditions { schedule, threads: None, instruction_limit, checks }
    }
}

/// A bundle that ran.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Replay {
    /// Machine.
    pub gpu: Gpu,
    /// The counts.
    pub counters: Counters,
    /// Expected outputs, in the order of their names.
    pub outputs: Vec<OutputReport>,
    /// Findings that did not end the run, the denied ones first.
    pub findings: Vec<Diagnostic>,
    /// Findings beyond those.
    pub findings_left_out: usize,
}

impl Replay {
    /// Makes the result of a run of a bundle's experiment.
    #[must_use]
    pub fn new(experiment: Experiment, outcome: Outcome) -> Self {
        Self {
            outputs: experiment.compare(&outcome.outputs),
            counters: outcome.report.counters,
            findings: outcome.report.findings,
            findings_left_out: outcome.report.findings_left_out,
            gpu: experiment.gpu,
        }
    }

    /// Whether every output is right, and nothing denied was found.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.outputs.iter().all(|output| output.mismatches == 0)
            && self.findings.iter().all(|found| found.level < Level::Deny)
    }
}

/// Loads a bundle's module.
///
/// # Errors
/// [`BundleError::Load`].
pub fn load(experiment: &Experiment) -> Result<Module, BundleError> {
    experiment
        .load()
        .map_err(|source: LoadError| BundleError::Load { path: PathBuf::from(PTX_FILE), source })
}

/// Runs of a [`Bundle`] on the emulator.
pub trait RunBundle {
    /// The launch with its memory filled and its tensor maps placed, on `gpu` or
    /// else the machine that the module's target names.
    ///
    /// # Errors
    /// A part that does not fit.
    fn experiment(&self, gpu: Option<&Gpu>) -> Result<Experiment, BundleError>;

    /// Runs the launch and compares its outputs.
    ///
    /// # Errors
    /// A part that does not fit, or what the kernel did wrong. Outputs that differ
    /// are no error but in the result.
    fn replay(&self, options: &ReplayOptions) -> Result<Replay, BundleError>;

    /// Replays as [`replay`](Self::replay) does, and records a timeline of at most about `limit`
    /// events; also of a launch that goes wrong.
    ///
    /// # Errors
    /// A part that does not fit: nothing was launched.
    fn replay_traced(
        &self,
        options: &ReplayOptions,
        limit: u64,
    ) -> Result<(Result<Replay, BundleError>, Trace), BundleError>;
}

impl RunBundle for Bundle {
    fn experiment(&self, gpu: Option<&Gpu>) -> Result<Experiment, BundleError> {
        let (memory, params) = self.place()?;
        let mut outputs = Vec::with_capacity(self.expected.len());
        for (name, expected) in &self.expected {
            let bytes = expected.bytes.len() as u64;
            memory.read_raw(expected.addr, bytes).map_err(|error| {
                BundleError::field(format!("expected.{name}"), "a range in `memory`", error)
            })?;
            outputs.push(Watched {
                name: name.clone(),
                addr: expected.addr,
                bytes,
                expected: Some((expected.bytes.clone(), expected.compare)),
            });
        }
        Ok(Experiment {
            ptx: self.ptx.clone(),
            gpu: gpu.cloned().unwrap_or_else(|| Gpu::for_module(&self.ptx)),
            entry: self.entry.clone(),
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            dynamic_shared: self.dynamic_shared,
            params,
            memory,
            outputs,
            earlier: None,
        })
    }

    fn replay(&self, options: &ReplayOptions) -> Result<Replay, BundleError> {
        let mut experiment = self.experiment(options.gpu.as_ref())?;
        let module = load(&experiment)?;
        let outcome = experiment.run_once(&module, &options.conditions())?;
        Ok(Replay::new(experiment, outcome))
    }

    fn replay_traced(
        &self,
        options: &ReplayOptions,
        limit: u64,
    ) -> Result<(Result<Replay, BundleError>, Trace), BundleError> {
        let mut experiment = self.experiment(options.gpu.as_ref())?;
        let module = load(&experiment)?;
        let (outcome, trace) = experiment.run_traced(&module, &options.conditions(), limit);
        Ok((outcome.map(|outcome| Replay::new(experiment, outcome)).map_err(Into::into), trace))
    }
}
