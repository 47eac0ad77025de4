//! `explore`: a launch under many schedules.

use crate::bundles::OutputReport;
use crate::error;
use crate::finding::Finding;
use crate::options::{self, Given, Keywords};
use crate::record::{Counters, LowerBound};
use crate::run::{Prepared, Request};
use ptx_emu::experiment::Watched;
use ptx_emu::explore::{self as search, ExploreOptions};
use ptx_emu::not_looked_for;
use pyo3::prelude::*;

/// The first schedule that went wrong, and how: by a finding, or by outputs that differ from those
/// of `eager`.
#[pyclass(module = "ptx_emu", frozen, get_all)]
pub struct Failure {
    /// The schedule; `run` with it goes wrong in the same way.
    schedule: String,
    /// The fault in one line.
    message: String,
    /// The denied finding, if it was one.
    finding: Option<Py<Finding>>,
    /// Other findings of that run.
    others: Vec<Py<Finding>>,
    /// The output that differs, if one does.
    output: Option<Py<OutputReport>>,
}

#[pymethods]
impl Failure {
    fn __str__(&self) -> String {
        self.message.clone()
    }

    fn __repr__(&self) -> String {
        format!("Failure(schedule {}: {})", self.schedule, self.message)
    }
}

/// The result of an exploration.
#[pyclass(module = "ptx_emu", frozen, get_all)]
pub struct Exploration {
    /// The kernel's name.
    kernel: String,
    /// The machine.
    gpu: &'static str,
    /// The orders that held.
    model: String,
    /// Schedules that went well before the first that did not.
    passed: u64,
    /// The first schedule that went wrong; None if all went well.
    failure: Option<Py<Failure>>,
    /// Warnings of the schedules that went well: one of each kind and pair of lines.
    warnings: Vec<Py<Finding>>,
    /// Warnings beyond `max_findings`.
    warnings_left_out: usize,
    /// Counters of `eager`; None if that went wrong.
    counters: Option<Py<Counters>>,
    /// The least time for it on the machine; None if `eager` went wrong.
    lower_bound: Option<Py<LowerBound>>,
    /// Parameters whose memory the kernel changed although their arrays are read-only.
    not_written: Vec<String>,
    /// Checks that were not made, so that `clean` does not mean them.
    not_looked_for: Vec<&'static str>,
}

#[pymethods]
impl Exploration {
    /// Whether every schedule went well.
    #[getter]
    fn clean(&self) -> bool {
        self.failure.is_none()
    }

    fn __repr__(&self) -> String {
        let Self { passed, kernel, .. } = self;
        let kernel = ptx_emu::readable_name(kernel);
        match &self.failure {
            None => format!("Exploration(clean: `{kernel}` under {passed} schedules)"),
            Some(failure) => {
                let schedule = &failure.get().schedule;
                format!("Exploration(wrong: `{kernel}` under {schedule}, {passed} passed before)")
            }
        }
    }
}

impl Failure {
    fn of(py: Python<'_>, failure: &search::Failure) -> PyResult<Py<Self>> {
        use search::Finding::{Diagnostic, Different, Wrong};
        let mut finding = None;
        let mut others = Vec::new();
        let mut output = None;
        for part in std::iter::once(&failure.finding).chain(&failure.output) {
            match part {
                Diagnostic(diagnostic) => {
                    finding = Some(Finding::of(py, diagnostic)?);
                    others = Finding::all(py, &diagnostic.others)?;
                }
                Wrong(report) | Different(report) => output = Some(OutputReport::of(py, report)?),
            }
        }
        let (schedule, message) = (failure.schedule.to_string(), failure.finding.to_string());
        Py::new(py, Self { schedule, message, finding, others, output })
    }
}

/// Runs a kernel under `eager`, `lazy` and `random:0`, `random:1`, .., up to the first schedule with a
/// denied finding or with other contents of the arrays than `eager` leaves.
///
/// Parameters are those of `run`, without `schedule`, `check` and `capture`, and:
///     seeds: how many schedules besides `eager` and `lazy` are tried.
///     allow_different: the arrays' contents may differ between schedules.
///
/// Faults are in the result; they do not raise. If nothing did, arrays have what `eager` left;
/// otherwise they are not written.
#[pyfunction]
#[pyo3(
    signature = (ptx, entry, grid, block, args=None, *, seeds=None, allow_different=false, cluster=None,
        dynamic_shared=None, gpu=None, lax=false, model=None, allow=None, warn=None, deny=None,
        max_findings=None, instruction_limit=None),
    text_signature = "(ptx, entry, grid, block, args=(), *, seeds=10, allow_different=False, \
        cluster=None, dynamic_shared=0, gpu=None, lax=False, model='hardware', allow=(), warn=(), deny=(), \
        max_findings=20, instruction_limit=None)"
)]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub fn explore(
    py: Python<'_>,
    ptx: &Bound<'_, PyAny>,
    entry: Given<'_, '_>,
    grid: &Bound<'_, PyAny>,
    block: &Bound<'_, PyAny>,
    args: Given<'_, '_>,
    seeds: Given<'_, '_>,
    allow_different: bool,
    cluster: Given<'_, '_>,
    dynamic_shared: Given<'_, '_>,
    gpu: Given<'_, '_>,
    lax: bool,
    model: Given<'_, '_>,
    allow: Given<'_, '_>,
    warn: Given<'_, '_>,
    deny: Given<'_, '_>,
    max_findings: Given<'_, '_>,
    instruction_limit: Given<'_, '_>,
) -> PyResult<Exploration> {
    let schedule = None;
    let keywords =
        Keywords { gpu, lax, schedule, model, allow, warn, deny, max_findings, instruction_limit };
    let options = keywords.read()?;
    let seeds = match seeds {
        // Their number and two more are counted.
        Some(seeds) => options::integer("seeds", seeds, 0, u32::MAX.into())?,
        None => 10,
    };
    let request = Request { ptx, entry, grid, block, args, cluster, dynamic_shared };
    let Prepared { mut experiment, module, mut parameters } = request.prepare(py, &options)?;
    experiment.memory = std::mem::take(&mut parameters.memory);
    let watch = |(name, addr, bytes): (&str, u64, u64)| Watched {
        name: name.to_owned(),
        addr,
        bytes,
        expected: None,
    };
    experiment.outputs = experiment.memory.allocations().map(watch).collect();
    let conditions = options.conditions;
    let wanted = ExploreOptions {
        seeds,
        allow_different,
        instruction_limit: conditions.instruction_limit,
        workers: None,
        checks: conditions.checks,
    };
    let found = py.detach(|| search::explore(&experiment, &module, &wanted));
    let found = found.map_err(|refused| error::launch(&refused))?;
    let mut not_written = Vec::new();
    let (mut counters, mut lower_bound) = (None, None);
    if let Some(eager) = &found.eager {
        let counted = &eager.report.counters;
        counters = Some(Counters::of(py, counted)?);
        lower_bound = Some(LowerBound::of(py, &counted.lower_bound(&experiment.gpu))?);
        if found.failure.is_none() {
            not_written = parameters.write_back(py, &eager.memory)?;
        }
    }
    Ok(Exploration {
        kernel: experiment.entry.clone(),
        gpu: experiment.gpu.name,
        model: conditions.checks.model.to_string(),
        passed: found.passed,
        failure: found.failure.as_ref().map(|failure| Failure::of(py, failure)).transpose()?,
        warnings: Finding::all(py, &found.warnings)?,
        warnings_left_out: found.warnings_left_out,
        counters,
        lower_bound,
        not_written,
        not_looked_for: not_looked_for(None, conditions.checks.model),
    })
}
