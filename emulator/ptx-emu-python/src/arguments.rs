//! Python values as parameters of a kernel: device memory and the bytes of the parameter block.

use crate::arrays::{Array, Output, Unfit, is_array, is_scalar};
use crate::error::{bad, bad_argument, memory as memory_error, shown};
use crate::maps::TensorMap;
use crate::options::Given;
use ptx_emu::bundle::{Allocation, CompareType, MapPlace, PlacedMap};
use ptx_emu::tensor_map::{TENSOR_MAP_BYTES, TensorMapError};
use ptx_emu::{GlobalMemory, Gpu, KernelInfo, ParamInfo};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyString};
use std::ops::Range;

/// Bytes of a device pointer.
const POINTER: usize = 8;
/// Alignment of device memory, as drivers have it.
const ALIGN: u64 = 256;
/// Alignment of a tensor map (PTX ISA 5.5.8).
const MAP_ALIGN: usize = 64;

/// Parameters that are ready for a launch.
pub struct Parameters {
    /// The whole parameter block.
    pub params: Vec<u8>,
    /// Device memory with all buffers.
    pub memory: GlobalMemory,
    /// Tensor maps in the block.
    pub maps: Vec<PlacedMap>,
    gpu: Gpu,
    buffers: Vec<Buffer>,
}

/// Device memory of an array.
struct Buffer {
    /// All arrays with this memory.
    arrays: Vec<Py<PyAny>>,
    /// The first parameter that it was given for.
    name: String,
    /// Address of the arrays on the host.
    host: u64,
    /// Address on the device.
    addr: u64,
    bytes: u64,
    /// Whether it begins uninitialised.
    output: bool,
}

/// The declared type of a parameter.
#[derive(Clone, Copy, PartialEq)]
enum Type {
    /// An integer of so many bytes, with or without a sign.
    Integer(usize, bool),
    /// Bits that may be of any type.
    Bits(usize),
    Float(CompareType),
    /// An array of bytes.
    Struct(usize),
}

impl Type {
    /// The type as PTX declares it: `u64`, `b8[128]`.
    fn of(param: &ParamInfo) -> Self {
        let bytes = param.size as usize;
        if param.ty.contains('[') {
            return Self::Struct(bytes);
        }
        if let Some(float) = CompareType::from_name(&param.ty) {
            return Self::Float(float);
        }
        match param.ty.chars().next() {
            Some('u') => Self::Integer(bytes, false),
            Some('s') => Self::Integer(bytes, true),
            _ => Self::Bits(bytes),
        }
    }

    fn may_be_a_pointer(self) -> bool {
        matches!(self, Self::Integer(POINTER, _) | Self::Bits(POINTER))
    }
}

/// An argument that is being read, for messages.
struct Item<'a> {
    at: usize,
    param: &'a ParamInfo,
}

impl Item<'_> {
    fn bad(&self, part: &str, required: impl Into<String>, actual: impl Into<String>) -> PyErr {
        bad_argument(self.at, &self.param.name, part, required, actual)
    }

    fn unfit(&self, part: &str, wrong: Unfit) -> PyErr {
        self.bad(part, wrong.required, wrong.actual)
    }

    /// `.u32`, for messages.
    fn declared(&self) -> String {
        format!("the parameter's type .{}", self.param.ty)
    }
}

/// Allocates the arrays, and lays out the parameters of `kernel` on `gpu`.
pub fn bind(
    py: Python<'_>,
    kernel: &KernelInfo,
    gpu: &Gpu,
    args: Given<'_, '_>,
) -> PyResult<Parameters> {
    let args: Vec<Bound<'_, PyAny>> = match args {
        None => Vec::new(),
        Some(args) if args.is_instance_of::<PyString>() || is_array(args)? => {
            return Err(bad("args", "a sequence with an item for each parameter", shown(args)));
        }
        Some(args) => args
            .try_iter()
            .and_then(Iterator::collect)
            .map_err(|_| bad("args", "a sequence with an item for each parameter", shown(args)))?,
    };
    if args.len() != kernel.params.len() {
        let names: Vec<&str> = kernel.params.iter().map(|param| param.name.as_str()).collect();
        let required = format!("{} items ({})", names.len(), names.join(", "));
        return Err(bad("args", required, format!("{} items", args.len())));
    }
    let mut bound = Parameters {
        params: vec![0; kernel.param_bytes as usize],
        memory: GlobalMemory::new(),
        maps: Vec::new(),
        gpu: gpu.clone(),
        buffers: Vec::new(),
    };
    for (at, (value, param)) in args.iter().zip(&kernel.params).enumerate() {
        let item = Item { at, param };
        let bytes = bound.parameter(py, &item, value)?;
        let start = param.offset as usize;
        // A parameter lies within its block, and every value was made to fit it.
        if let Some(place) = bound.params.get_mut(start..start + bytes.len()) {
            place.copy_from_slice(&bytes);
        }
    }
    Ok(bound)
}

impl Parameters {
    /// The bytes of an argument, as many as the parameter has.
    fn parameter(
        &mut self,
        py: Python<'_>,
        item: &Item<'_>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<u8>> {
        let ty = Type::of(item.param);
        let size = item.param.size as usize;
        if value.is_none() || is_array(value)? || value.is_instance_of::<Output>() {
            if !ty.may_be_a_pointer() {
                let required = format!("a value of {}, which is no pointer", item.declared());
                return Err(item.bad("", required, shown(value)));
            }
            return self.untyped(py, item, None, value);
        }
        if value.is_instance_of::<TensorMap>() && size != TENSOR_MAP_BYTES {
            let required = format!("a value of {}, which is no tensor map", item.declared());
            return Err(item.bad("", required, shown(value)));
        }
        if let Ok(fields) = value.cast::<PyDict>() {
            return self.structure(py, item, fields);
        }
        if is_scalar(value)? {
            if !scalar_fits(value, ty, size)? {
                let required = format!("a NumPy scalar that fits {}", item.declared());
                let actual = format!("{} ({})", shown(value), value.getattr("dtype")?);
                return Err(item.bad("", required, actual));
            }
            return self.untyped(py, item, None, value);
        }
        if value.is_instance_of::<PyInt>() || value.is_instance_of::<PyFloat>() {
            return number(item, ty, value);
        }
        let bytes = self.untyped(py, item, None, value)?;
        if bytes.len() != size {
            let required = format!("{size} bytes, the size of {}", item.declared());
            return Err(item.bad("", required, format!("{} bytes", bytes.len())));
        }
        Ok(bytes)
    }

    /// The bytes of a value that says its type itself; `offset` is that of a struct's field.
    fn untyped(
        &mut self,
        py: Python<'_>,
        item: &Item<'_>,
        offset: Option<usize>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<u8>> {
        let part = &offset.map_or_else(String::new, |offset| format!("[{offset}]"));
        if value.is_none() {
            return Ok(vec![0; POINTER]);
        }
        if let Ok(bytes) = value.cast::<PyBytes>() {
            return Ok(bytes.as_bytes().to_vec());
        }
        if let Ok(bytes) = value.cast::<PyByteArray>() {
            return Ok(bytes.to_vec());
        }
        if let Ok(output) = value.cast::<Output>() {
            let array = output.get().array(py);
            let addr = self.buffer(item, part, array.bind(py), true)?;
            return Ok(addr.to_le_bytes().to_vec());
        }
        if let Ok(map) = value.cast::<TensorMap>() {
            return self.tensor_map(py, item, offset, map.get());
        }
        if is_array(value)? {
            let addr = self.buffer(item, part, value, false)?;
            return Ok(addr.to_le_bytes().to_vec());
        }
        if is_scalar(value)? {
            if !value.getattr("dtype")?.getattr("isnative")?.is_truthy()? {
                let required = "a number in little-endian byte order";
                return Err(item.bad(part, required, shown(value)));
            }
            let bytes = value.call_method0("tobytes")?;
            return Ok(bytes.cast::<PyBytes>()?.as_bytes().to_vec());
        }
        let required = match part.as_str() {
            "" => {
                "an array, ptx_emu.Output or TensorMap, a number, bytes, None (a null pointer), or a dictionary of a struct's fields"
            }
            _ => {
                "an array, ptx_emu.Output or TensorMap, a NumPy scalar, bytes or None (a null pointer)"
            }
        };
        Err(item.bad(part, required, shown(value)))
    }

    /// The bytes of a tensor map.
    fn tensor_map(
        &mut self,
        py: Python<'_>,
        item: &Item<'_>,
        offset: Option<usize>,
        map: &TensorMap,
    ) -> PyResult<Vec<u8>> {
        let part = offset.map_or_else(String::new, |offset| format!("[{offset}]"));
        let start = (item.param.offset as usize).saturating_add(offset.unwrap_or(0));
        if !start.is_multiple_of(MAP_ALIGN) {
            let required = format!("a place in the parameters at a multiple of {MAP_ALIGN} bytes");
            return Err(item.bad(&part, required, format!("byte {start}")));
        }
        let array = map.array(py);
        let array = array.bind(py);
        let addr = match array.cast::<Output>() {
            Ok(output) => self.buffer(item, &part, output.get().array(py).bind(py), true)?,
            Err(_) => self.buffer(item, &part, array, false)?,
        };
        let map = map.at(addr);
        let bytes = map.encode_for(&self.gpu).map_err(|refused| match refused {
            TensorMapError::Field { field, required, actual } => {
                item.bad(&format!("{part}.{field}"), required, actual)
            }
            other => item.bad(&part, "a map that the driver takes", other.to_string()),
        })?;
        self.maps.push(PlacedMap { place: MapPlace::Param(start as u64), map });
        Ok(bytes.to_vec())
    }

    /// A struct by its fields: values by their offsets, zero elsewhere.
    fn structure(
        &mut self,
        py: Python<'_>,
        item: &Item<'_>,
        fields: &Bound<'_, PyDict>,
    ) -> PyResult<Vec<u8>> {
        let size = item.param.size as usize;
        if !matches!(Type::of(item.param), Type::Struct(_)) {
            let required = format!("a value of {}, which is no struct", item.declared());
            return Err(item.bad("", required, shown(fields)));
        }
        let mut block = vec![0; size];
        let mut taken: Vec<Range<usize>> = Vec::new();
        for (offset, value) in fields {
            let Ok(start) = offset.extract::<usize>() else {
                let required = "offsets of fields (integers) as keys";
                return Err(item.bad("", required, shown(&offset)));
            };
            let part = format!("[{start}]");
            let bytes = self.untyped(py, item, Some(start), &value)?;
            let end = start.saturating_add(bytes.len());
            let Some(place) = block.get_mut(start..end) else {
                let required = format!("a field that ends at or before byte {size}");
                return Err(item.bad(&part, required, format!("byte {end}")));
            };
            if let Some(other) = taken.iter().find(|other| other.start < end && start < other.end) {
                let actual = format!("an overlap with the field at {}", other.start);
                return Err(item.bad(&part, "bytes that no other field has", actual));
            }
            place.copy_from_slice(&bytes);
            taken.push(start..end);
        }
        Ok(block)
    }

    /// The device address of an array, which is allocated unless the same memory was given before.
    fn buffer(
        &mut self,
        item: &Item<'_>,
        part: &str,
        value: &Bound<'_, PyAny>,
        output: bool,
    ) -> PyResult<u64> {
        let array = Array::new(value).map_err(|wrong| item.unfit(part, wrong))?;
        let (start, end) = (array.address, array.address + array.bytes);
        let shared = self
            .buffers
            .iter_mut()
            .find(|other| start < other.host + other.bytes && other.host < end);
        let Some(shared) = shared else {
            let name = item.param.name.clone();
            let addr = match output {
                true => self.memory.alloc(&name, array.bytes, ALIGN),
                false => self.memory.alloc_from(&name, array.contents()?.as_bytes()),
            };
            let addr = addr.map_err(|error| memory_error(&error))?;
            let arrays = vec![value.clone().unbind()];
            self.buffers.push(Buffer {
                arrays,
                name,
                host: start,
                addr,
                bytes: array.bytes,
                output,
            });
            return Ok(addr);
        };
        if (shared.host, shared.bytes) != (start, array.bytes) {
            let actual = format!("one that overlaps that of parameter `{}`", shared.name);
            let required = "memory of its own, or the whole memory of another argument";
            return Err(item.bad(part, required, actual));
        }
        if shared.output != output {
            let actual = format!("one of it and of parameter `{}`", shared.name);
            return Err(item.bad(part, "ptx_emu.Output for both arguments or for neither", actual));
        }
        shared.arrays.push(value.clone().unbind());
        Ok(shared.addr)
    }

    /// Writes what a launch left in `memory` to the arrays that may be written. Returns the names of
    /// the parameters whose memory it changed, and whose arrays are read-only.
    pub fn write_back(&self, py: Python<'_>, memory: &GlobalMemory) -> PyResult<Vec<String>> {
        let failed = |error| memory_error(&error);
        let mut kept = Vec::new();
        for buffer in &self.buffers {
            let left = memory.read_raw(buffer.addr, buffer.bytes).map_err(failed)?;
            let whole = buffer.addr..buffer.addr + buffer.bytes;
            let written = match buffer.output {
                true => memory.written(buffer.addr, buffer.bytes).map_err(failed)?,
                false => vec![whole],
            };
            let inside = |part: &Range<u64>| {
                (part.start - buffer.addr) as usize..(part.end - buffer.addr) as usize
            };
            let parts: Vec<(Range<usize>, &[u8])> =
                written.iter().map(inside).map(|part| (part.clone(), &left[part])).collect();
            let arrays: Vec<Array<'_>> = buffer
                .arrays
                .iter()
                .map(|array| {
                    let unfit = |wrong: Unfit| bad(&buffer.name, wrong.required, wrong.actual);
                    Array::new(array.bind(py)).map_err(unfit)
                })
                .collect::<PyResult<_>>()?;
            if let Some(array) = arrays.iter().find(|array| array.writeable) {
                array.write(&parts)?;
            } else if let Some(array) = arrays.first()
                && array.contents()?.as_bytes() != left.as_slice()
            {
                kept.push(buffer.name.clone());
            }
        }
        Ok(kept)
    }

    /// The buffers as those of a bundle, with what they hold now.
    pub fn allocations(&self) -> PyResult<Vec<Allocation>> {
        let one = |buffer: &Buffer| {
            let contents = match buffer.output {
                true => None,
                false => {
                    let contents = self.memory.read_raw(buffer.addr, buffer.bytes);
                    Some(contents.map_err(|error| memory_error(&error))?)
                }
            };
            let (addr, size, name) = (buffer.addr, buffer.bytes, buffer.name.clone());
            Ok(Allocation { addr, size, name, contents })
        };
        self.buffers.iter().map(one).collect()
    }
}

/// Whether a scalar of NumPy may be a parameter of a type.
fn scalar_fits(value: &Bound<'_, PyAny>, ty: Type, size: usize) -> PyResult<bool> {
    let dtype = value.getattr("dtype")?;
    if dtype.getattr("itemsize")?.extract::<usize>()? != size {
        return Ok(false);
    }
    let kind: String = dtype.getattr("kind")?.extract()?;
    let name: String = dtype.getattr("name")?.extract()?;
    Ok(match ty {
        Type::Bits(_) | Type::Struct(_) => kind != "O",
        Type::Integer(..) => matches!(kind.as_str(), "i" | "u" | "b"),
        Type::Float(float) => CompareType::from_name(&name) == Some(float),
    })
}

/// The bytes of Python's int or float as a parameter of a type.
fn number(item: &Item<'_>, ty: Type, value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let integer = value.is_instance_of::<PyInt>();
    let bits_of = |bytes: usize| 8 * bytes as u32;
    match ty {
        Type::Float(float) => {
            let wide = value.extract::<f64>().ok().and_then(|wide| float.nearest(wide));
            wide.ok_or_else(|| {
                item.bad("", format!("a number within {}'s range", float.name()), shown(value))
            })
        }
        Type::Integer(bytes, signed) if integer => {
            let (least, most) = match signed {
                true => (-(1i128 << (bits_of(bytes) - 1)), (1i128 << (bits_of(bytes) - 1)) - 1),
                false => (0, (1i128 << bits_of(bytes)) - 1),
            };
            let also = match signed {
                true => String::new(),
                false => format!(" (numpy.int{} may be negative)", bits_of(bytes)),
            };
            within(item, value, bytes, least, most, &also)
        }
        Type::Bits(bytes) if integer && bytes <= POINTER => {
            let bits = bits_of(bytes);
            within(item, value, bytes, -(1i128 << (bits - 1)), (1i128 << bits) - 1, "")
        }
        Type::Integer(..) => {
            Err(item.bad("", format!("an integer, for {}", item.declared()), shown(value)))
        }
        Type::Bits(bytes) if bytes <= POINTER => {
            let required = format!(
                "an integer, or a NumPy scalar such as numpy.float{}: {} does not say what it is",
                bits_of(bytes),
                item.declared()
            );
            Err(item.bad("", required, shown(value)))
        }
        Type::Bits(bytes) | Type::Struct(bytes) => {
            let required = format!(
                "{bytes} bytes, or a dictionary of fields by their offsets, for {}",
                item.declared()
            );
            Err(item.bad("", required, shown(value)))
        }
    }
}

/// The bytes of an integer within limits.
fn within(
    item: &Item<'_>,
    value: &Bound<'_, PyAny>,
    bytes: usize,
    least: i128,
    most: i128,
    also: &str,
) -> PyResult<Vec<u8>> {
    // Numbers of this width and more lie in 64 bits with or without a sign, or in neither.
    let wide = value.extract::<i64>().map(i128::from);
    let wide = wide.or_else(|_| value.extract::<u64>().map(i128::from)).ok();
    let fits = wide.filter(|wide| (least..=most).contains(wide));
    let fits = fits.ok_or_else(|| {
        let required = format!("an integer from {least} to {most}{also}, for {}", item.declared());
        item.bad("", required, shown(value))
    })?;
    Ok(fits.to_le_bytes()[..bytes].to_vec())
}
