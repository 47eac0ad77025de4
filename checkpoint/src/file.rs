//! One file of tensors, safetensors or GGUF, mapped into memory.
//!
//! The crate `safetensors` checks the header (lengths, offsets, overlaps), `nvfp4-gguf` that of GGUF, whose
//! tensors have the names of transformers here. Errors name the tensor and, for a bad value, its index and its
//! byte in the file.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata as FileMetadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memmap2::Mmap;
use nvfp4_gguf::Kind;
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorInfo};
use serde::Serialize;

use super::data::Data;
use super::encode::float_type;
use super::error::{CheckpointError, similar};
use super::ggml::{self, Place, Stated};
use crate::error::Result;
use nvfp4::FloatType;
use nvfp4::error::{Error, filled};
use nvfp4::quantize::source::Source;

/// One line of a checkpoint's table of contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorEntry {
    /// Name.
    pub name: String,
    /// Element type as safetensors spells it, such as `F32`.
    pub dtype: String,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Size of the data.
    pub bytes: usize,
    /// Offset of the data in the file.
    pub offset: u64,
}

/// A numeric tensor converted to f32, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatTensor {
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Finite values.
    pub values: Vec<f32>,
}

/// Raw bytes of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct RawTensor<'a> {
    /// Element type; U8 for the blocks of GGUF.
    pub dtype: Dtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Little-endian, row-major.
    pub data: Data<'a>,
}

/// An open file.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    map: Mmap,
    metadata: BTreeMap<String, String>,
    places: HashMap<String, Place>,
    version: Version,
    /// The configuration that the metadata of a GGUF file states.
    gguf: Option<Stated>,
}

/// The properties of a file that change with its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Version {
    fn of(file: &FileMetadata) -> Self {
        Self { bytes: file.len(), modified: file.modified().ok() }
    }
}

/// Opens a file without waiting for it, which a pipe would make one do, and describes it.
pub(super) fn open_at_once(path: &Path) -> io::Result<(File, FileMetadata)> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    let info = file.metadata()?;
    Ok((file, info))
}

impl Checkpoint {
    /// Opens and checks a file. Its contents are mapped, not read.
    ///
    /// # Files that change
    /// No other process may write to the file while it is open. This is the one condition on safe
    /// code of this crate that nothing enforces. Bytes that change under a reader are undefined
    /// behaviour in Rust's terms, and a file that is made shorter ends the program with SIGBUS.
    /// Programs that replace a file by renaming another to its name, as this crate does, do not
    /// write to it. [`unchanged`](Self::unchanged) detects a change afterwards.
    ///
    /// # Errors
    /// [`Error::Io`]; [`CheckpointError::Malformed`] for a truncated or malformed file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Self::open_part(path.into(), None)
    }

    /// Opens a file of a model whose metadata are those of `first`, if that is another one.
    pub(super) fn open_part(path: PathBuf, first: Option<&Stated>) -> Result<Self> {
        let io = |source| Error::Io { action: "read", path: path.clone(), source };
        let malformed = |reason| CheckpointError::Malformed { path: path.clone(), reason };
        let (file, info) = open_at_once(&path).map_err(io)?;
        if !info.is_file() {
            return Err(malformed("not a regular file".into()));
        }
        if info.len() < 8 {
            let reason = format!("{} bytes; the header's length alone takes 8", info.len());
            return Err(malformed(reason));
        }
        let version = Version::of(&info);
        // SAFETY: the mapping is private to this value and read-only, and every byte pattern is a
        // valid `u8`. That no other process changes the file cannot be enforced; it is stated as a
        // condition above.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        if map.starts_with(&nvfp4_gguf::MAGIC) {
            let (places, gguf) = ggml::places(&path, &map, first)?;
            let metadata = BTreeMap::new();
            return Ok(Self { path, map, metadata, places, version, gguf: Some(gguf) });
        }
        if path.extension().is_some_and(|ending| ending == "gguf") {
            return Err(malformed("it does not begin with GGUF, as its name says".into()));
        }
        let (header, metadata) =
            SafeTensors::read_metadata(&map).map_err(|e| malformed(explain(&e, &map)))?;
        let data_start = header + 8;
        if metadata.data_len() != map.len() - data_start {
            let (stated, present) = (metadata.data_len(), map.len() - data_start);
            let reason =
                format!("the header describes {stated} bytes of data, {present} are there");
            return Err(malformed(reason));
        }
        let place = |(name, info): (String, &TensorInfo)| {
            let (start, end) = info.data_offsets;
            let (start, end) = (data_start + start, data_start + end);
            let shape = info.shape.clone();
            (name, Place { dtype: info.dtype, shape, start, end, kind: None, edit: None })
        };
        let places = metadata.tensors().into_iter().map(place).collect();
        let metadata = metadata.metadata().iter().flatten();
        let metadata = metadata.map(|(key, value)| (key.clone(), value.clone())).collect();
        Ok(Self { path, map, metadata, places, version, gguf: None })
    }

    /// Takes tensors apart along their first dimension: those for which `names` gives the part of a name before
    /// and after the index. Returns each with the names of its parts; a tensor without data is left.
    ///
    /// # Errors
    /// [`CheckpointError::Malformed`] for a part whose name another tensor has.
    pub(super) fn take_apart(
        &mut self,
        names: impl Fn(&str, &[usize]) -> Option<[String; 2]>,
    ) -> Result<Vec<(String, Vec<String>)>, CheckpointError> {
        let mut taken = Vec::new();
        for (name, place) in &self.places {
            let Some((&count, rest)) = place.shape.split_first() else { continue };
            let bytes = place.end - place.start;
            let size = bytes / count.max(1);
            if place.kind.is_some() || size == 0 || size * count != bytes {
                continue;
            }
            let Some([before, after]) = names(name, &place.shape) else { continue };
            let part = |at: usize| {
                let start = place.start + at * size;
                let own = Place { shape: rest.to_vec(), start, end: start + size, ..place.clone() };
                (format!("{before}{at}{after}"), own)
            };
            taken.push((name.clone(), (0..count).map(part).collect::<Vec<_>>()));
        }
        let mut parts = Vec::new();
        for (name, own) in taken {
            self.places.remove(&name);
            parts.push((name, own.iter().map(|(name, _)| name.clone()).collect()));
            for (part, place) in own {
                if self.places.contains_key(&part) {
                    let reason = format!("two tensors are `{part}`");
                    return Err(CheckpointError::Malformed { path: self.path.clone(), reason });
                }
                self.places.insert(part, place);
            }
        }
        Ok(parts)
    }

    /// The blocks of GGUF that a tensor consists of.
    pub(super) fn kind(&self, name: &str) -> Option<Kind> {
        self.places.get(name)?.kind
    }

    /// The metadata of a GGUF file.
    pub(super) fn gguf(&self) -> Option<&Stated> {
        self.gguf.as_ref()
    }

    /// Fails if the file at the path has another size or modification time than when it was opened:
    /// what was read from it may then be a mixture.
    ///
    /// # Errors
    /// [`CheckpointError::Changed`], [`Error::Io`].
    pub fn unchanged(&self) -> Result<()> {
        let io = |source| Error::Io { action: "read", path: self.path.clone(), source };
        let info = std::fs::metadata(&self.path).map_err(io)?;
        if Version::of(&info) == self.version {
            return Ok(());
        }
        Err(CheckpointError::Changed { path: self.path.clone() })
    }

    /// Gives the memory back that holds pages of a tensor, which are read again from the file when
    /// they are used again. Otherwise the system decides when to do so, and a process that reads a
    /// large checkpoint seems to take as much memory. Nothing happens if there is no such tensor.
    pub fn release(&self, name: &str) {
        #[cfg(unix)]
        if let Some(&Place { start, end, .. }) = self.places.get(name) {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the mapping is shared with the file and read-only, so that dropped pages,
            // also those with parts of other tensors, come back with the same content.
            let taken = unsafe { self.map.unchecked_advise_range(advice, start, end - start) };
            // Advice that the system does not take changes nothing.
            drop(taken);
        }
        #[cfg(not(unix))]
        let _ = name;
    }

    /// Makes the system read a tensor that is used soon, while the program goes on. Nothing happens
    /// if there is no such tensor.
    pub fn prefetch(&self, name: &str) {
        #[cfg(unix)]
        if let Some(&Place { start, end, .. }) = self.places.get(name) {
            let taken = self.map.advise_range(memmap2::Advice::WillNeed, start, end - start);
            // Advice that the system does not take changes nothing.
            drop(taken);
        }
        #[cfg(not(unix))]
        let _ = name;
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Value of a key in the file's free-form metadata.
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// All tensors, in the order of their data.
    #[must_use]
    pub fn entries(&self) -> Vec<TensorEntry> {
        let mut entries: Vec<TensorEntry> = self
            .places
            .iter()
            .map(|(name, Place { dtype, shape, start, end, kind, .. })| TensorEntry {
                name: name.clone(),
                dtype: kind.map_or_else(|| format!("{dtype:?}"), |kind| kind.to_string()),
                shape: kind.map_or_else(|| shape.clone(), |kind| ggml::shape(kind, shape)),
                bytes: end - start,
                offset: *start as u64,
            })
            .collect();
        entries.sort_by(|x, y| (x.offset, &x.name).cmp(&(y.offset, &y.name)));
        entries
    }

    /// Names of all tensors, in no order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Offset of a tensor's data in the file; 0 if there is no such tensor.
    pub(crate) fn offset(&self, name: &str) -> u64 {
        self.places.get(name).map_or(0, |place| place.start as u64)
    }

    /// Whether there is a tensor of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// [`CheckpointError::MissingTensor`].
    pub fn raw(&self, name: &str) -> Result<RawTensor<'_>, CheckpointError> {
        let Some(Place { dtype, shape, start, end, edit, .. }) = self.places.get(name) else {
            return Err(CheckpointError::MissingTensor {
                path: self.path.clone(),
                tensor: name.into(),
                similar: similar(name, self.places.keys().cloned()),
            });
        };
        let bytes = self.map.get(*start..*end).unwrap_or_default();
        let data = Data::new(bytes, *edit);
        Ok(RawTensor { dtype: *dtype, shape: shape.clone(), data })
    }

    /// A float tensor (F32, F16 or BF16) in f32.
    ///
    /// # Errors
    /// [`CheckpointError`] for a missing tensor, another type, or a value that is not finite.
    pub fn floats(&self, name: &str) -> Result<FloatTensor> {
        let (dtype, RawTensor { shape, data, .. }) = self.float_bytes(name)?;
        let source = Source::Bytes(dtype, &data);
        let mut values = filled(name, source.len(), 0f32)?;
        source.par_load(&mut values);
        Ok(FloatTensor { shape, values })
    }

    /// A float tensor as it is stored, of which all elements are finite.
    ///
    /// # Errors
    /// The same as [`floats`](Self::floats).
    pub fn float_bytes(&self, name: &str) -> Result<(FloatType, RawTensor<'_>)> {
        let tensor = self.raw(name)?;
        let Some(dtype) = float_type(tensor.dtype) else {
            return Err(self.wrong_type(name, "F32, F16 or BF16", tensor.dtype));
        };
        let source = Source::Bytes(dtype, &tensor.data);
        if !source.par_maximum().is_finite() {
            let value = |index: usize| {
                let mut value = [0f32];
                source.part(index..index + 1).load(&mut value);
                value[0]
            };
            let index = (0..source.len()).find(|&at| !value(at).is_finite()).unwrap_or(0);
            return Err(CheckpointError::NonFinite {
                path: self.path.clone(),
                tensor: name.into(),
                index,
                byte: self.offset(name) + index as u64 * u64::from(dtype.bytes()),
                value: value(index),
            });
        }
        Ok((dtype, tensor))
    }

    /// A float matrix: a tensor of [`floats`](Self::floats) with two dimensions, none zero.
    /// Returns rows, columns and values.
    ///
    /// # Errors
    /// [`CheckpointError`], among others for another shape.
    pub fn matrix(&self, name: &str) -> Result<(usize, usize, Vec<f32>)> {
        let shape = self.raw(name)?.shape;
        match *shape.as_slice() {
            [rows, cols] if rows > 0 && cols > 0 => Ok((rows, cols, self.floats(name)?.values)),
            _ => Err(self.wrong_shape(name, "[rows, columns], none of them 0", &shape)),
        }
    }

    /// A float scalar: a tensor of [`floats`](Self::floats) with one element.
    ///
    /// # Errors
    /// [`CheckpointError`], among others for another shape.
    pub fn scalar(&self, name: &str) -> Result<f32> {
        let shape = self.raw(name)?.shape;
        if shape.iter().any(|&n| n != 1) {
            return Err(self.wrong_shape(name, "[] or [1]", &shape));
        }
        let tensor = self.floats(name)?;
        match *tensor.values.as_slice() {
            [value] => Ok(value),
            _ => Err(self.wrong_shape(name, "[] or [1]", &shape)),
        }
    }

    /// The error for a tensor of another type than `required`.
    #[must_use]
    pub fn wrong_type(
        &self,
        tensor: &str,
        required: &'static str,
        actual: Dtype,
    ) -> CheckpointError {
        let (path, tensor) = (self.path.clone(), tensor.into());
        CheckpointError::Type { path, tensor, required, actual: format!("{actual:?}") }
    }

    /// The error for a tensor of another shape than `required`.
    #[must_use]
    pub fn wrong_shape(
        &self,
        tensor: &str,
        required: impl Into<String>,
        actual: &[usize],
    ) -> CheckpointError {
        CheckpointError::Shape {
            path: self.path.clone(),
            tensor: tensor.into(),
            required: required.into(),
            actual: actual.to_vec(),
        }
    }
}

/// A description of the library's error, with the sizes that the library omits.
fn explain(error: &SafeTensorError, file: &[u8]) -> String {
    match error {
        SafeTensorError::InvalidHeaderLength | SafeTensorError::HeaderTooLarge => {
            let stated = file.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
            format!("the header is said to take {stated} bytes; the file has {}", file.len())
        }
        SafeTensorError::MetadataIncompleteBuffer => {
            format!("the header and the file's {} bytes disagree: truncated?", file.len())
        }
        other => other.to_string(),
    }
}
