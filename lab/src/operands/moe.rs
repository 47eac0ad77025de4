//! Operands of a mixture of experts in a safetensors file. The file has `count` of E experts.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `x` | F16 or BF16 | `[T, H]`: activations |
//! | `ids` | I32 | `[T, k]`: each token's experts, from 0 to E - 1 |
//! | `weights` | F32, F16 or BF16 | `[T, k]`: their weights |
//! | `gate`, `gate_up` | U8 | `[count, I, H/2]`: the gates, and the other halves |
//! | or `gate` | U8 | `[count, 2I, H/2]`: both, where the metadata key `gate_halves` says `stacked` (the gate's rows first) or `interleaved` (even rows are the gate's) |
//! | `down` | U8 | `[count, H, I/2]` |
//! | `gate_scale`, `gate_up_scale`, `down_scale` | as of a GEMM ([`gemm`](super::gemm)) | linear: `[.., K/block]`; 128x4: any shape of `count` padded matrices |
//! | `gate_global_scale`, `gate_up_global_scale`, `down_global_scale` | F32, F16 or BF16 | one value, or `[count]`; 1 if absent |
//! | `gate_bias`, `gate_up_bias` | F32, F16 or BF16 | `[count, I]`, or absent |
//! | `down_bias` | F32, F16 or BF16 | `[count, H]`, or absent |
//! | `shared` | F32, F16 or BF16 | `[T, H]`: added to the result, or absent |
//! | `x_global_scale`, `between_global_scale` | F32, F16 or BF16 | one value each: activations are quantised to the weights' format with these scales before each product, which are 1 for MXFP4; or both absent |
//!
//! The metadata keys `experts` and `first` are E (`count` if absent) and the first expert of the file
//! (0); `format` and the layouts are as of a GEMM. The result is the tensor `c`, `[T, H]`.

use std::path::Path;

use fp4_formats::{BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4};
use safetensors::Dtype;

use super::gemm::{Halves, halves, vector};
use super::stack::{GroupWeights, integers, read_groups, read_stack};
use super::written::Written;
use super::{format, result_type, scalar_tensor, tensor};
use crate::moe::{HostBiases, MoeOperands};
use nvfp4::gemm::HalfMatrix;
use nvfp4::moe::{MoeOptions, MoeShape, TokenFormat, TokenScales};
use nvfp4::quantize::Format;
use nvfp4::tensor::BlockScaled;
use nvfp4_checkpoint::{self as checkpoint, Checkpoint};
use nvfp4_checkpoint::{CheckpointError, Result};

/// Operands of a mixture of experts with weights in format `F`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerFile<F> {
    /// Tokens, and the experts of all devices and of this one.
    pub shape: MoeShape,
    /// `[T, H]`.
    pub x: HalfMatrix,
    /// `[T, k]`.
    pub ids: Vec<i32>,
    /// `[T, k]`.
    pub weights: Vec<f32>,
    /// Gated, of each expert.
    pub gate: Vec<GroupWeights<F>>,
    /// Down matrices, one per expert.
    pub down: Vec<BlockScaled<F>>,
    /// Biases of gates, other halves and second products.
    pub biases: [Option<Vec<f32>>; 3],
    /// `[T, H]`.
    pub shared: Option<Vec<f32>>,
    /// Scales of activations that are quantised.
    pub scales: Option<TokenScales>,
}

/// Operands in the format that a file has.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyLayerFile {
    /// NVFP4.
    Nvfp4(LayerFile<Nvfp4>),
    /// MXFP4.
    Mxfp4(LayerFile<Mxfp4>),
}

impl<F: BlockFormat> LayerFile<F> {
    /// Returns the operands of a layer, with the scales of the file.
    ///
    /// # Errors
    /// [`Error::Shape`](nvfp4::Error::Shape) where halves do not fit each other, and as [`MoeOperands::check`].
    pub fn operands(&self, options: &MoeOptions) -> Result<MoeOperands<'_, F>> {
        let [gate, up, down] = self.biases.each_ref().map(Option::as_deref);
        let operands = MoeOperands {
            shape: self.shape,
            tokens: &self.x,
            ids: &self.ids,
            weights: &self.weights,
            first: self.gate.iter().map(GroupWeights::weights).collect::<Result<_>>()?,
            second: self.down.iter().map(Into::into).collect(),
            factors: None,
            biases: HostBiases { gate, up, down },
            shared: self.shared.as_deref(),
            // As it is in the file, whatever type it has there.
            options: options
                .clone()
                .quantized(self.scales.map(TokenFormat::Blocks))
                .shared(FloatType::F32),
        };
        operands.check()?;
        Ok(operands)
    }
}

/// Reads and checks the operands; see the module head for the names.
///
/// # Errors
/// [`CheckpointError`] for missing tensors, types, shapes and values that
/// are not finite, [`Error::Shape`](nvfp4::Error::Shape) for metadata, ids that are no expert's, and operands that do not
/// fit each other.
pub fn read(file: &Checkpoint) -> Result<AnyLayerFile> {
    Ok(match format(file)? {
        Format::Nvfp4 => AnyLayerFile::Nvfp4(read_as(file)?),
        Format::Mxfp4 => AnyLayerFile::Mxfp4(read_as(file)?),
    })
}

fn read_as<F: BlockFormat>(file: &Checkpoint) -> Result<LayerFile<F>> {
    let raw = file.raw("x")?;
    let half = match raw.dtype {
        Dtype::F16 => HalfType::F16,
        Dtype::BF16 => HalfType::Bf16,
        other => return Err(file.wrong_type("x", "F16 or BF16", other)),
    };
    let [tokens, hidden] = *raw.shape.as_slice() else {
        return Err(file.wrong_shape("x", "[T, H]", &raw.shape));
    };
    let scales = scales(file)?;
    let x = match scales {
        // Their scale is that of what they are quantised to.
        Some(_) => {
            file.floats("x")?;
            let dims = nvfp4::tensor::Dims::new(1, tokens, hidden)?;
            HalfMatrix::new("x", dims, half, raw.data.to_vec())?
        }
        None => halves(file, "x", half)?,
    };
    let (shape_of_ids, ids) = integers(file, "ids")?;
    let top_k = match *shape_of_ids.as_slice() {
        [rows, top_k] if rows == tokens => top_k,
        _ => {
            return Err(file.wrong_shape("ids", format!("[T = {tokens}, k]"), &shape_of_ids));
        }
    };
    let floats =
        |name: &str, text: &str, sizes: [usize; 2]| vector(file, name, text, &[sizes.to_vec()]);
    let text = format!("[T = {tokens}, k = {top_k}]");
    file.raw("weights")?;
    let weights = floats("weights", &text, [tokens, top_k])?.unwrap_or_default();
    let gate: Vec<GroupWeights<F>> = read_groups(file, "gate")?;
    if gate.iter().any(|expert| matches!(expert.halves, Halves::None)) {
        let required = "gated, with `gate_up` or metadata `gate_halves`";
        return Err(CheckpointError::shape("weights of `gate`", required, "one half"));
    }
    let down = read_stack(file, "down")?;
    let count = gate.len();
    let number = |key: &str, absent: usize| match file.metadata(key) {
        None => Ok(absent),
        Some(text) => text.parse().map_err(|_| {
            CheckpointError::shape(
                format!("metadata `{key}`"),
                "a number",
                format_args!("`{text}`"),
            )
        }),
    };
    let shape = MoeShape {
        tokens,
        top_k,
        experts: number("experts", count)?,
        first: number("first", 0)?,
        count,
    };
    let between = down.first().map_or(0, |weights: &BlockScaled<F>| weights.dims().cols());
    let of_between = format!("[{count}, I = {between}]");
    let of_hidden = format!("[{count}, H = {hidden}]");
    Ok(LayerFile {
        shape,
        x,
        ids,
        weights,
        biases: [
            floats("gate_bias", &of_between, [count, between])?,
            floats("gate_up_bias", &of_between, [count, between])?,
            floats("down_bias", &of_hidden, [count, hidden])?,
        ],
        gate,
        down,
        shared: floats("shared", &format!("[T = {tokens}, H = {hidden}]"), [tokens, hidden])?,
        scales,
    })
}

/// The scales of activations that are quantised: both or none.
fn scales(file: &Checkpoint) -> Result<Option<TokenScales>> {
    let [tokens, between] = ["x_global_scale", "between_global_scale"];
    match [tokens, between].map(|name| file.contains(name)) {
        [false, false] => Ok(None),
        _ => Ok(Some(TokenScales { tokens: file.scalar(tokens)?, between: file.scalar(between)? })),
    }
}

/// Writes operands in the form that [`read`] takes.
///
/// # Errors
/// [`Error::Io`](nvfp4::Error::Io).
pub fn write<F: BlockFormat>(path: &Path, layer: &LayerFile<F>) -> Result<()> {
    let LayerFile { shape, x, ids, weights, gate, down, biases, shared, scales } = layer;
    let MoeShape { tokens, top_k, experts, first, count } = *shape;
    let mut written = Written::of::<F>();
    written.say("experts".into(), &experts.to_string());
    written.say("first".into(), &first.to_string());
    written.halves_matrix("x", x, false);
    written.integers("ids", vec![tokens, top_k], ids);
    written.floats("weights", vec![tokens, top_k], weights);
    written.groups("gate", gate);
    written.stack("down", &down.iter().collect::<Vec<_>>());
    for (name, bias) in ["gate_bias", "gate_up_bias", "down_bias"].into_iter().zip(biases) {
        if let Some(bias) = bias {
            written.floats(name, vec![count, bias.len() / count.max(1)], bias);
        }
    }
    if let Some(shared) = shared {
        written.floats("shared", vec![tokens, x.dims().cols()], shared);
    }
    if let Some(TokenScales { tokens, between }) = scales {
        written.push("x_global_scale", scalar_tensor(*tokens));
        written.push("between_global_scale", scalar_tensor(*between));
    }
    written.save(path)
}

/// Writes a result as the tensor `c` of shape `[T, H]`.
///
/// # Errors
/// [`Error::Io`](nvfp4::Error::Io).
pub fn write_result(
    path: &Path,
    bytes: Vec<u8>,
    output: FloatType,
    shape: [usize; 2],
) -> Result<()> {
    let c = tensor(result_type(output), shape.to_vec(), bytes);
    checkpoint::write(path, &[("c", c)], &[])
}
