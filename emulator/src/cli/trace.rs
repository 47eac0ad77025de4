//! `--trace` of `ptx-emu run` and `ptx-emu replay`.

use super::error::CliError;
use super::{console, output};
use clap::Args;
use ptx_emu::trace::Trace;
use std::path::PathBuf;

/// Recording a timeline.
#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArgs {
    /// Write a timeline for Perfetto or chrome://tracing: what each warp did
    /// and waited for, asynchronous operations, phases of barriers. Its axis
    /// counts steps of the emulator, not time.
    #[arg(long, value_name = "OUT.JSON", conflicts_with = "explore")]
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

    /// Writes the timeline.
    pub(crate) fn write(&self, trace: &Trace) -> Result<(), CliError> {
        let Some(path) = &self.trace else {
            return Ok(());
        };
        let failed = |source| CliError::Write { path: path.clone(), source };
        std::fs::write(path, trace.to_json().to_string()).map_err(failed)?;
        if trace.is_cut() {
            console::complain(format_args!(
                "warning: the timeline was cut at --trace-limit {}: {} records are missing",
                self.trace_limit, trace.dropped
            ));
        }
        Ok(())
    }
}
