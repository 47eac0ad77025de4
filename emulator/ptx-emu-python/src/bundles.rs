//! `replay`: launches that were captured.

use crate::error;
use crate::options::{self, Given, Keywords};
use crate::run::Result;
use ptx_emu::bundle::{self, Bundle, RunBundle as _};
use pyo3::prelude::*;

/// The comparison of a launch's output with the expected one, or with another schedule's.
#[pyclass(module = "ptx_emu", frozen, get_all)]
pub struct OutputReport {
    /// Its name.
    name: String,
    /// Elements; bytes, if they are compared byte by byte.
    elements: usize,
    /// Elements that are not right.
    mismatches: usize,
    /// The first of them: index, expected value, value found; None if all are right.
    first: Option<(usize, String, String)>,
    /// Largest absolute error of a finite element; 0 if bytes are compared.
    max_error: f64,
}

impl OutputReport {
    /// The report as an object.
    pub fn of(py: Python<'_>, report: &bundle::OutputReport) -> PyResult<Py<Self>> {
        let bundle::OutputReport { name, elements, mismatches, first, max_error } = report.clone();
        let first = first.map(|first| (first.index, first.expected, first.actual));
        Py::new(py, Self { name, elements, mismatches, first, max_error })
    }

    /// All of them.
    pub fn all(py: Python<'_>, reports: &[bundle::OutputReport]) -> PyResult<Vec<Py<Self>>> {
        reports.iter().map(|report| Self::of(py, report)).collect()
    }

    /// Whether all elements are right.
    pub fn is_right(&self) -> bool {
        self.mismatches == 0
    }
}

#[pymethods]
impl OutputReport {
    fn __repr__(&self) -> String {
        let Self { name, elements, mismatches, .. } = self;
        format!("OutputReport({name}: {mismatches} of {elements} elements differ)")
    }
}

/// Runs a launch bundle: a folder that `run(.., capture=)`, `ptx-emu exec --capture` or `ptx-emu
/// capture` wrote.
///
/// The result's `outputs` say how what the launch left compares with the bundle's expected outputs.
/// Keywords are those of `run`. Outputs that differ do not raise; see `Result.clean`.
#[pyfunction]
#[pyo3(
    signature = (folder, *, gpu=None, lax=false, schedule=None, model=None, allow=None, warn=None, deny=None,
        max_findings=None, instruction_limit=None, check=true),
    text_signature = "(folder, *, gpu=None, lax=False, schedule='eager', model='hardware', allow=(), warn=(), \
        deny=(), max_findings=20, instruction_limit=None, check=True)"
)]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub fn replay(
    py: Python<'_>,
    folder: &Bound<'_, PyAny>,
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
) -> PyResult<Py<Result>> {
    let keywords =
        Keywords { gpu, lax, schedule, model, allow, warn, deny, max_findings, instruction_limit };
    let options = keywords.read()?;
    let folder = options::folder("folder", folder)?;
    let conditions = options.conditions;
    let mut ptx = String::new();
    let ran = py.detach(|| {
        let bundle = Bundle::read(&folder)?;
        ptx.clone_from(&bundle.ptx);
        let mut experiment = bundle.experiment(Some(&options.machine(&bundle.ptx)))?;
        let module = bundle::load(&experiment)?;
        let outcome = experiment.run_once(&module, &conditions);
        Ok((experiment, outcome))
    });
    let (experiment, outcome) = ran.map_err(|failed| error::bundle(&failed, &ptx))?;
    Result::of(py, &experiment, &conditions, &outcome)?.finish(py, check)
}
