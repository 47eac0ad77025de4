//! Writes safetensors and GGUF: the header before any data, tensors in any order.
//!
//! Files have the same order as those of the crate `safetensors` (wider types first, then by name),
//! except that metadata keys are sorted, so that the same tensors always have the same bytes.

use std::collections::BTreeMap;
use std::io::{Cursor, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::Dtype;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::error::CheckpointError;
use super::ggml::{Change, Output};
use super::staging::write_whole;
use crate::error::Result;
use nvfp4::error::Error;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub struct NewTensor {
    /// Element type.
    pub dtype: Dtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Little-endian, row-major.
    pub data: Vec<u8>,
}

/// A tensor that will be written: its entry of the header without the offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Size of the data.
    ///
    /// # Errors
    /// [`Error::Overflow`] if it does not fit.
    pub fn bytes(&self) -> Result<usize> {
        let elements = self.shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        let bits = elements.and_then(|n| n.checked_mul(self.dtype.bitsize()));
        match bits {
            Some(bits) => Ok(bits.div_ceil(8)),
            None => Err(Error::Overflow {
                what: format!("tensor `{}`", self.name),
                detail: format!("{:?} of {:?}", self.shape, self.dtype),
            }
            .into()),
        }
    }
}

/// Offsets of a tensor's data, relative to the data of the first tensor.
#[derive(Serialize)]
struct Place {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

/// The header as JSON: metadata first, tensors in the order of their data.
struct Header<'a> {
    metadata: &'a BTreeMap<String, String>,
    places: &'a [(String, Place)],
}

impl Serialize for Header<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry("__metadata__", self.metadata)?;
        }
        for (name, place) in self.places {
            map.serialize_entry(name, place)?;
        }
        map.end()
    }
}

/// Writes one file, tensor by tensor in any order.
#[derive(Debug)]
pub struct TensorWriter<W> {
    sink: W,
    /// Path of the output, for errors.
    path: PathBuf,
    /// Offset and size of each tensor that has not been written.
    missing: BTreeMap<String, (u64, usize)>,
    /// Tensors that GGUF has in another form.
    changes: BTreeMap<String, Change>,
}

impl<W: Write + Seek> TensorWriter<W> {
    /// Writes the header for exactly these tensors.
    ///
    /// # Errors
    /// [`Error::Io`]; [`CheckpointError::Malformed`] for two tensors with the same name;
    /// [`Error::Overflow`].
    pub fn new(
        mut sink: W,
        path: &Path,
        mut specs: Vec<TensorSpec>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        specs.sort_by(|x, y| y.dtype.cmp(&x.dtype).then_with(|| x.name.cmp(&y.name)));
        let malformed = |reason| CheckpointError::Malformed { path: path.into(), reason };
        let mut places = Vec::with_capacity(specs.len());
        let mut end = 0usize;
        for spec in specs {
            let start = end;
            end = start.checked_add(spec.bytes()?).ok_or_else(|| Error::Overflow {
                what: path.display().to_string(),
                detail: "more bytes than can be addressed".into(),
            })?;
            let TensorSpec { name, dtype, shape } = spec;
            places.push((name, Place { dtype, shape, data_offsets: (start, end) }));
        }
        let mut header = serde_json::to_vec(&Header { metadata, places: &places })
            .map_err(|error| malformed(error.to_string()))?;
        // The data starts at a multiple of 8, so that all types are aligned.
        header.resize(header.len().next_multiple_of(8), b' ');
        let data_start = 8 + header.len();
        let io = |source| Error::Io { action: "write", path: path.into(), source };
        sink.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
        sink.write_all(&header).map_err(io)?;
        let mut missing = BTreeMap::new();
        for (name, Place { data_offsets: (start, end), .. }) in places {
            let place = ((data_start + start) as u64, end - start);
            if missing.insert(name.clone(), place).is_some() {
                return Err(malformed(format!("two tensors have the name `{name}`")));
            }
        }
        Ok(Self { sink, path: path.into(), missing, changes: BTreeMap::new() })
    }

    /// Announces the parts of a tensor, which are written instead of it and follow each other in it.
    pub(super) fn announce(&mut self, name: &str, parts: &[String]) {
        let Some((start, len)) = self.missing.remove(name) else { return };
        let size = len / parts.len().max(1);
        let place =
            |(at, part): (usize, &String)| (part.clone(), (start + (at * size) as u64, size));
        self.missing.extend(parts.iter().enumerate().map(place));
    }

    /// Writes the beginning of a GGUF file, whose tensors have the names of the checkpoint here.
    pub(super) fn gguf(mut sink: W, path: &Path, output: Output) -> Result<Self> {
        let io = |source| Error::Io { action: "write", path: path.into(), source };
        let Output { name: _, header, end, places } = output;
        sink.write_all(&header).map_err(io)?;
        // The bytes between tensors are zeros, as are those that no tensor has been written to yet.
        if end > header.len() as u64 {
            sink.seek(SeekFrom::Start(end - 1)).map_err(io)?;
            sink.write_all(&[0]).map_err(io)?;
        }
        let changes = places.iter().map(|(name, (.., change))| (name.clone(), *change)).collect();
        let missing = places.into_iter().map(|(name, (start, len, _))| (name, (start, len)));
        Ok(Self { sink, path: path.into(), missing: missing.collect(), changes })
    }

    /// Writes the data of one of the tensors.
    ///
    /// # Errors
    /// [`Error::Io`]; [`CheckpointError::Malformed`] for a tensor that was not announced or was
    /// written before; [`Error::Shape`] for a wrong length.
    pub fn put(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let Some((start, len)) = self.missing.remove(name) else {
            let reason = format!("tensor `{name}` is not in its header, or is there already");
            return Err(CheckpointError::Malformed { path: self.path.clone(), reason });
        };
        let changed = self.changes.remove(name).map(|change| change.apply(data)).transpose()?;
        let data = changed.as_deref().unwrap_or(data);
        if data.len() != len {
            return Err(CheckpointError::shape(
                format!("bytes of tensor `{name}`"),
                len.to_string(),
                data.len(),
            ));
        }
        let io = |source| Error::Io { action: "write", path: self.path.clone(), source };
        self.sink.seek(SeekFrom::Start(start)).map_err(io)?;
        Ok(self.sink.write_all(data).map_err(io)?)
    }

    /// The output, after all tensors have been written.
    ///
    /// # Errors
    /// [`CheckpointError::Malformed`] if a tensor was not written; [`Error::Io`].
    pub fn finish(mut self) -> Result<W> {
        if let Some(name) = self.missing.keys().next() {
            let reason = format!("tensor `{name}` was not written");
            return Err(CheckpointError::Malformed { path: self.path, reason });
        }
        let io = |source| Error::Io { action: "write", path: self.path.clone(), source };
        self.sink.flush().map_err(io)?;
        Ok(self.sink)
    }
}

/// Writes tensors to a temporary file beside `path`, which is then renamed to `path`.
///
/// # Errors
/// [`Error::Io`]; [`CheckpointError::Malformed`] and [`Error::Shape`] if names collide or data and
/// shape disagree.
pub fn write(
    path: &Path,
    tensors: &[(&str, NewTensor)],
    metadata: &[(&str, String)],
) -> Result<()> {
    let metadata = metadata.iter().map(|(key, value)| ((*key).into(), value.clone())).collect();
    let specs = tensors
        .iter()
        .map(|(name, tensor)| TensorSpec {
            name: (*name).into(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        })
        .collect();
    let mut writer = TensorWriter::new(Cursor::new(Vec::new()), path, specs, &metadata)?;
    for (name, tensor) in tensors {
        writer.put(name, &tensor.data)?;
    }
    Ok(write_whole(path, writer.finish()?.get_ref())?)
}
