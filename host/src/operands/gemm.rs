//! GEMM operands in a safetensors file, and the result in another.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `a` | U8 | `[L, M, K/2]`, or `[M, K/2]` for L = 1: packed e2m1, element `2j` in the low nibble |
//! | or `a` | F16 or BF16 | `[L, M, K]`, or `[M, K]` for L = 1: finite; then without the next two |
//! | `a_scale` | NVFP4: F8_E4M3 or U8; MXFP4: F8_E8M0 or U8 | linear: `[L, M, K/block]` or `[M, K/block]`; 128x4: any shape of the padded size |
//! | `a_global_scale` | F32, F16 or BF16 | one value; 1 if absent |
//! | `b` | U8 | `[L, N, K/2]`, or `[N, K/2]` for all batch entries |
//! | `b_scale` | as `a_scale` | linear: `[L, N, K/block]` or `[N, K/block]`; 128x4: any shape of the padded size |
//! | `b_global_scale` | F32, F16 or BF16 | one value; 1 if absent |
//! | `alpha` | F32, F16 or BF16 | one value; 1 if absent |
//! | `row_factors` | F32, F16 or BF16 | `[M]`, or absent |
//! | `column_factors`, `bias` | F32, F16 or BF16 | `[N]`, or absent |
//!
//! The weights of a gated product are `b`, the gate, and `b_up`, `b_up_scale`, `b_up_global_scale`
//! in the same form; or `b` alone with both, `[L, 2N, K/2]`, where the metadata key `b_halves` says
//! `stacked` (the gate's rows first) or `interleaved` (even rows are the gate's). The vectors above
//! and `alpha` are the gate's; the other half's are `up_alpha`, `up_column_factors` and `up_bias`.
//!
//! The file's metadata says what the bytes are: `format` is `nvfp4` (also if absent; blocks of
//! 16) or `mxfp4` (blocks of 32), `a_scale_layout` and `b_scale_layout` are `linear` (also if
//! absent) or `128x4`. The result is the tensor `c`, `[L, M, N]`; in NVFP4 `c`, `c_scale` and
//! `c_global_scale` with the metadata `c_scale_layout`, as an operand.

use std::path::Path;

use fp4_formats::{BlockFormat, HalfType, Mxfp4, Nvfp4};
use safetensors::Dtype;

use super::{operand, result_type, scalar, scalar_tensor, scale_tensor, tensor};
use crate::checkpoint::{self, Checkpoint, NewTensor};
use crate::error::{Error, Result};
use crate::gemm::{
    Activations, GatedWeights, GemmOptions, GemmResult, HalfMatrix, Output, UpOptions, Weights,
    check_operands,
};
use crate::quantize::Format;
use crate::shape::GemmShape;
use crate::tensor::{BlockScaled, Dims};

/// The activations of a GEMM, owned.
#[derive(Clone, Debug, PartialEq)]
pub enum GemmActivations<F> {
    /// In the weights' format.
    Blocks(BlockScaled<F>),
    /// 16-bit floats.
    Halves(HalfMatrix),
}

impl<F: BlockFormat> GemmActivations<F> {
    /// As a GEMM takes it.
    #[must_use]
    pub fn activations(&self) -> Activations<'_, F> {
        match self {
            Self::Blocks(blocks) => Activations::Blocks(blocks),
            Self::Halves(halves) => Activations::Halves(halves),
        }
    }
}

/// How the weights of a product are in a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Halves<F> {
    /// `b` is all there is: the product is not gated.
    None,
    /// `b` is the gate, and this is `up`.
    Pair(BlockScaled<F>),
    /// The first half of `b`'s rows is the gate.
    Stacked,
    /// The even rows of `b` are the gate.
    Interleaved,
}

/// The metadata key that says how `b` has both halves.
const HALVES: &str = "b_halves";

/// Operands of a GEMM with weights in format `F`.
#[derive(Clone, Debug, PartialEq)]
pub struct GemmOperands<F> {
    /// Activations, `[L, M, K]`.
    pub a: GemmActivations<F>,
    /// Weights, `[L, N, K]` or one matrix for all batch entries; or those of both halves.
    pub b: BlockScaled<F>,
    /// How the other half of a gated product is there.
    pub halves: Halves<F>,
    /// alpha, factors and bias; the rest as by default.
    pub options: GemmOptions,
}

impl<F: BlockFormat> GemmOperands<F> {
    /// Whether two matrices of weights make the result.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        match self.halves {
            Halves::None => false,
            Halves::Pair(_) | Halves::Stacked | Halves::Interleaved => true,
        }
    }

    /// As a GEMM takes them.
    ///
    /// # Errors
    /// [`Error::Shape`] where halves do not fit each other.
    pub fn weights(&self) -> Result<Weights<'_, F>> {
        weights(&self.b, &self.halves)
    }

    /// M, N, K and L; N is the result's.
    #[must_use]
    pub fn shape(&self) -> GemmShape {
        let dims = self.a.activations().dims();
        let (m, k, l) = (dims.rows(), dims.cols(), dims.batch());
        let rows = self.b.dims().rows();
        let n = match self.halves {
            Halves::None | Halves::Pair(_) => rows,
            Halves::Stacked | Halves::Interleaved => rows / 2,
        };
        GemmShape { m, n, k, l }
    }
}

fn weights<'a, F: BlockFormat>(
    b: &'a BlockScaled<F>,
    halves: &'a Halves<F>,
) -> Result<Weights<'a, F>> {
    Ok(match halves {
        Halves::None => b.into(),
        Halves::Pair(up) => GatedWeights::pair(b, up)?.into(),
        Halves::Stacked => GatedWeights::stacked(b)?.into(),
        Halves::Interleaved => GatedWeights::interleaved(b)?.into(),
    })
}

/// Operands in the format that a file has.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyOperands {
    /// NVFP4.
    Nvfp4(GemmOperands<Nvfp4>),
    /// MXFP4.
    Mxfp4(GemmOperands<Mxfp4>),
}

/// Reads and checks the operands; see the module head for the names.
///
/// # Errors
/// [`CheckpointError`](checkpoint::CheckpointError) for missing tensors, types, shapes and values
/// that are not finite, [`Error::Shape`] for metadata and operands that do not fit each other,
/// and what [`BlockScaled::new`] checks.
pub fn read(file: &Checkpoint) -> Result<AnyOperands> {
    match file.metadata("format").unwrap_or(Format::Nvfp4.name()) {
        name if name == Format::Nvfp4.name() => Ok(AnyOperands::Nvfp4(read_as(file)?)),
        name if name == Format::Mxfp4.name() => Ok(AnyOperands::Mxfp4(read_as(file)?)),
        other => {
            Err(Error::shape("metadata `format`", "nvfp4 or mxfp4", format_args!("`{other}`")))
        }
    }
}

fn read_as<F: BlockFormat>(file: &Checkpoint) -> Result<GemmOperands<F>> {
    let a = match file.raw("a")?.dtype {
        Dtype::U8 => GemmActivations::Blocks(operand(file, "a", packed_dims(file, "a", "M")?)?),
        Dtype::F16 => GemmActivations::Halves(halves(file, HalfType::F16)?),
        Dtype::BF16 => GemmActivations::Halves(halves(file, HalfType::Bf16)?),
        other => return Err(file.wrong_type("a", "U8, F16 or BF16", other).into()),
    };
    let b = operand(file, "b", packed_dims(file, "b", "N")?)?;
    let halves = match (file.contains("b_up"), file.metadata(HALVES)) {
        (false, None) => Halves::None,
        (true, None) => Halves::Pair(operand(file, "b_up", packed_dims(file, "b_up", "N")?)?),
        (false, Some("stacked")) => Halves::Stacked,
        (false, Some("interleaved")) => Halves::Interleaved,
        (in_two, Some(other)) => {
            let field = format!("metadata `{HALVES}`");
            let required = if in_two { "absent beside `b_up`" } else { "stacked or interleaved" };
            return Err(Error::shape(field, required, format_args!("`{other}`")));
        }
    };
    let all = weights(&b, &halves)?;
    let (m, n) = (a.activations().dims().rows(), all.dims().rows());
    let of_up = ["up_alpha", "up_column_factors", "up_bias"];
    if let (false, Some(name)) =
        (all.is_gated(), of_up.into_iter().find(|name| file.contains(name)))
    {
        let field = format!("tensor `{name}`");
        return Err(Error::shape(field, "absent, as there is no other half", "there"));
    }
    let up = UpOptions {
        alpha: scalar(file, "up_alpha")?,
        column_factors: vector(file, "up_column_factors", "N", n)?,
        bias: vector(file, "up_bias", "N", n)?,
    };
    let options = GemmOptions {
        alpha: scalar(file, "alpha")?,
        row_factors: vector(file, "row_factors", "M", m)?,
        column_factors: vector(file, "column_factors", "N", n)?,
        bias: vector(file, "bias", "N", n)?,
        up: all.is_gated().then_some(up),
        ..GemmOptions::default()
    };
    check_operands(&a.activations(), all, &options)?;
    Ok(GemmOperands { a, b, halves, options })
}

/// Batch, rows and the last dimension of a tensor.
fn sizes(file: &Checkpoint, name: &str, required: String) -> Result<[usize; 3]> {
    match *file.raw(name)?.shape.as_slice() {
        [batch, rows, last] => Ok([batch, rows, last]),
        [rows, last] => Ok([1, rows, last]),
        ref other => Err(file.wrong_shape(name, required, other).into()),
    }
}

/// The sizes of packed codes; `letter` is what errors call the rows.
fn packed_dims(file: &Checkpoint, name: &str, letter: &str) -> Result<Dims> {
    let required = format!("[L, {letter}, K/2] or [{letter}, K/2]");
    let [batch, rows, half_k] = sizes(file, name, required)?;
    let k = half_k.checked_mul(2).ok_or_else(|| Error::shape("K", "representable", half_k))?;
    Dims::new(batch, rows, k)
}

/// Activations of 16-bit floats.
fn halves(file: &Checkpoint, operand: HalfType) -> Result<HalfMatrix> {
    for name in ["a_scale", "a_global_scale"] {
        if file.contains(name) {
            let field = format!("tensor `{name}`");
            return Err(Error::shape(field, "absent, as `a` has 16-bit floats", "there"));
        }
    }
    let [batch, rows, k] = sizes(file, "a", "[L, M, K] or [M, K]".into())?;
    // That the values are finite is checked with the conversion.
    file.floats("a")?;
    HalfMatrix::new("a", Dims::new(batch, rows, k)?, operand, file.raw("a")?.data.to_vec())
}

/// A vector of the epilogue, if it is there.
fn vector(file: &Checkpoint, name: &str, letter: &str, len: usize) -> Result<Option<Vec<f32>>> {
    if !file.contains(name) {
        return Ok(None);
    }
    let tensor = file.floats(name)?;
    if tensor.shape != [len] {
        let required = format!("[{letter} = {len}]");
        return Err(file.wrong_shape(name, required, &tensor.shape).into());
    }
    Ok(Some(tensor.values))
}

/// Writes operands in the form that [`read`] takes.
///
/// # Errors
/// [`Error::Io`].
pub fn write<F: BlockFormat>(path: &Path, operands: &GemmOperands<F>) -> Result<()> {
    let GemmOperands { a, b, halves, options } = operands;
    let mut tensors: Vec<(&str, NewTensor)> = Vec::new();
    let mut metadata = vec![("format", F::NAME.to_owned())];
    let codes = |x: &BlockScaled<F>| {
        let dims = x.dims();
        let shape = vec![dims.batch(), dims.rows(), dims.cols() / 2];
        tensor(Dtype::U8, shape, x.codes().to_vec())
    };
    match a {
        GemmActivations::Blocks(a) => {
            tensors.push(("a", codes(a)));
            tensors.push(("a_scale", scale_tensor(a)));
            tensors.push(("a_global_scale", scalar_tensor(a.global_scale())));
            metadata.push(("a_scale_layout", a.layout().name().into()));
        }
        GemmActivations::Halves(a) => {
            let (dims, dtype) = match a.operand() {
                HalfType::F16 => (a.dims(), Dtype::F16),
                HalfType::Bf16 => (a.dims(), Dtype::BF16),
            };
            let shape = vec![dims.batch(), dims.rows(), dims.cols()];
            tensors.push(("a", tensor(dtype, shape, a.bytes().to_vec())));
        }
    }
    tensors.push(("b", codes(b)));
    tensors.push(("b_scale", scale_tensor(b)));
    tensors.push(("b_global_scale", scalar_tensor(b.global_scale())));
    metadata.push(("b_scale_layout", b.layout().name().into()));
    match halves {
        Halves::None => {}
        Halves::Pair(up) => {
            tensors.push(("b_up", codes(up)));
            tensors.push(("b_up_scale", scale_tensor(up)));
            tensors.push(("b_up_global_scale", scalar_tensor(up.global_scale())));
            metadata.push(("b_up_scale_layout", up.layout().name().into()));
        }
        Halves::Stacked => metadata.push((HALVES, "stacked".into())),
        Halves::Interleaved => metadata.push((HALVES, "interleaved".into())),
    }
    tensors.push(("alpha", scalar_tensor(options.alpha)));
    let mut vectors = vec![
        ("row_factors", &options.row_factors),
        ("column_factors", &options.column_factors),
        ("bias", &options.bias),
    ];
    if let Some(UpOptions { alpha, column_factors, bias }) = &options.up {
        tensors.push(("up_alpha", scalar_tensor(*alpha)));
        vectors.extend([("up_column_factors", column_factors), ("up_bias", bias)]);
    }
    for (name, vector) in vectors {
        if let Some(vector) = vector {
            let bytes = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            tensors.push((name, tensor(Dtype::F32, vec![vector.len()], bytes)));
        }
    }
    checkpoint::write(path, &tensors, &metadata)
}

/// Writes a result as the tensor `c` of shape `[L, M, N]`; in NVFP4 as `c`, `c_scale` and
/// `c_global_scale`, in the form of an operand.
///
/// # Errors
/// [`Error::Io`]; [`Error::ScaleNotFinite`] for a result in NVFP4 with a NaN.
pub fn write_result(path: &Path, result: &GemmResult, shape: GemmShape) -> Result<()> {
    let GemmShape { m, n, l, .. } = shape;
    let mut metadata = vec![("kernel", result.plan.kernel.to_owned())];
    let tensors = match result.output {
        Output::Floats(floats) => {
            vec![("c", tensor(result_type(floats), vec![l, m, n], result.bytes.clone()))]
        }
        Output::Nvfp4 { layout, .. } => {
            let c = result.clone().into_blocks("c")?;
            metadata.push(("c_scale_layout", layout.name().into()));
            vec![
                ("c", tensor(Dtype::U8, vec![l, m, n / 2], c.codes().to_vec())),
                ("c_scale", scale_tensor(&c)),
                ("c_global_scale", scalar_tensor(c.global_scale())),
            ]
        }
    };
    checkpoint::write(path, &tensors, &metadata)
}
