//! The input dimension of experts that are stored in one tensor.
//!
//! Blocks run along the input dimension, K, because a product sums over it. K is the last dimension
//! of every tensor whose name ends in `weight`. Experts without that ending (`gate_up_proj`,
//! `down_proj`) are stored in either order: transformers has `[experts, K, N]` for gpt-oss and
//! Llama 4, and `[experts, N, K]` for other models. With the wrong order, the checkpoint would have
//! the right sizes and useless blocks, so the order is derived from other tensors:
//!
//! - the input of `down_proj` has half the size of the output of `gate_up_proj`, and its output has
//!   the size of the input of `gate_up_proj`;
//! - `x_bias` is `[experts, N]`;
//! - `hidden_size` of `config.json` is K of `gate_up_proj` and N of `down_proj`.

use rayon::prelude::*;

use super::error::CheckpointError;
use super::model::Model;
use crate::error::Result;
use nvfp4::error::filled;

/// Ending of experts' names that leaves the input dimension open.
pub(super) const EXPERTS: &str = "_proj";

/// Order of the last two dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Orientation {
    /// `[.., N, K]`.
    OutputFirst,
    /// `[.., K, N]`.
    InputFirst,
}

use Orientation::{InputFirst, OutputFirst};

impl Orientation {
    /// The order of a tensor.
    ///
    /// # Errors
    /// [`CheckpointError::Orientation`] if nothing determines it, or if two sources disagree.
    pub fn of(model: &Model, name: &str, shape: &[usize]) -> Result<Self, CheckpointError> {
        let &[_, first, second] = shape else { return Ok(OutputFirst) };
        if !name.ends_with(EXPERTS) {
            return Ok(OutputFirst);
        }
        let signs = [
            ("the projections' sizes", by_pair(model, name)),
            ("the bias", by_bias(model, name, [first, second])),
            ("hidden_size", by_configuration(model, name, [first, second])),
        ];
        let unclear = |reason: String| CheckpointError::Orientation {
            path: model.path().into(),
            tensor: name.into(),
            required: "[experts, N, K] or [experts, K, N], as one of its bias, the other \
                       projection and hidden_size says",
            actual: shape.to_vec(),
            reason,
        };
        let mut signs = signs.into_iter().filter_map(|(sign, says)| says.map(|says| (sign, says)));
        let Some((sign, says)) = signs.next() else {
            return Err(unclear("none of them is there and tells the two apart".into()));
        };
        match signs.find(|(_, other)| *other != says) {
            Some((other, _)) => Err(unclear(format!("{sign} and {other} disagree"))),
            None => Ok(says),
        }
    }

    /// The order of experts in a quantised tensor, whose shape in elements is given, from what is
    /// not quantised.
    pub fn of_stored(model: &Model, name: &str, shape: [usize; 3]) -> Option<Self> {
        let sizes = [shape[1], shape[2]];
        by_bias(model, name, sizes).or_else(|| by_configuration(model, name, sizes))
    }

    /// `[.., N, K]` of a tensor that is stored in this order.
    pub fn output_first(self, shape: &[usize]) -> Vec<usize> {
        let mut shape = shape.to_vec();
        if let (InputFirst, [.., first, second]) = (self, shape.as_mut_slice()) {
            std::mem::swap(first, second);
        }
        shape
    }
}

/// The order for which the condition holds, if it holds for exactly one.
fn either(output_first: bool, input_first: bool) -> Option<Orientation> {
    match (output_first, input_first) {
        (true, false) => Some(OutputFirst),
        (false, true) => Some(InputFirst),
        _ => None,
    }
}

/// The order from the tensors `gate_up_proj` and `down_proj` of the same module, which may be
/// square.
fn by_pair(model: &Model, name: &str) -> Option<Orientation> {
    let module =
        ["gate_up_proj", "down_proj"].into_iter().find_map(|ending| name.strip_suffix(ending))?;
    let shape = |ending: &str| model.raw(&format!("{module}{ending}")).ok().map(|raw| raw.shape);
    let (&[_, a, b], &[_, c, d]) =
        (shape("gate_up_proj")?.as_slice(), shape("down_proj")?.as_slice())
    else {
        return None;
    };
    let twice = |whole: usize, half: usize| half.checked_mul(2) == Some(whole);
    either(b == c && twice(a, d), a == d && twice(b, c))
}

fn by_bias(model: &Model, name: &str, [first, second]: [usize; 2]) -> Option<Orientation> {
    match model.raw(&format!("{name}_bias")).ok()?.shape[..] {
        [_, n] => either(n == first, n == second),
        _ => None,
    }
}

fn by_configuration(model: &Model, name: &str, [first, second]: [usize; 2]) -> Option<Orientation> {
    let config = model.config()?;
    let stated = [&config["hidden_size"], &config["text_config"]["hidden_size"]];
    let hidden = usize::try_from(stated.into_iter().find_map(|size| size.as_u64())?).ok()?;
    if name.ends_with("down_proj") {
        either(first == hidden, second == hidden)
    } else if name.ends_with("gate_up_proj") {
        either(second == hidden, first == hidden)
    } else {
        None
    }
}

/// `[experts, rows, cols]` as `[experts, cols, rows]`.
///
/// # Errors
/// [`Error::Memory`](nvfp4::error::Error::Memory).
pub(super) fn transposed<T: Copy + Default + Send + Sync>(
    name: &str,
    values: &[T],
    [rows, cols]: [usize; 2],
) -> Result<Vec<T>> {
    // Rows of the result that are written at a time, from one cache line of each row read.
    const TOGETHER: usize = 16;
    let mut out = filled(name, values.len(), T::default())?;
    let matrix = (rows * cols).max(1);
    out.par_chunks_mut(matrix).zip(values.par_chunks(matrix)).for_each(|(out, matrix)| {
        for (at, out) in out.chunks_mut(TOGETHER * rows.max(1)).enumerate() {
            let start = at * TOGETHER;
            for (row, values) in matrix.chunks_exact(cols).enumerate() {
                let end = (start + TOGETHER).min(cols);
                for (column, &value) in values[start..end].iter().enumerate() {
                    out[column * rows + row] = value;
                }
            }
        }
    });
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_changes_places() {
        for [experts, rows, cols] in [[1, 1, 1], [2, 3, 5], [3, 40, 17], [1, 16, 33]] {
            let values: Vec<u32> = (0..(experts * rows * cols) as u32).collect();
            let out = transposed("x", &values, [rows, cols]).expect("small");
            for (at, &value) in values.iter().enumerate() {
                let (expert, row, col) = (at / (rows * cols), at / cols % rows, at % cols);
                assert_eq!(out[(expert * cols + col) * rows + row], value);
            }
        }
    }
}
