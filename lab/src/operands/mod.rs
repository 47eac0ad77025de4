//! Operands in a safetensors file, and the result in another: a GEMV's here, a GEMM's in [`gemm`], a
//! grouped GEMM's in [`grouped`], a mixture of experts' in [`moe`], those of an operation on rows in [`rows`].
//!
//! `a` are the activations, one vector per batch entry, and `b` the weights.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `a` | U8 | `[L, K/2]` or `[L, 1, K/2]`, or `[K/2]` for L = 1: packed e2m1, element `2j` in the low nibble |
//! | `a_scale` | F8_E4M3 or U8 | linear: `[.., K/16]`; 128x4: any shape of the padded size |
//! | `a_global_scale` | F32, F16 or BF16 | one value; 1 if absent |
//! | `b` | U8 | `[L, M, K/2]`, or `[M, K/2]` for L = 1 |
//! | `b_scale` | F8_E4M3 or U8 | linear: `[.., K/16]`; 128x4: any shape of the padded size |
//! | `b_global_scale` | F32, F16 or BF16 | one value; 1 if absent |
//! | `alpha` | F32, F16 or BF16 | one value; 1 if absent |
//!
//! The file's metadata gives the layouts of the scales: `a_scale_layout` and `b_scale_layout` are
//! `linear` (the default) or `128x4`. The result is the tensor `c`, `[L, M]`.
//!
//! A file with the weights in `a` and the activations in `b` is refused by its shapes, with an error
//! that says so. The shapes fit both orders only for M = L = 1, where both give the same product.

pub mod gemm;
pub mod grouped;
pub mod layer;
pub mod moe;
pub mod rows;
mod stack;
mod written;

use std::path::Path;

use fp4_formats::{BlockFormat, FloatType, Nvfp4, ScaleLayout};
use safetensors::Dtype;

pub use stack::GroupWeights;

use nvfp4::gemm::format_of;
use nvfp4::gemv::{self, GemvResult};
use nvfp4::quantize::Format;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_checkpoint::{self as checkpoint, Checkpoint, Data, NewTensor};
use nvfp4_checkpoint::{CheckpointError, Result};

/// Operands of a GEMV.
#[derive(Clone, Debug, PartialEq)]
pub struct GemvOperands {
    /// Activations, `[L, 1, K]`.
    pub a: BlockScaled<Nvfp4>,
    /// Weights, `[L, M, K]`.
    pub b: BlockScaled<Nvfp4>,
    /// Factor of the result.
    pub alpha: f32,
}

/// The layout of this name.
///
/// # Errors
/// [`Error::Shape`](nvfp4::Error::Shape) for another name; `field` is what the error calls it.
pub fn layout_by_name(field: &str, name: &str) -> Result<ScaleLayout> {
    ScaleLayout::ALL
        .into_iter()
        .find(|layout| layout.name() == name)
        .ok_or_else(|| CheckpointError::shape(field, "linear or 128x4", format!("`{name}`")))
}

/// Reads and checks the operands; the module's documentation lists the tensors.
///
/// # Errors
/// [`CheckpointError`] for missing tensors, wrong types and wrong
/// shapes, and the errors of [`BlockScaled::new`].
pub fn read(file: &Checkpoint) -> Result<GemvOperands> {
    let (a, b) = (file.raw("a")?.shape, file.raw("b")?.shape);
    let wrong = |name: &str, required: String, actual: &[usize]| {
        let hint = if exchanged(&a, &b) {
            "; `a` are the activations and `b` the weights, and this file has them the other way round"
        } else {
            ""
        };
        Err(file.wrong_shape(name, required + hint, actual))
    };
    let [l, m, half_k] = match *b.as_slice() {
        [l, m, half_k] => [l, m, half_k],
        [m, half_k] => [1, m, half_k],
        _ => return wrong("b", "[L, M, K/2] or [M, K/2]".into(), &b),
    };
    if !is_vector(&a, l, half_k) {
        return wrong("a", format!("[{l}, {half_k}] or [{l}, 1, {half_k}] to fit `b`"), &a);
    }
    let k = half_k
        .checked_mul(2)
        .ok_or_else(|| CheckpointError::shape("K", "representable", half_k))?;
    let operands = GemvOperands {
        a: operand(file, "a", Dims::new(l, 1, k)?)?,
        b: operand(file, "b", Dims::new(l, m, k)?)?,
        alpha: scalar(file, "alpha")?,
    };
    gemv::shape(&operands.a, &operands.b)?;
    Ok(operands)
}

/// Whether this is the shape of one vector of `half_k` bytes for each of `l` batch entries.
fn is_vector(shape: &[usize], l: usize, half_k: usize) -> bool {
    match *shape {
        [al, 1, ak] | [al, ak] => (al, ak) == (l, half_k),
        [ak] => (1, ak) == (l, half_k),
        _ => false,
    }
}

/// Whether `a` has the shape of weights and `b` that of activations which fit them.
fn exchanged(a: &[usize], b: &[usize]) -> bool {
    match *a {
        [l, _, half_k] => is_vector(b, l, half_k),
        [_, half_k] => is_vector(b, 1, half_k),
        _ => false,
    }
}

/// The format that a file's metadata names.
///
/// # Errors
/// [`Error::Shape`](nvfp4::Error::Shape) for another name.
fn format(file: &Checkpoint) -> Result<Format> {
    match file.metadata("format").unwrap_or(Format::Nvfp4.name()) {
        name if name == Format::Nvfp4.name() => Ok(Format::Nvfp4),
        name if name == Format::Mxfp4.name() => Ok(Format::Mxfp4),
        other => Err(CheckpointError::shape(
            "metadata `format`",
            "nvfp4 or mxfp4",
            format_args!("`{other}`"),
        )),
    }
}

/// The codes, scales and global scale of an operand in format `F`.
fn operand<F: BlockFormat>(file: &Checkpoint, name: &str, dims: Dims) -> Result<BlockScaled<F>> {
    let (layout, codes, scales) = parts::<F>(file, name, dims)?;
    let global = scalar(file, &format!("{name}_global_scale"))?;
    Ok(BlockScaled::new(name, dims, layout, codes.to_vec(), scales.to_vec(), global)?)
}

/// The layout of an operand's scales, its codes and its scales, of the right types.
fn parts<'a, F: BlockFormat>(
    file: &'a Checkpoint,
    name: &str,
    dims: Dims,
) -> Result<(ScaleLayout, Data<'a>, Data<'a>)> {
    let codes = file.raw(name)?;
    if codes.dtype != Dtype::U8 {
        return Err(file.wrong_type(name, "U8", codes.dtype));
    }
    let scale_name = format!("{name}_scale");
    let scales = file.raw(&scale_name)?;
    let required = match format_of::<F>() {
        Format::Nvfp4 => "F8_E4M3 or U8",
        Format::Mxfp4 => "F8_E8M0 or U8",
    };
    if scales.dtype != Dtype::U8 && scales.dtype != scale_type::<F>() {
        return Err(file.wrong_type(&scale_name, required, scales.dtype));
    }
    let key = format!("{scale_name}_layout");
    let layout = match file.metadata(&key) {
        Some(text) => layout_by_name(&format!("metadata `{key}`"), text)?,
        None => ScaleLayout::Linear,
    };
    let last = scales.shape.last().copied();
    if layout == ScaleLayout::Linear && last != Some(dims.cols() / F::BLOCK) {
        let required = format!("[.., K/{} = {}]", F::BLOCK, dims.cols() / F::BLOCK);
        return Err(file.wrong_shape(&scale_name, required, &scales.shape));
    }
    Ok((layout, codes.data, scales.data))
}

/// The type that scales of format `F` are written as.
fn scale_type<F: BlockFormat>() -> Dtype {
    match format_of::<F>() {
        Format::Nvfp4 => Dtype::F8_E4M3,
        Format::Mxfp4 => Dtype::F8_E8M0,
    }
}

/// The scales of an operand as they are written.
fn scale_tensor<F: BlockFormat>(x: &BlockScaled<F>) -> NewTensor {
    let dims = x.dims();
    let shape = match x.layout() {
        ScaleLayout::Linear => vec![dims.batch(), dims.rows(), x.kblocks()],
        ScaleLayout::Blocked128x4 => vec![dims.batch(), x.scale_stride()],
    };
    tensor(scale_type::<F>(), shape, x.scales().to_vec())
}

/// An f32 as it is written.
fn scalar_tensor(value: f32) -> NewTensor {
    tensor(Dtype::F32, vec![], value.to_le_bytes().to_vec())
}

/// The scalar of this name, or 1.
fn scalar(file: &Checkpoint, name: &str) -> Result<f32> {
    if file.contains(name) { file.scalar(name) } else { Ok(1.0) }
}

/// Writes operands in the form that [`read`] takes.
///
/// # Errors
/// [`Error::Io`](nvfp4::Error::Io).
pub fn write(path: &Path, operands: &GemvOperands) -> Result<()> {
    let GemvOperands { a, b, alpha } = operands;
    let (l, m, half_k) = (b.dims().batch(), b.dims().rows(), b.dims().cols() / 2);
    checkpoint::write(
        path,
        &[
            ("a", tensor(Dtype::U8, vec![l, half_k], a.codes().to_vec())),
            ("a_scale", scale_tensor(a)),
            ("a_global_scale", scalar_tensor(a.global_scale())),
            ("b", tensor(Dtype::U8, vec![l, m, half_k], b.codes().to_vec())),
            ("b_scale", scale_tensor(b)),
            ("b_global_scale", scalar_tensor(b.global_scale())),
            ("alpha", scalar_tensor(*alpha)),
        ],
        &[
            ("a_scale_layout", a.layout().name().into()),
            ("b_scale_layout", b.layout().name().into()),
        ],
    )
}

/// Writes a result as the tensor `c` of shape `[l, m]`.
///
/// # Errors
/// [`Error::Io`](nvfp4::Error::Io).
pub fn write_result(path: &Path, result: &GemvResult, l: usize, m: usize) -> Result<()> {
    let kernel = result.plan.kernel.to_owned();
    let c = tensor(result_type(result.output), vec![l, m], result.bytes.clone());
    checkpoint::write(path, &[("c", c)], &[("kernel", kernel)])
}

/// The type that results are written as.
fn result_type(output: FloatType) -> Dtype {
    match output {
        FloatType::F16 => Dtype::F16,
        FloatType::Bf16 => Dtype::BF16,
        FloatType::F32 => Dtype::F32,
    }
}

fn tensor(dtype: Dtype, shape: Vec<usize>, data: Vec<u8>) -> NewTensor {
    NewTensor { dtype, shape, data }
}
