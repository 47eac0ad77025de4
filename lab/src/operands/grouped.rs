//! Operands of a grouped GEMM in a safetensors file.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `a` | as of a GEMM ([`gemm`](super::gemm)) | `[T, K/2]` or `[T, K]`: the tokens of one group after those of another |
//! | `counts` | I32 | `[G]`: the tokens of each group, whose sum is T; 0 is a group without tokens |
//! | `b` | U8 | `[G, N, K/2]` |
//! | `b_scale` | as of a GEMM | linear: `[G, N, K/block]`; 128x4: any shape of G padded matrices |
//! | `b_global_scale` | F32, F16 or BF16 | one value, or `[G]`; 1 if absent |
//! | `alpha` | F32, F16 or BF16 | one value; 1 if absent |
//! | `row_factors` | F32, F16 or BF16 | `[T]`, or absent |
//! | `column_factors`, `bias` | F32, F16 or BF16 | `[N]`, for all groups, or `[G, N]`, or absent |
//! | `residual` | F32, F16 or BF16 | `[T, N]` or `[1, T, N]`, or absent: added to the result |
//!
//! The weights of a gated product are `b`, the gates, and `b_up`, `b_up_scale`, `b_up_global_scale`;
//! or `b` alone with both, `[G, 2N, K/2]`, where the metadata key `b_halves` says `stacked` or
//! `interleaved`; the other half's `up_alpha`, `up_column_factors` and `up_bias` are as of a GEMM.
//! So are the metadata, and the result, the tensor `c`, `[1, T, N]`.

use std::path::Path;

use fp4_formats::{BlockFormat, Mxfp4, Nvfp4};

use super::format;
use super::gemm::{GemmActivations, read_activations, read_options, read_residual};
use super::stack::{GroupWeights, integers, read_groups};
use super::written::Written;
use crate::shape::GroupedShape;
use nvfp4::gemm::{GemmOptions, Weights};
use nvfp4::quantize::Format;
use nvfp4_checkpoint::Checkpoint;
use nvfp4_checkpoint::{CheckpointError, Result};

/// Operands of a grouped GEMM with weights in format `F`.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedOperands<F> {
    /// Activations, `[1, T, K]`.
    pub a: GemmActivations<F>,
    /// Tokens of each group.
    pub counts: Vec<usize>,
    /// Weights of each group.
    pub groups: Vec<GroupWeights<F>>,
    /// alpha, factors and bias; column factors and biases are `[N]` or `[G, N]`.
    pub options: GemmOptions,
}

/// Operands in the format that a file has.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyGroupedOperands {
    /// NVFP4.
    Nvfp4(GroupedOperands<Nvfp4>),
    /// MXFP4.
    Mxfp4(GroupedOperands<Mxfp4>),
}

impl<F: BlockFormat> GroupedOperands<F> {
    /// Returns the weights for a product.
    ///
    /// # Errors
    /// [`Error::Shape`](nvfp4::Error::Shape) where halves do not fit each other.
    pub fn weights(&self) -> Result<Vec<Weights<'_, F>>> {
        self.groups.iter().map(GroupWeights::weights).collect()
    }

    /// Whether two matrices of weights make the result.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.options.up.is_some()
    }

    /// Token counts, N of the result, and K.
    ///
    /// # Errors
    /// The same as [`weights`](Self::weights).
    pub fn shape(&self) -> Result<GroupedShape> {
        let n = self.weights()?.first().map_or(0, |weights| weights.dims().rows());
        let k = self.a.activations().dims().cols();
        Ok(GroupedShape { counts: self.counts.clone(), n, k })
    }
}

/// Reads and checks the operands; see the module head for the names.
///
/// # Errors
/// [`CheckpointError`] for missing tensors, types, shapes and values
/// that are not finite, [`Error::Shape`](nvfp4::Error::Shape) for metadata, for counts that are negative or are not the
/// activations', and for operands that do not fit each other.
pub fn read(file: &Checkpoint) -> Result<AnyGroupedOperands> {
    Ok(match format(file)? {
        Format::Nvfp4 => AnyGroupedOperands::Nvfp4(read_as(file)?),
        Format::Mxfp4 => AnyGroupedOperands::Mxfp4(read_as(file)?),
    })
}

fn read_as<F: BlockFormat>(file: &Checkpoint) -> Result<GroupedOperands<F>> {
    let a = read_activations(file, "a")?;
    let dims = a.activations().dims();
    let (tokens, k) = (dims.rows(), dims.cols());
    if dims.batch() != 1 {
        let shape = file.raw("a")?.shape;
        return Err(file.wrong_shape("a", "[T, K/2] or [T, K]", &shape));
    }
    let counts = counts(file, tokens)?;
    let groups: Vec<GroupWeights<F>> = read_groups(file, "b")?;
    if groups.len() != counts.len() {
        let required = format!("{}, one for each of the counts", counts.len());
        return Err(CheckpointError::shape("matrices of `b`", required, groups.len()));
    }
    // There is one, as a dimension of 0 is refused.
    let weights = groups.iter().map(GroupWeights::weights).next().transpose()?;
    let (columns, n, gated) = weights.map_or((k, 0, false), |weights| {
        (weights.dims().cols(), weights.dims().rows(), weights.is_gated())
    });
    if columns != k {
        return Err(CheckpointError::shape("K of `b`", format!("{k}, the K of `a`"), columns));
    }
    let g = groups.len();
    let required = format!("[N = {n}] or [G = {g}, N = {n}]");
    let shapes = [vec![n], vec![g, n]];
    let options = read_options(file, gated, ("T", tokens), (required, &shapes))?
        .residual(read_residual(file, [1, tokens, n])?);
    Ok(GroupedOperands { a, counts, groups, options })
}

/// The tokens of each group; `tokens` in all.
fn counts(file: &Checkpoint, tokens: usize) -> Result<Vec<usize>> {
    let (shape, counts) = integers(file, "counts")?;
    if shape.len() != 1 || counts.is_empty() {
        return Err(file.wrong_shape("counts", "[G], at least 1", &shape));
    }
    let count = |(group, count): (usize, i32)| {
        usize::try_from(count).map_err(|_| {
            CheckpointError::shape(format!("count of group {group}"), "at least 0", count)
        })
    };
    let counts: Vec<usize> = counts.into_iter().enumerate().map(count).collect::<Result<_>>()?;
    let sum = counts.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
    if sum != tokens {
        return Err(CheckpointError::shape(
            "sum of `counts`",
            format!("{tokens}, the rows of `a`"),
            sum,
        ));
    }
    Ok(counts)
}

/// Writes operands in the form that [`read`] takes.
///
/// # Errors
/// [`Error::Io`](nvfp4::Error::Io), and as [`GroupedOperands::weights`].
pub fn write<F: BlockFormat>(path: &Path, operands: &GroupedOperands<F>) -> Result<()> {
    let GroupedOperands { a, counts, groups, options } = operands;
    let (n, g) = (operands.shape()?.n, counts.len());
    let mut written = Written::of::<F>();
    written.activations("a", a, false);
    written.groups("b", groups);
    let as_i32: Vec<i32> = counts.iter().map(|&count| count as i32).collect();
    written.integers("counts", vec![g], &as_i32);
    written.options(options, |name, vector| match name != "row_factors" && vector.len() != n {
        true => vec![g, n],
        false => vec![vector.len()],
    });
    written.residual(options, [1, counts.iter().sum(), n]);
    written.save(path)
}
