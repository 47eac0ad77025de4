//! The unquantised values of a weight, under whatever name and in whatever shape the original has
//! them.
//!
//! Exporters rename experts (`w1`, `w3`, `w2` to `gate_proj`, `up_proj`, `down_proj`), take experts
//! in one tensor apart (`experts.gate_up_proj` to `experts.0.gate_proj.weight`), or put them
//! together.

use super::decode;
use super::error::CheckpointError;
use super::file::FloatTensor;
use super::load::Outline;
use super::model::Model;
use super::orientation::{Orientation, transposed};
use super::projections::PROJECTIONS;
use super::split;
use super::weight::{Order, module};
use crate::error::Result;

/// The place of a weight's values in an original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Counterpart {
    /// The tensor of this name.
    Whole(String),
    /// One expert's rows of a tensor of all experts; one half of them, if it has gate and up.
    Expert { tensor: String, expert: usize, half: Option<Half> },
    /// Matrices of single experts, which follow each other: for each expert gate and up, or one.
    Matrices(Vec<String>),
}

/// The rows of a gate or those of up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Gate,
    Up,
}

/// Other names of a projection, itself first.
fn names(projection: &str) -> Vec<&str> {
    let of = |(a, b): &(&'static str, &'static str)| match projection {
        x if x == *a => Some(*b),
        x if x == *b => Some(*a),
        _ => None,
    };
    std::iter::once(projection).chain(PROJECTIONS.iter().find_map(of)).collect()
}

impl Counterpart {
    /// Finds the counterpart of a weight; `None` if the original has none.
    pub fn of(original: &Model, name: &str) -> Option<Self> {
        if decode::contains(original, name) {
            return Some(Self::Whole(name.into()));
        }
        let of = module(name);
        let (parent, last) = name.rsplit_once('.')?;
        if last != "weight" {
            return Self::matrices(original, parent, last);
        }
        let (expert, projection) = of.rsplit_once('.')?;
        let mut renamed = names(projection).into_iter().map(|x| format!("{expert}.{x}.weight"));
        if let Some(name) = renamed.find(|name| decode::contains(original, name)) {
            return Some(Self::Whole(name));
        }
        let (experts, index) = expert.rsplit_once('.')?;
        let expert = index.parse().ok()?;
        let projection = names(projection).into_iter().find(|name| name.ends_with("_proj"))?;
        let (joint, half) = match projection {
            "gate_proj" => ("gate_up_proj", Some(Half::Gate)),
            "up_proj" => ("gate_up_proj", Some(Half::Up)),
            other => (other, None),
        };
        let tensor = format!("{experts}.{joint}");
        decode::contains(original, &tensor).then_some(Self::Expert { tensor, expert, half })
    }

    fn matrices(original: &Model, experts: &str, tensor: &str) -> Option<Self> {
        let projections: &[&str] = match tensor {
            "gate_up_proj" => &["gate_proj", "up_proj"],
            "down_proj" => &["down_proj"],
            _ => return None,
        };
        let matrix = |expert: usize, projection: &str| {
            let mut renamed = names(projection)
                .into_iter()
                .map(|name| format!("{experts}.{expert}.{name}.weight"));
            renamed.find(|name| decode::contains(original, name))
        };
        let of = |expert| projections.iter().map(move |name| matrix(expert, name));
        let mut matrices = Vec::new();
        for expert in 0.. {
            let Some(found) = of(expert).collect::<Option<Vec<String>>>() else { break };
            matrices.extend(found);
        }
        (!matrices.is_empty()).then_some(Self::Matrices(matrices))
    }

    /// The tensors of the original whose values it has.
    pub fn tensors(&self) -> Vec<&str> {
        match self {
            Self::Whole(tensor) | Self::Expert { tensor, .. } => vec![tensor],
            Self::Matrices(tensors) => tensors.iter().map(String::as_str).collect(),
        }
    }

    /// The values in the order of the quantised weight.
    ///
    /// # Errors
    /// [`CheckpointError::Shape`] if they are not as many in the same shape; the errors of
    /// [`Checkpoint::floats`](super::Checkpoint::floats).
    pub fn values(&self, original: &Model, outline: &Outline) -> Result<Vec<f32>> {
        let quantised = &outline.spec.shape;
        match self {
            Self::Whole(name) => {
                let before = decode::values(original, name)?;
                if outline.spec.order == Order::AlongOutput {
                    return match before.shape == *quantised {
                        true => Ok(before.values),
                        false => {
                            let required = format!("{quantised:?}, that of the quantised weight");
                            Err(wrong_shape(original, name, required, &before.shape))
                        }
                    };
                }
                let orientation = order(original, name, &before.shape, quantised)?;
                if orientation.output_first(&before.shape) != *quantised {
                    let order = match orientation {
                        Orientation::OutputFirst => "",
                        Orientation::InputFirst => " with the input dimension first",
                    };
                    let shape = orientation.output_first(quantised);
                    let required = format!("{shape:?}, that of the quantised weight{order}");
                    return Err(wrong_shape(original, name, required, &before.shape));
                }
                output_first(name, before, orientation)
            }
            Self::Expert { tensor, expert, half } => {
                let before = decode::values(original, tensor)?;
                let whole = match (before.shape.as_slice(), quantised.as_slice(), half) {
                    (&[experts, ..], &[n, k], Some(_)) => vec![experts, n.saturating_mul(2), k],
                    (&[experts, ..], &[n, k], None) => vec![experts, n, k],
                    _ => Vec::new(),
                };
                let orientation = order(original, tensor, &before.shape, &whole)?;
                let shape = orientation.output_first(&before.shape);
                let fits = shape == whole && shape.first().is_some_and(|experts| expert < experts);
                if !fits {
                    let required = format!("an expert {expert} of {quantised:?}");
                    return Err(wrong_shape(original, tensor, required, &before.shape));
                }
                let values = output_first(tensor, before, orientation)?;
                let interleaved = split::interleaved(original, None).unwrap_or(false);
                let (rows, cols) = (shape[1], shape[2]);
                let matrix = values[expert * rows * cols..][..rows * cols].chunks_exact(cols);
                let belongs = |row: usize| match (half, interleaved) {
                    (None, _) => true,
                    (Some(Half::Gate), true) => row.is_multiple_of(2),
                    (Some(Half::Up), true) => !row.is_multiple_of(2),
                    (Some(Half::Gate), false) => row < rows / 2,
                    (Some(Half::Up), false) => row >= rows / 2,
                };
                let rows = matrix.enumerate().filter(|(row, _)| belongs(*row));
                Ok(rows.flat_map(|(_, values)| values).copied().collect())
            }
            Self::Matrices(names) => {
                let mut all = Vec::new();
                for name in names {
                    all.extend(decode::values(original, name)?.values);
                }
                let elements: usize = quantised.iter().product();
                if all.len() == elements {
                    return Ok(all);
                }
                let required = format!("as many values in all experts as in {quantised:?}");
                Err(wrong_shape(original, &names[0], required, &[all.len()]))
            }
        }
    }
}

fn wrong_shape(
    original: &Model,
    name: &str,
    required: String,
    actual: &[usize],
) -> CheckpointError {
    let (path, tensor, actual) = (original.path().into(), name.into(), actual.to_vec());
    CheckpointError::Shape { path, tensor, required, actual }
}

fn output_first(name: &str, tensor: FloatTensor, order: Orientation) -> Result<Vec<f32>> {
    match (order, tensor.shape.as_slice()) {
        (Orientation::InputFirst, &[.., rows, cols]) => {
            transposed(name, &tensor.values, [rows, cols])
        }
        _ => Ok(tensor.values),
    }
}

/// The order in which the original stores a weight. If no other tensor determines it, the shape of
/// the quantised weight does, unless it is square.
fn order(
    original: &Model,
    name: &str,
    before: &[usize],
    quantised: &[usize],
) -> Result<Orientation, CheckpointError> {
    let fits = |orientation: &Orientation| orientation.output_first(before) == quantised;
    let both = [Orientation::OutputFirst, Orientation::InputFirst];
    match (Orientation::of(original, name, before), both.map(|order| fits(&order))) {
        (Err(_), [true, false]) => Ok(Orientation::OutputFirst),
        (Err(_), [false, true]) => Ok(Orientation::InputFirst),
        (found, _) => found,
    }
}
