//! `check`: what a module holds, and what is not modelled of it.

use crate::error;
use crate::options::{self, Given};
use ptx_emu::{Examined, Gpu, KernelInfo, LoadError, examine, readable_name};
use pyo3::prelude::*;

/// An instruction or declaration that is not modelled.
#[pyclass(module = "ptx_emu", frozen, get_all)]
pub struct Unsupported {
    /// Line of the PTX, from 1.
    line: u32,
    /// The line, trimmed.
    instruction: String,
    /// The part that is not modelled.
    why: String,
}

#[pymethods]
impl Unsupported {
    fn __repr__(&self) -> String {
        format!("Unsupported(line {}: `{}`: {})", self.line, self.instruction, self.why)
    }
}

/// The items as objects.
pub fn unsupported(
    py: Python<'_>,
    items: &[ptx_emu::Unsupported],
) -> PyResult<Vec<Py<Unsupported>>> {
    let one = |item: &ptx_emu::Unsupported| {
        let ptx_emu::Unsupported { line, instruction, why } = item.clone();
        Py::new(py, Unsupported { line, instruction, why })
    };
    items.iter().map(one).collect()
}

/// A parameter of a kernel.
#[pyclass(module = "ptx_emu", frozen, get_all)]
pub struct Parameter {
    /// Name.
    name: String,
    /// Type as declared, without the dot: `u64`, `b8[128]`.
    r#type: String,
    /// Whether it is declared to point somewhere (`.ptr`).
    pointer: bool,
    /// Size in bytes.
    bytes: u32,
    /// Offset in the parameter block, in bytes.
    offset: u32,
    /// Alignment in bytes.
    align: u32,
}

#[pymethods]
impl Parameter {
    fn __repr__(&self) -> String {
        format!("Parameter({}: .{}, {} bytes)", self.name, self.r#type, self.bytes)
    }
}

/// A kernel, and whether it can be launched.
#[pyclass(module = "ptx_emu", frozen, get_all)]
pub struct Kernel {
    /// Name in the PTX.
    name: String,
    /// Name in its source: C++ and Rust names demangled.
    readable_name: String,
    /// Whether it can be launched.
    loads: bool,
    /// The reason why not: a LoadError, which `run` raises; None if it loads.
    error: Option<Py<PyAny>>,
    /// Parameters, in order; empty if it does not load for another reason than `unsupported`.
    parameters: Vec<Py<Parameter>>,
    /// Instructions that it reaches and that are not modelled.
    unsupported: Vec<Py<Unsupported>>,
    /// Threads of a CTA that it requires (`.reqntid`).
    reqntid: Option<(u32, u32, u32)>,
    /// Most threads of a CTA (`.maxntid`).
    maxntid: Option<(u32, u32, u32)>,
    /// CTAs of a cluster that it requires (`.reqnctapercluster`).
    cluster: Option<(u32, u32, u32)>,
    /// Bytes of static shared memory.
    static_shared: u32,
    /// Whether it uses dynamic shared memory.
    dynamic_shared: bool,
}

#[pymethods]
impl Kernel {
    fn __repr__(&self) -> String {
        let verdict = if self.loads { "loads" } else { "does not load" };
        format!("Kernel(`{}` {verdict})", self.readable_name)
    }
}

/// The contents of a module.
#[pyclass(module = "ptx_emu", frozen, get_all)]
pub struct Examination {
    /// `.version`: major, minor.
    version: (u32, u32),
    /// `.target`: the architecture first.
    targets: Vec<String>,
    /// The machine that it was looked at for.
    gpu: &'static str,
    /// Machines that run its target.
    runs_on: Vec<&'static str>,
    /// Kernels in the order of the text.
    entries: Vec<Py<Kernel>>,
}

#[pymethods]
impl Examination {
    /// Whether all kernels can be launched.
    #[getter]
    fn loads(&self) -> bool {
        self.entries.iter().all(|kernel| kernel.get().loads)
    }

    fn __repr__(&self) -> String {
        let good = self.entries.iter().filter(|kernel| kernel.get().loads).count();
        format!("Examination({good} of {} kernels load on {})", self.entries.len(), self.gpu)
    }
}

impl Kernel {
    fn of(py: Python<'_>, examined: &Examined, text: &str) -> PyResult<Py<Self>> {
        let mut kernel = Self {
            name: examined.name.clone(),
            readable_name: readable_name(&examined.name).into_owned(),
            loads: examined.loads(),
            error: None,
            parameters: Vec::new(),
            unsupported: Vec::new(),
            reqntid: None,
            maxntid: None,
            cluster: None,
            static_shared: 0,
            dynamic_shared: false,
        };
        let raised = |error: &LoadError| error::load(error, text).into_value(py).into_any();
        match &examined.outcome {
            Err(error) => kernel.error = Some(raised(error)),
            Ok((info, items)) => {
                kernel.describe(py, info)?;
                kernel.unsupported = unsupported(py, items)?;
                if !items.is_empty() {
                    kernel.error = Some(raised(&LoadError::Unsupported(items.clone())));
                }
            }
        }
        Py::new(py, kernel)
    }

    fn describe(&mut self, py: Python<'_>, info: &KernelInfo) -> PyResult<()> {
        self.reqntid = info.reqntid.map(Into::into);
        self.maxntid = info.maxntid.map(Into::into);
        self.cluster = info.cluster.map(Into::into);
        self.static_shared = info.static_shared;
        self.dynamic_shared = info.dynamic_shared;
        for param in &info.params {
            let parameter = Parameter {
                name: param.name.clone(),
                r#type: param.ty.clone(),
                pointer: param.pointer,
                bytes: param.size,
                offset: param.offset,
                align: param.align,
            };
            self.parameters.push(Py::new(py, parameter)?);
        }
        Ok(())
    }
}

/// Says which kernels of a module can be launched, with their parameters, and what is not modelled of
/// the others. A kernel is looked at with the functions that it reaches.
///
/// `lax`: also kernels with statements that ptxas refuses load, such as those that the module's target lacks.
///
/// Raises LoadError if the whole module is refused: it is not PTX, or for another GPU.
#[pyfunction]
#[pyo3(signature = (ptx, entry=None, *, gpu=None, lax=false))]
pub fn check(
    py: Python<'_>,
    ptx: &Bound<'_, PyAny>,
    entry: Given<'_, '_>,
    gpu: Given<'_, '_>,
    lax: bool,
) -> PyResult<Examination> {
    let gpu = gpu.map(options::gpu).transpose()?;
    let text = options::ptx(ptx)?;
    let entry = entry.map(|_| options::entry(&text, entry)).transpose()?;
    let gpu = options::machine(gpu, lax, &text);
    let found = py.detach(|| examine(&text, &gpu, entry.as_deref()));
    let found = found.map_err(|refused| error::load(&refused, &text))?;
    for examined in &found.entries {
        if let Err(
            whole @ (LoadError::Target { .. }
            | LoadError::Version { .. }
            | LoadError::AddressSize { .. }),
        ) = &examined.outcome
        {
            return Err(error::load(whole, &text));
        }
    }
    let runs = |machine: &&Gpu| found.targets.first().is_some_and(|target| machine.accepts(target));
    Ok(Examination {
        version: found.version,
        gpu: gpu.name,
        runs_on: Gpu::ALL.iter().filter(runs).map(|machine| machine.name).collect(),
        entries: found
            .entries
            .iter()
            .map(|examined| Kernel::of(py, examined, &text))
            .collect::<PyResult<_>>()?,
        targets: found.targets,
    })
}
