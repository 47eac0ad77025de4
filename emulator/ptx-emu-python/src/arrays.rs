//! NumPy arrays, and memory that begins as that of no array.

use crate::error::{bad, shown};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::ops::Range;

/// An array whose device memory begins uninitialised, as that of cudaMalloc: a kernel that reads it
/// before it has written it has a finding. The kernel's results go to the array, and the array's
/// other elements stay as they are.
#[pyclass(module = "ptx_emu", frozen)]
pub struct Output {
    array: Py<PyAny>,
}

#[pymethods]
impl Output {
    #[new]
    fn new(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let found = Array::new(array).map_err(|wrong| wrong.of("array"))?;
        if !found.writeable {
            return Err(bad("array", "a writeable array", "a read-only one"));
        }
        Ok(Self { array: array.clone().unbind() })
    }

    /// The array.
    #[getter]
    pub fn array(&self, py: Python<'_>) -> Py<PyAny> {
        self.array.clone_ref(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("Output({})", shown(self.array.bind(py)))
    }
}

/// The reason why an array cannot be a buffer.
pub struct Unfit {
    /// The required value.
    pub required: &'static str,
    /// The actual value.
    pub actual: String,
}

impl Unfit {
    fn of(self, field: &str) -> PyErr {
        bad(field, self.required, self.actual)
    }
}

/// An array that may be a buffer: its elements are numbers or records in the order of the host's
/// bytes, one behind the other.
pub struct Array<'py> {
    array: Bound<'py, PyAny>,
    /// Address of its first byte.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether NumPy lets anybody write it.
    pub writeable: bool,
}

/// Whether a value is an array of NumPy, and not a number.
pub fn is_array(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.is_instance(&value.py().import("numpy")?.getattr("ndarray")?)
}

/// Whether a value is a number of NumPy.
pub fn is_scalar(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.is_instance(&value.py().import("numpy")?.getattr("generic")?)
}

impl<'py> Array<'py> {
    /// Looks at an array.
    pub fn new(value: &Bound<'py, PyAny>) -> Result<Self, Unfit> {
        let unfit = |required, actual| Unfit { required, actual };
        let failed = |error: PyErr| unfit("a NumPy array", error.to_string());
        if !is_array(value).map_err(failed)? {
            let required = "a NumPy array (numpy.asarray makes one of others' without a copy)";
            return Err(unfit(required, shown(value)));
        }
        Self::read(value).map_err(failed)?
    }

    fn read(array: &Bound<'py, PyAny>) -> PyResult<Result<Self, Unfit>> {
        let unfit = |required, actual| Ok(Err(Unfit { required, actual }));
        let (dtype, flags) = (array.getattr("dtype")?, array.getattr("flags")?);
        if dtype.getattr("hasobject")?.is_truthy()? {
            return unfit("elements of a fixed size", format!("dtype {dtype}, Python objects"));
        }
        if !dtype.getattr("isnative")?.is_truthy()? {
            let text = dtype.getattr("str")?;
            return unfit("elements in little-endian byte order", format!("dtype {text}"));
        }
        if !flags.getattr("c_contiguous")?.is_truthy()? {
            let (shape, strides) = (array.getattr("shape")?, array.getattr("strides")?);
            return unfit(
                "a C-contiguous array (numpy.ascontiguousarray copies to one)",
                format!("shape {shape} with strides {strides}"),
            );
        }
        let bytes: u64 = array.getattr("nbytes")?.extract()?;
        if bytes == 0 {
            let shape = array.getattr("shape")?;
            let required = "an array of at least one byte (None is a null pointer)";
            return unfit(required, format!("shape {shape} of dtype {dtype}"));
        }
        let interface = array.getattr("__array_interface__")?;
        let (address, _): (u64, bool) = interface.get_item("data")?.extract()?;
        let writeable = flags.getattr("writeable")?.is_truthy()?;
        Ok(Ok(Self { array: array.clone(), address, bytes, writeable }))
    }

    /// A copy of its bytes.
    pub fn contents(&self) -> PyResult<Bound<'py, PyBytes>> {
        Ok(self.array.call_method0("tobytes")?.cast_into()?)
    }

    /// Replaces parts of its bytes.
    pub fn write(&self, parts: &[(Range<usize>, &[u8])]) -> PyResult<()> {
        let py = self.array.py();
        let numpy = py.import("numpy")?;
        // A view of the array's own memory, because it is contiguous; masks and the like are left out.
        let plain = numpy.call_method1("asarray", (&self.array,))?;
        let flat = plain.call_method1("reshape", (-1,))?.call_method1("view", ("uint8",))?;
        let keywords = PyDict::new(py);
        keywords.set_item("dtype", "uint8")?;
        for (range, bytes) in parts {
            let source = PyBytes::new(py, bytes);
            let source = numpy.call_method("frombuffer", (source,), Some(&keywords))?;
            let slice =
                pyo3::types::PySlice::new(py, range.start.try_into()?, range.end.try_into()?, 1);
            numpy.call_method1("copyto", (flat.get_item(slice)?, source))?;
        }
        Ok(())
    }
}
