//! Operands of an operation on rows in a safetensors file, and its results in another.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `input` | F16 or BF16 | `[M, K]`, the gate if there is `up`; with `index` any number of rows |
//! | `up` | the same | as `input` |
//! | `residual` | the same | `[M, K]` |
//! | `weight`, `bias` | the same | `[K]` |
//! | `index` | I32 | `[M]`, -1 for a row of zeros |
//! | `tensor_scale` | F32, F16 or BF16 | one value, the recipe's parameter; each row has its own if absent |
//!
//! Results are `codes` and `scales` (and `parameters`) of a block format, `codes` and `scales` of e4m3, or `c` of 16 bits;
//! and `residual`, the sums.

use std::path::Path;

use fp4_formats::{HalfType, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::quantize::Format;
use nvfp4::rows::{Gather, Made, Operands, Reference, Rows, RowsOptions, reference};
use nvfp4_checkpoint::{self as checkpoint, Checkpoint, NewTensor, Result};
use safetensors::Dtype;

use super::{result_type, tensor};
use crate::rows::{exact, first_wrong};

/// The operands of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct RowsFile {
    /// Rows of the results.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Type of all matrices and vectors.
    pub element: HalfType,
    /// The index' rows of the input, if there is an index.
    pub gather: Option<Gather>,
    /// The tensor-level scale, if the file has one.
    pub tensor_scale: Option<f32>,
    input: Vec<u8>,
    up: Option<Vec<u8>>,
    residual: Option<Vec<u8>>,
    weight: Option<Vec<u8>>,
    bias: Option<Vec<u8>>,
    index: Option<Vec<u8>>,
}

impl RowsFile {
    /// Whether there is a second matrix.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.up.is_some()
    }

    /// Whether there are weights of a norm.
    #[must_use]
    pub fn has_weight(&self) -> bool {
        self.weight.is_some()
    }

    /// Whether there are addends behind them.
    #[must_use]
    pub fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    /// Whether there is a residual.
    #[must_use]
    pub fn has_residual(&self) -> bool {
        self.residual.is_some()
    }

    fn operands(&self) -> Operands<'_, [u8]> {
        Operands {
            input: &self.input,
            up: self.up.as_deref(),
            residual: self.residual.as_deref(),
            residual_out: None,
            weight: self.weight.as_deref(),
            bias: self.bias.as_deref(),
            index: self.index.as_deref(),
        }
    }
}

/// Reads and checks the operands; the module's documentation lists the tensors.
///
/// # Errors
/// [`CheckpointError`](nvfp4_checkpoint::CheckpointError) for missing tensors, wrong types and wrong shapes.
pub fn read(file: &Checkpoint) -> Result<RowsFile> {
    let input = file.raw("input")?;
    let element = match input.dtype {
        Dtype::F16 => HalfType::F16,
        Dtype::BF16 => HalfType::Bf16,
        other => return Err(file.wrong_type("input", "F16 or BF16", other)),
    };
    let [from, cols] = *input.shape.as_slice() else {
        return Err(file.wrong_shape("input", "[M, K]", &input.shape));
    };
    let read = |name: &str, dtype: Dtype, shape: &[usize]| -> Result<Option<Vec<u8>>> {
        if !file.contains(name) {
            return Ok(None);
        }
        let raw = file.raw(name)?;
        if raw.dtype != dtype {
            let required = match dtype {
                Dtype::I32 => "I32",
                _ => "the input's",
            };
            return Err(file.wrong_type(name, required, raw.dtype));
        }
        if raw.shape != shape {
            return Err(file.wrong_shape(name, format!("{shape:?}"), &raw.shape));
        }
        Ok(Some(raw.data.to_vec()))
    };
    let rows = match file.contains("index") {
        true => file.raw("index")?.shape.iter().product(),
        false => from,
    };
    let index = read("index", Dtype::I32, &[rows])?;
    let gather = index.is_some().then_some(Gather { rows: from, divisor: 1 });
    let rows_of = |index: &Vec<u8>| {
        index.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect::<Vec<_>>()
    };
    for row in index.iter().flat_map(rows_of) {
        if row != -1 && usize::try_from(row).is_ok_and(|row| row >= from) || row < -1 {
            let required = format!("-1, or from 0 to {}", from.saturating_sub(1));
            return Err(checkpoint::CheckpointError::shape("element of `index`", required, row));
        }
    }
    let tensor_scale = match file.contains("tensor_scale") {
        true => Some(file.scalar("tensor_scale")?),
        false => None,
    };
    Ok(RowsFile {
        rows,
        cols,
        element,
        gather,
        tensor_scale,
        up: read("up", input.dtype, &[from, cols])?,
        residual: read("residual", input.dtype, &[rows, cols])?,
        weight: read("weight", input.dtype, &[cols])?,
        bias: read("bias", input.dtype, &[cols])?,
        index,
        input: input.data.to_vec(),
    })
}

/// The results of a run, and what is wrong with them, if anything is.
#[derive(Debug)]
pub struct RowsRun {
    /// The operation.
    pub operation: Rows,
    /// Its results.
    pub results: Reference,
    /// The first wrong result.
    pub difference: Option<String>,
}

/// Runs the operation on a file's operands and compares with the CPU: bit for bit, or gated activations with exact values.
///
/// # Errors
/// The errors of [`Rows`], and of the reference for values that are not finite.
pub fn run(kernels: &Kernels, file: &RowsFile, options: &RowsOptions) -> nvfp4::Result<RowsRun> {
    let RowsFile { rows, cols, element, .. } = *file;
    let device = kernels.device();
    let operation = Rows::new(kernels, rows, cols, element, options)?;
    let upload = |name: &str, bytes: &Option<Vec<u8>>| {
        bytes.as_ref().map(|bytes| DeviceBuffer::upload(device, name, bytes)).transpose()
    };
    let input = DeviceBuffer::upload(device, "input", &file.input)?;
    let (up, residual) = (upload("up", &file.up)?, upload("residual", &file.residual)?);
    let (weight, bias) = (upload("weight", &file.weight)?, upload("bias", &file.bias)?);
    let index = upload("index", &file.index)?;
    operation.launch(&Operands {
        input: &input,
        up: up.as_ref(),
        residual: residual.as_ref(),
        residual_out: None,
        weight: weight.as_ref(),
        bias: bias.as_ref(),
        index: index.as_ref(),
    })?;
    let made = operation.result("input")?;
    let residual = residual.as_ref().map(DeviceBuffer::read).transpose()?;
    let operands = file.operands();
    let expected = reference(rows, cols, element, options, &operands)?;
    let difference = if residual != expected.residual {
        Some("the updated residual".to_owned())
    } else if options.source.is_gated() {
        let exact = exact(rows, cols, element, options, &operands)?;
        first_wrong(&made, &expected.made, &exact, element)
    } else {
        made.difference(&expected.made).map(|difference| difference.to_string())
    };
    Ok(RowsRun { operation, results: Reference { made, residual }, difference })
}

/// Writes the results; the module's documentation lists the tensors.
///
/// # Errors
/// The errors of writing a file.
pub fn write_result(path: &Path, file: &RowsFile, results: &Reference) -> Result<()> {
    let RowsFile { rows, cols, element, .. } = *file;
    let floats = |values: &[f32]| -> NewTensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        tensor(Dtype::F32, vec![values.len()], bytes)
    };
    let half = result_type(element.float());
    let mut tensors = Vec::new();
    let mut layout = "none";
    match &results.made {
        Made::Blocks(made) => {
            layout = made.options.layout.name();
            let dtype = match made.options.recipe.format() {
                Format::Nvfp4 => Dtype::F8_E4M3,
                Format::Mxfp4 => Dtype::F8_E8M0,
            };
            let of_rows = made.scales.len() / rows;
            let linear = made.options.layout == ScaleLayout::Linear;
            let shape = if linear { vec![rows, of_rows] } else { vec![made.scales.len()] };
            tensors.push(("codes", tensor(Dtype::U8, vec![rows, cols / 2], made.codes.clone())));
            tensors.push(("scales", tensor(dtype, shape, made.scales.clone())));
            if !made.parameters.is_empty() {
                tensors.push(("parameters", floats(&made.parameters)));
            }
        }
        Made::E4m3 { codes, scales } => {
            tensors.push(("codes", tensor(Dtype::F8_E4M3, vec![rows, cols], codes.clone())));
            tensors.push(("scales", floats(scales)));
        }
        Made::Half(elements) => {
            tensors.push(("c", tensor(half, vec![rows, cols], elements.clone())));
        }
    }
    if let Some(sums) = &results.residual {
        tensors.push(("residual", tensor(half, vec![rows, cols], sums.clone())));
    }
    checkpoint::write(path, &tensors, &[("scale_layout", layout.to_owned())])
}
