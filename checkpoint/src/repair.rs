//! Repairs of scales that `convert` makes on request: scales of inputs that calibration never reached, and layers
//! of zeros whose scales are no numbers.
//!
//! The largest magnitude of a layer of zeros is 0. ModelOpt and TorchAO store a tensor-level scale of 0 then and
//! block scales of 0/0, which their own readers decode to NaN; AutoRound's divisor is no number for gate and up
//! together if one of them is zero.

use std::collections::BTreeMap;

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Nvfp4, ScaleLayout};

use super::load::{global_scale, load, outline, tensor_scale};
use super::model::Model;
use super::options::SaveOptions;
use super::parts::{Layout, Parts};
use super::shared;
use super::weight::{Blocks, Convention, GlobalScale, Weight, module};
use crate::error::Result;
use nvfp4::error::filled;

/// The repairs of a checkpoint's weights, by their index.
pub(super) struct Repairs {
    /// Scales of inputs.
    inputs: BTreeMap<usize, GlobalScale>,
    /// Tensor-level scales of weights that become zeros.
    zeros: BTreeMap<usize, GlobalScale>,
}

/// Whether a weight in NVFP4 has a scale that is no positive number and can mean nothing but zeros: the tensor-level
/// scale makes every value 0, or no block scale is positive.
pub(super) fn is_spoilt(model: &Model, layout: Layout, part: &Parts) -> bool {
    if part.format != Format::Nvfp4 || model.kind(&part.codes).is_some() {
        return false;
    }
    let Ok(found) = outline(model, part) else { return false };
    let stored = part.global.as_deref().map(|name| {
        let raw = model.raw(name).ok()?;
        let bytes = raw.data.as_ref().try_into().ok()?;
        (raw.dtype == safetensors::Dtype::F32).then(|| f32::from_le_bytes(bytes))
    });
    // Tensor-level scales of each expert, or in another type.
    let stored = match stored {
        Some(None) => return false,
        Some(stored) => stored,
        None => None,
    };
    let is_zero = stored.is_some_and(|scale| match layout.convention() {
        Convention::Multiplier | Convention::Largest => scale == 0.0,
        Convention::Divisor => scale == f32::INFINITY,
    });
    let is_number = stored.is_none_or(|scale| scale > 0.0 && scale.is_finite());
    let Ok(scales) = model.raw(&part.scales) else { return false };
    let valid = |byte: &u8| Nvfp4::scale_is_valid(*byte);
    // Padding of tiles is zeros. A sound weight has a positive scale among its first, and the others are not read.
    let none_is_positive = || !scales.data.iter().any(|byte| valid(byte) && *byte != 0);
    let is_damaged = || !is_number || !scales.data.iter().all(valid);
    !found.spec.expert_scales && (is_zero || none_is_positive()) && is_damaged()
}

impl Repairs {
    /// Finds the repairs that `options` ask for, with notes on these and on experts that have no scale of inputs
    /// although others of their layer have one.
    pub fn of(
        model: &Model,
        from: Layout,
        parts: &[Parts],
        options: &SaveOptions,
    ) -> Result<(Self, Vec<String>)> {
        let (inputs, mut notes) = inputs(model, from, parts, options);
        let mut zeros = BTreeMap::new();
        if options.repair_zero_layers {
            let spoilt = |at: &usize| is_spoilt(model, from, &parts[*at]);
            let found: Vec<usize> = (0..parts.len()).filter(spoilt).collect();
            let groups = match found.is_empty() {
                true => Vec::new(),
                false => shared::groups(parts.iter().map(|part| part.name.as_str())),
            };
            for &at in &found {
                notes.push(format!(
                    "{} had no scale that is a number and is zeros now",
                    parts[at].name
                ));
                // Readers take the largest scale of joined weights for all, so that it must not be above the others'.
                let joined = groups.iter().find(|group| group.contains(&at)).into_iter().flatten();
                let others = joined.filter(|other| !found.contains(other));
                let scales =
                    others.filter_map(|&other| tensor_scale(model, from, &parts[other]).ok());
                let largest = scales.max_by(|x, y| x.multiplier().total_cmp(&y.multiplier()));
                zeros.insert(at, largest.unwrap_or(GlobalScale::new(from.convention(), 1.0)));
            }
        }
        Ok((Self { inputs, zeros }, notes))
    }

    /// Reads a weight, with its repairs.
    ///
    /// # Errors
    /// The errors of [`load`].
    pub fn load(&self, model: &Model, from: Layout, at: usize, part: &Parts) -> Result<Weight> {
        let input = self.inputs.get(&at).copied();
        let part = match input {
            Some(_) => &Parts { input: None, ..part.clone() },
            None => part,
        };
        let mut weight = match self.zeros.get(&at) {
            Some(&scale) => zeros(model, from, part, scale)?,
            None => load(model, from, part)?,
        };
        if let Some(input) = input {
            (weight.input, weight.spec.input) = (Some(input), true);
        }
        Ok(weight)
    }

    /// The tensor-level scale of a weight, repaired if it must be.
    ///
    /// # Errors
    /// The errors of [`tensor_scale`].
    pub fn tensor_scale(
        &self,
        model: &Model,
        from: Layout,
        at: usize,
        part: &Parts,
    ) -> Result<GlobalScale> {
        match self.zeros.get(&at) {
            Some(&scale) => Ok(scale),
            None => tensor_scale(model, from, part),
        }
    }
}

/// A weight of zeros in the place of a spoilt one.
fn zeros(model: &Model, from: Layout, part: &Parts, scale: GlobalScale) -> Result<Weight> {
    let found = outline(model, part)?;
    let (spec, dims) = (found.spec, found.dims);
    let codes = filled(&part.name, dims.elements() / 2, 0u8)?;
    let scales = filled(&part.name, dims.elements() / Nvfp4::BLOCK, 0u8)?;
    let global = part.global.is_some().then_some(scale);
    let multiplier = global.map_or(1.0, GlobalScale::multiplier);
    let linear = ScaleLayout::Linear;
    let blocks = Blocks::new(spec.format, &part.name, dims, linear, codes, scales, multiplier)?;
    let input = part.input.as_deref().map(|name| global_scale(model, name)).transpose()?;
    let input = input.map(|value| GlobalScale::new(from.convention(), value));
    Ok(Weight { spec, blocks, global, experts: None, input, inputs: None })
}

/// Scales of inputs that are repaired, by the index of the weight, and notes on these and on experts that
/// have none although others of their layer have one.
fn inputs(
    model: &Model,
    from: Layout,
    parts: &[Parts],
    options: &SaveOptions,
) -> (BTreeMap<usize, GlobalScale>, Vec<String>) {
    let mut layers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, part) in parts.iter().enumerate() {
        if let Some(layer) = shared::among_experts(module(&part.name)) {
            layers.entry(layer).or_default().push(at);
        }
    }
    let (mut repaired, mut notes) = (BTreeMap::new(), Vec::new());
    for (layer, members) in layers {
        let without: Vec<usize> =
            members.iter().copied().filter(|&at| parts[at].input.is_none()).collect();
        if let (Some(&first), true) = (without.first(), without.len() < members.len()) {
            notes.push(format!(
                "{} of {} experts of {layer} have no scale of inputs, {} among them: their weights alone \
                 are quantised",
                without.len(),
                members.len(),
                parts[first].name
            ));
        }
        if !options.repair_input_scales {
            continue;
        }
        let scale = |at: usize| {
            let name = parts[at].input.as_deref()?;
            let value = model.file(name).ok()?.scalar(name).ok().filter(|&value| value > 0.0)?;
            Some(GlobalScale::new(from.convention(), value))
        };
        let multiplier = |scale: &GlobalScale| scale.multiplier();
        let largest = members
            .iter()
            .filter_map(|&at| scale(at))
            .max_by(|x, y| multiplier(x).total_cmp(&multiplier(y)));
        let Some(largest) = largest else { continue };
        let dead: Vec<usize> = members
            .iter()
            .copied()
            .filter(|&at| parts[at].input.is_some() && scale(at).is_none())
            .collect();
        if let Some(&first) = dead.first() {
            notes.push(format!(
                "{} of {} scales of inputs of {layer} were zero or not finite, that of {} among them, and \
                 are {:e} now, the layer's largest",
                dead.len(),
                members.len(),
                parts[first].name,
                largest.stored(options.layout.convention())
            ));
        }
        repaired.extend(dead.into_iter().map(|at| (at, largest)));
    }
    (repaired, notes)
}
