//! GEMM operands in a safetensors file, and the result in another.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `a` | U8 | `[L, M, K/2]`, or `[M, K/2]` for L = 1: packed e2m1, element `2j` in the low nibble |
//! | or `a` | F16 or BF16 | `[L, M, K]`, or `[M, K]` for L = 1: finite; then without the next two |
//! | `a_scale` | NVFP4: F8_E4M3 or U8; MXFP4: F8_E8M0 or U8 | linear: `[L, M, K/block]` or `[M, K/block]`; 128x4: any shape of the padded size |
//! | `a_global_scale` | F32, F16 or BF16 | one value; 1 if absent |
//! | `a_row_scale` | F32, F16 or BF16 | `[L, M]` or `[M]`, or absent: of NVFP4, a scale for each row besides; then without `row_factors` |
//! | `b` | U8 | `[L, N, K/2]`, or `[N, K/2]` for all batch entries |
//! | `b_scale` | as `a_scale` | linear: `[L, N, K/block]` or `[N, K/block]`; 128x4: any shape of the padded size |
//! | `b_global_scale` | F32, F16 or BF16 | one value; 1 if absent |
//! | `alpha` | F32, F16 or BF16 | one value; 1 if absent |
//! | `row_factors` | F32, F16 or BF16 | `[M]`, or absent |
//! | `column_factors`, `bias` | F32, F16 or BF16 | `[N]`, or absent |
//! | `residual` | F32, F16 or BF16 | `[L, M, N]`, or `[M, N]` for L = 1, or absent: added to the result |
//!
//! The weights of a gated product are `b`, the gate, and `b_up`, `b_up_scale`, `b_up_global_scale`
//! in the same form; or `b` alone with both, `[L, 2N, K/2]`, where the metadata key `b_halves` says
//! `stacked` (the gate's rows first) or `interleaved` (even rows are the gate's). The vectors above
//! and `alpha` are the gate's; the other half's are `up_alpha`, `up_column_factors` and `up_bias`.
//!
//! The file's metadata says what the bytes are: `format` is `nvfp4` (also if absent; blocks of
//! 16) or `mxfp4` (blocks of 32), `a_scale_layout` and `b_scale_layout` are `linear` (also if
//! absent) or `128x4`. The result is the tensor `c`, `[L, M, N]`; in NVFP4 or MXFP4 `c`, `c_scale` and,
//! of NVFP4, `c_global_scale` with the metadata `c_scale_layout`, as an operand.

use std::path::Path;

use fp4_formats::{BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4};
use safetensors::Dtype;

use super::written::Written;
use super::{format, operand, result_type, scalar, scalar_tensor, scale_tensor, tensor};
use crate::shape::GemmShape;
pub use nvfp4::gemm::GemmActivations;
use nvfp4::gemm::{
    Fp8Matrix, GatedWeights, GemmOptions, GemmResult, HalfMatrix, Output, ResidualValues,
    RowScaled, UpOptions, Weights, check_operands,
};
use nvfp4::quantize::Format;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_checkpoint::{self as checkpoint, Checkpoint};
use nvfp4_checkpoint::{CheckpointError, Result};

/// The form of a product's weights in a file.
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

/// The suffix of the name of activations' scales of rows.
pub(super) const ROW_SCALE: &str = "_row_scale";

/// The suffix of weights' names in the metadata key that says how they have both halves.
pub(super) const HALVES: &str = "_halves";

/// Operands of a GEMM with weights in format `F`.
#[derive(Clone, Debug, PartialEq)]
pub struct GemmOperands<F> {
    /// Activations, `[L, M, K]`.
    pub a: GemmActivations<F>,
    /// Weights, `[L, N, K]` or one matrix for all batch entries; or those of both halves.
    pub b: BlockScaled<F>,
    /// The form of a gated product's other half.
    pub halves: Halves<F>,
    /// alpha, factors and bias; the rest as by default.
    pub options: GemmOptions,
}

impl<F> Halves<F> {
    /// The second of a pair.
    pub(super) fn up(&self) -> Option<&BlockScaled<F>> {
        match self {
            Self::Pair(up) => Some(up),
            Self::None | Self::Stacked | Self::Interleaved => None,
        }
    }

    /// The metadata's word; none where there is none.
    pub(super) fn word(&self) -> Option<&'static str> {
        match self {
            Self::None | Self::Pair(_) => None,
            Self::Stacked => Some("stacked"),
            Self::Interleaved => Some("interleaved"),
        }
    }
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

    /// Returns the weights for a GEMM.
    ///
    /// # Errors
    /// [`Error::Shape`](nvfp4::Error::Shape) where halves do not fit each other.
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

/// Weights of either kind from a file's.
pub(super) fn weights<'a, F: BlockFormat>(
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
/// [`CheckpointError`] for missing tensors, types, shapes and values
/// that are not finite, [`Error::Shape`](nvfp4::Error::Shape) for metadata and operands that do not fit each other,
/// and what [`BlockScaled::new`] checks.
pub fn read(file: &Checkpoint) -> Result<AnyOperands> {
    match format(file)? {
        Format::Nvfp4 => Ok(AnyOperands::Nvfp4(read_as(file)?)),
        Format::Mxfp4 => Ok(AnyOperands::Mxfp4(read_as(file)?)),
    }
}

fn read_as<F: BlockFormat>(file: &Checkpoint) -> Result<GemmOperands<F>> {
    let a = read_activations(file, "a")?;
    let b = operand(file, "b", packed_dims(file, "b", "N")?)?;
    let halves = match halves_metadata(file, "b")? {
        Some(halves) => halves,
        None if file.contains("b_up") => {
            Halves::Pair(operand(file, "b_up", packed_dims(file, "b_up", "N")?)?)
        }
        None => Halves::None,
    };
    let all = weights(&b, &halves)?;
    let (m, n) = (a.activations().dims().rows(), all.dims().rows());
    let required = (format!("[N = {n}]"), &[vec![n]][..]);
    let options = read_options(file, all.is_gated(), ("M", m), required)?
        .residual(read_residual(file, [a.activations().dims().batch(), m, n])?);
    check_operands(&a.activations(), all, &options)?;
    Ok(GemmOperands { a, b, halves, options })
}

/// Activations in either form.
pub(super) fn read_activations<F: BlockFormat>(
    file: &Checkpoint,
    name: &str,
) -> Result<GemmActivations<F>> {
    Ok(match file.raw(name)?.dtype {
        Dtype::U8 => {
            let dims = packed_dims(file, name, "M")?;
            let blocks = operand(file, name, dims)?;
            let (batch, rows) = (dims.batch(), dims.rows());
            let required = format!("[L = {batch}, M = {rows}], the rows' scales");
            let shapes = [vec![batch, rows], vec![rows; usize::from(batch == 1)]];
            match vector(file, &format!("{name}{ROW_SCALE}"), &required, &shapes)? {
                Some(scales) => GemmActivations::ScaledRows(RowScaled::new(blocks, scales)?),
                None => GemmActivations::Blocks(blocks),
            }
        }
        Dtype::F16 => GemmActivations::Halves(halves(file, name, HalfType::F16)?),
        Dtype::BF16 => GemmActivations::Halves(halves(file, name, HalfType::Bf16)?),
        Dtype::F8_E4M3 => GemmActivations::Fp8(bytes(file, name)?),
        other => return Err(file.wrong_type(name, "U8, F16, BF16 or F8_E4M3", other)),
    })
}

/// Activations in e4m3 with a scale for each token, `[L, M]` or `[M]`.
fn bytes(file: &Checkpoint, name: &str) -> Result<Fp8Matrix> {
    let [batch, rows, k] = sizes(file, name, "[L, M, K] or [M, K]".into())?;
    let scale = format!("{name}_scale");
    let required = format!("[L = {batch}, M = {rows}], the tokens' scales");
    let shapes = [vec![batch, rows], vec![rows; usize::from(batch == 1)]];
    let scales = vector(file, &scale, &required, &shapes)?.ok_or_else(|| {
        CheckpointError::shape(format!("tensor `{scale}`"), required.clone(), "absent")
    })?;
    let dims = Dims::new(batch, rows, k)?;
    Ok(Fp8Matrix::new(name, dims, file.raw(name)?.data.to_vec(), scales)?)
}

/// Reads the form in which the weights `name` have both halves, if they do.
pub(super) fn halves_metadata<F>(file: &Checkpoint, name: &str) -> Result<Option<Halves<F>>> {
    let key = format!("{name}{HALVES}");
    let up = format!("{name}_up");
    Ok(match (file.contains(&up), file.metadata(&key)) {
        (_, None) => None,
        (false, Some("stacked")) => Some(Halves::Stacked),
        (false, Some("interleaved")) => Some(Halves::Interleaved),
        (in_two, Some(other)) => {
            let required = match in_two {
                true => format!("absent beside `{up}`"),
                false => "stacked or interleaved".into(),
            };
            let field = format!("metadata `{key}`");
            return Err(CheckpointError::shape(field, required, format_args!("`{other}`")));
        }
    })
}

/// alpha, factors and bias of a result of `m` rows; `required` are the shapes of column factors and
/// biases, in words and numbers.
pub(super) fn read_options(
    file: &Checkpoint,
    gated: bool,
    (letter, m): (&str, usize),
    (required, shapes): (String, &[Vec<usize>]),
) -> Result<GemmOptions> {
    let of_up = ["up_alpha", "up_column_factors", "up_bias"];
    if let (false, Some(name)) = (gated, of_up.into_iter().find(|name| file.contains(name))) {
        let field = format!("tensor `{name}`");
        return Err(CheckpointError::shape(field, "absent, as there is no other half", "there"));
    }
    let columns = |name: &str| vector(file, name, &required, shapes);
    let up = UpOptions::new()
        .alpha(scalar(file, "up_alpha")?)
        .column_factors(columns("up_column_factors")?)
        .bias(columns("up_bias")?);
    let rows = vector(file, "row_factors", &format!("[{letter} = {m}]"), &[vec![m]])?;
    Ok(GemmOptions::new()
        .alpha(scalar(file, "alpha")?)
        .row_factors(rows)
        .column_factors(columns("column_factors")?)
        .bias(columns("bias")?)
        .up(gated.then_some(up)))
}

/// The residual of a result of these sizes, if there is one.
pub(super) fn read_residual(
    file: &Checkpoint,
    [l, m, n]: [usize; 3],
) -> Result<Option<ResidualValues>> {
    const NAME: &str = "residual";
    let required = format!("[{l}, {m}, {n}], or [{m}, {n}] for one matrix");
    let matrix = if l == 1 { vec![m, n] } else { vec![l, m, n] };
    let Some(values) = vector(file, NAME, &required, &[vec![l, m, n], matrix])? else {
        return Ok(None);
    };
    let float_type = match file.raw(NAME)?.dtype {
        Dtype::F16 => FloatType::F16,
        Dtype::BF16 => FloatType::Bf16,
        Dtype::F32 => FloatType::F32,
        other => return Err(file.wrong_type(NAME, "F32, F16 or BF16", other)),
    };
    Ok(Some(ResidualValues::round(float_type, &values)))
}

/// Batch, rows and the last dimension of a tensor.
fn sizes(file: &Checkpoint, name: &str, required: String) -> Result<[usize; 3]> {
    match *file.raw(name)?.shape.as_slice() {
        [batch, rows, last] => Ok([batch, rows, last]),
        [rows, last] => Ok([1, rows, last]),
        ref other => Err(file.wrong_shape(name, required, other)),
    }
}

/// The sizes of packed codes; `letter` is what errors call the rows.
fn packed_dims(file: &Checkpoint, name: &str, letter: &str) -> Result<Dims> {
    let required = format!("[L, {letter}, K/2] or [{letter}, K/2]");
    let [batch, rows, half_k] = sizes(file, name, required)?;
    let k = half_k
        .checked_mul(2)
        .ok_or_else(|| CheckpointError::shape("K", "representable", half_k))?;
    Ok(Dims::new(batch, rows, k)?)
}

/// Activations of 16-bit floats.
pub(super) fn halves(file: &Checkpoint, name: &str, operand: HalfType) -> Result<HalfMatrix> {
    for part in ["scale", "global_scale"] {
        let scale = format!("{name}_{part}");
        if file.contains(&scale) {
            let field = format!("tensor `{scale}`");
            let required = format!("absent, as `{name}` has 16-bit floats");
            return Err(CheckpointError::shape(field, required, "there"));
        }
    }
    let [batch, rows, k] = sizes(file, name, "[L, M, K] or [M, K]".into())?;
    // That the values are finite is checked with the conversion.
    file.floats(name)?;
    let data = file.raw(name)?.data.to_vec();
    Ok(HalfMatrix::new(name, Dims::new(batch, rows, k)?, operand, data)?)
}

/// Floats of one of `shapes`, if they are there; `required` are those in words.
pub(super) fn vector(
    file: &Checkpoint,
    name: &str,
    required: &str,
    shapes: &[Vec<usize>],
) -> Result<Option<Vec<f32>>> {
    if !file.contains(name) {
        return Ok(None);
    }
    let tensor = file.floats(name)?;
    if !shapes.contains(&tensor.shape) {
        return Err(file.wrong_shape(name, required, &tensor.shape));
    }
    Ok(Some(tensor.values))
}

/// Writes operands in the form that [`read`] takes.
///
/// # Errors
/// [`Error::Io`](nvfp4::Error::Io).
pub fn write<F: BlockFormat>(path: &Path, operands: &GemmOperands<F>) -> Result<()> {
    let GemmOperands { a, b, halves, options } = operands;
    let mut written = Written::of::<F>();
    written.activations("a", a, true);
    written.matrix("b", b);
    match halves {
        Halves::None => {}
        Halves::Pair(up) => written.matrix("b_up", up),
        Halves::Stacked | Halves::Interleaved => written.halves("b", halves),
    }
    written.options(options, |_, vector| vec![vector.len()]);
    let GemmShape { m, n, l, .. } = operands.shape();
    written.residual(options, [l, m, n]);
    written.save(path)
}

/// Writes a result as the tensor `c` of shape `[L, M, N]`; in NVFP4 or MXFP4 as `c`, `c_scale` and, of
/// NVFP4, `c_global_scale`, in the form of an operand.
///
/// # Errors
/// [`Error::Io`](nvfp4::Error::Io); [`Error::ScaleNotFinite`](nvfp4::Error::ScaleNotFinite) for a result in NVFP4 or MXFP4 with a NaN.
pub fn write_result(path: &Path, result: &GemmResult, shape: GemmShape) -> Result<()> {
    let GemmShape { m, n, l, .. } = shape;
    let mut metadata = vec![("kernel", result.plan.kernel.to_owned())];
    let tensors = match result.output {
        Output::Floats(floats) => {
            vec![("c", tensor(result_type(floats), vec![l, m, n], result.bytes.clone()))]
        }
        Output::Nvfp4 { layout, .. } => {
            let c = result.clone().into_blocks::<Nvfp4>("c")?;
            metadata.push(("c_scale_layout", layout.name().into()));
            vec![
                ("c", tensor(Dtype::U8, vec![l, m, n / 2], c.codes().to_vec())),
                ("c_scale", scale_tensor(&c)),
                ("c_global_scale", scalar_tensor(c.global_scale())),
            ]
        }
        Output::Mxfp4 { layout } => {
            let c = result.clone().into_blocks::<Mxfp4>("c")?;
            metadata.push(("c_scale_layout", layout.name().into()));
            vec![
                ("c", tensor(Dtype::U8, vec![l, m, n / 2], c.codes().to_vec())),
                ("c_scale", scale_tensor(&c)),
            ]
        }
    };
    checkpoint::write(path, &tensors, &metadata)
}
