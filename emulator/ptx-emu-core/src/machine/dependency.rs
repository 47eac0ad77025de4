//! Programmatic dependent launches: kernels in stream order, of which one may
//! begin when all CTAs of the one before have executed
//! `griddepcontrol.launch_dependents` or ended, and whose `griddepcontrol.wait`
//! waits until that one has ended and its memory is visible (PTX ISA 9.7.13.13).
//!
//! `eager` begins the dependent grid as early as may be, `lazy` when nothing else
//! is left to run, `random` at a seeded point, so that a kernel which reads its
//! predecessor's results before it waits finds them missing.

use super::launch::{Launch, LaunchError, LaunchReport, Prepared};
use super::module::Module;
use super::recorder::Tracer;
use super::residency::{Ended, in_parallel, take_turns};
use crate::memory::GlobalMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One kernel of a sequence.
#[derive(Debug, Clone)]
pub struct Step<'a> {
    /// Module of the kernel.
    pub module: &'a Module,
    /// The launch. Schedule, checks and host threads are those of the first step of
    /// launches that overlap.
    pub launch: Launch<'a>,
    /// Whether it may begin before the one before it has ended: the launch attribute
    /// `PROGRAMMATIC_STREAM_SERIALIZATION`.
    pub programmatic: bool,
}

/// The progress of a grid, for the one that depends on it.
#[derive(Debug)]
pub(crate) struct Advance {
    ctas: u64,
    clusters: u64,
    /// CTAs that let dependents begin, or have ended.
    released: AtomicU64,
    ended: AtomicU64,
}

impl Advance {
    pub(crate) fn new(ctas: u64, clusters: u64) -> Arc<Self> {
        Arc::new(Self { ctas, clusters, released: 0.into(), ended: 0.into() })
    }

    /// A CTA lets dependents begin; called once for each.
    pub(crate) fn release(&self) {
        self.released.fetch_add(1, Relaxed);
    }

    /// A cluster has ended.
    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Relaxed);
    }

    /// Whether a dependent grid may begin.
    pub(crate) fn released(&self) -> bool {
        self.released.load(Relaxed) == self.ctas
    }

    /// Whether the grid has ended.
    pub(crate) fn ended(&self) -> bool {
        self.ended.load(Relaxed) == self.clusters
    }

    /// Describes the dependency, for a deadlock report.
    pub(crate) fn describe(&self) -> String {
        let ended = self.ended.load(Relaxed);
        format!("the grid before to end ({ended} of {} clusters have)", self.clusters)
    }
}

/// Runs kernels in stream order on one memory.
///
/// Launches that overlap share the machine and one host thread; bytes touched are
/// then counted for all of them together, in each report.
///
/// # Errors
/// The first request that does not fit or kernel that did wrong; memory is then in
/// an unspecified state.
pub fn launch_sequence(
    memory: &mut GlobalMemory,
    steps: &[Step<'_>],
) -> Result<Vec<LaunchReport>, LaunchError> {
    let mut reports = Vec::with_capacity(steps.len());
    let mut rest = steps;
    while !rest.is_empty() {
        let overlapping = rest[1..].iter().take_while(|step| step.programmatic).count();
        let (group, tail) = rest.split_at(1 + overlapping);
        reports.extend(overlapped(memory, group, None)?);
        rest = tail;
    }
    Ok(reports)
}

/// Runs launches each but the first of which may begin before the one before it
/// has ended. `trace`: where a timeline goes.
pub(super) fn overlapped(
    memory: &mut GlobalMemory,
    steps: &[Step<'_>],
    trace: Option<Tracer>,
) -> Result<Vec<LaunchReport>, LaunchError> {
    let prepared: Vec<Prepared> = steps
        .iter()
        .map(|step| step.module.prepare(memory, &step.launch))
        .collect::<Result<_, _>>()?;
    memory.reset_touched();
    let mut envs = Vec::with_capacity(steps.len());
    for (step, prepared) in steps.iter().zip(prepared) {
        let before = envs.last().map(|env: &super::launch::Env<'_>| env.advance.clone());
        let mut env = step.module.env(memory, &step.launch, prepared);
        env.before = before;
        env.trace = trace.clone();
        env.schedule = steps[0].launch.schedule;
        env.checks = steps[0].launch.checks;
        envs.push(env);
    }
    let alone = envs.len() == 1 && !envs[0].turns;
    let Ended { stats, fault } = if alone {
        in_parallel(&mut envs[0], steps[0].launch.threads)
    } else {
        envs.iter_mut().for_each(|env| env.turns = true);
        take_turns(&envs)
    };
    for (stats, step) in stats.iter().zip(steps) {
        let kernel = step.launch.entry;
        let noted = step.module.note_executed(&stats.executed);
        noted.map_err(|why| LaunchError::Coverage { kernel: kernel.to_owned(), why })?;
    }
    if let Some(fault) = fault {
        return Err(LaunchError::Diagnostic(fault));
    }
    let findings: Vec<_> =
        envs.iter().map(|env| env.collected.finish(u64::MAX, env.checks.most)).collect();
    drop(envs);
    let touched = memory.touched_bytes();
    let reports = stats.into_iter().zip(findings).zip(steps).map(|((mut stats, found), step)| {
        let (findings, left_out) = found;
        let printed = stats.printed();
        let counters = stats.fold(&step.module.code, touched);
        LaunchReport {
            counters,
            findings,
            findings_left_out: left_out,
            printed,
            executed: stats.executed,
        }
    });
    Ok(reports.collect())
}
