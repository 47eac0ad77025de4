//! `run`: one launch.

use crate::arguments::{self, Parameters};
use crate::bundles::OutputReport;
use crate::error;
use crate::finding::Finding;
use crate::options::{self, Given, Keywords, Options};
use crate::record::{Counters, LowerBound};
use ptx_emu::bundle::{Bundle, BundleError};
use ptx_emu::experiment::{Conditions, Experiment, Outcome};
use ptx_emu::{GlobalMemory, LaunchError, Level, Module, not_looked_for};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

/// The result of a launch.
#[pyclass(module = "ptx_emu", frozen, get_all)]
pub struct Result {
    /// The kernel's name.
    kernel: String,
    /// The machine, as `gpu` names it: `h200`.
    gpu: &'static str,
    /// The schedule.
    schedule: String,
    /// The orders that held: `hardware` or `ptx`.
    model: String,
    /// Whether the kernel ran to its end. If not, the last finding ended it, and no array was
    /// written.
    finished: bool,
    /// The findings, the denied ones first: one of each kind and pair of lines.
    findings: Vec<Py<Finding>>,
    /// Findings beyond `max_findings`.
    findings_left_out: usize,
    /// The counts; None if the kernel did not finish.
    counters: Option<Py<Counters>>,
    /// The least time for it on the machine; None if the kernel did not finish.
    lower_bound: Option<Py<LowerBound>>,
    /// The text that the kernel printed.
    printed: String,
    /// Parameters whose memory the kernel changed although their arrays are read-only: the arrays
    /// are as before.
    not_written: Vec<String>,
    /// The comparisons of a bundle's expected outputs; empty for `run`.
    outputs: Vec<Py<OutputReport>>,
    /// Checks that the run did not make, so that `clean` does not mean them.
    not_looked_for: Vec<&'static str>,
}

#[pymethods]
impl Result {
    /// Whether nothing denied was found, and every expected output is right.
    #[getter]
    pub fn clean(&self) -> bool {
        self.denied().is_none() && self.outputs.iter().all(|output| output.get().is_right())
    }

    fn __repr__(&self) -> String {
        let what = match (self.clean(), self.finished) {
            (true, _) => "clean",
            (false, true) => "wrong",
            (false, false) => "ended by a finding",
        };
        let Self { kernel, gpu, schedule, findings, .. } = self;
        format!(
            "Result({what}: `{}` on {gpu}, schedule {schedule}, {} findings)",
            ptx_emu::readable_name(kernel),
            findings.len()
        )
    }
}

impl Result {
    fn denied(&self) -> Option<&Py<Finding>> {
        self.findings.iter().find(|found| found.get().diagnostic().level == Level::Deny)
    }

    /// The result of a run that ended in some way; a launch that was refused is an error. The
    /// caller adds everything that is not of the run itself.
    pub fn of(
        py: Python<'_>,
        experiment: &Experiment,
        conditions: &Conditions,
        outcome: &std::result::Result<Outcome, LaunchError>,
    ) -> PyResult<Self> {
        let Conditions { schedule, checks, .. } = conditions;
        let mut result = Self {
            kernel: experiment.entry.clone(),
            gpu: experiment.gpu.name,
            schedule: schedule.to_string(),
            model: checks.model.to_string(),
            finished: outcome.is_ok(),
            findings: Vec::new(),
            findings_left_out: 0,
            counters: None,
            lower_bound: None,
            printed: String::new(),
            not_written: Vec::new(),
            outputs: Vec::new(),
            not_looked_for: not_looked_for(Some(*schedule), checks.model),
        };
        match outcome {
            Ok(Outcome { report, outputs, .. }) => {
                result.findings = Finding::all(py, &report.findings)?;
                result.findings_left_out = report.findings_left_out;
                result.counters = Some(Counters::of(py, &report.counters)?);
                let bound = report.counters.lower_bound(&experiment.gpu);
                result.lower_bound = Some(LowerBound::of(py, &bound)?);
                result.printed.clone_from(&report.printed);
                result.outputs = OutputReport::all(py, &experiment.compare(outputs))?;
            }
            Err(LaunchError::Diagnostic(found)) => {
                let all = std::iter::once(found.as_ref()).chain(&found.others);
                result.findings = Finding::all(py, all)?;
            }
            Err(refused) => return Err(error::launch(refused)),
        }
        Ok(result)
    }

    /// The result as an object, or as an exception if it is to be one and something denied was found.
    pub fn finish(self, py: Python<'_>, check: bool) -> PyResult<Py<Self>> {
        let denied = self.denied().filter(|_| check).map(|found| found.clone_ref(py));
        let result = Py::new(py, self)?;
        match denied {
            Some(denied) => {
                let all = &result.get().findings;
                Err(error::found(py, &denied, all, result.clone_ref(py)))
            }
            None => Ok(result),
        }
    }
}

/// A launch that is ready.
pub struct Prepared {
    pub experiment: Experiment,
    pub module: Module,
    pub parameters: Parameters,
}

/// The arguments of a launch, as they were given.
pub struct Request<'a, 'py> {
    /// Module.
    pub ptx: &'a Bound<'py, PyAny>,
    /// Kernel.
    pub entry: Given<'a, 'py>,
    /// CTAs.
    pub grid: &'a Bound<'py, PyAny>,
    /// Threads of a CTA.
    pub block: &'a Bound<'py, PyAny>,
    /// An item for each parameter.
    pub args: Given<'a, 'py>,
    /// CTAs of a cluster.
    pub cluster: Given<'a, 'py>,
    /// Bytes.
    pub dynamic_shared: Given<'a, 'py>,
}

impl Request<'_, '_> {
    /// Loads the module and binds the arguments. The memory of the parameters is the experiment's.
    pub fn prepare(&self, py: Python<'_>, options: &Options) -> PyResult<Prepared> {
        let grid = options::extent("grid", self.grid)?;
        let block = options::extent("block", self.block)?;
        let cluster =
            self.cluster.map(|cluster| options::extent("cluster", cluster)).transpose()?;
        let dynamic_shared = match self.dynamic_shared {
            Some(bytes) => options::integer("dynamic_shared", bytes, 0, u32::MAX.into())?,
            None => 0,
        };
        let ptx = options::ptx(self.ptx)?;
        let gpu = options.machine(&ptx);
        let entry = options::entry(&ptx, self.entry)?;
        let module = py.detach(|| Module::load_entry(&ptx, &gpu, &entry));
        let module = module.map_err(|refused| error::load(&refused, &ptx))?;
        let Some(kernel) = module.entries().find(|kernel| kernel.name == entry) else {
            let required = "a kernel of the module".to_owned();
            return Err(error::load(&ptx_emu::LoadError::Entry { required, actual: entry }, &ptx));
        };
        let parameters = arguments::bind(py, kernel, &gpu, self.args)?;
        let experiment = Experiment {
            ptx,
            gpu,
            entry,
            grid,
            block,
            cluster,
            dynamic_shared: u32::try_from(dynamic_shared).unwrap_or(u32::MAX),
            params: parameters.params.clone(),
            memory: GlobalMemory::new(),
            outputs: Vec::new(),
            earlier: None,
        };
        Ok(Prepared { experiment, module, parameters })
    }
}

/// Runs a kernel once.
///
/// Parameters:
///     ptx: text of the module, or the path of a file (`pathlib.Path`).
///     entry: the kernel; None for a module with one.
///     grid, block, cluster: CTAs, threads of a CTA, CTAs of a cluster: an int, or up to three.
///     args: an item for each parameter, as the README's table has it.
///     dynamic_shared: bytes of dynamic shared memory of a CTA.
///     gpu: "a100", "rtx3090", "rtx4090", "l40s", "h200", "b200", "b300", "rtx5090", "rtx-pro-6000" or "dgx-spark"; None for the one that the module is for.
///     lax: load what ptxas refuses, too: statements that the module's target or version lacks or that no version of
///         PTX has, and more static shared memory than the target allows.
///     schedule: "eager", "lazy" or "random:SEED". Data races are looked for by the latter two.
///     model: "hardware" (orders that hardware is known to keep) or "ptx" (those that PTX ISA promises).
///     allow, warn, deny: names of kinds of findings (`kinds()`) that are to have another level.
///     max_findings: most findings of the result.
///     instruction_limit: warp instructions that a cluster may run.
///     check: raise FindingError if something denied was found. If False, see `Result.clean`.
///     capture: a new folder, to which the launch is written as a bundle, for `replay`.
///
/// Arrays are copied to device memory, and what the kernel left is written to those that are
/// writeable, before FindingError is raised. If a finding ends the kernel, no array is written.
#[pyfunction]
#[pyo3(
    signature = (ptx, entry, grid, block, args=None, *, cluster=None, dynamic_shared=None, gpu=None, lax=false,
        schedule=None, model=None, allow=None, warn=None, deny=None, max_findings=None,
        instruction_limit=None, check=true, capture=None),
    text_signature = "(ptx, entry, grid, block, args=(), *, cluster=None, dynamic_shared=0, gpu=None, lax=False, \
        schedule='eager', model='hardware', allow=(), warn=(), deny=(), max_findings=20, \
        instruction_limit=None, check=True, capture=None)"
)]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub fn run(
    py: Python<'_>,
    ptx: &Bound<'_, PyAny>,
    entry: Given<'_, '_>,
    grid: &Bound<'_, PyAny>,
    block: &Bound<'_, PyAny>,
    args: Given<'_, '_>,
    cluster: Given<'_, '_>,
    dynamic_shared: Given<'_, '_>,
    gpu: Given<'_, '_>,
    lax: bool,
    schedule: Given<'_, '_>,
    model: Given<'_, '_>,
    allow: Given<'_, '_>,
    warn: Given<'_, '_>,
    deny: Given<'_, '_>,
    max_findings: Given<'_, '_>,
    instruction_limit: Given<'_, '_>,
    check: bool,
    capture: Given<'_, '_>,
) -> PyResult<Py<Result>> {
    let keywords =
        Keywords { gpu, lax, schedule, model, allow, warn, deny, max_findings, instruction_limit };
    let options = keywords.read()?;
    let capture = capture.map(|folder| options::folder("capture", folder)).transpose()?;
    let request = Request { ptx, entry, grid, block, args, cluster, dynamic_shared };
    let Prepared { mut experiment, module, mut parameters } = request.prepare(py, &options)?;
    let capture = match capture {
        // Writing refuses it, too, but only when the launch is over.
        Some(path) if path.exists() => {
            let source = std::io::ErrorKind::AlreadyExists.into();
            return Err(error::bundle(&BundleError::Write { path, source }, ""));
        }
        Some(folder) => Some((folder, bundle(&experiment, &parameters)?)),
        None => None,
    };
    experiment.memory = std::mem::take(&mut parameters.memory);
    let conditions = options.conditions;
    let outcome = py.detach(|| experiment.run_once(&module, &conditions));
    let mut result = Result::of(py, &experiment, &conditions, &outcome)?;
    if let Ok(outcome) = &outcome {
        result.not_written = parameters.write_back(py, &outcome.memory)?;
    }
    if let Some((folder, bundle)) = capture {
        write(&folder, bundle, outcome.as_ref().ok())?;
    }
    result.finish(py, check)
}

/// The launch as a bundle, before it runs.
fn bundle(experiment: &Experiment, parameters: &Parameters) -> PyResult<Bundle> {
    Ok(Bundle {
        ptx: experiment.ptx.clone(),
        entry: experiment.entry.clone(),
        grid: experiment.grid,
        block: experiment.block,
        cluster: experiment.cluster,
        dynamic_shared: experiment.dynamic_shared,
        cooperative: false,
        programmatic: false,
        params: experiment.params.clone(),
        memory: parameters.allocations()?,
        tensor_maps: parameters.maps.clone(),
        expected: BTreeMap::new(),
    })
}

/// Writes a bundle, with what a run left as its expected outputs.
fn write(folder: &Path, bundle: Bundle, outcome: Option<&Outcome>) -> PyResult<()> {
    let failed = |error| error::bundle(&error, "");
    let left = match outcome {
        Some(outcome) => bundle.left_in(&outcome.memory).map_err(failed)?,
        None => bundle,
    };
    left.write(folder).map_err(failed)
}
