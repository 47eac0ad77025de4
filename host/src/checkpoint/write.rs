//! Writes safetensors: the header before any data, tensors in any order, and outputs that appear
//! complete or not at all.
//!
//! Files have the same order as those of the crate `safetensors` (wider types first, then by name),
//! except that metadata keys are sorted, so that the same tensors always have the same bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Cursor, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::Dtype;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::error::CheckpointError;
use crate::error::{Error, Result};

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
            }),
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

/// Writes one safetensors file, tensor by tensor in any order.
#[derive(Debug)]
pub struct TensorWriter<W> {
    sink: W,
    /// Path of the output, for errors.
    path: PathBuf,
    /// Offset and size of each tensor that has not been written.
    missing: BTreeMap<String, (u64, usize)>,
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
                return Err(malformed(format!("two tensors have the name `{name}`")).into());
            }
        }
        Ok(Self { sink, path: path.into(), missing })
    }

    /// Writes the data of one of the tensors.
    ///
    /// # Errors
    /// [`Error::Io`]; [`CheckpointError::Malformed`] for a tensor that was not announced or was
    /// written before; [`Error::Shape`] for a wrong length.
    pub fn put(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let Some((start, len)) = self.missing.remove(name) else {
            let reason = format!("tensor `{name}` is not in its header, or is there already");
            return Err(CheckpointError::Malformed { path: self.path.clone(), reason }.into());
        };
        if data.len() != len {
            return Err(Error::shape(
                format!("bytes of tensor `{name}`"),
                len.to_string(),
                data.len(),
            ));
        }
        let io = |source| Error::Io { action: "write", path: self.path.clone(), source };
        self.sink.seek(SeekFrom::Start(start)).map_err(io)?;
        self.sink.write_all(data).map_err(io)
    }

    /// The output, after all tensors have been written.
    ///
    /// # Errors
    /// [`CheckpointError::Malformed`] if a tensor was not written; [`Error::Io`].
    pub fn finish(mut self) -> Result<W> {
        if let Some(name) = self.missing.keys().next() {
            let reason = format!("tensor `{name}` was not written");
            return Err(CheckpointError::Malformed { path: self.path, reason }.into());
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
    write_whole(path, writer.finish()?.get_ref())
}

/// Writes a temporary file and renames it, so that `path` is either unchanged or complete.
///
/// # Errors
/// [`Error::Io`].
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = beside(path, "tmp");
    let io = |source| Error::Io { action: "write", path: path.into(), source };
    let write = || {
        let mut file = File::create_new(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        // Best effort, because the first error is reported.
        let _ = std::fs::remove_file(&temporary);
        io(error)
    })
}

/// A hidden name in the same folder with the number of this process.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.{ending}", std::process::id()));
    path.with_file_name(name)
}

/// A folder with a temporary name (`.NAME.PID.partial`, beside the final one). It is renamed when
/// it is complete, and removed otherwise. It remains only if the process is killed.
#[derive(Debug)]
pub struct Staging {
    temporary: PathBuf,
    target: PathBuf,
    force: bool,
    committed: bool,
}

impl Staging {
    /// Makes the temporary folder beside `target`. With `force`, an existing checkpoint is
    /// replaced at the end.
    ///
    /// # Errors
    /// [`CheckpointError::Exists`] if `target` exists and may not be replaced. Only with `force`
    /// may it be replaced, and only if it is a folder that is empty or has `.safetensors` files.
    /// [`Error::Io`].
    pub fn create(target: &Path, force: bool) -> Result<Self> {
        check_target(target, force)?;
        let temporary = beside(target, "partial");
        std::fs::create_dir(&temporary).map_err(|source| Error::Io {
            action: "create",
            path: temporary.clone(),
            source,
        })?;
        Ok(Self { temporary, target: target.into(), force, committed: false })
    }

    /// The temporary folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// The final path.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Renames the folder to its final name.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create), after which the old target is unchanged.
    pub fn commit(mut self) -> Result<()> {
        check_target(&self.target, self.force)?;
        let io = |source| Error::Io { action: "write", path: self.target.clone(), source };
        let old = beside(&self.target, "old");
        let replaces = self.target.symlink_metadata().is_ok();
        if replaces {
            std::fs::rename(&self.target, &old).map_err(io)?;
        }
        if let Err(error) = std::fs::rename(&self.temporary, &self.target) {
            if replaces {
                // Best effort: if this fails too, the old folder remains as `old`.
                let _ = std::fs::rename(&old, &self.target);
            }
            return Err(io(error));
        }
        self.committed = true;
        if replaces {
            std::fs::remove_dir_all(&old).map_err(io)?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.committed {
            // Best effort, because the error that led here is reported.
            let _ = std::fs::remove_dir_all(&self.temporary);
        }
    }
}

fn check_target(target: &Path, force: bool) -> Result<()> {
    if target.file_name().is_none() {
        return Err(Error::shape("output", "a path that ends in a name", target.display()));
    }
    let exists = |advice| CheckpointError::Exists { path: target.into(), advice };
    let Ok(info) = target.symlink_metadata() else { return Ok(()) };
    if !force {
        return Err(exists("--force replaces a checkpoint").into());
    }
    let is_checkpoint = info.is_dir() && {
        let io = |source| Error::Io { action: "read", path: target.into(), source };
        let names = std::fs::read_dir(target).map_err(io)?.flatten().map(|entry| entry.path());
        let names: Vec<PathBuf> = names.collect();
        names.is_empty() || names.iter().any(|x| x.extension().is_some_and(|e| e == "safetensors"))
    };
    if is_checkpoint {
        Ok(())
    } else {
        Err(exists("it is no folder with a checkpoint, which is all that is ever replaced").into())
    }
}
