//! `--trace` of `ptx-emu run` and `ptx-emu replay`.

use super::error::CliError;
use super::{console, output};
use clap::Args;
use ptx_emu::Module;
use ptx_emu::experiment::{Conditions, Experiment};
use ptx_emu::explore::{ExploreOptions, Failure};
use ptx_emu::trace::Trace;
use std::path::PathBuf;

/// Recording a timeline.
#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArgs {
    /// Write a timeline for Perfetto or chrome://tracing: what each warp did
    /// and waited for, asynchronous operations, phases of barriers. Its axis
    /// counts steps of the emulator, not time. With --explore it is of the first schedule that
    /// goes wrong, if one does.
    #[arg(long, value_name = "OUT.JSON")]
    trace: Option<PathBuf>,
    /// Events that the timeline has at most, about.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "trace")]
    trace_limit: u64,
}

impl TraceArgs {
    /// The limit, if a timeline is wanted; its file can be written.
    pub(crate) fn wanted(&self) -> Result<Option<u64>, CliError> {
        self.trace.as_deref().map(output::check).transpose()?;
        Ok(self.trace.is_some().then_some(self.trace_limit))
    }

    /// Refuses a timeline of several launches.
    pub(crate) fn check_single(&self, launches: usize) -> Result<(), CliError> {
        if self.trace.is_some() && launches != 1 {
            return Err(CliError::TraceOfSeveral { launches });
        }
        Ok(())
    }

    /// Writes the timeline of the schedule that went wrong: it is run again. The experiment's
    /// memory is used up.
    pub(crate) fn write_failure(
        &self,
        experiment: &mut Experiment,
        module: &Module,
        options: &ExploreOptions,
        failure: Option<&Failure>,
    ) -> Result<(), CliError> {
        let Some(limit) = self.wanted()? else { return Ok(()) };
        let Some(failure) = failure else {
            console::complain("nothing went wrong: no timeline was written");
            return Ok(());
        };
        let conditions = Conditions {
            schedule: failure.schedule,
            threads: Some(1),
            instruction_limit: options.instruction_limit,
            checks: options.checks,
        };
        let (_, trace) = experiment.run_traced(module, &conditions, limit);
        self.write(&trace)
    }

    /// Writes the timeline.
    pub(crate) fn write(&self, trace: &Trace) -> Result<(), CliError> {
        let Some(path) = &self.trace else {
            return Ok(());
        };
        let failed = |source| CliError::Write { path: path.clone(), source };
        std::fs::write(path, ptx_emu::trace::to_json(trace).to_string()).map_err(failed)?;
        if trace.is_cut() {
            console::complain(format_args!(
                "warning: the timeline was cut at --trace-limit {}: {} records are missing",
                self.trace_limit, trace.dropped
            ));
        }
        Ok(())
    }
}
