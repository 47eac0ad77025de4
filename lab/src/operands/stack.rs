//! Weights of several matrices in a safetensors file: the groups of a grouped product, the experts of
//! a layer.

use fp4_formats::BlockFormat;
use safetensors::Dtype;

use super::gemm::{Halves, halves_metadata, weights};
use super::parts;
use nvfp4::gemm::Weights;
use nvfp4::tensor::{BlockScaled, Dims, byte_counts};
use nvfp4_checkpoint::Checkpoint;
use nvfp4_checkpoint::{CheckpointError, Result};

/// Weights of one group or expert.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupWeights<F> {
    /// The matrix, or the gate, or both halves.
    pub b: BlockScaled<F>,
    /// The form of a gated product's other half.
    pub halves: Halves<F>,
}

impl<F: BlockFormat> GroupWeights<F> {
    /// Returns the weights for a product.
    ///
    /// # Errors
    /// [`Error::Shape`](nvfp4::Error::Shape) where halves do not fit each other.
    pub fn weights(&self) -> Result<Weights<'_, F>> {
        weights(&self.b, &self.halves)
    }
}

/// The weights `name` of each group, with `name_up` or the metadata `name_halves` those of both halves.
pub(super) fn read_groups<F: BlockFormat>(
    file: &Checkpoint,
    name: &str,
) -> Result<Vec<GroupWeights<F>>> {
    let up = format!("{name}_up");
    let first = read_stack(file, name)?;
    let halves: Vec<Halves<F>> = match halves_metadata(file, name)? {
        Some(halves) => vec![halves; first.len()],
        None if file.contains(&up) => {
            let second = read_stack(file, &up)?;
            if second.len() != first.len() {
                let required = format!("{}, as of `{name}`", first.len());
                return Err(CheckpointError::shape(
                    format!("matrices of `{up}`"),
                    required,
                    second.len(),
                ));
            }
            second.into_iter().map(Halves::Pair).collect()
        }
        None => vec![Halves::None; first.len()],
    };
    let groups: Vec<GroupWeights<F>> =
        first.into_iter().zip(halves).map(|(b, halves)| GroupWeights { b, halves }).collect();
    groups.iter().try_for_each(|group| group.weights().map(drop))?;
    Ok(groups)
}

/// A tensor `[G, N, K/2]` of codes with its scales: each matrix with the tensor's scale, or its own.
pub(super) fn read_stack<F: BlockFormat>(
    file: &Checkpoint,
    name: &str,
) -> Result<Vec<BlockScaled<F>>> {
    let shape = file.raw(name)?.shape;
    let [groups, rows, half_k] = *shape.as_slice() else {
        return Err(file.wrong_shape(name, "[matrices, rows, K/2]", &shape));
    };
    let k = half_k
        .checked_mul(2)
        .ok_or_else(|| CheckpointError::shape("K", "representable", half_k))?;
    let all = Dims::new(groups, rows, k)?;
    let (layout, codes, scales) = parts::<F>(file, name, all)?;
    let one = Dims::new(1, rows, k)?;
    let (code_bytes, scale_bytes) = byte_counts::<F>(name, one, layout)?;
    if scales.len() != groups.saturating_mul(scale_bytes) {
        let required = format!("{groups} x {scale_bytes} bytes");
        return Err(CheckpointError::shape(
            format!("length of `{name}` scales"),
            required,
            scales.len(),
        ));
    }
    let global = global_scales(file, name, groups)?;
    let matrices = codes.chunks_exact(code_bytes).zip(scales.chunks_exact(scale_bytes));
    let mut all = Vec::with_capacity(groups);
    for (index, ((codes, scales), global)) in matrices.zip(global).enumerate() {
        let (name, codes, scales) = (format!("{name}[{index}]"), codes.to_vec(), scales.to_vec());
        all.push(BlockScaled::new(name, one, layout, codes, scales, global)?);
    }
    Ok(all)
}

/// One scale for all matrices, or one of each; 1 if absent.
fn global_scales(file: &Checkpoint, name: &str, groups: usize) -> Result<Vec<f32>> {
    let name = format!("{name}_global_scale");
    if !file.contains(&name) {
        return Ok(vec![1.0; groups]);
    }
    let tensor = file.floats(&name)?;
    match (tensor.shape.as_slice(), tensor.values.as_slice()) {
        ([] | [1], &[one]) => Ok(vec![one; groups]),
        ([count], values) if *count == groups => Ok(values.to_vec()),
        (shape, _) => {
            let required = format!("[] or [{groups}], one for each matrix");
            Err(file.wrong_shape(&name, required, shape))
        }
    }
}

/// Integers of 32 bits, with their shape.
pub(super) fn integers(file: &Checkpoint, name: &str) -> Result<(Vec<usize>, Vec<i32>)> {
    let raw = file.raw(name)?;
    if raw.dtype != Dtype::I32 {
        return Err(file.wrong_type(name, "I32", raw.dtype));
    }
    let (words, _) = raw.data.as_chunks();
    Ok((raw.shape, words.iter().map(|word| i32::from_le_bytes(*word)).collect()))
}
