//! Operands in a safetensors file, and the result in another: here GEMV's, in [`gemm`] GEMM's.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `a` | U8 | `[L, M, K/2]`, or `[M, K/2]` for L = 1: packed e2m1, element `2j` in the low nibble |
//! | `a_scale` | F8_E4M3 or U8 | linear: `[L, M, K/16]` or `[M, K/16]`; 128x4: any shape of the padded size |
//! | `a_global_scale` | F32, F16 or BF16 | one value; 1 if absent |
//! | `b` | U8 | `[L, K/2]`, or `[K/2]` for L = 1 |
//! | `b_scale` | F8_E4M3 or U8 | linear: `[L, K/16]` or `[K/16]`; 128x4: any shape of the padded size |
//! | `b_global_scale` | F32, F16 or BF16 | one value; 1 if absent |
//! | `alpha` | F32, F16 or BF16 | one value; 1 if absent |
//!
//! The file's metadata says how scales are ordered: `a_scale_layout` and `b_scale_layout` are
//! `linear` (also if absent) or `128x4`. The result is the tensor `c`, `[L, M]`.

pub mod gemm;

use std::path::Path;

use fp4_formats::{BlockFormat, FloatType, Nvfp4, ScaleLayout};
use safetensors::Dtype;

use crate::checkpoint::{self, Checkpoint, NewTensor};
use crate::error::{Error, Result};
use crate::gemm::format_of;
use crate::gemv::GemvResult;
use crate::oracle::check_gemv_operands;
use crate::quantize::Format;
use crate::tensor::{BlockScaled, Dims};

/// Operands of a GEMV.
#[derive(Clone, Debug, PartialEq)]
pub struct GemvOperands {
    /// The matrices.
    pub a: BlockScaled<Nvfp4>,
    /// The vectors.
    pub b: BlockScaled<Nvfp4>,
    /// Factor of the result.
    pub alpha: f32,
}

/// The layout of this name.
///
/// # Errors
/// [`Error::Shape`] for another name; `field` is what the error calls it.
pub fn layout_by_name(field: &str, name: &str) -> Result<ScaleLayout> {
    ScaleLayout::ALL
        .into_iter()
        .find(|layout| layout.name() == name)
        .ok_or_else(|| Error::shape(field, "linear or 128x4", format!("`{name}`")))
}

/// Reads and checks the operands; see the module head for the names.
///
/// # Errors
/// [`CheckpointError`](checkpoint::CheckpointError) for missing tensors, types and shapes, and
/// what [`BlockScaled::new`] checks.
pub fn read(file: &Checkpoint) -> Result<GemvOperands> {
    let a = file.raw("a")?;
    let [l, m, half_k] = match *a.shape.as_slice() {
        [l, m, half_k] => [l, m, half_k],
        [m, half_k] => [1, m, half_k],
        _ => return Err(file.wrong_shape("a", "[L, M, K/2] or [M, K/2]", &a.shape).into()),
    };
    let b = file.raw("b")?;
    let fits = match *b.shape.as_slice() {
        [bl, bk] => bl == l && bk == half_k,
        [bk] => l == 1 && bk == half_k,
        _ => false,
    };
    if !fits {
        let required = format!("[{l}, {half_k}] to fit `a`");
        return Err(file.wrong_shape("b", required, &b.shape).into());
    }
    let k = half_k.checked_mul(2).ok_or_else(|| Error::shape("K", "representable", half_k))?;
    let operands = GemvOperands {
        a: operand(file, "a", Dims::new(l, m, k)?)?,
        b: operand(file, "b", Dims::new(l, 1, k)?)?,
        alpha: scalar(file, "alpha")?,
    };
    check_gemv_operands(&operands.a, &operands.b)?;
    Ok(operands)
}

/// The codes, scales and global scale of an operand in format `F`.
fn operand<F: BlockFormat>(file: &Checkpoint, name: &str, dims: Dims) -> Result<BlockScaled<F>> {
    let codes = file.raw(name)?;
    if codes.dtype != Dtype::U8 {
        return Err(file.wrong_type(name, "U8", codes.dtype).into());
    }
    let scale_name = format!("{name}_scale");
    let scales = file.raw(&scale_name)?;
    let required = match format_of::<F>() {
        Format::Nvfp4 => "F8_E4M3 or U8",
        Format::Mxfp4 => "F8_E8M0 or U8",
    };
    if scales.dtype != Dtype::U8 && scales.dtype != scale_type::<F>() {
        return Err(file.wrong_type(&scale_name, required, scales.dtype).into());
    }
    let key = format!("{scale_name}_layout");
    let layout = match file.metadata(&key) {
        Some(text) => layout_by_name(&format!("metadata `{key}`"), text)?,
        None => ScaleLayout::Linear,
    };
    let last = scales.shape.last().copied();
    if layout == ScaleLayout::Linear && last != Some(dims.cols() / F::BLOCK) {
        let required = format!("[.., K/{} = {}]", F::BLOCK, dims.cols() / F::BLOCK);
        return Err(file.wrong_shape(&scale_name, required, &scales.shape).into());
    }
    let global = scalar(file, &format!("{name}_global_scale"))?;
    BlockScaled::new(name, dims, layout, codes.data.to_vec(), scales.data.to_vec(), global)
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
/// [`Error::Io`].
pub fn write(path: &Path, operands: &GemvOperands) -> Result<()> {
    let GemvOperands { a, b, alpha } = operands;
    let (l, m, half_k) = (a.dims().batch(), a.dims().rows(), a.dims().cols() / 2);
    checkpoint::write(
        path,
        &[
            ("a", tensor(Dtype::U8, vec![l, m, half_k], a.codes().to_vec())),
            ("a_scale", scale_tensor(a)),
            ("a_global_scale", scalar_tensor(a.global_scale())),
            ("b", tensor(Dtype::U8, vec![l, half_k], b.codes().to_vec())),
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
/// [`Error::Io`].
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
