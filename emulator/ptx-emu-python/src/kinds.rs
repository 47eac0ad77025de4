//! Kinds of findings.

use crate::options::named;
use ptx_emu::{Kind as RustKind, Model};
use pyo3::prelude::*;

/// A kind of finding.
#[pyclass(module = "ptx_emu", frozen)]
pub struct Kind {
    kind: RustKind,
}

#[pymethods]
impl Kind {
    /// Its name, which does not change.
    #[getter]
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Returns the title, a few words.
    #[getter]
    fn title(&self) -> &'static str {
        self.kind.title()
    }

    /// Returns the advice in one line.
    #[getter]
    fn advice(&self) -> String {
        self.kind.advice()
    }

    /// The run cannot go on behind it; it is always denied.
    #[getter]
    fn fatal(&self) -> bool {
        self.kind.is_fatal()
    }

    /// Its level under `model="hardware"`, unless another is asked for: `allow`, `warn` or `deny`.
    #[getter]
    fn hardware(&self) -> String {
        self.kind.level(Model::Hardware).to_string()
    }

    /// Its level under `model="ptx"`.
    #[getter]
    fn ptx(&self) -> String {
        self.kind.level(Model::Ptx).to_string()
    }

    /// The page about it: the rule, what hardware does, how to mend it, a program with it.
    fn explain(&self) -> String {
        self.kind.explanation()
    }

    fn __repr__(&self) -> String {
        format!("Kind({}: {})", self.kind.name(), self.kind.title())
    }
}

/// All kinds of findings.
#[pyfunction]
pub fn kinds() -> Vec<Kind> {
    RustKind::ALL.into_iter().map(|kind| Kind { kind }).collect()
}

/// The page about a kind of finding: the rule, what hardware does, how to mend it, a program with it.
#[pyfunction]
pub fn explain(kind: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(named("kind", kind)?.explanation())
}
