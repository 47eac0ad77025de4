//! Quantising a model: which tensors, by what recipe, into what layout.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use fp4_formats::FloatType;
use fp4_formats::quantize::Recipe;
use fp4_formats::recipe::Nvfp4Recipe;
use safetensors::tensor::Dtype;
use serde::Serialize;

use super::contents::Extras;
use super::decide::{Decision, Decisions, Source, architecture, check, sources};
use super::decode::Encoded;
use super::deepseek;
use super::encode::encoded as encode;
use super::error::CheckpointError;
use super::experts::Family;
use super::inputs::Inputs;
use super::kept;
use super::model::Model;
use super::options::ModelOptions;
use super::orientation::Orientation;
use super::parts::Layout;
use super::plan::Item;
use super::quantize_tensor::{amax, quantize_tensor, scale_for};
use super::report::shown;
use super::save::{Observer, Save, Saved};
use super::shared;
use super::split;
use super::weight::{Order, WeightSpec};
use super::write::TensorSpec;
use crate::error::Result;
use nvfp4::device::Kernels;
use nvfp4::quantize::TensorScale;

/// A tensor that was left as it is, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unquantized {
    /// The tensor.
    pub tensor: String,
    /// The reason.
    pub reason: String,
}

/// The quantised weights, as `--json` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QuantizeReport {
    /// The input.
    pub source: String,
    /// The format.
    pub format: &'static str,
    /// The recipe.
    pub recipe: &'static str,
    /// The layout.
    pub layout: Layout,
    /// The device that computed it: `cpu`, or a GPU.
    pub device: String,
    /// Tensors that were quantised.
    pub quantized: Vec<String>,
    /// Weights that were in FP8 or packed integers.
    pub decoded: Vec<Decoded>,
    /// The architecture, or that it is unknown.
    pub architecture: String,
    /// Weights that were `[experts, K, N]` and are `[experts, N, K]` now.
    pub transposed: Vec<String>,
    /// Groups of them with one tensor-level scale, because readers of the layout join them.
    pub shared: Vec<Vec<String>>,
    /// The quantisation of inputs, in words.
    pub inputs: &'static str,
    /// Experts that calibration never reached and that have the largest scale of inputs of their layer's.
    pub filled: Vec<String>,
    /// Weights that were left.
    pub left: Vec<Unquantized>,
    /// Values of the quantised tensors that were not zero.
    pub values: u64,
    /// Weights that are zero now.
    pub underflows: u64,
    /// Blocks with a scale that a search found; absent without one.
    pub searched: Option<u64>,
    /// Bytes of tensors before.
    pub bytes_before: u64,
    /// The output.
    pub saved: Saved,
}

/// A weight of the input that was in FP8 or in packed integers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decoded {
    /// Its name as a tensor of floats.
    pub weight: String,
    /// Its format in the input.
    pub format: &'static str,
    /// Whether it is quantised in the output, which otherwise has it in BF16.
    pub quantized: bool,
}

/// Quantises the weights of `model` into a new folder `target`, on the CPU or, with `kernels`, on
/// a device with the same bytes as a result.
///
/// Experts whose input dimension comes first, as in gpt-oss's unquantised model, are quantised
/// along it and refused for [`Layout::TorchAo`]. Experts in one tensor become a matrix for each
/// expert where the layout has them so.
///
/// Memory holds one tensor at a time, two where it is transposed.
///
/// # Errors
/// [`CheckpointError::Exists`], [`CheckpointError::Nothing`] where no tensor can be quantised,
/// [`CheckpointError::Orientation`] where it cannot be told which dimension is the input's,
/// [`CheckpointError::Unsupported`], [`CheckpointError::NonFinite`] with the byte of the file,
/// [`CheckpointError::Interrupted`], [`Error::Io`](nvfp4::Error::Io). Nothing is left behind then.
pub fn quantize_model(
    model: &Model,
    options: &ModelOptions,
    target: &Path,
    kernels: Option<&Kernels>,
    observer: &mut dyn Observer,
) -> Result<QuantizeReport> {
    check(model, options)?;
    let format = options.recipe.format();
    let (mut items, mut left) = (Vec::new(), Vec::new());
    let (mut quantized, mut transposed) = (Vec::new(), Vec::new());
    let decisions = Decisions { model, options, family: Family::of(model) };
    let mut decoded = Vec::new();
    for source in sources(model, options.save.layout)? {
        let decision = decisions.of(&source)?;
        let Source { name, dtype, shape, encoded, .. } = source;
        if let Some(format) = encoded {
            let quantized = matches!(decision, Decision::Quantize(..));
            decoded.push(Decoded { weight: name.clone(), format, quantized });
        }
        match decision {
            Decision::Leave(reason) => {
                left.push(Unquantized { tensor: name.clone(), reason });
                let carried = match (options.save.layout, encoded) {
                    (Layout::DeepSeek, Some(_)) => deepseek::fp8(model, &name)?,
                    _ => None,
                };
                if let Some(tensors) = carried {
                    decoded.pop();
                    for name in tensors {
                        let raw = model.raw(&name)?;
                        let (dtype, shape) = (raw.dtype, raw.shape);
                        items.push(Item::Tensor(TensorSpec { name, dtype, shape }));
                    }
                    continue;
                }
                let dtype = if encoded.is_some() { Dtype::BF16 } else { dtype };
                items.push(Item::Tensor(TensorSpec { name, dtype, shape }));
            }
            Decision::Quantize(orientation, shape) => {
                quantized.push(name.clone());
                if orientation == Orientation::InputFirst {
                    transposed.push(name.clone());
                }
                let global = options.recipe.parameter_of().is_some()
                    && options.scale != TensorScale::OneLevel;
                let original = Some(if encoded.is_some() { Dtype::BF16 } else { dtype });
                let order = match orientation {
                    Orientation::OutputFirst => Order::OutputFirst,
                    Orientation::InputFirst => Order::InputFirst,
                };
                let group = options.inputs.group(format);
                let input = options.inputs.stated() != Inputs::Float;
                items.push(Item::Weight(WeightSpec {
                    name,
                    shape,
                    format,
                    global,
                    input,
                    original,
                    group,
                    order,
                    expert_scales: false,
                }));
            }
        }
    }
    if quantized.is_empty() {
        let what = format!("tensor that can be quantised to {}{}", format.name(), reasons(&left));
        return Err(CheckpointError::Nothing { path: model.path().into(), what });
    }

    let inputs = options.inputs.scales(&quantized, options.save.layout)?;
    let bytes_before = model.entries().iter().map(|entry| entry.bytes as u64).sum();
    observer.begin(bytes_before);
    let mut scales = Scales::new(model, options, &quantized);
    let interleaved = split::interleaved(model, None);
    let kept = kept::tied_head(model).into_iter().collect();
    let stated = quantized.iter().map(|name| (name.clone(), options.inputs.stated())).collect();
    let family = decisions.family;
    let fp8 = deepseek::stated(model);
    let extras = Extras { interleaved, family, kept, fp8, inputs: stated, ..Extras::default() };
    let mut save = Save::create(target, model, &items, extras, options.save.clone())?;
    let (mut values, mut underflows, mut searched) = (0, 0, 0);
    for (at, item) in items.iter().enumerate() {
        save.go_on(observer)?;
        if let Some(next) = items.get(at + 1) {
            // Weights that are packed have other names and are not read ahead.
            model.prefetch(next.name());
        }
        observer.tensor(item.name());
        match item {
            Item::Tensor(spec) => match Encoded::of(model, &spec.name)? {
                Some(encoded) if spec.dtype == Dtype::BF16 => {
                    let values = encoded.decode(model)?;
                    save.tensor(&spec.name, &encode(&spec.name, &values, FloatType::Bf16)?)?;
                }
                _ => save.tensor(&spec.name, &model.raw(&spec.name)?.data)?,
            },
            Item::Weight(spec) => {
                let order = match spec.order {
                    Order::InputFirst => Orientation::InputFirst,
                    Order::OutputFirst | Order::AlongOutput => Orientation::OutputFirst,
                };
                let scale = scales.of(&spec.name)?;
                let mut tensor = quantize_tensor(model, spec, order, scale, options, kernels)?;
                tensor.weight.input = inputs.of.get(&spec.name).copied();
                values += tensor.values;
                underflows += tensor.underflows;
                searched += tensor.searched;
                save.weight(&tensor.weight)?;
            }
        }
        let copied = matches!(item, Item::Tensor(spec) if model.raw(&spec.name).is_ok_and(|raw| raw.dtype == spec.dtype));
        let tensors = if copied { None } else { Encoded::of(model, item.name())? };
        let tensors = tensors.map_or_else(|| vec![item.name().to_owned()], |x| x.tensors);
        for name in &tensors {
            observer.done(model.raw(name)?.data.len() as u64);
            model.release(name);
        }
    }
    let device = kernels.map_or("cpu".into(), |kernels| kernels.device().choice().device.clone());
    Ok(QuantizeReport {
        source: model.path().display().to_string(),
        format: format.name(),
        recipe: options.recipe.name(),
        layout: options.save.layout,
        device,
        shared: scales.groups,
        quantized,
        decoded,
        architecture: architecture(model, options),
        transposed,
        inputs: options.inputs.words(),
        filled: inputs.filled,
        left,
        values,
        underflows,
        searched: options.search.then_some(searched),
        bytes_before,
        saved: save.finish(model)?,
    })
}

/// The tensor-level scales of a model's weights, each found when it is first asked for.
pub(super) struct Scales<'a> {
    model: &'a Model,
    options: &'a ModelOptions,
    /// Weights with one scale.
    pub groups: Vec<Vec<String>>,
    /// The group of a weight.
    group_of: BTreeMap<String, usize>,
    found: BTreeMap<usize, TensorScale>,
}

impl<'a> Scales<'a> {
    pub fn new(model: &'a Model, options: &'a ModelOptions, quantized: &[String]) -> Self {
        let levels = (options.recipe, options.scale);
        let shares = options.save.layout.joins_weights()
            && matches!(levels, (Recipe::Nvfp4(_) | Recipe::Adaptive(_), TensorScale::FromAmax));
        let indices = match shares {
            true => shared::groups(quantized.iter().map(String::as_str)),
            false => Vec::new(),
        };
        let names = |group: Vec<usize>| group.iter().map(|&at| quantized[at].clone()).collect();
        let groups: Vec<Vec<String>> = indices.into_iter().map(names).collect();
        let members = groups.iter().enumerate();
        let group_of =
            members.flat_map(|(at, names)| names.iter().map(move |name| (name.clone(), at)));
        let group_of = group_of.collect();
        Self { model, options, groups, group_of, found: BTreeMap::new() }
    }

    /// The tensor-level scale of a weight.
    ///
    /// ggml's encoder makes 448 of every block scale from 248 up. In GGUF the tensor-level scale is twice as
    /// large, so that block scales are at most 224, and four times as large with adaptive recipes and with a
    /// search, which choose scales up to 1.5 times the recipe's.
    fn of(&mut self, name: &str) -> Result<TensorScale> {
        let scale = self.of_recipe(name)?;
        if self.options.save.layout != Layout::Gguf {
            return Ok(scale);
        }
        let Some(project) = self.options.recipe.parameter_of() else { return Ok(scale) };
        let factor = match self.options.recipe {
            Recipe::Adaptive(_) => 4.0,
            Recipe::Nvfp4(_) if self.options.search => 4.0,
            Recipe::Nvfp4(_) | Recipe::Mxfp4(_) => 2.0,
        };
        let given = match scale {
            TensorScale::FromAmax => {
                scale_for(self.options.recipe, amax(self.model, name)?, Dtype::F32)
            }
            given => given,
        };
        Ok(match given {
            TensorScale::Given(parameter) if project.parameter_is_divisor() => {
                TensorScale::Given(parameter / factor)
            }
            TensorScale::Given(parameter) => TensorScale::Given(parameter * factor),
            other => other,
        })
    }

    fn of_recipe(&mut self, name: &str) -> Result<TensorScale> {
        let (model, recipe) = (self.model, self.options.recipe);
        // Weights that are decoded are BF16 to compressed-tensors, as they are to who loads them first.
        let dtype = match Encoded::of(model, name)? {
            Some(_) => Dtype::BF16,
            None => model.raw(name)?.dtype,
        };
        let Some(&group) = self.group_of.get(name) else {
            let by_type = recipe == Recipe::Nvfp4(Nvfp4Recipe::CompressedTensors)
                && self.options.scale == TensorScale::FromAmax;
            return match by_type {
                true => Ok(scale_for(recipe, amax(model, name)?, dtype)),
                false => Ok(self.options.scale),
            };
        };
        if let Some(scale) = self.found.get(&group) {
            return Ok(*scale);
        }
        // The weight itself comes last and stays in memory, since it is quantised next.
        let others = self.groups[group].iter().filter(|member| *member != name);
        let mut largest = 0f32;
        for member in others {
            largest = largest.max(amax(model, member)?);
            model.release(member);
        }
        largest = largest.max(amax(model, name)?);
        let scale = scale_for(recipe, largest, dtype);
        self.found.insert(group, scale);
        Ok(scale)
    }
}

/// Lists the reasons why tensors were left, the commonest first, each with one of them.
fn reasons(left: &[Unquantized]) -> String {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Unquantized { tensor, reason } in left {
        reasons.entry(reason).or_default().push(tensor);
    }
    let mut reasons: Vec<(&str, Vec<&str>)> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, tensors)| std::cmp::Reverse(tensors.len()));
    let line = |(reason, tensors): (&str, Vec<&str>)| {
        format!("\n  {} left as they are: {reason} (such as {})", tensors.len(), tensors[0])
    };
    reasons.into_iter().map(line).collect()
}

impl fmt::Display for QuantizeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { format, recipe, layout, device, saved, .. } = self;
        for left in &self.left {
            writeln!(f, "left as it is: {}: {}", shown(&left.tensor), left.reason)?;
        }
        for tensor in &self.transposed {
            writeln!(f, "transposed to [experts, N, K]: {tensor}")?;
        }
        for group in &self.shared {
            writeln!(f, "one tensor-level scale: {}", group.join(", "))?;
        }
        writeln!(f, "{}", self.architecture)?;
        let mut formats: BTreeMap<(&str, bool), usize> = BTreeMap::new();
        for Decoded { format, quantized, .. } in &self.decoded {
            *formats.entry((format, *quantized)).or_default() += 1;
        }
        for ((from, quantized), count) in formats {
            let to = if quantized { format } else { "BF16" };
            writeln!(f, "{count} weights were decoded from {from} and are {to} now")?;
        }
        if let [first, ..] = self.filled.as_slice() {
            let count = self.filled.len();
            writeln!(
                f,
                "{count} experts, {} among them, were not reached by calibration and have the largest scale of \
                 inputs of their layer's",
                shown(first)
            )?;
        }
        writeln!(f, "{}", self.inputs)?;
        writeln!(
            f,
            "{} weights quantised to {format} by recipe {recipe} on {device}, {} tensors left",
            self.quantized.len(),
            self.left.len()
        )?;
        if let Some(searched) = self.searched {
            writeln!(f, "{searched} block scales are larger than the recipe's, with less error")?;
        }
        let (zeros, values) = (self.underflows, self.values);
        let percent = 100.0 * zeros as f64 / (values as f64).max(1.0);
        writeln!(f, "{zeros} of {values} values other than 0 became 0 ({percent:.2} %)")?;
        writeln!(
            f,
            "{}: layout {layout}, {} bytes of tensors, before {}",
            saved.path.display(),
            saved.bytes,
            self.bytes_before
        )?;
        for note in &saved.notes {
            writeln!(f, "note: {note}")?;
        }
        saved.replaced.fmt(f)
    }
}
