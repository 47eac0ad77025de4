//! Writes the float weights that a quantised checkpoint stands for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use fp4_formats::FloatType;
use serde::Serialize;

use super::carry::{beside, is_kv_scale};
use super::contents::Extras;
use super::convert::model_type;
use super::decode::{self, Encoded};
use super::encode::{dtype, encoded, float_type};
use super::error::CheckpointError;
use super::experts::Family;
use super::join;
use super::load::{implausible, load, outline};
use super::mlx_config as mlx;
use super::model::Model;
use super::options::{SHARD_BYTES, SaveOptions};
use super::orientation::{Orientation, transposed};
use super::others::{self, OtherLayer};
use super::parts::{Layout, Parts};
use super::plan::Item;
use super::save::{Observer, Save, Saved};
use super::side;
use super::weight::Order;
use super::write::TensorSpec;
use crate::error::Result;

/// Options of dequantising a checkpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DequantizeOptions {
    /// Type of the weights; that of the model before it was quantised, or bf16 if it is not known.
    pub dtype: Option<FloatType>,
    /// Whether an existing checkpoint at the output path is replaced.
    pub force: bool,
    /// Size of a shard.
    pub shard_bytes: u64,
}

impl Default for DequantizeOptions {
    fn default() -> Self {
        Self { dtype: None, force: false, shard_bytes: SHARD_BYTES }
    }
}

impl DequantizeOptions {
    /// The type of the model, shards of [`SHARD_BYTES`], and no replacement.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

nvfp4::setters!(DequantizeOptions {
    dtype: impl Into<Option<FloatType>>,
    force: bool,
    shard_bytes: u64,
});

/// The dequantised weights, as `--json` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DequantizeReport {
    /// The input.
    pub source: String,
    /// Its layout; absent if all of its weights are in FP8, e2m1 or packed integers.
    pub layout: Option<Layout>,
    /// Type of the weights.
    pub dtype: &'static str,
    /// Number of weights.
    pub weights: usize,
    /// Number of layers in FP8, e2m1 and packed integers beside them.
    pub decoded: usize,
    /// Weights that were `[experts, N, K]` and are `[experts, K, N]`.
    pub transposed: Vec<String>,
    /// Further facts about the conversion, in words.
    pub notes: Vec<String>,
    /// Tensors that are part of the values, and so not in the output.
    pub folded: Vec<String>,
    /// The output.
    pub saved: Saved,
}

/// Writes the weights of a quantised checkpoint as floats into a new folder `target`, with its other
/// tensors and files, and its configuration without the quantisation.
///
/// Values are `code * (multiplier * scale)`, each product rounded to f32, and then rounded once to
/// the type. Experts become what transformers has unquantised: those of gpt-oss and Llama 4 one tensor
/// `[experts, K, N]` with their biases in another, those of Mixtral and MiniMax get their own names.
///
/// # Errors
/// [`CheckpointError::Nothing`] if nothing is quantised in a known layout, the errors of [`load`],
/// [`CheckpointError::Unsupported`] for layers in other formats and rotated weights,
/// [`Error::Shape`](nvfp4::Error::Shape) for a value beyond the largest of the type, [`CheckpointError::Exists`],
/// [`CheckpointError::Interrupted`], [`Error::Io`](nvfp4::Error::Io). Nothing is left behind then.
pub fn dequantize_model(
    model: &Model,
    options: &DequantizeOptions,
    target: &Path,
    observer: &mut dyn Observer,
) -> Result<DequantizeReport> {
    let (layout, parts) = Layout::detect_weights(model).unzip();
    let parts = parts.unwrap_or_default();
    if layout == Some(Layout::Mlx) {
        mlx::refuse_differing(model, "of floats")?;
    }
    let stated = parts.iter().find_map(|part| part.original).or_else(|| model_type(model));
    let element = options.dtype.or_else(|| stated.and_then(float_type)).unwrap_or(FloatType::Bf16);
    let dtype = dtype(element);
    let (mut tensors, mut notes) = (Vec::new(), Vec::new());
    let mut turned = Vec::new();
    for part in &parts {
        let spec = outline(model, part)?.spec;
        let shape = spec.shape;
        let is_turned = spec.order == Order::InputFirst && shape.len() == 3;
        let order = if is_turned { Orientation::InputFirst } else { Orientation::OutputFirst };
        if is_turned {
            turned.push(part.name.clone());
        }
        // Both orders change into each other in the same way.
        let shape = order.output_first(&shape);
        tensors.push(TensorSpec { name: part.name.clone(), dtype, shape });
    }
    let pieces: BTreeSet<&str> = parts.iter().flat_map(Parts::tensors).collect();
    let side_data: BTreeSet<&str> = side::tensors(model).into_iter().collect();
    let others = encoded_layers(model, &pieces)?;
    let of_others: BTreeSet<&str> =
        others.values().flat_map(|x| &x.tensors).map(String::as_str).collect();
    refuse_others(model, &parts, &of_others)?;
    if parts.is_empty() && others.is_empty() {
        return Err(others::nothing(model));
    }
    for entry in model.entries() {
        if let Some(encoded) = others.get(&entry.name) {
            let (name, shape) = (encoded.name.clone(), encoded.shape.clone());
            tensors.push(TensorSpec { name, dtype, shape });
        }
        if of_others.contains(entry.name.as_str()) {
            continue;
        }
        // A model of floats has its cache in floats.
        if is_kv_scale(model, &entry.name) {
            let note = "scales of the KV cache are left out".to_owned();
            notes = vec![note];
            continue;
        }
        let folded = side_data.contains(&entry.name.as_str());
        if !folded && !pieces.contains(entry.name.as_str()) {
            let raw = model.raw(&entry.name)?;
            let (dtype, shape) = (raw.dtype, raw.shape);
            tensors.push(TensorSpec { name: entry.name, dtype, shape });
        }
    }

    let size = |name: &str| model.raw(name).map_or(0, |raw| raw.data.len() as u64);
    observer.begin(model.entries().iter().map(|entry| entry.bytes as u64).sum());
    let save = SaveOptions {
        force: options.force,
        shard_bytes: options.shard_bytes,
        // The names and types of floats are the same in all layouts.
        ..SaveOptions::new(layout.unwrap_or(Layout::ModelOpt))
    };
    let family = Family::of(model);
    let joints = join::joints(family, &tensors)?;
    let joined: BTreeSet<&str> = joints
        .iter()
        .flat_map(|joint| joint.experts.iter().flatten())
        .map(String::as_str)
        .collect();
    let single: Vec<&TensorSpec> =
        tensors.iter().filter(|spec| !joined.contains(spec.name.as_str())).collect();
    let own = |spec: &&TensorSpec| TensorSpec { name: family.own(&spec.name), ..(*spec).clone() };
    let items: Vec<Item> = single
        .iter()
        .map(own)
        .chain(joints.iter().map(|joint| joint.spec.clone()))
        .map(Item::Tensor)
        .collect();
    let extras = Extras {
        beside: beside(model, &mut notes),
        parts: joints.iter().map(|joint| (joint.spec.name.clone(), joint.parts())).collect(),
        ..Extras::default()
    };
    let of_name: BTreeMap<&str, &Parts> =
        parts.iter().map(|part| (part.name.as_str(), part)).collect();
    let reader = Reader { model, layout, parts: of_name, turned: &turned };
    let mut save = Save::create(target, model, &items, extras, save)?;
    let done = |observer: &mut dyn Observer, tensors: &[String]| {
        observer.done(tensors.iter().map(|name| size(name)).sum());
        tensors.iter().for_each(|name| model.release(name));
    };
    for spec in single {
        save.go_on(observer)?;
        observer.tensor(&spec.name);
        let name = family.own(&spec.name);
        let tensors = match reader.values(&spec.name)? {
            Some((values, tensors)) => {
                save.tensor(&name, &encoded(&spec.name, &values, element)?)?;
                tensors
            }
            None => {
                save.tensor(&name, &model.raw(&spec.name)?.data)?;
                vec![spec.name.clone()]
            }
        };
        done(observer, &tensors);
    }
    for joint in &joints {
        for (part, names) in joint.parts().iter().zip(&joint.experts) {
            save.go_on(observer)?;
            observer.tensor(part);
            let (mut all, mut read) = (Vec::new(), Vec::new());
            for name in names {
                let (values, tensors) = match reader.values(name)? {
                    Some(found) => found,
                    None => (model.file(name)?.floats(name)?.values, vec![name.clone()]),
                };
                all.push(values);
                read.extend(tensors);
            }
            let own = float_type(joint.spec.dtype).unwrap_or(element);
            save.tensor(part, &encoded(part, &joint.part(&all), own)?)?;
            done(observer, &read);
        }
    }
    turned.extend(joints.iter().map(|joint| joint.spec.name.clone()));
    Ok(DequantizeReport {
        source: model.path().display().to_string(),
        layout,
        dtype: element.name(),
        weights: parts.len(),
        decoded: others.len(),
        transposed: turned,
        notes,
        folded: side_data.into_iter().map(str::to_owned).collect(),
        saved: save.finish(model)?,
    })
}

/// Reads the values of weights.
struct Reader<'a> {
    model: &'a Model,
    layout: Option<Layout>,
    /// The weights in the layout.
    parts: BTreeMap<&'a str, &'a Parts>,
    /// The names among them whose last two dimensions change places.
    turned: &'a [String],
}

impl Reader<'_> {
    /// The values of a weight, and the tensors that they were read from; `None` if it is not quantised.
    fn values(&self, name: &str) -> Result<Option<(Vec<f32>, Vec<String>)>> {
        let model = self.model;
        let (Some(part), Some(layout)) = (self.parts.get(name), self.layout) else {
            let Some(other) = Encoded::of(model, name)? else { return Ok(None) };
            return Ok(Some((other.decode(model)?, other.tensors)));
        };
        // Scales of inputs are no part of the values.
        let weight = load(model, layout, &Parts { input: None, ..(*part).clone() })?;
        implausible(model, layout, part, &weight)?;
        let mut values = weight.dequantize()?;
        side::fold(model, name, weight.spec.cols(), &mut values)?;
        if self.turned.iter().any(|turned| turned == name) {
            let dims = weight.blocks.dims();
            values = transposed(name, &values, [dims.rows(), dims.cols()])?;
        }
        Ok(Some((values, part.tensors().map(str::to_owned).collect())))
    }
}

/// The layers in FP8 and packed integers, by the tensor with their codes.
fn encoded_layers(model: &Model, pieces: &BTreeSet<&str>) -> Result<BTreeMap<String, Encoded>> {
    let mut layers = BTreeMap::new();
    for name in model.names().filter(|name| !pieces.contains(name)) {
        let raw = model.raw(name)?;
        let Some(weight) = decode::weight_of(name, raw.dtype, raw.shape.len()) else { continue };
        if let Some(encoded) = Encoded::of(model, &weight)? {
            layers.insert(name.to_owned(), encoded);
        }
    }
    Ok(layers)
}

/// Refuses a checkpoint whose other tensors mean nothing without its configuration.
fn refuse_others(model: &Model, parts: &[Parts], read: &BTreeSet<&str>) -> Result<()> {
    let refuse = |tensor: &str, reason: String| {
        let (layout, tensor) = ("of floats", tensor.to_owned());
        Err(CheckpointError::Unsupported { layout, tensor, reason })
    };
    let unread = |other: &&OtherLayer| !read.contains(other.weight.as_str());
    if let Some(other) = others::find(model, parts).iter().find(unread) {
        return refuse(
            &other.weight,
            format!("it is in {}, which is not read", other.format.name()),
        );
    }
    let transforms = side::transforms(model);
    if !transforms.is_empty() {
        let reason = format!(
            "the weights are rotated ({}), and readers of floats would not rotate inputs",
            transforms.join(", ")
        );
        return refuse("transform_config", reason);
    }
    Ok(())
}

impl fmt::Display for DequantizeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layout, dtype, weights, saved, .. } = self;
        for tensor in &self.transposed {
            writeln!(f, "transposed to [experts, K, N]: {tensor}")?;
        }
        for tensor in &self.folded {
            writeln!(f, "folded into its weight: {tensor}")?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        if let Some(layout) = layout {
            writeln!(f, "{weights} weights of layout {layout} dequantised to {dtype}")?;
        }
        if self.decoded > 0 {
            let count = self.decoded;
            writeln!(f, "{count} layers in FP8, e2m1 or packed integers dequantised to {dtype}")?;
        }
        writeln!(f, "{}: {} bytes of tensors", saved.path.display(), saved.bytes)?;
        for note in &saved.notes {
            writeln!(f, "note: {note}")?;
        }
        saved.replaced.fmt(f)
    }
}
