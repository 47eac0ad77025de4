//! Tensor maps as arguments.

use crate::arrays::{Array, Output};
use crate::error::{bad, shown};
use crate::options::{Given, integer};
use ptx_emu::tensor_map::{
    ElementType, Fill, Interleave, L2Promotion, Swizzle, TensorMap as RustMap, UnknownName,
};
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::str::FromStr;

/// A tensor map of an array (or of an `Output`), for a parameter of 128 bytes or a field of a struct.
///
/// Parameters have the meaning and the order of `cuTensorMapEncodeTiled`: **the innermost dimension comes
/// first**, strides are in bytes, and there is one fewer of them.
///     box: elements of a copy, by dimension.
///     dtype: such as "FLOAT16" or "16U4_ALIGN8B"; None for that of the array.
///     dims: elements of the tensor; None for the array's shape.
///     strides: None for those of the array, or of packed `dims` if these are given.
///     element_strides: None for ones.
///     interleave, swizzle, l2, oob: such as "NONE", "128B", "NAN_REQUEST_ZERO_FMA".
#[pyclass(module = "ptx_emu", frozen)]
pub struct TensorMap {
    array: Py<PyAny>,
    /// The map, without its address.
    map: RustMap,
}

#[pymethods]
impl TensorMap {
    #[new]
    #[pyo3(
        signature = (array, r#box, *, dtype=None, dims=None, strides=None, element_strides=None,
            interleave=None, swizzle=None, l2=None, oob=None),
        text_signature = "(array, box, *, dtype=None, dims=None, strides=None, element_strides=None, \
            interleave='NONE', swizzle='NONE', l2='NONE', oob='NONE')"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        array: &Bound<'_, PyAny>,
        r#box: &Bound<'_, PyAny>,
        dtype: Given<'_, '_>,
        dims: Given<'_, '_>,
        strides: Given<'_, '_>,
        element_strides: Given<'_, '_>,
        interleave: Given<'_, '_>,
        swizzle: Given<'_, '_>,
        l2: Given<'_, '_>,
        oob: Given<'_, '_>,
    ) -> PyResult<Self> {
        let py = array.py();
        let tensor = match array.cast::<Output>() {
            Ok(output) => output.get().array(py).into_bound(py),
            Err(_) => array.clone(),
        };
        Array::new(&tensor).map_err(|wrong| bad("array", wrong.required, wrong.actual))?;
        let element = match dtype {
            Some(name) => named("dtype", Some(name))?,
            None => element_of(&tensor)?,
        };
        let inner_first = |name: &str| -> PyResult<Vec<u64>> {
            let mut numbers: Vec<u64> = tensor.getattr(name)?.extract()?;
            numbers.reverse();
            Ok(numbers)
        };
        let given = dims.map(|dims| numbers("dims", dims, u64::MAX)).transpose()?;
        let strides = match (strides, &given) {
            (Some(strides), _) => numbers("strides", strides, u64::MAX)?,
            (None, Some(dims)) => packed(element, dims),
            (None, None) => inner_first("strides")?.into_iter().skip(1).collect(),
        };
        let dims = given.map_or_else(|| inner_first("shape"), Ok)?;
        let element_strides = match element_strides {
            Some(strides) => narrow(numbers("element_strides", strides, u32::MAX.into())?),
            None => vec![1; dims.len()],
        };
        let map = RustMap {
            element,
            address: 0,
            dims,
            strides,
            box_dims: narrow(numbers("box", r#box, u32::MAX.into())?),
            element_strides,
            interleave: named::<Interleave>("interleave", interleave)?,
            swizzle: named::<Swizzle>("swizzle", swizzle)?,
            l2_promotion: named::<L2Promotion>("l2", l2)?,
            fill: named::<Fill>("oob", oob)?,
        };
        Ok(Self { array: array.clone().unbind(), map })
    }

    /// The array, or the `Output`.
    #[getter]
    pub fn array(&self, py: Python<'_>) -> Py<PyAny> {
        self.array.clone_ref(py)
    }

    fn __repr__(&self) -> String {
        let RustMap { element, dims, box_dims, swizzle, .. } = &self.map;
        format!("TensorMap({element}, dims {dims:?}, box {box_dims:?}, swizzle {swizzle})")
    }
}

impl TensorMap {
    /// The map of a tensor at an address.
    pub fn at(&self, address: u64) -> RustMap {
        RustMap { address, ..self.map.clone() }
    }
}

/// Strides of dimensions without gaps.
fn packed(element: ElementType, dims: &[u64]) -> Vec<u64> {
    let outer = dims.split_last().map_or(&[][..], |(_, outer)| outer);
    let row = |elements: &mut u64, dim: &u64| {
        *elements = elements.saturating_mul(*dim);
        Some(elements.saturating_mul(element.bits().into()) / 8)
    };
    outer.iter().scan(1, row).collect()
}

fn narrow(numbers: Vec<u64>) -> Vec<u32> {
    numbers.into_iter().map(|number| u32::try_from(number).unwrap_or(u32::MAX)).collect()
}

/// Numbers of a sequence.
fn numbers(field: &str, value: &Bound<'_, PyAny>, most: u64) -> PyResult<Vec<u64>> {
    let items: Option<Vec<Bound<'_, PyAny>>> = match value.is_instance_of::<PyString>() {
        true => None,
        false => value.try_iter().and_then(Iterator::collect).ok(),
    };
    let items = items.ok_or_else(|| {
        bad(field, "a sequence of integers, the innermost dimension first", shown(value))
    })?;
    let one = |(at, item)| integer(&format!("{field}[{at}]"), item, 0, most);
    items.iter().enumerate().map(one).collect()
}

/// An enumeration of the driver by its name; `NONE` if it is not given.
fn named<T: FromStr<Err = UnknownName>>(field: &str, value: Given<'_, '_>) -> PyResult<T> {
    let name = match value {
        None => "NONE".to_owned(),
        Some(value) => value.extract().unwrap_or_default(),
    };
    name.parse().map_err(|error: UnknownName| {
        let actual = value.map_or_else(|| name.clone(), shown);
        bad(field, format!("one of {}", error.required), actual)
    })
}

/// The type of an array's elements.
fn element_of(array: &Bound<'_, PyAny>) -> PyResult<ElementType> {
    let name: String = array.getattr("dtype")?.getattr("name")?.extract()?;
    Ok(match name.as_str() {
        "uint8" | "int8" => ElementType::U8,
        "uint16" | "int16" => ElementType::U16,
        "uint32" => ElementType::U32,
        "int32" => ElementType::S32,
        "uint64" => ElementType::U64,
        "int64" => ElementType::S64,
        "float16" => ElementType::F16,
        "bfloat16" => ElementType::Bf16,
        "float32" => ElementType::F32,
        "float64" => ElementType::F64,
        _ => {
            let required = "given for arrays of a type that tensor maps do not have";
            return Err(bad("dtype", required, format!("None, and an array of {name}")));
        }
    })
}
