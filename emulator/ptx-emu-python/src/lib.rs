//! The Python module `ptx_emu`: PTX kernels on NumPy arrays, on the emulator. The package in `python`, with the plugin
//! of pytest, has what this library exports as `_ptx_emu`.
//!
//! It wraps the library of the same name and adds no rule of its own; what it decides is how
//! Python values become parameters ([`arguments`]), and which results are exceptions ([`error`]).
//!
//! NumPy is used by its Python functions (`ndarray.tobytes`, `numpy.copyto`): the buffer protocol is
//! part of the stable ABI only from Python 3.11 on, the crate `numpy` would add ndarray to the
//! dependencies, and a copy of each array is needed in any case, because device memory knows of
//! each byte whether it was written.

mod arguments;
mod arrays;
mod bundles;
mod error;
mod examination;
mod exploration;
mod finding;
mod kinds;
mod log;
mod maps;
mod options;
mod record;
mod run;

use pyo3::prelude::*;

/// Runs PTX kernels for Hopper and Blackwell GPUs on NumPy arrays, without a GPU, and says what is
/// wrong with them.
///
/// `run` launches a kernel once, `explore` under many schedules, `replay` a launch that was
/// captured; `check` says whether a module loads; `kinds` and `explain` describe the findings.
#[pymodule(name = "_ptx_emu")]
mod ptx_emu_module {
    #[pymodule_export]
    use crate::arrays::Output;
    #[pymodule_export]
    use crate::bundles::{OutputReport, replay};
    #[pymodule_export]
    use crate::error::{
        ArgumentError, BundleError, DeviceMemoryError, Error, FindingError, LaunchError, LoadError,
    };
    #[pymodule_export]
    use crate::examination::{Examination, Kernel, Parameter, Unsupported, check};
    #[pymodule_export]
    use crate::exploration::{Exploration, Failure, explore};
    #[pymodule_export]
    use crate::finding::Finding;
    #[pymodule_export]
    use crate::kinds::{Kind, explain, kinds};
    #[pymodule_export]
    use crate::log::sarif;
    #[pymodule_export]
    use crate::maps::TensorMap;
    #[pymodule_export]
    use crate::record::{Counters, LowerBound, Record};
    #[pymodule_export]
    use crate::run::{Result, run};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
