//! Findings as objects.

use crate::record::object;
use ptx_emu::{AccessKind, Diagnostic, readable_name};
use pyo3::prelude::*;

/// Something that a kernel did wrong, and where.
#[pyclass(module = "ptx_emu", frozen)]
pub struct Finding {
    diagnostic: Diagnostic,
}

impl Finding {
    /// The finding of a diagnostic; the others that this one carries are left to the caller.
    pub fn of(py: Python<'_>, diagnostic: &Diagnostic) -> PyResult<Py<Self>> {
        let diagnostic = Diagnostic { others: Vec::new(), ..diagnostic.clone() };
        Py::new(py, Self { diagnostic })
    }

    /// All of them.
    pub fn all<'d>(
        py: Python<'_>,
        diagnostics: impl IntoIterator<Item = &'d Diagnostic>,
    ) -> PyResult<Vec<Py<Self>>> {
        diagnostics.into_iter().map(|diagnostic| Self::of(py, diagnostic)).collect()
    }

    /// Returns the finding.
    pub fn diagnostic(&self) -> &Diagnostic {
        &self.diagnostic
    }
}

#[pymethods]
impl Finding {
    /// Name of the kind, such as `data-race`; `kinds()` lists them.
    #[getter]
    fn kind(&self) -> &'static str {
        self.diagnostic.kind().name()
    }

    /// `deny` (the run is wrong) or `warn`.
    #[getter]
    fn level(&self) -> String {
        self.diagnostic.level.to_string()
    }

    /// Returns the fault and its place, in one line.
    #[getter]
    fn message(&self) -> String {
        self.diagnostic.to_string()
    }

    /// Returns the advice in one line.
    #[getter]
    fn advice(&self) -> String {
        self.diagnostic.kind().advice()
    }

    /// The kernel's name in the PTX.
    #[getter]
    fn kernel(&self) -> &str {
        &self.diagnostic.kernel
    }

    /// The kernel's name in its source: C++ and Rust names demangled.
    #[getter]
    fn kernel_name(&self) -> String {
        readable_name(&self.diagnostic.kernel).into_owned()
    }

    /// Line of the PTX, from 1.
    #[getter]
    fn line(&self) -> u32 {
        self.diagnostic.line
    }

    /// Returns the line, trimmed.
    #[getter]
    fn instruction(&self) -> &str {
        &self.diagnostic.instruction
    }

    /// File of the source that the PTX was compiled from, where the module says so (`.loc`).
    #[getter]
    fn source_file(&self) -> Option<&str> {
        self.diagnostic.source.as_ref().map(|source| &*source.file)
    }

    /// Line of that file, from 1.
    #[getter]
    fn source_line(&self) -> Option<u32> {
        self.diagnostic.source.as_ref().map(|source| source.line)
    }

    /// `%ctaid`: x, y, z.
    #[getter]
    fn cta(&self) -> (u32, u32, u32) {
        self.diagnostic.cta.into()
    }

    /// Warp of the CTA.
    #[getter]
    fn warp(&self) -> u32 {
        self.diagnostic.warp
    }

    /// First lane concerned, where one is.
    #[getter]
    fn lane(&self) -> Option<u32> {
        self.diagnostic.lane
    }

    /// Schedule that led here: a run with the same one has the same finding.
    #[getter]
    fn schedule(&self) -> String {
        self.diagnostic.schedule.to_string()
    }

    /// Address of the access at fault, where there is one.
    #[getter]
    fn address(&self) -> Option<u64> {
        self.diagnostic.access.as_ref().map(|access| access.address)
    }

    /// Bytes of that access.
    #[getter]
    fn bytes(&self) -> Option<u32> {
        self.diagnostic.access.as_ref().map(|access| access.bytes)
    }

    /// Memory of that access: `global`, `shared`, `local`, `const` or `param`.
    #[getter]
    fn space(&self) -> Option<&'static str> {
        self.diagnostic.access.as_ref().map(|access| access.space.name())
    }

    /// Returns the kind of that access: `read`, `write` or `atomic`.
    #[getter]
    fn access(&self) -> Option<&'static str> {
        self.diagnostic.access.as_ref().map(|access| match access.kind {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::Atomic => "atomic",
        })
    }

    /// The buffer at that address or nearest to it, named by the parameter that it was given for.
    #[getter]
    fn buffer(&self) -> Option<&str> {
        Some(&self.diagnostic.access.as_ref()?.allocation.as_ref()?.name)
    }

    /// The page about the kind: the rule, what hardware does, how to mend it, a program with it.
    fn explain(&self) -> String {
        self.diagnostic.kind().explanation()
    }

    /// Kind, level, message, advice and place, as `ptx-emu run --json` prints them.
    fn to_dict(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        object(py, &self.diagnostic.to_json())
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.diagnostic == other.diagnostic
    }

    fn __str__(&self) -> String {
        self.message()
    }

    fn __repr__(&self) -> String {
        format!("Finding({} {}, {})", self.level(), self.kind(), self.message())
    }
}
