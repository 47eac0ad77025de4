//! Writing: the bytes before the tensors, and where each tensor's data goes.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::value::{Scalar, Value, put_string};
use crate::{ALIGNMENT, MAGIC, VERSION};

/// A tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Name.
    pub name: String,
    /// Element type.
    pub kind: Kind,
    /// Shape, outermost dimension first; at most four dimensions.
    pub shape: Vec<u64>,
}

/// The beginning of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The bytes before the first tensor's data, padding included.
    pub bytes: Vec<u8>,
    /// First byte and length of each tensor's data in the file, in the order of the specs. Between them are
    /// zeros.
    pub places: Vec<(u64, u64)>,
    /// Length of the whole file.
    pub end: u64,
}

impl Header {
    /// Lays out a file with this metadata and these tensors.
    ///
    /// # Errors
    /// [`Error::Tensor`] for a shape that does not fit the type, two tensors with one name, or an alignment
    /// that is no power of two.
    pub fn new(metadata: &BTreeMap<String, Value>, specs: &[Spec]) -> Result<Self> {
        let alignment = match metadata.get("general.alignment") {
            None => ALIGNMENT,
            Some(Value::Scalar(Scalar::U32(x))) if x.is_power_of_two() => u64::from(*x),
            Some(other) => {
                return Err(Error::Field {
                    field: "general.alignment",
                    at: 0,
                    required: "a power of two as U32",
                    actual: format!("{other:?}"),
                });
            }
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((specs.len() as u64).to_le_bytes());
        bytes.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            put_string(key, &mut bytes);
            bytes.extend(value.number().to_le_bytes());
            value.put(&mut bytes);
        }
        let mut names = std::collections::BTreeSet::new();
        let (mut offset, mut places) = (0u64, Vec::with_capacity(specs.len()));
        for Spec { name, kind, shape } in specs {
            if !names.insert(name) {
                return Err(Error::tensor(name, "its name", "a name of its own", name));
            }
            let size = kind.bytes(shape).filter(|_| shape.len() <= 4).ok_or_else(|| {
                let required = format!(
                    "at most four dimensions, rows of whole blocks of {} elements",
                    kind.block().0
                );
                Error::tensor(name, "its shape", required, format!("{shape:?} of {kind}"))
            })?;
            put_string(name, &mut bytes);
            bytes.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|size| bytes.extend(size.to_le_bytes()));
            bytes.extend(kind.number().to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            places.push((offset, size));
            offset = offset
                .checked_add(size)
                .and_then(|end| end.checked_next_multiple_of(alignment))
                .ok_or_else(|| {
                    Error::tensor(name, "its size", "less than 2^64", size.to_string())
                })?;
        }
        let start = (bytes.len() as u64).next_multiple_of(alignment);
        bytes.resize(start as usize, 0);
        places.iter_mut().for_each(|(first, _)| *first += start);
        Ok(Self { bytes, places, end: start + offset })
    }
}
