//! The places of tensors in a file, and how their bytes differ from those of transformers.

use std::collections::BTreeMap;

use half::{bf16, f16};
use nvfp4_gguf::Kind;
use safetensors::tensor::Dtype;

use crate::data::Edit;
use crate::error::{CheckpointError, Result};

/// A tensor of a file.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Its first byte in the file.
    pub start: usize,
    pub end: usize,
    /// The blocks of GGUF that it consists of.
    pub kind: Option<Kind>,
    /// The difference to the tensor of transformers.
    pub edit: Option<Edit>,
}

/// The change of a tensor's bytes on its way into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The type from which values become F32.
    pub from: Option<Dtype>,
    /// The difference of ggml's form.
    pub edit: Option<Edit>,
}

impl Change {
    /// The bytes in ggml's form.
    ///
    /// # Errors
    /// [`Error::Shape`](nvfp4::Error::Shape) for bytes that are no whole values.
    pub fn apply(self, data: &[u8]) -> Result<Vec<u8>> {
        let values: Vec<f32> = match self.from {
            None => Vec::new(),
            Some(Dtype::BF16) => {
                data.as_chunks().0.iter().map(|x| bf16::from_le_bytes(*x).to_f32()).collect()
            }
            Some(Dtype::F16) => {
                data.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x).to_f32()).collect()
            }
            Some(other) => {
                return Err(CheckpointError::shape(
                    "type of a tensor",
                    "F16 or BF16",
                    format!("{other:?}"),
                ));
            }
        };
        let data = match self.from {
            None => data.to_vec(),
            Some(_) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        Ok(match self.edit {
            None => data,
            Some(edit) => edit.write(&data),
        })
    }
}

/// A file to write.
#[derive(Debug)]
pub(crate) struct Output {
    /// Its name.
    pub name: String,
    /// Its bytes before the tensors.
    pub header: Vec<u8>,
    /// Its length.
    pub end: u64,
    /// First byte and length of each tensor of the checkpoint, and what changes.
    pub places: BTreeMap<String, (u64, usize, Change)>,
}

/// The shape in elements of a tensor in blocks, whose shape in bytes is given.
pub(crate) fn shape(kind: Kind, bytes: &[usize]) -> Vec<usize> {
    let (elements, size) = kind.block();
    let mut shape = bytes.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = *last / size as usize * elements as usize;
    }
    shape
}
