//! The experts of a layer in one tensor, as transformers has them in files of floats of some families: a tensor
//! `gate_up_proj` or `down_proj`, `[experts, K, N]`, made of a matrix for each expert.

use std::collections::BTreeMap;

use super::error::CheckpointError;
use super::expert_names::Matrix;
use super::experts::Family;
use super::families::FloatExperts;
use super::projections::PROJECTIONS;
use super::write::TensorSpec;
use crate::error::Result;

/// A tensor of all experts.
#[derive(Debug)]
pub(super) struct Joint {
    pub spec: TensorSpec,
    /// The tensors of each expert: those of its gate and up, or of its down.
    pub experts: Vec<Vec<String>>,
    /// Whether columns of gate and up alternate.
    alternate: bool,
    /// Rows and columns of one of an expert's tensors; a bias has one column.
    sizes: [usize; 2],
}

impl Joint {
    /// The names under which the parts of the tensor, one for each expert, are written.
    pub fn parts(&self) -> Vec<String> {
        (0..self.experts.len()).map(|at| format!("{}[{at}]", self.spec.name)).collect()
    }

    /// The part of an expert, from the values of its tensors.
    pub fn part(&self, tensors: &[Vec<f32>]) -> Vec<f32> {
        let ([rows, cols], count) = (self.sizes, tensors.len());
        let mut part = vec![0f32; count * rows * cols];
        for (which, values) in tensors.iter().enumerate() {
            for (row, values) in values.chunks_exact(cols.max(1)).enumerate() {
                let column = match self.alternate {
                    true => count * row + which,
                    false => which * rows + row,
                };
                for (at, &value) in values.iter().enumerate() {
                    part[at * count * rows + column] = value;
                }
            }
        }
        part
    }
}

/// The tensors of all experts that those of single experts become; none in a family whose files have a matrix for each.
///
/// # Errors
/// [`CheckpointError::Unsupported`] for a layer of which a tensor is missing or has another shape or type.
pub(super) fn joints(family: Family, tensors: &[TensorSpec]) -> Result<Vec<Joint>> {
    let FloatExperts::InputFirst { alternate } = family.float_experts() else {
        return Ok(Vec::new());
    };
    let mut found: BTreeMap<String, BTreeMap<(usize, usize), &TensorSpec>> = BTreeMap::new();
    for spec in tensors {
        let Some(Matrix { experts, index, projection, ending }) = Matrix::of(&spec.name) else {
            continue;
        };
        let place = PROJECTIONS.iter().position(|names| names.0 == projection);
        let ending = match ending {
            ".weight" if spec.shape.len() == 2 => "",
            ".bias" if spec.shape.len() == 1 => "_bias",
            _ => continue,
        };
        let (Some(place), Ok(expert)) = (place, index.parse()) else { continue };
        // Gate and up come first in the table, in this order.
        let (joint, which) =
            if projection == "down_proj" { ("down_proj", 0) } else { ("gate_up_proj", place) };
        let members = found.entry(format!("{experts}.{joint}{ending}")).or_default();
        members.insert((expert, which), spec);
    }
    found.into_iter().map(|(name, members)| joint(name, &members, alternate)).collect()
}

fn joint(
    name: String,
    members: &BTreeMap<(usize, usize), &TensorSpec>,
    alternate: bool,
) -> Result<Joint> {
    let each = if name.contains("gate_up_proj") { 2 } else { 1 };
    let refuse = |tensor: &str, reason: String| {
        Err(CheckpointError::Unsupported { layout: "of floats", tensor: tensor.into(), reason })
    };
    let Some(first) = members.values().next() else { return refuse(&name, "no experts".into()) };
    let mut experts: Vec<Vec<String>> = Vec::new();
    for (at, (&(expert, which), spec)) in members.iter().enumerate() {
        if (expert, which) != (at / each, at % each) {
            let missing = ["gate_proj", "up_proj"][at % each];
            let missing = if each == 1 { "down_proj" } else { missing };
            let reason = format!(
                "transformers has all experts in `{name}`, and expert {} has no {missing}",
                at / each
            );
            return refuse(&spec.name, reason);
        }
        if (&spec.shape, spec.dtype) != (&first.shape, first.dtype) {
            let reason = format!(
                "transformers has all experts in `{name}`, and it is {:?} {:?}, `{}` {:?} {:?}",
                spec.dtype, spec.shape, first.name, first.dtype, first.shape
            );
            return refuse(&spec.name, reason);
        }
        match which {
            0 => experts.push(vec![spec.name.clone()]),
            _ => experts[expert].push(spec.name.clone()),
        }
    }
    if experts.last().is_some_and(|tensors| tensors.len() < each) {
        let reason = format!("transformers has all experts in `{name}`, and one has no up_proj");
        return refuse(&first.name, reason);
    }
    let (sizes, shape) = match *first.shape.as_slice() {
        [rows, cols] => ([rows, cols], vec![experts.len(), cols, each * rows]),
        [rows] => ([rows, 1], vec![experts.len(), each * rows]),
        _ => ([0, 0], Vec::new()),
    };
    let spec = TensorSpec { name, dtype: first.dtype, shape };
    Ok(Joint { spec, experts, alternate, sizes })
}
