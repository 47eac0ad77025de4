//! Converts from one layout to another with unchanged codes and scales, and from MXFP4 to NVFP4 if
//! that is exact.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use fp4_formats::FloatType;
use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;
use serde::Serialize;

use super::carry::carry;
use super::decode;
use super::encode::{encoded, float_type};
use super::error::CheckpointError;
use super::exact::to_nvfp4;
use super::experts::Family;
use super::load::{implausible, outline};
use super::mlx_config as mlx;
use super::model::Model;
use super::options::{SaveOptions, is_embedding, is_router};
use super::others;
use super::parts::{Layout, Parts};
use super::plan::Item;
use super::repair::Repairs;
use super::save::{Observer, Save, Saved};
use super::shared::{self, Room, Shared, Unshared};
use super::weight::{GlobalScale, Order, Weight, WeightSpec};
use super::write::TensorSpec;
use crate::error::Result;

/// The report of a conversion, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConvertReport {
    /// The input.
    pub source: String,
    /// Its layout.
    pub from: Layout,
    /// The output's.
    pub to: Layout,
    /// The output's format.
    pub format: &'static str,
    /// Weights.
    pub weights: usize,
    /// Weights that were converted from mxfp4 to nvfp4, with the same values.
    pub reformatted: usize,
    /// Tensor-level scales that were converted from divisor to multiplier or back. Each is the
    /// reciprocal, rounded once to f32.
    pub inverted: usize,
    /// The facts of the input's configuration that are left out, in words.
    pub notes: Vec<String>,
    /// Groups of weights with one tensor-level scale that had several.
    pub shared: Vec<SharedGroup>,
    /// Groups of weights that readers of the output join and that have several.
    pub unshared: Vec<Unshared>,
    /// The output.
    pub saved: Saved,
}

/// Weights whose tensor-level scales were different and are the same now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharedGroup {
    /// The weights.
    pub weights: Vec<String>,
    /// Ratio of the values to the error of their rounded block scales, dB, of the weight with the
    /// largest error; absent if no value changed.
    pub least_db: Option<f64>,
}

/// Writes the checkpoint `model` in another layout, and with `format` in another format.
///
/// Weights that readers of the layout join, such as q, k and v, must have one tensor-level scale.
/// If theirs differ, [`SaveOptions::share_scales`] gives them one, which rounds block scales where
/// the scales do not differ by a power of two; otherwise the report names them. Weights that become
/// NVFP4 here get one anyway if no value changes.
///
/// Without `format`, MXFP4 weights remain MXFP4 if the layout can hold them. Other tensors are
/// copied. Memory holds one tensor at a time.
///
/// # Errors
/// [`CheckpointError::Nothing`] for a model that is not quantised, [`CheckpointError::Inexact`]
/// naming the block that NVFP4 cannot hold, [`CheckpointError::Unsupported`] for NVFP4 to MXFP4 and
/// for what the target's configuration cannot describe,
/// [`CheckpointError::Exists`], [`CheckpointError::Interrupted`], and the errors of [`load`](super::load()).
/// After an error there is no output.
pub fn convert_model(
    model: &Model,
    format: Option<Format>,
    options: &SaveOptions,
    target: &Path,
    observer: &mut dyn Observer,
) -> Result<ConvertReport> {
    let found = Layout::detect_weights(model).ok_or_else(|| others::nothing(model))?;
    let ((from, parts), to) = (found, options.layout);
    let (float, family) = (model_type(model), Family::of(model));
    let mut specs = Vec::new();
    for part in &parts {
        let mut spec = outline(model, part)?.spec;
        spec.original = spec.original.or(float);
        if from != to {
            spec.name = family.renamed(to, &spec.name);
        }
        let wanted = format.unwrap_or(match spec.format {
            Format::Mxfp4 if !to.supports(Format::Mxfp4) => Format::Nvfp4,
            // ModelOpt writes it, but no engine reads it under ModelOpt's names.
            Format::Mxfp4 if to == Layout::ModelOpt && from != to => Format::Nvfp4,
            same => same,
        });
        if spec.format == Format::Nvfp4 && wanted == Format::Mxfp4 {
            return Err(CheckpointError::Unsupported {
                layout: to.name(),
                tensor: spec.name,
                reason: "nvfp4 to mxfp4 is not exact; quantise the original instead".into(),
            });
        }
        if spec.format != wanted {
            if spec.order == Order::AlongOutput {
                return Err(CheckpointError::Unsupported {
                    layout: to.name(),
                    tensor: spec.name,
                    reason: "its blocks run along the output dimension".into(),
                });
            }
            (spec.format, spec.global) = (wanted, true);
            spec.group = wanted.block() as usize;
        }
        // Groups of 32 are ModelOpt's, and mean what pairs of blocks with the same scale mean.
        if to != Layout::ModelOpt {
            spec.group = spec.format.block() as usize;
        }
        specs.push(spec);
    }
    if from == Layout::Mlx && to != Layout::Mlx {
        mlx::refuse_differing(model, to.name())?;
    }
    let (repairs, mut notes) = Repairs::of(model, from, &parts, options)?;
    let carried = carry(model, [from, to], &parts, &specs)?;
    let kept = from == to || to.quantizes_embeddings();
    let floats = |name: &str| {
        let for_mlx = from != to && to == Layout::Mlx && family.stays_float_in_mlx(name).is_some();
        // mlx-lm quantises routers of some models, which are no linear layers in transformers.
        let router = from == Layout::Mlx && to != Layout::Mlx && is_router(name);
        for_mlx || router || (!kept && is_embedding(name))
    };
    let item = |spec: WeightSpec| match floats(&spec.name) {
        true => Item::Tensor(in_floats(spec)),
        false => Item::Weight(spec),
    };
    let mut items: Vec<Item> = specs.into_iter().map(item).collect();
    notes.extend(items.iter().filter_map(|item| match item {
        Item::Tensor(TensorSpec { name, dtype, .. }) => Some(format!(
            "{name} is {dtype} in the output, with the same values: readers of layout {to} take it in floats"
        )),
        Item::Weight(_) => None,
    }));
    let weights = items.iter().filter(|item| matches!(item, Item::Weight(_))).count();
    items.extend(carried.tensors.iter().map(|copied| Item::Tensor(copied.spec.clone())));

    let size = |name: &str| model.raw(name).map_or(0, |raw| raw.data.len() as u64);
    observer.begin(model.entries().iter().map(|entry| entry.bytes as u64).sum());
    let mut groups = Groups::of(model, from, options, &parts, &items, &repairs)?;
    let mut save = Save::create(target, model, &items, carried.extras, options.clone())?;
    let (mut reformatted, mut inverted) = (0, 0);
    let mut format = Format::Nvfp4;
    for (at, item) in items.iter().enumerate() {
        save.go_on(observer)?;
        observer.tensor(item.name());
        match item {
            Item::Weight(spec) => {
                let mut weight = repairs.load(model, from, at, &parts[at])?;
                implausible(model, from, &parts[at], &weight)?;
                weight.spec.name.clone_from(&spec.name);
                if spec.format != weight.spec.format {
                    weight = to_nvfp4(&weight)?;
                    reformatted += 1;
                } else if weight.global.is_some() && from.convention() != to.convention() {
                    inverted += 1;
                }
                format = spec.format;
                save.weight(&groups.apply(at, weight)?)?;
                observer.done(parts[at].tensors().map(size).sum());
                parts[at].tensors().for_each(|name| model.release(name));
            }
            Item::Tensor(spec) if at < parts.len() => {
                let weight = repairs.load(model, from, at, &parts[at])?;
                implausible(model, from, &parts[at], &weight)?;
                let element = float_type(spec.dtype).unwrap_or(FloatType::F32);
                save.tensor(&spec.name, &encoded(&spec.name, &weight.dequantize()?, element)?)?;
                observer.done(parts[at].tensors().map(size).sum());
                parts[at].tensors().for_each(|name| model.release(name));
            }
            Item::Tensor(spec) => {
                let name = &carried.tensors[at - parts.len()].from;
                let raw = model.raw(name)?;
                match raw.dtype == spec.dtype {
                    false if model.kind(name).is_some() || raw.dtype == Dtype::U32 => {
                        let values = decode::values(model, name)?.values;
                        let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                        save.tensor(&spec.name, &data)?;
                    }
                    true => save.tensor(&spec.name, &raw.data)?,
                    // Powers of two are the same bytes in both types.
                    false if raw.dtype == Dtype::F8_E8M0 && spec.dtype == Dtype::U8 => {
                        save.tensor(&spec.name, &raw.data)?;
                    }
                    false => {
                        let values = model.file(name)?.floats(name)?.values;
                        let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                        save.tensor(&spec.name, &data)?;
                    }
                }
                observer.done(size(name));
                model.release(name);
            }
        }
    }
    Ok(ConvertReport {
        source: model.path().display().to_string(),
        from,
        to,
        format: format.name(),
        weights,
        reformatted,
        inverted,
        notes: {
            notes.extend(carried.notes);
            notes
        },
        shared: groups.shared.into_iter().map(|(_, group)| group).collect(),
        unshared: groups.unshared,
        saved: save.finish(model)?,
    })
}

/// A weight as floats that hold its values exactly: bf16 has the bits of a code times a block scale, f32 those of the
/// product with a tensor-level scale as readers compute it.
fn in_floats(spec: WeightSpec) -> TensorSpec {
    let dtype = if spec.global { Dtype::F32 } else { Dtype::BF16 };
    TensorSpec { name: spec.name, dtype, shape: spec.shape }
}

/// Weights that readers of the output join and whose tensor-level scales differ.
#[derive(Default)]
struct Groups {
    /// The weights that get one.
    shared: Vec<(Shared, SharedGroup)>,
    /// The index in `shared` of a weight's group.
    group_of: BTreeMap<usize, usize>,
    unshared: Vec<Unshared>,
}

impl Groups {
    fn of(
        model: &Model,
        from: Layout,
        options: &SaveOptions,
        parts: &[Parts],
        items: &[Item],
        repairs: &Repairs,
    ) -> Result<Self> {
        let mut groups = Self::default();
        if !options.layout.joins_weights() {
            return Ok(groups);
        }
        let reformatted = |at: usize| match &items[at] {
            Item::Weight(spec) => spec.format != parts[at].format,
            Item::Tensor(_) => false,
        };
        let has_scale = |at: &usize| reformatted(*at) || parts[*at].format == Format::Nvfp4;
        for group in shared::groups(parts.iter().map(|part| part.name.as_str())) {
            if !group.iter().all(has_scale) {
                continue;
            }
            let made_here = group.iter().all(|&at| reformatted(at));
            let mut members = Vec::new();
            for &at in &group {
                let whole = made_here || options.share_scales || reformatted(at);
                members.push(match whole {
                    true => {
                        let weight = repairs.load(model, from, at, &parts[at])?;
                        let weight = if reformatted(at) { to_nvfp4(&weight)? } else { weight };
                        let scale = weight.global.unwrap_or(GlobalScale::Multiplier(1.0));
                        (scale, Some(Room::of(&weight.blocks)))
                    }
                    false => (repairs.tensor_scale(model, from, at, &parts[at])?, None),
                });
            }
            let named: Vec<(&str, GlobalScale)> = group
                .iter()
                .zip(&members)
                .map(|(&at, (scale, _))| (parts[at].name.as_str(), *scale))
                .collect();
            let convention = options.layout.convention();
            let db = |_, factor| shared::factor_db(factor);
            let Some(unshared) = Unshared::of(convention, &named, db) else { continue };
            let rooms: Option<Vec<(GlobalScale, Room)>> =
                members.into_iter().map(|(scale, room)| Some((scale, room?))).collect();
            match rooms.and_then(|rooms| Shared::of(&rooms)) {
                Some(shared) if options.share_scales || shared.exact => {
                    let index = groups.shared.len();
                    groups.group_of.extend(group.into_iter().map(|at| (at, index)));
                    let group = SharedGroup { weights: unshared.weights, least_db: None };
                    groups.shared.push((shared, group));
                }
                _ => groups.unshared.push(unshared),
            }
        }
        Ok(groups)
    }

    /// A weight, by index, with the scale of its group.
    fn apply(&mut self, at: usize, weight: Weight) -> Result<Weight> {
        let Some(&group) = self.group_of.get(&at) else { return Ok(weight) };
        let (shared, group) = &mut self.shared[group];
        let (weight, db) = shared.apply(weight)?;
        if let Some(db) = db {
            group.least_db = Some(group.least_db.map_or(db, |least| least.min(db)));
        }
        Ok(weight)
    }
}

/// The type of a model's weights before quantisation if it is not stated: that of the largest float
/// tensor that is not quantised.
pub(super) fn model_type(model: &Model) -> Option<Dtype> {
    let floats = model.names().filter_map(|name| {
        let raw = model.raw(name).ok()?;
        let float = float_type(raw.dtype).is_some();
        // Tensor-level scales are F32 whatever the model is.
        (float && raw.shape.iter().product::<usize>() > 1).then_some((raw.data.len(), raw.dtype))
    });
    floats.max_by_key(|(bytes, _)| *bytes).map(|(_, dtype)| dtype)
}

impl fmt::Display for ConvertReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, format, weights, saved, .. } = self;
        writeln!(f, "{weights} weights from layout {from} to {to}, {format}")?;
        if self.reformatted > 0 {
            writeln!(f, "{} of them from mxfp4 to nvfp4, exactly", self.reformatted)?;
        }
        if self.inverted > 0 {
            let inverted = self.inverted;
            writeln!(f, "{inverted} tensor-level scales are the reciprocal, rounded to f32")?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for SharedGroup { weights, least_db } in &self.shared {
            let error = match least_db {
                None => "no value changed".into(),
                Some(db) => format!("block scales are rounded, {db:.1} dB or better"),
            };
            writeln!(f, "one tensor-level scale for {}: {error}", weights.join(", "))?;
        }
        for unshared in &self.unshared {
            writeln!(f, "warning: {unshared}; --share-scales gives them one scale")?;
        }
        writeln!(f, "{}: {} bytes of tensors", saved.path.display(), saved.bytes)?;
        for note in &saved.notes {
            writeln!(f, "note: {note}")?;
        }
        saved.replaced.fmt(f)
    }
}
