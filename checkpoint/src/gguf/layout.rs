//! The layout: blocks with their scales in them, tensor-level scales beside them, a matrix for each expert.

use fp4_formats::quantize::Format;
use nvfp4_gguf::{Blocks, Kind};
use safetensors::tensor::Dtype;

use crate::error::{CheckpointError, Result};
use crate::model::Model;
use crate::parts::{Content, Layout, Parts, Piece, present};
use crate::weight::{WeightSpec, module};

/// The type of blocks of a format.
pub(super) const fn kind_of(format: Format) -> Kind {
    match format {
        Format::Nvfp4 => Kind::Nvfp4,
        Format::Mxfp4 => Kind::Mxfp4,
    }
}

/// The format of blocks; `None` if they are of another.
const fn format_of(kind: Kind) -> Option<Format> {
    match kind {
        Kind::Nvfp4 => Some(Format::Nvfp4),
        Kind::Mxfp4 => Some(Format::Mxfp4),
        Kind::F32
        | Kind::F16
        | Kind::Bf16
        | Kind::F64
        | Kind::Q8_0
        | Kind::I8
        | Kind::I16
        | Kind::I32
        | Kind::I64 => None,
    }
}

/// All weights in blocks.
pub(crate) fn find(model: &Model) -> Vec<Parts> {
    if !model.has_ggml_blocks() {
        return Vec::new();
    }
    let part = |name: &str| {
        let format = format_of(model.kind(name)?)?;
        let of = module(name);
        Some(Parts {
            global: present(model, format!("{of}.scale")).filter(|_| format == Format::Nvfp4),
            input: present(model, format!("{of}.input_scale")),
            ..Parts::matrix(name.into(), format, name.into(), name.into())
        })
    };
    model.names().filter_map(part).collect()
}

/// The codes and scales of a tensor in blocks.
///
/// # Errors
/// [`CheckpointError::Malformed`] with the first scale that ggml reads as another number.
pub(crate) fn blocks(model: &Model, name: &str, format: Format) -> Result<Blocks> {
    let file = model.file(name)?;
    let blocks = Blocks::of(name, kind_of(format), &file.raw(name)?.data);
    blocks.map_err(|error| CheckpointError::Malformed {
        path: file.path().into(),
        reason: error.to_string(),
    })
}

/// The bytes of linear codes and scales in blocks.
///
/// # Errors
/// [`CheckpointError::Unsupported`] with the first scale that ggml reads as another number.
pub(crate) fn bytes(
    name: &str,
    format: Format,
    codes: Vec<u8>,
    scales: Vec<u8>,
) -> Result<Vec<u8>> {
    let bytes = Blocks { codes, scales }.bytes(name, kind_of(format));
    bytes.map_err(|error| CheckpointError::Unsupported {
        layout: Layout::Gguf.name(),
        tensor: name.into(),
        reason: error.to_string(),
    })
}

/// The tensors of a weight, which is a matrix.
///
/// # Errors
/// The reason why it cannot be stored.
pub(crate) fn pieces(weight: &WeightSpec) -> Result<Vec<Piece>, String> {
    let (elements, size) = kind_of(weight.format).block();
    let (elements, size, cols) = (elements as usize, size as usize, weight.cols());
    if !cols.is_multiple_of(elements) {
        return Err(format!(
            "K = {cols} is no multiple of {elements}, the elements of a block there"
        ));
    }
    let shape = weight.with_last(&[cols / elements * size]);
    let content = Content::Blocks(weight.format);
    let mut pieces = vec![Piece::new(weight.name.clone(), Dtype::U8, shape, content)];
    let of = weight.module();
    if weight.global {
        pieces.push(Piece::new(format!("{of}.scale"), Dtype::F32, vec![1], Content::Global));
    }
    if weight.input {
        pieces.push(Piece::new(format!("{of}.input_scale"), Dtype::F32, vec![1], Content::Input));
    }
    Ok(pieces)
}
