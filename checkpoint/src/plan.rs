//! The plan of a checkpoint: the tensors of each file, before any is written.

use std::collections::BTreeMap;

use super::contents::{Contents, Extras};
use super::error::CheckpointError;
use super::experts;
use super::kept;
use super::options::SaveOptions;
use super::parts::{Piece, experts_left, modules_left};
use super::split::{self, Slice};
use super::weight::WeightSpec;
use super::write::TensorSpec;
use crate::error::Result;

/// An item to write: a quantised weight, or an unchanged tensor.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Weight(WeightSpec),
    Tensor(TensorSpec),
}

impl Item {
    pub fn name(&self) -> &str {
        match self {
            Self::Weight(spec) => &spec.name,
            Self::Tensor(spec) => &spec.name,
        }
    }
}

/// The bias of experts that are taken apart.
pub(super) struct Bias {
    pub slices: Vec<Slice>,
    /// Values of one expert.
    pub rows: usize,
    /// Bytes of a value.
    pub width: usize,
}

/// The tensors of a checkpoint.
#[derive(Default)]
pub(super) struct Plan {
    pub shards: Vec<Shard>,
    /// The tensors of each weight.
    pub pieces: BTreeMap<String, Vec<Piece>>,
    /// The matrices of weights that are taken apart.
    pub splits: BTreeMap<String, Vec<Slice>>,
    pub biases: BTreeMap<String, Bias>,
    pub contents: Contents,
}

impl Plan {
    /// Places `items` in files, in their order.
    ///
    /// # Errors
    /// [`CheckpointError::Unsupported`] for a weight that the layout cannot hold, or that its
    /// readers would not find.
    pub fn of(items: &[Item], extras: Extras, options: &SaveOptions) -> Result<Self> {
        let contents = Contents { extras, ..Contents::default() };
        let mut plan = Self { contents, ..Self::default() };
        for item in items {
            let Item::Weight(spec) = item else { continue };
            let found = split::slices(options.layout, spec, &plan.contents.extras);
            let found = found.map_err(|reason| CheckpointError::Unsupported {
                layout: options.layout.name(),
                tensor: spec.name.clone(),
                reason,
            })?;
            if let Some(slices) = found {
                plan.splits.insert(spec.name.clone(), slices);
            }
        }
        let mut left = Vec::new();
        for item in items {
            let (weights, specs) = match item {
                Item::Weight(spec) => plan.weights(spec, options)?,
                Item::Tensor(spec) => {
                    let specs = plan.tensors(spec);
                    left.extend(specs.iter().cloned());
                    (Vec::new(), specs)
                }
            };
            let bytes = specs.iter().try_fold(0u64, |sum, spec: &TensorSpec| {
                Ok::<_, CheckpointError>(sum + spec.bytes()? as u64)
            })?;
            match plan.shards.last_mut() {
                Some(shard) if shard.bytes + bytes <= options.shard_bytes => {
                    shard.add(weights, specs, bytes);
                }
                _ => {
                    let mut shard = Shard::default();
                    shard.add(weights, specs, bytes);
                    plan.shards.push(shard);
                }
            }
        }
        let Contents { weights, extras, .. } = &plan.contents;
        if !extras.verbatim {
            experts::check(options.layout, weights, extras.family)?;
        }
        let described =
            left.iter().map(|spec| (spec.name.as_str(), spec.dtype, spec.shape.as_slice()));
        plan.contents.left = modules_left(described.clone());
        let quantised = |module: &str| {
            let below = |weight: &WeightSpec| {
                weight.name.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'))
            };
            plan.contents.weights.iter().any(below)
        };
        let mut further = plan.contents.extras.kept.clone();
        for module in experts_left(described) {
            if !quantised(&module) {
                further.extend(kept::below(&module, options.layout));
            }
        }
        kept::add(&mut plan.contents.left, further);
        Ok(plan)
    }

    /// The matrices of a weight, or itself, and their tensors.
    fn weights(
        &mut self,
        spec: &WeightSpec,
        options: &SaveOptions,
    ) -> Result<(Vec<WeightSpec>, Vec<TensorSpec>)> {
        let weights = match self.splits.get(&spec.name) {
            Some(slices) => slices.iter().map(|slice| slice.spec(spec)).collect(),
            None => vec![spec.clone()],
        };
        let inputs = self.contents.extras.inputs.get(&spec.name).copied();
        let mut specs = Vec::new();
        for weight in &weights {
            let pieces = options.layout.pieces(weight, options.scales)?;
            specs.extend(pieces.iter().map(|piece| piece.spec.clone()));
            self.pieces.insert(weight.name.clone(), pieces);
            if let Some(inputs) = inputs {
                self.contents.extras.inputs.insert(weight.name.clone(), inputs);
            }
        }
        self.contents.weights.extend(weights.iter().cloned());
        Ok((weights, specs))
    }

    /// A tensor that is copied, or the biases of single experts.
    fn tensors(&mut self, spec: &TensorSpec) -> Vec<TensorSpec> {
        let slices = spec.name.strip_suffix("_bias").and_then(|of| self.splits.get(of));
        let (Some(slices), &[_, rows]) = (slices, spec.shape.as_slice()) else {
            return vec![spec.clone()];
        };
        let (slices, width) = (slices.clone(), spec.dtype.bitsize() / 8);
        let specs = slices.iter().map(|slice| slice.bias(spec.dtype)).collect();
        self.biases.insert(spec.name.clone(), Bias { slices, rows, width });
        specs
    }
}

/// The contents of one file.
#[derive(Default)]
pub(super) struct Shard {
    pub specs: Vec<TensorSpec>,
    pub weights: Vec<WeightSpec>,
    pub others: Vec<String>,
    /// The tensors of single experts that are stored as one, in their order.
    pub members: BTreeMap<String, Vec<String>>,
    pub bytes: u64,
}

impl Shard {
    fn add(&mut self, weights: Vec<WeightSpec>, specs: Vec<TensorSpec>, bytes: u64) {
        if weights.is_empty() {
            self.others.extend(specs.iter().map(|spec| spec.name.clone()));
        }
        self.weights.extend(weights);
        self.specs.extend(specs);
        self.bytes += bytes;
    }
}
