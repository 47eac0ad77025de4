//! Counts as objects: read-only attributes, nested as the library has them.

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde_json::{Map, Value};

/// Read-only values by name, as attributes. A value that is itself a group of values is a `Record`. A
/// name that is a word of Python ends in an underscore as an attribute: `counters.global_`.
#[pyclass(module = "ptx_emu", frozen, subclass)]
pub struct Record {
    values: Map<String, Value>,
}

/// Counts of a launch: instructions by family, traffic by memory, asynchronous operations, work of
/// the tensor cores. Equal launches have equal counters.
#[pyclass(module = "ptx_emu", frozen, extends = Record)]
pub struct Counters;

/// The time below which the GPU cannot get for the counted work; computed, never measured.
#[pyclass(module = "ptx_emu", frozen, extends = Record)]
pub struct LowerBound;

impl Record {
    fn new(value: Value) -> Self {
        match value {
            Value::Object(values) => Self { values },
            _ => Self { values: Map::new() },
        }
    }
}

impl Counters {
    /// The counters of a launch.
    pub fn of(py: Python<'_>, counters: &ptx_emu::Counters) -> PyResult<Py<Self>> {
        let value = serde_json::to_value(counters).unwrap_or_default();
        Py::new(py, PyClassInitializer::from(Record::new(value)).add_subclass(Self))
    }
}

impl LowerBound {
    /// The bound that follows from counters.
    pub fn of(py: Python<'_>, bound: &ptx_emu::LowerBound) -> PyResult<Py<Self>> {
        let mut value = serde_json::to_value(bound).unwrap_or_default();
        // A list of names and seconds; as a group its parts have names here, too.
        let parts = bound.parts.iter().map(|part| (part.name.to_owned(), part.seconds.into()));
        value["parts"] = Value::Object(parts.collect());
        Py::new(py, PyClassInitializer::from(Record::new(value)).add_subclass(Self))
    }
}

#[pymethods]
impl Record {
    fn __getattr__(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        let value = self.values.iter().find(|(key, _)| attribute(key) == name);
        match value.map(|(_, value)| value) {
            Some(value @ Value::Object(_)) => Ok(Py::new(py, Self::new(value.clone()))?.into_any()),
            Some(value) => object(py, value),
            None => {
                let names: Vec<&str> = self.values.keys().map(|key| attribute(key)).collect();
                let message = format!("required one of {}, actual `{name}`", names.join(", "));
                Err(PyAttributeError::new_err(message))
            }
        }
    }

    fn __dir__(&self) -> Vec<String> {
        let names = self.values.keys().map(|key| attribute(key).to_owned());
        names.chain(["to_dict".to_owned()]).collect()
    }

    /// The values as a dictionary of numbers, texts and dictionaries.
    fn to_dict(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        object(py, &Value::Object(self.values.clone()))
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.values == other.values
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let name = slf.get_type().name()?;
        Ok(format!("{name}({})", Value::Object(slf.get().values.clone())))
    }
}

/// The attribute of a value.
fn attribute(key: &str) -> &str {
    match key {
        "global" => "global_",
        other => other,
    }
}

/// A Python object of the same contents.
pub fn object(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
    Ok(match value {
        Value::Null => py.None(),
        Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any().unbind(),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into_pyobject(py)?.into_any().unbind(),
            (_, Some(number)) => number.into_pyobject(py)?.into_any().unbind(),
            _ => number.as_f64().into_pyobject(py)?.into_any().unbind(),
        },
        Value::String(text) => text.into_pyobject(py)?.into_any().unbind(),
        Value::Array(items) => {
            let items: Vec<Py<PyAny>> =
                items.iter().map(|item| object(py, item)).collect::<PyResult<_>>()?;
            PyList::new(py, items)?.into_any().unbind()
        }
        Value::Object(values) => {
            let dict = PyDict::new(py);
            for (name, value) in values {
                dict.set_item(name, object(py, value)?)?;
            }
            dict.into_any().unbind()
        }
    })
}
