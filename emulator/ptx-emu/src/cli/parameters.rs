//! Converts arguments to device memory and a parameter block.

use super::arguments::{
    Argument, Buffer, Expected, Field, FieldValue, MapArgument, MapSource, Source,
};
use super::error::{ArgumentError, CliError};
use super::output::{self, Output};
use ptx_emu::experiment::Watched;
use ptx_emu::explore::available_memory;
use ptx_emu::tensor_map::{TENSOR_MAP_BYTES, TensorMap, TensorMapError};
use ptx_emu::{GlobalMemory, Gpu, KernelInfo};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Bytes of a device pointer.
const POINTER: u64 = 8;

/// Required alignment of a tensor map, bytes (PTX ISA 5.5.8).
const MAP_ALIGN: u64 = 64;

/// The parts of a launch besides its shape.
#[derive(Debug)]
pub(crate) struct Bound {
    /// The whole parameter block.
    pub(crate) params: Vec<u8>,
    /// Device memory with all buffers.
    pub(crate) memory: GlobalMemory,
    /// Buffers to write to files afterwards.
    pub(crate) outputs: Vec<Output>,
    /// Buffers of which it is known what they must hold afterwards.
    pub(crate) expected: Vec<Watched>,
}

/// An allocated buffer.
#[derive(Clone, Copy)]
struct Allocation {
    addr: u64,
    bytes: u64,
}

/// Allocates the buffers and lays out the parameters of `kernel` on `gpu`; paths
/// are relative to `folder`.
pub(crate) fn bind(
    arguments: &[Argument],
    kernel: &KernelInfo,
    gpu: &Gpu,
    folder: &Path,
) -> Result<Bound, CliError> {
    if arguments.len() != kernel.params.len() {
        let names: Vec<&str> = kernel.params.iter().map(|p| p.name.as_str()).collect();
        return Err(CliError::ArgumentCount {
            kernel: kernel.name.clone(),
            required: names.len(),
            names: names.join(", "),
            actual: arguments.len(),
        });
    }
    let mut binder = Binder {
        kernel,
        gpu,
        folder,
        memory: GlobalMemory::new(),
        named: BTreeMap::new(),
        unnamed: BTreeMap::new(),
        outputs: Vec::new(),
        expected: Vec::new(),
    };
    binder.check_sizes(arguments)?;
    binder.allocate(arguments)?;
    binder.collect_outputs(arguments)?;
    binder.collect_expected(arguments)?;
    let params = binder.layout(arguments)?;
    let Binder { memory, outputs, expected, .. } = binder;
    Ok(Bound { params, memory, outputs, expected })
}

struct Binder<'a> {
    kernel: &'a KernelInfo,
    gpu: &'a Gpu,
    folder: &'a Path,
    memory: GlobalMemory,
    named: BTreeMap<String, Allocation>,
    /// Allocations by the place of the definition, see [`buffers`].
    unnamed: BTreeMap<Place, Allocation>,
    outputs: Vec<Output>,
    expected: Vec<Watched>,
}

/// Argument, and field of a struct.
type Place = (usize, Option<usize>);

/// All buffers of the arguments, with their places.
fn buffers(arguments: &[Argument]) -> impl Iterator<Item = (Place, &Buffer)> {
    arguments.iter().enumerate().flat_map(|(index, argument)| {
        let (single, fields): (_, &[Field]) = match argument {
            Argument::Scalar(_) => (None, &[]),
            Argument::Buffer(buffer) => (Some(buffer), &[]),
            Argument::TensorMap(map) => (map.buffer.as_ref(), &[]),
            Argument::Struct { fields, .. } => (None, fields),
        };
        let inner = fields.iter().enumerate().filter_map(move |(at, field)| match &field.value {
            FieldValue::Buffer(buffer) => Some(((index, Some(at)), buffer)),
            FieldValue::TensorMap(map) => Some(((index, Some(at)), map.buffer.as_ref()?)),
            FieldValue::Scalar(_) => None,
        });
        single.map(|buffer| ((index, None), buffer)).into_iter().chain(inner)
    })
}

impl Binder<'_> {
    fn error(
        &self,
        (index, field): Place,
        part: &str,
        required: impl Into<String>,
        actual: impl Into<String>,
    ) -> CliError {
        let prefix = field.map_or(String::new(), |at| format!("struct.fields[{at}]."));
        CliError::Argument(ArgumentError {
            index,
            name: self.kernel.params.get(index).map(|p| p.name.clone()),
            field: format!("{prefix}{part}"),
            required: required.into(),
            actual: actual.into(),
        })
    }

    fn check_sizes(&self, arguments: &[Argument]) -> Result<(), CliError> {
        for (index, (argument, param)) in arguments.iter().zip(&self.kernel.params).enumerate() {
            let (part, actual) = match argument {
                Argument::Scalar(scalar) => (scalar.kind, scalar.bytes.len() as u64),
                Argument::Buffer(_) => ("buffer", POINTER),
                Argument::TensorMap(_) => ("tensor_map", TENSOR_MAP_BYTES as u64),
                Argument::Struct { bytes, .. } => ("struct.bytes", *bytes),
            };
            if actual != u64::from(param.size) {
                return Err(self.error(
                    (index, None),
                    part,
                    format!("{} bytes, the size of the parameter's type .{}", param.size, param.ty),
                    format!("{actual} bytes"),
                ));
            }
            if !fits(argument, &param.ty) {
                return Err(self.error(
                    (index, None),
                    part,
                    format!("an argument of the parameter's type .{}", param.ty),
                    format!("one of the wrong type, {part}"),
                ));
            }
        }
        Ok(())
    }

    /// Allocates every buffer that has a source.
    fn allocate(&mut self, arguments: &[Argument]) -> Result<(), CliError> {
        self.check_host_memory(arguments)?;
        for (place, buffer) in buffers(arguments) {
            let Some(source) = &buffer.source else {
                continue;
            };
            let param = &self.kernel.params[place.0].name;
            let name = buffer.name.as_deref().unwrap_or(param);
            let allocation = match source {
                Source::File(file) => {
                    let contents = self.read(file)?;
                    if contents.is_empty() {
                        return Err(self.error(place, "buffer.file", "at least 1 byte", "0 bytes"));
                    }
                    self.hold(name, buffer.at, &contents)?
                }
                Source::Bytes(contents) => self.hold(name, buffer.at, contents)?,
                Source::Fill { bytes, value } => {
                    let allocation = self.reserve(name, buffer.at, *bytes)?;
                    if let Some(value) = value {
                        self.memory.fill(allocation.addr, *bytes, *value)?;
                    }
                    allocation
                }
            };
            let Some(name) = &buffer.name else {
                self.unnamed.insert(place, allocation);
                continue;
            };
            if self.named.insert(name.clone(), allocation).is_some() {
                return Err(self.error(
                    place,
                    "buffer.name",
                    "a name that no other buffer is defined with",
                    format!("`{name}`"),
                ));
            }
        }
        Ok(())
    }

    /// Allocates a buffer, at an address if one is given.
    fn reserve(&mut self, name: &str, at: Option<u64>, bytes: u64) -> Result<Allocation, CliError> {
        let addr = match at {
            Some(at) => self.memory.alloc_at(at, name, bytes)?,
            None => self.memory.alloc(name, bytes, 256)?,
        };
        Ok(Allocation { addr, bytes })
    }

    /// Allocates a buffer with these contents.
    fn hold(
        &mut self,
        name: &str,
        at: Option<u64>,
        contents: &[u8],
    ) -> Result<Allocation, CliError> {
        let allocation = self.reserve(name, at, contents.len() as u64)?;
        self.memory.write(allocation.addr, contents)?;
        Ok(allocation)
    }

    /// Collects the buffers to write. Their files are checked here, so that a
    /// long launch does not end in a misspelt folder.
    fn collect_outputs(&mut self, arguments: &[Argument]) -> Result<(), CliError> {
        for (place, buffer) in buffers(arguments) {
            let Some(out) = &buffer.out else {
                continue;
            };
            let Allocation { addr, bytes } = self.allocation(place, buffer)?;
            let path = self.folder.join(out);
            if self.outputs.iter().any(|other| other.path == path) {
                return Err(self.error(
                    place,
                    "out",
                    "a file that no other argument writes",
                    out.display().to_string(),
                ));
            }
            output::check(&path)?;
            self.outputs.push(Output {
                argument: place.0,
                parameter: self.kernel.params[place.0].name.clone(),
                path,
                addr,
                bytes,
            });
        }
        Ok(())
    }

    /// Collects what buffers must hold afterwards.
    fn collect_expected(&mut self, arguments: &[Argument]) -> Result<(), CliError> {
        for (place, buffer) in buffers(arguments) {
            let Some(expect) = &buffer.expect else {
                continue;
            };
            let Allocation { addr, bytes } = self.allocation(place, buffer)?;
            let contents = match &expect.contents {
                Expected::Bytes(contents) => contents.clone(),
                Expected::File(file) => self.read(file)?,
            };
            if contents.len() as u64 != bytes {
                let required = format!("{bytes} bytes, the size of the buffer");
                return Err(self.error(
                    place,
                    "expect",
                    required,
                    format!("{} bytes", contents.len()),
                ));
            }
            let param = &self.kernel.params[place.0].name;
            if self.expected.iter().any(|other| other.addr == addr) {
                let actual = format!("another of `{param}`'s buffer");
                return Err(self.error(place, "expect", "one for each buffer", actual));
            }
            self.expected.push(Watched {
                name: buffer.name.as_ref().unwrap_or(param).clone(),
                addr,
                bytes,
                expected: Some((contents, expect.compare)),
            });
        }
        Ok(())
    }

    /// A file, relative to the folder of the argument file.
    fn read(&self, file: &Path) -> Result<Vec<u8>, CliError> {
        let path = self.folder.join(file);
        std::fs::read(&path).map_err(|source| CliError::Read { path, source })
    }

    /// Device memory takes the buffers' size and a quarter more for its
    /// bookkeeping.
    fn check_host_memory(&self, arguments: &[Argument]) -> Result<(), CliError> {
        let mut total: u64 = 0;
        for (_, buffer) in buffers(arguments) {
            let bytes = match &buffer.source {
                None => 0,
                Some(Source::Fill { bytes, .. }) => *bytes,
                Some(Source::Bytes(contents)) => contents.len() as u64,
                Some(Source::File(file)) => {
                    let path: PathBuf = self.folder.join(file);
                    match std::fs::metadata(&path) {
                        Ok(metadata) => metadata.len(),
                        Err(source) => return Err(CliError::Read { path, source }),
                    }
                }
            };
            total = total.saturating_add(bytes);
        }
        match available_memory() {
            Some(available) if total > available / 5 * 4 => {
                Err(CliError::HostMemory { required: available / 5 * 4, actual: total })
            }
            _ => Ok(()),
        }
    }

    fn allocation(&self, place: Place, buffer: &Buffer) -> Result<Allocation, CliError> {
        let found = match &buffer.name {
            Some(name) => self.named.get(name),
            None => self.unnamed.get(&place),
        };
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = self.named.keys().map(String::as_str).collect();
            self.error(
                place,
                "buffer",
                format!("a defined name, one of [{}]", names.join(", ")),
                format!("`{}`", buffer.name.as_deref().unwrap_or_default()),
            )
        })
    }

    fn layout(&self, arguments: &[Argument]) -> Result<Vec<u8>, CliError> {
        let mut block = vec![0; self.kernel.param_bytes as usize];
        for (index, (argument, param)) in arguments.iter().zip(&self.kernel.params).enumerate() {
            let start = u64::from(param.offset);
            match argument {
                Argument::Scalar(scalar) => put(&mut block, start, &scalar.bytes),
                Argument::Buffer(buffer) => {
                    let addr = self.allocation((index, None), buffer)?.addr;
                    put(&mut block, start, &addr.to_le_bytes());
                }
                Argument::TensorMap(map) => {
                    put(&mut block, start, &self.tensor_map((index, None), start, map)?);
                }
                Argument::Struct { fields, .. } => {
                    for (at, field) in fields.iter().enumerate() {
                        let start = start + field.offset;
                        match &field.value {
                            FieldValue::Scalar(scalar) => put(&mut block, start, &scalar.bytes),
                            FieldValue::Buffer(buffer) => {
                                let addr = self.allocation((index, Some(at)), buffer)?.addr;
                                put(&mut block, start, &addr.to_le_bytes());
                            }
                            FieldValue::TensorMap(map) => {
                                let map = self.tensor_map((index, Some(at)), start, map)?;
                                put(&mut block, start, &map);
                            }
                        }
                    }
                }
            }
        }
        Ok(block)
    }

    /// The bytes of a tensor map that lies `start` bytes into the parameters.
    fn tensor_map(
        &self,
        place: Place,
        start: u64,
        argument: &MapArgument,
    ) -> Result<[u8; TENSOR_MAP_BYTES], CliError> {
        if !start.is_multiple_of(MAP_ALIGN) {
            return Err(self.error(
                place,
                "tensor_map",
                format!("a place in the parameters at a multiple of {MAP_ALIGN} bytes"),
                format!("byte {start}"),
            ));
        }
        let buffer = argument.buffer.as_ref().map(|buffer| self.allocation(place, buffer));
        let buffer = buffer.transpose()?.map(|allocation| allocation.addr);
        let refused = |error: TensorMapError| match error {
            TensorMapError::Field { field, required, actual } => {
                self.error(place, &format!("tensor_map.{field}"), required, actual)
            }
            other => {
                self.error(place, "tensor_map", "a map that the driver takes", other.to_string())
            }
        };
        let map = match &argument.map {
            MapSource::Fields(map) => {
                let address = map.address.wrapping_add(buffer.unwrap_or(0));
                TensorMap { address, ..map.clone() }
            }
            MapSource::File(file) => {
                let contents = self.read(file)?;
                let Ok(bytes) = <&[u8; TENSOR_MAP_BYTES]>::try_from(contents.as_slice()) else {
                    let required = format!("{TENSOR_MAP_BYTES} bytes");
                    let actual = format!("{} bytes", contents.len());
                    return Err(self.error(place, "tensor_map.file", required, actual));
                };
                let map = TensorMap::decode(bytes).map_err(refused)?;
                TensorMap { address: buffer.unwrap_or(map.address), ..map }
            }
        };
        map.encode_for(self.gpu).map_err(refused)
    }
}

/// Whether an argument of the right size may be of a parameter's type. Types `.bN` hold
/// anything, and integers are passed with or without sign.
fn fits(argument: &Argument, ty: &str) -> bool {
    let float = |ty: &str| matches!(ty, "f16" | "bf16" | "f32" | "f64");
    let integer = |ty: &str| ty.starts_with(['u', 's', 'i']);
    match argument {
        Argument::Scalar(scalar) if float(scalar.kind) => {
            !integer(ty) && (!float(ty) || ty == scalar.kind)
        }
        Argument::Scalar(_) | Argument::Buffer(_) => !float(ty),
        Argument::TensorMap(_) | Argument::Struct { .. } => true,
    }
}

/// Copies `bytes` into the block; `check_sizes` has made them fit.
fn put(block: &mut [u8], start: u64, bytes: &[u8]) {
    let start = start as usize;
    if let Some(place) = block.get_mut(start..start + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}
