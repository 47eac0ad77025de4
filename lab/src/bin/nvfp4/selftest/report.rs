//! The report of `selftest`: JSON for tools, one page for people.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::worker::{DeviceSaid, Outcome, StepReport};

/// Lines about steps that did not pass; the JSON has all of them.
const MOST_LINES: usize = 30;
/// Characters of a line's detail.
const MOST_DETAIL: usize = 300;

impl StepReport {
    /// Makes the report of a step with this outcome, without measurements.
    pub fn new(stage: &str, name: &str, outcome: Outcome) -> Self {
        Self {
            stage: stage.into(),
            name: name.into(),
            outcome,
            detail: None,
            kernel: None,
            max_error: None,
            microseconds: None,
            ratio_to_ceiling: None,
            ratio_to_peer: None,
            report: None,
            seconds: 0.0,
        }
    }

    /// Makes the report of a step that its process did not survive.
    pub fn lost(stage: &str, name: &str, outcome: Outcome, detail: String) -> Self {
        Self { detail: Some(detail), ..Self::new(stage, name, outcome) }
    }
}

/// Steps by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    passed: usize,
    failed: usize,
    refused: usize,
    hung: usize,
    crashed: usize,
}

impl Counts {
    fn of<'a>(steps: impl Iterator<Item = &'a StepReport>) -> Self {
        let mut counts = Self::default();
        for step in steps {
            *match step.outcome {
                Outcome::Passed => &mut counts.passed,
                Outcome::Failed => &mut counts.failed,
                Outcome::Refused => &mut counts.refused,
                Outcome::Hung => &mut counts.hung,
                Outcome::Crashed => &mut counts.crashed,
            } += 1;
        }
        counts
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, refused, hung, crashed } = *self;
        write!(f, "{passed} passed")?;
        for (count, name) in
            [(failed, "FAILED"), (hung, "HUNG"), (crashed, "CRASHED"), (refused, "refused")]
        {
            if count > 0 {
                write!(f, ", {count} {name}")?;
            }
        }
        Ok(())
    }
}

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The version of the program.
    version: &'static str,
    device: DeviceSaid,
    /// Whether only a part was run.
    quick: bool,
    seconds: f64,
    counts: Counts,
    steps: Vec<StepReport>,
}

impl Report {
    pub fn new(device: DeviceSaid, steps: Vec<StepReport>, quick: bool, took: Duration) -> Self {
        let (version, counts) = (env!("CARGO_PKG_VERSION"), Counts::of(steps.iter()));
        Self { version, device, quick, seconds: took.as_secs_f64(), counts, steps }
    }

    /// Whether something passed and nothing is wrong.
    pub fn passed(&self) -> bool {
        let Counts { passed, failed, refused: _, hung, crashed } = self.counts;
        passed > 0 && failed + hung + crashed == 0
    }

    /// Stages in order.
    fn stages(&self) -> Vec<&str> {
        let mut stages: Vec<&str> = self.steps.iter().map(|step| step.stage.as_str()).collect();
        stages.dedup();
        stages
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceSaid { device, name, arch, driver, kernels, .. } = &self.device;
        let driver = driver.as_deref().unwrap_or("no driver");
        let part = if self.quick { ", quick" } else { "" };
        writeln!(
            f,
            "nvfp4 {} selftest on {device} ({name}, {arch}), {driver}{part}",
            self.version
        )?;
        writeln!(f, "kernels: {kernels}")?;
        for stage in self.stages() {
            let counts = Counts::of(self.steps.iter().filter(|step| step.stage == stage));
            writeln!(f, "  {stage:<24} {counts}")?;
        }
        self.write_problems(f)?;
        self.write_times(f)?;
        let verdict = if self.passed() { "ok" } else { "NOT OK" };
        writeln!(f, "{verdict}: {} in {:.0} s", self.counts, self.seconds)
    }
}

impl Report {
    fn write_problems(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bad = || self.steps.iter().filter(|step| step.outcome != Outcome::Passed);
        // Wrong results come before refused steps.
        let (refused, wrong): (Vec<_>, Vec<_>) =
            bad().partition(|step| step.outcome == Outcome::Refused);
        for step in wrong.iter().chain(&refused).take(MOST_LINES) {
            let StepReport { stage, name, outcome, detail, .. } = step;
            let detail: String =
                detail.as_deref().unwrap_or_default().chars().take(MOST_DETAIL).collect();
            writeln!(f, "{outcome:?}: {stage}: {name}: {detail}")?;
        }
        let more = (wrong.len() + refused.len()).saturating_sub(MOST_LINES);
        if more > 0 {
            writeln!(f, "and {more} more in the JSON report")?;
        }
        Ok(())
    }

    fn write_times(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in self.steps.iter().filter(|step| step.stage == "times") {
            write!(f, "  {:<34}", step.name)?;
            match step.microseconds {
                Some(time) => write!(f, " {time:9.2} us")?,
                None => write!(f, " {}", step.detail.as_deref().unwrap_or("no time"))?,
            }
            if let Some(ratio) = step.ratio_to_ceiling {
                write!(f, ", {:3.0} % of the rate of memory", 100.0 * ratio)?;
            }
            if let Some(ratio) = step.ratio_to_peer {
                write!(f, ", cuBLAS f16 takes {ratio:.2} x as long")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
