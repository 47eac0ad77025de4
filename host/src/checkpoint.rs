//! Reading and writing safetensors files.
//!
//! The header is checked by the crate `safetensors` (lengths, offsets, overlaps); errors name the
//! tensor, and for a bad value its index and the byte of the file where it stands.

use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, SafeTensors, View};
use serde::Serialize;
use thiserror::Error;

use crate::error::{Error, Result, reserve};

/// Why a safetensors file could not be used.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The file is not a valid safetensors file.
    #[error("{} is not a usable safetensors file: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no tensor of this name.
    #[error("{} has no tensor `{tensor}`{}", path.display(), suggestion(similar))]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The name asked for.
        tensor: String,
        /// A few names that are there and look alike.
        similar: Vec<String>,
    },
    /// A tensor has a type that the operation cannot use.
    #[error("tensor `{tensor}` of {} has type {actual}; required {required}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The types that would do.
        required: &'static str,
        /// The type found.
        actual: String,
    },
    /// A tensor has a shape that the operation cannot use.
    #[error("tensor `{tensor}` of {} has shape {actual:?}; required {required}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape that would do.
        required: String,
        /// The shape found.
        actual: Vec<usize>,
    },
    /// A tensor holds an infinity or a NaN.
    #[error("tensor `{tensor}` of {} has {value} at index {index} (byte {byte} of the file)", path.display())]
    NonFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Row-major index of the first such element.
        index: usize,
        /// Where it stands in the file.
        byte: u64,
        /// The value.
        value: f32,
    },
}

fn suggestion(similar: &[String]) -> String {
    if similar.is_empty() { String::new() } else { format!("; there are {}", similar.join(", ")) }
}

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
    /// Where the data starts in the file.
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
    /// Element type.
    pub dtype: Dtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Little-endian, row-major.
    pub data: &'a [u8],
}

/// An open safetensors file.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    /// Where the tensors' data starts in the file.
    data_start: usize,
}

impl Checkpoint {
    /// Opens and checks a file. Its contents are mapped, not read.
    ///
    /// The file must not be changed by another process while it is open: the mapped bytes would
    /// change with it, and shortening the file ends the program with SIGBUS.
    ///
    /// # Errors
    /// [`Error::Io`]; [`CheckpointError::Malformed`] for a truncated or malformed file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let io = |source| Error::Io { action: "read", path: path.clone(), source };
        let malformed = |reason| CheckpointError::Malformed { path: path.clone(), reason };
        let file = File::open(&path).map_err(io)?;
        let info = file.metadata().map_err(io)?;
        if !info.is_file() {
            return Err(malformed("not a regular file".into()).into());
        }
        if info.len() < 8 {
            let reason = format!("{} bytes; the header's length alone takes 8", info.len());
            return Err(malformed(reason).into());
        }
        // SAFETY: the mapping is private to this value and read-only. That nobody changes the
        // file meanwhile cannot be enforced; it is stated as a condition above, and every byte
        // pattern is a valid `u8`.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let (header, metadata) =
            SafeTensors::read_metadata(&map).map_err(|e| malformed(explain(&e, &map)))?;
        let data_start = header + 8;
        if metadata.data_len() != map.len() - data_start {
            let (stated, present) = (metadata.data_len(), map.len() - data_start);
            let reason =
                format!("the header describes {stated} bytes of data, {present} are there");
            return Err(malformed(reason).into());
        }
        Ok(Self { path, map, metadata, data_start })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Value of a key in the file's free-form metadata.
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// All tensors, in the order of their data.
    #[must_use]
    pub fn entries(&self) -> Vec<TensorEntry> {
        let mut entries: Vec<TensorEntry> = self
            .metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| TensorEntry {
                name,
                dtype: format!("{:?}", info.dtype),
                shape: info.shape.clone(),
                bytes: info.data_offsets.1 - info.data_offsets.0,
                offset: (self.data_start + info.data_offsets.0) as u64,
            })
            .collect();
        entries.sort_by(|x, y| (x.offset, &x.name).cmp(&(y.offset, &y.name)));
        entries
    }

    /// Whether there is a tensor of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.metadata.info(name).is_some()
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// [`CheckpointError::MissingTensor`].
    pub fn raw(&self, name: &str) -> Result<RawTensor<'_>, CheckpointError> {
        let Some(info) = self.metadata.info(name) else {
            return Err(CheckpointError::MissingTensor {
                path: self.path.clone(),
                tensor: name.into(),
                similar: self.similar(name),
            });
        };
        let (start, end) = info.data_offsets;
        let data = self.map.get(self.data_start + start..self.data_start + end).unwrap_or_default();
        Ok(RawTensor { dtype: info.dtype, shape: info.shape.clone(), data })
    }

    /// A float tensor (F32, F16 or BF16) in f32.
    ///
    /// # Errors
    /// [`CheckpointError`] for a missing tensor, another type, or a value that is not finite.
    pub fn floats(&self, name: &str) -> Result<FloatTensor> {
        let tensor = self.raw(name)?;
        let mut values = reserve(name, tensor.data.len() / (tensor.dtype.bitsize() / 8).max(1))?;
        match tensor.dtype {
            Dtype::F32 => {
                let (items, _) = tensor.data.as_chunks();
                values.extend(items.iter().map(|&item| f32::from_le_bytes(item)));
            }
            Dtype::F16 => {
                let (items, _) = tensor.data.as_chunks();
                values.extend(items.iter().map(|&item| f16::from_le_bytes(item).to_f32()));
            }
            Dtype::BF16 => {
                let (items, _) = tensor.data.as_chunks();
                values.extend(items.iter().map(|&item| bf16::from_le_bytes(item).to_f32()));
            }
            other => return Err(self.wrong_type(name, "F32, F16 or BF16", other).into()),
        }
        if let Some(index) = values.iter().position(|x: &f32| !x.is_finite()) {
            let in_tensor = index * (tensor.dtype.bitsize() / 8);
            let start = self.metadata.info(name).map_or(0, |info| info.data_offsets.0);
            return Err(CheckpointError::NonFinite {
                path: self.path.clone(),
                tensor: name.into(),
                index,
                byte: (self.data_start + start + in_tensor) as u64,
                value: values[index],
            }
            .into());
        }
        Ok(FloatTensor { shape: tensor.shape, values })
    }

    /// A float matrix: a tensor of [`floats`](Self::floats) with two dimensions, none zero.
    /// Returns rows, columns and values.
    ///
    /// # Errors
    /// [`CheckpointError`], also for another shape.
    pub fn matrix(&self, name: &str) -> Result<(usize, usize, Vec<f32>)> {
        let shape = self.raw(name)?.shape;
        match *shape.as_slice() {
            [rows, cols] if rows > 0 && cols > 0 => Ok((rows, cols, self.floats(name)?.values)),
            _ => Err(self.wrong_shape(name, "[rows, columns], none of them 0", &shape).into()),
        }
    }

    /// A float scalar: a tensor of [`floats`](Self::floats) with one element.
    ///
    /// # Errors
    /// [`CheckpointError`], also for another shape.
    pub fn scalar(&self, name: &str) -> Result<f32> {
        let shape = self.raw(name)?.shape;
        if shape.iter().any(|&n| n != 1) {
            return Err(self.wrong_shape(name, "[] or [1]", &shape).into());
        }
        let tensor = self.floats(name)?;
        match *tensor.values.as_slice() {
            [value] => Ok(value),
            _ => Err(self.wrong_shape(name, "[] or [1]", &shape).into()),
        }
    }

    pub(crate) fn wrong_type(
        &self,
        tensor: &str,
        required: &'static str,
        actual: Dtype,
    ) -> CheckpointError {
        let (path, tensor) = (self.path.clone(), tensor.into());
        CheckpointError::Type { path, tensor, required, actual: format!("{actual:?}") }
    }

    pub(crate) fn wrong_shape(
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

    /// Up to three names that share the longest ending, or else beginning, with `name`: what
    /// differs is mostly a layer number or a prefix.
    fn similar(&self, name: &str) -> Vec<String> {
        let likeness = |other: &str| {
            let same = |(a, b): &(char, char)| a == b;
            let prefix = name.chars().zip(other.chars()).take_while(same).count();
            let suffix = name.chars().rev().zip(other.chars().rev()).take_while(same).count();
            prefix + suffix
        };
        let mut names = self.metadata.offset_keys();
        names.sort_by_cached_key(|other| std::cmp::Reverse(likeness(other)));
        names.truncate(3);
        names
    }
}

/// The library's error in words, with sizes where it leaves them out.
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

impl View for &NewTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data)
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

/// Writes tensors to `path`, all or nothing: to a temporary file beside it, then renamed.
///
/// # Errors
/// [`Error::Io`], and [`CheckpointError::Malformed`] where data and shape disagree.
pub fn write(
    path: &Path,
    tensors: &[(&str, NewTensor)],
    metadata: &[(&str, String)],
) -> Result<()> {
    let metadata = metadata.iter().map(|(key, value)| ((*key).into(), value.clone())).collect();
    let tensors = tensors.iter().map(|(name, tensor)| (*name, tensor));
    let bytes = safetensors::serialize(tensors, Some(metadata)).map_err(|error| {
        CheckpointError::Malformed { path: path.into(), reason: error.to_string() }
    })?;
    write_whole(path, &bytes)
}

/// Writes a file through a temporary one beside it, so that `path` is either as before or
/// complete.
///
/// # Errors
/// [`Error::Io`].
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let io = |source| Error::Io { action: "write", path: path.into(), source };
    let write = || {
        let mut file = File::create_new(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        // Best effort: the first error is the one worth reporting.
        let _ = std::fs::remove_file(&temporary);
        io(error)
    })
}
