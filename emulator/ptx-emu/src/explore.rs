//! Runs one launch under many schedules.
//!
//! A correct kernel gives the same outputs under every schedule that the
//! GPU may choose. [`explore`] runs a launch under `eager`, `lazy` and a
//! number of seeds, and stops at the first schedule with a diagnostic, an
//! unexpected output, or an output that differs from that of `eager`.
//!
//! Limits: a fault that occurs under none of the seeds, and one in memory that is not among the
//! experiment's outputs.

use crate::experiment::{Conditions, Contents, Experiment, Outcome};
use ptx_emu_bundle::OutputReport;
use ptx_emu_core::{Checks, Counters, Diagnostic, Executed, LaunchError, Level, Module, Schedule};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The schedules to try.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExploreOptions {
    /// Seeds besides `eager` and `lazy`: 0, 1, ...
    pub seeds: u64,
    /// Outputs may differ between schedules; expected ones are compared all
    /// the same.
    pub allow_different: bool,
    /// Warp instructions that one cluster may run; `None`: any number.
    pub instruction_limit: Option<u64>,
    /// Schedules tried at once; `None`: as many as the host has cores and memory for. The result
    /// does not depend on it.
    pub workers: Option<usize>,
    /// Checks and their levels.
    pub checks: Checks,
}

/// The result of an exploration.
#[derive(Debug)]
pub struct Exploration {
    /// The first run, `eager`'s; `None` if that went wrong.
    pub eager: Option<Outcome>,
    /// Schedules that went well before the first that did not.
    pub passed: u64,
    /// The first schedule that went wrong.
    pub failure: Option<Failure>,
    /// Warnings of all runs that went well: one of each kind and pair of lines.
    pub warnings: Vec<Diagnostic>,
    /// Distinct warnings beyond those, at least: each run leaves out some of its own.
    pub warnings_left_out: usize,
    /// Warp and lane executions of each instruction, over all that went well.
    pub(crate) executed: Vec<Executed>,
    /// Most warp instructions of a run that went well.
    pub(crate) most_instructions: u64,
}

/// A schedule that went wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The schedule.
    pub schedule: Schedule,
    /// The finding.
    pub finding: Finding,
    /// Also the first output that is wrong, or differs, of a run to the end with a denied
    /// finding.
    pub output: Option<Finding>,
}

/// A fault of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// The emulator stopped the kernel.
    Diagnostic(Box<Diagnostic>),
    /// An output is not what is expected of it.
    Wrong(OutputReport),
    /// An output differs from the one of `eager`, byte by byte.
    Different(OutputReport),
}

impl Finding {
    /// Returns the fault in a few words, without the place.
    #[must_use]
    pub fn summary(&self) -> String {
        let diagnostic = match self {
            Self::Diagnostic(diagnostic) => diagnostic.to_string(),
            Self::Wrong(_) => return "wrong output".to_owned(),
            Self::Different(_) => return "output differs from eager".to_owned(),
        };
        let text = diagnostic.split(';').next().unwrap_or_default();
        let mut parts = text.split(": ");
        match (parts.next().unwrap_or_default(), parts.next()) {
            // An object by its address, then what is wrong with it.
            (object, Some(what)) if object.contains("0x") => match object.split_once(" 0x") {
                Some((name, _)) => format!("{name}: {what}"),
                None => what.to_owned(),
            },
            (what, _) => what.to_owned(),
        }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, report) = match self {
            Self::Diagnostic(diagnostic) => return diagnostic.fmt(f),
            Self::Wrong(report) => ("differ from what is expected", report),
            Self::Different(report) => ("differ from what schedule eager gives", report),
        };
        let OutputReport { name, elements, mismatches, .. } = report;
        write!(f, "{name}: {mismatches} of {elements} elements {what}")?;
        if let Some(first) = &report.first {
            write!(
                f,
                ", first [{}]: {} there, {} here",
                first.index, first.expected, first.actual
            )?;
        }
        Ok(())
    }
}

/// The schedules of an exploration, in the order in which failures count.
pub fn schedules(seeds: u64) -> impl Iterator<Item = Schedule> + Clone {
    [Schedule::Eager, Schedule::Lazy].into_iter().chain((0..seeds).map(Schedule::Random))
}

/// A run that went wrong.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) finding: Finding,
    pub(crate) output: Option<Finding>,
}

/// Runs `module` under one schedule. `reference`: outputs that must come out,
/// byte by byte.
pub(crate) fn attempt(
    experiment: &Experiment,
    module: &Module,
    conditions: &Conditions,
    reference: Option<&[Contents]>,
) -> Result<Result<Outcome, Wrong>, LaunchError> {
    let mut outcome = match experiment.run(module, conditions) {
        Ok(outcome) => outcome,
        Err(LaunchError::Diagnostic(diagnostic)) => {
            let finding = Finding::Diagnostic(diagnostic);
            return Ok(Err(Wrong { finding, output: None }));
        }
        Err(error) => return Err(error),
    };
    let wrong = experiment.wrong(&outcome.outputs).map(Finding::Wrong);
    let output = wrong.or_else(|| {
        let different = experiment.different(&outcome.outputs, reference?)?;
        Some(Finding::Different(different))
    });
    if let Some(diagnostic) = denied(&mut outcome.report.findings) {
        return Ok(Err(Wrong { finding: Finding::Diagnostic(Box::new(diagnostic)), output }));
    }
    Ok(match output {
        Some(finding) => Err(Wrong { finding, output: None }),
        None => Ok(outcome),
    })
}

/// The first denied one of a run's findings, with the others, if one is.
pub(crate) fn denied(findings: &mut Vec<Diagnostic>) -> Option<Diagnostic> {
    let at = findings.iter().position(|found| found.level == Level::Deny)?;
    let mut first = findings.remove(at);
    first.others = std::mem::take(findings);
    Some(first)
}

/// Tries the schedules.
///
/// # Errors
/// A launch that is refused, or memory that the host does not hold. A fault of the kernel is no error
/// but in the result.
pub fn explore(
    experiment: &Experiment,
    module: &Module,
    options: &ExploreOptions,
) -> Result<Exploration, LaunchError> {
    let limit = options.instruction_limit;
    let checks = options.checks;
    let schedule = Schedule::Eager;
    let all = Conditions { threads: None, instruction_limit: limit, schedule, checks };
    let eager = match attempt(experiment, module, &all, None)? {
        Ok(outcome) => outcome,
        Err(Wrong { finding, output }) => {
            let failure = Some(Failure { schedule: Schedule::Eager, finding, output });
            let executed = Vec::new();
            let most_instructions = 0;
            return Ok(Exploration {
                eager: None,
                passed: 0,
                failure,
                warnings: Vec::new(),
                warnings_left_out: 0,
                executed,
                most_instructions,
            });
        }
    };
    let count = 1 + options.seeds;
    let workers =
        options.workers.unwrap_or_else(|| workers(experiment)).clamp(1, 1 + count as usize);
    let reference = (!options.allow_different).then_some(eager.outputs.as_slice());
    let search = Search {
        next: AtomicU64::new(0),
        first: AtomicU64::new(u64::MAX),
        found: Mutex::new(Found {
            executed: eager.report.executed.clone(),
            most_instructions: eager.report.counters.warp_instructions,
            warnings: eager.report.findings.iter().map(|one| (0, one.clone())).collect(),
            most_warnings: found_by(&eager),
            failure: None,
            error: None,
        }),
    };
    let work = || loop {
        let at = search.next.fetch_add(1, Relaxed);
        if at >= count || at > search.first.load(Relaxed) {
            return;
        }
        let schedule = if at == 0 { Schedule::Lazy } else { Schedule::Random(at - 1) };
        let threads = (workers > 1).then_some(1);
        let conditions = Conditions { schedule, threads, instruction_limit: limit, checks };
        search.note(at, schedule, attempt(experiment, module, &conditions, reference));
    };
    if workers == 1 {
        work();
    } else {
        std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    }
    let found = search.found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((_, error)) = found.error {
        return Err(error);
    }
    let passed = 1 + found.failure.as_ref().map_or(count, |(at, _)| *at);
    let (warnings, left_out) = distinct(found.warnings, checks.most);
    Ok(Exploration {
        eager: Some(eager),
        passed,
        failure: found.failure.map(|(_, failure)| failure),
        warnings_left_out: left_out.max(found.most_warnings.saturating_sub(warnings.len())),
        warnings,
        executed: found.executed,
        most_instructions: found.most_instructions,
    })
}

/// Distinct warnings of a run, whether or not they are among its findings.
fn found_by(outcome: &Outcome) -> usize {
    outcome.report.findings.len() + outcome.report.findings_left_out
}

/// Warnings in the order of their schedules, each kind and pair of lines once; and how many are
/// beyond `most`.
fn distinct(mut all: Vec<(u64, Diagnostic)>, most: usize) -> (Vec<Diagnostic>, usize) {
    all.sort_by_key(|(at, _)| *at);
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|(_, found)| seen.insert((found.kind(), found.line, found.kind.other_line())));
    let left_out = all.len().saturating_sub(most);
    all.truncate(most);
    (all.into_iter().map(|(_, found)| found).collect(), left_out)
}

/// The state that the workers share. Every schedule before the first failure is tried, so that what
/// is found does not depend on how fast they are.
struct Search {
    next: AtomicU64,
    /// Place of the earliest schedule that went wrong so far.
    first: AtomicU64,
    found: Mutex<Found>,
}

struct Found {
    executed: Vec<Executed>,
    most_instructions: u64,
    /// Warnings with the place of their schedule.
    warnings: Vec<(u64, Diagnostic)>,
    /// Most warnings of a run, those that it left out included.
    most_warnings: usize,
    failure: Option<(u64, Failure)>,
    error: Option<(u64, LaunchError)>,
}

impl Search {
    fn note(
        &self,
        at: u64,
        schedule: Schedule,
        result: Result<Result<Outcome, Wrong>, LaunchError>,
    ) {
        let Ok(mut found) = self.found.lock() else {
            return;
        };
        match result {
            Ok(Ok(outcome)) => {
                let Counters { warp_instructions, .. } = outcome.report.counters;
                found.most_instructions = found.most_instructions.max(warp_instructions);
                found.most_warnings = found.most_warnings.max(found_by(&outcome));
                found.warnings.extend(outcome.report.findings.into_iter().map(|one| (at + 1, one)));
                for (sum, more) in found.executed.iter_mut().zip(&outcome.report.executed) {
                    sum.add(more);
                }
            }
            Ok(Err(Wrong { finding, output })) => {
                self.first.fetch_min(at, Relaxed);
                if found.failure.as_ref().is_none_or(|(first, _)| at < *first) {
                    found.failure = Some((at, Failure { schedule, finding, output }));
                }
            }
            Err(error) => {
                self.first.fetch_min(at, Relaxed);
                if found.error.as_ref().is_none_or(|(first, _)| at < *first) {
                    found.error = Some((at, error));
                }
            }
        }
    }
}

/// Runs of an experiment at once for which the host has cores and memory: half
/// of what is free is left alone.
pub(crate) fn workers(experiment: &Experiment) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Outputs are read once more to be compared.
    let outputs: u64 = experiment.outputs.iter().map(|output| 2 * output.bytes).sum();
    let each = (experiment.memory.footprint() + outputs).max(1);
    let room = available_memory().map_or(u64::MAX, |bytes| bytes / 2 / each);
    cores.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1)
}

/// Memory that the host can give, bytes; `None` where it does not say.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Applies `f` to the numbers below `count` on `workers` host threads; the
/// results in order.
pub(crate) fn in_parallel<T: Send>(
    count: usize,
    workers: usize,
    f: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..workers.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Relaxed);
                    if at >= count {
                        return;
                    }
                    let result = f(at);
                    if let Ok(mut done) = done.lock() {
                        done.push((at, result));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
