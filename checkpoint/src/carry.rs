//! The conversion of everything in a checkpoint except its weights in NVFP4 and MXFP4: how inputs
//! are quantised, layers in other formats, the KV cache, side data, the configuration.
//!
//! A conversion onto the same layout and formats keeps the configuration as it is. Any other
//! describes the output in the target's own terms. Facts that these cannot say are refused by name
//! before anything is written; the quantisation of inputs at run time, of which nothing is stored,
//! is left out with a note.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use fp4_formats::quantize::Format;
use safetensors::tensor::Dtype;

use super::contents::Extras;
use super::decode::Encoded;
use super::deepseek;
use super::error::CheckpointError;
use super::experts::Family;
use super::inputs::Inputs;
use super::kept;
use super::model::Model;
use super::others::{self, OtherFormat, OtherLayer};
use super::parts::{Layout, Parts};
use super::side;
use super::split;
use super::stated::{KvCache, Said, described};
use super::weight::WeightSpec;
use super::write::TensorSpec;
use crate::error::Result;

/// A tensor that is copied.
#[derive(Clone, Debug)]
pub(super) struct Copied {
    /// Its name in the input.
    pub from: String,
    /// The tensor in the output: names may change, and the type of scalars, to F32.
    pub spec: TensorSpec,
}

/// Everything besides the weights.
pub(super) struct Carried {
    pub tensors: Vec<Copied>,
    pub extras: Extras,
    /// The facts that are left out, in words.
    pub notes: Vec<String>,
}

/// The names of the scales of keys and values: ModelOpt's, compressed-tensors'.
const KV_SCALES: [(&str, &str); 2] =
    [(".k_proj.k_scale", ".k_scale"), (".v_proj.v_scale", ".v_scale")];

/// Whether a tensor is a scale of keys or values.
pub(super) fn is_kv_scale(model: &Model, name: &str) -> bool {
    let endings = KV_SCALES.iter().flat_map(|(modelopt, own)| [modelopt, own]);
    let named = endings.into_iter().any(|ending| name.ends_with(ending));
    named && model.raw(name).is_ok_and(|raw| raw.shape.iter().product::<usize>() == 1)
}

struct Carrier<'a> {
    model: &'a Model,
    from: Layout,
    to: Layout,
    notes: Vec<String>,
}

/// Decides about everything besides the weights `parts`, which become `specs`.
///
/// # Errors
/// [`CheckpointError::Unsupported`] for what the target cannot describe.
pub(super) fn carry(
    model: &Model,
    [from, to]: [Layout; 2],
    parts: &[Parts],
    specs: &[WeightSpec],
) -> Result<Carried> {
    let same = parts.iter().zip(specs).all(|(part, spec)| part.format == spec.format);
    let configured = model.quantization_config().is_some() || model.hf_quant_config().is_some();
    let verbatim = from == to && same && configured;
    let mut carrier = Carrier { model, from, to, notes: Vec::new() };
    if let (Some(spec), false) = (specs.first(), verbatim || to.is_written()) {
        let reason = "the layout is read, and copied where nothing changes, but no configuration is written for it";
        return Err(carrier.refuse(&spec.name, reason));
    }
    let mut extras = Extras { verbatim, others: others::find(model, parts), ..Extras::default() };
    let said = Said::of(model);
    for (part, spec) in parts.iter().zip(specs) {
        let stated = Inputs::of(model, from, &said, part);
        let inputs = if verbatim { stated } else { carrier.inputs(stated, part, spec)? };
        extras.inputs.insert(spec.name.clone(), inputs);
        if from == Layout::TorchAo && to == Layout::TorchAo {
            let text = described(model, &part.name).unwrap_or_default();
            if let Ok(stated) = serde_json::from_str(text) {
                extras.stated.insert(spec.name.clone(), stated);
            }
        }
    }
    extras.family = Family::of(model);
    let matrices = specs.iter().filter(|spec| spec.shape.len() == 2).count();
    if to == Layout::GptOss && matrices > 0 {
        carrier.note(format!(
            "transformers reads experts only in this layout; {matrices} weights are none"
        ));
    }
    if !verbatim {
        carrier.side_data()?;
        carrier.other_layers(&extras)?;
        carrier.dynamic(&said, &mut extras);
    }
    let kv = KvCache::of(model);
    let pieces: BTreeSet<&str> = parts.iter().flat_map(Parts::tensors).collect();
    if let (Some(kv), false) = (&kv, verbatim) {
        carrier.kv_cache(kv)?;
    }
    if !verbatim {
        let quantised: Vec<&str> = specs.iter().map(WeightSpec::module).collect();
        let (kept, lost) = kept::carried(model, to, &quantised);
        extras.kept = kept;
        if let [first, ..] = lost.as_slice() {
            carrier.note(format!(
                "`{first}` and {} more of the modules that the input leaves out cannot be written in \
                 layout {to}; modules with a matrix are named one by one",
                lost.len() - 1
            ));
        }
    }
    if !verbatim {
        let head = kept::tied_head(model);
        kept::add(&mut extras.kept, head);
    }
    extras.beside = beside(model, &mut carrier.notes);
    extras.kv_fp8 = kv.is_some();
    extras.fp8 = deepseek::stated(model);
    extras.interleaved = split::interleaved(model, Some(from));
    let mut tensors = Vec::new();
    let mut of_integers: BTreeSet<String> = BTreeSet::new();
    if from == Layout::Mlx && !verbatim {
        for other in extras.others.iter().filter(|other| other.format == OtherFormat::MlxIntegers) {
            let encoded = Encoded::of(model, &other.weight)?;
            of_integers.extend(encoded.into_iter().flat_map(|x| x.tensors.into_iter().skip(1)));
        }
        extras.others.retain(|other| other.format != OtherFormat::MlxIntegers);
    }
    let eight = extras.others.iter().map(|other| (other.module.clone(), other.format)).collect();
    for entry in model.entries() {
        if !pieces.contains(entry.name.as_str()) && !of_integers.contains(&entry.name) {
            if model.kind(&entry.name).is_some() {
                carrier.note("weights in Q8_0 are F32 in the output, with the same values".into());
            }
            if !verbatim && is_of_mlx(model, &entry.name) {
                carrier.note("weights in MLX's integers are F32 in the output".into());
            }
            tensors.push(carrier.copied(entry.name, extras.verbatim, &eight)?);
        }
    }
    if from != to {
        let renamed = |name: &mut String| *name = extras.family.renamed(to, name);
        tensors.iter_mut().for_each(|copied| renamed(&mut copied.spec.name));
        for other in &mut extras.others {
            renamed(&mut other.module);
            renamed(&mut other.weight);
        }
    }
    Ok(Carried { tensors, extras, notes: carrier.notes })
}

/// Whether a tensor has the words of MLX.
fn is_of_mlx(model: &Model, name: &str) -> bool {
    model.raw(name).is_ok_and(|raw| raw.dtype == Dtype::U32)
}

/// The files that the index does not name and that are copied, with a note for each file of them.
pub(super) fn beside(model: &Model, notes: &mut Vec<String>) -> Vec<PathBuf> {
    let mut copied = Vec::new();
    for path in model.beside() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Mistral's own file has the whole model once more.
        if name.starts_with("consolidated") {
            notes.push(format!("{name} is not in the index and is left out"));
        } else {
            notes.push(format!("{name} is not in the index and is copied as it is"));
            copied.push(path.clone());
        }
    }
    copied
}

impl Carrier<'_> {
    fn refuse(&self, tensor: &str, reason: impl Into<String>) -> CheckpointError {
        let (layout, tensor, reason) = (self.to.name(), tensor.into(), reason.into());
        CheckpointError::Unsupported { layout, tensor, reason }
    }

    /// Returns the output's description of a weight's inputs.
    fn inputs(&mut self, stated: Inputs, part: &Parts, spec: &WeightSpec) -> Result<Inputs> {
        let reformatted = part.format != spec.format;
        let fits = match (self.to, spec.format, stated) {
            (Layout::TorchAo, Format::Mxfp4, Inputs::Float) => {
                let note = "torchao multiplies with mxfp4 weights only where inputs are quantised \
                            too; readers of the output can load and dequantise it";
                self.note(note.into());
                true
            }
            (_, _, Inputs::Float) => true,
            (
                Layout::ModelOpt | Layout::CompressedTensors | Layout::Gguf,
                Format::Nvfp4,
                Inputs::Calibrated,
            ) => true,
            (Layout::TorchAo, Format::Nvfp4, Inputs::Calibrated) => {
                let note = "transformers does not read `act_per_tensor_scale`, the scale of inputs \
                            that are quantised with one from calibration; torchao itself does";
                self.note(note.into());
                true
            }
            (Layout::ModelOpt, Format::Nvfp4, Inputs::Fp8) => spec.group > 16,
            (Layout::TorchAo, Format::Nvfp4, Inputs::OneLevel) => true,
            (Layout::TorchAo | Layout::CompressedTensors, _, Inputs::Dynamic) => {
                !reformatted && (self.to == Layout::TorchAo || spec.format == Format::Mxfp4)
            }
            _ => false,
        };
        match stated {
            _ if fits => Ok(stated),
            Inputs::Dynamic | Inputs::OneLevel => {
                self.note(format!(
                    "inputs were quantised to {} at run time, which layout {} cannot say of {}; \
                     the weights alone are quantised in the output",
                    part.format.name(),
                    self.to,
                    spec.format.name()
                ));
                Ok(Inputs::Float)
            }
            Inputs::Float | Inputs::Calibrated | Inputs::Fp8 | Inputs::Other => {
                let format = match stated {
                    Inputs::Fp8 => "fp8",
                    Inputs::Other => "a format that is not read",
                    _ => part.format.name(),
                };
                let scale = part.input.as_deref().unwrap_or("at run time");
                let reason = format!(
                    "its inputs are quantised to {format} ({scale}), which the layout cannot say"
                );
                Err(self.refuse(&spec.name, reason))
            }
        }
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn side_data(&self) -> Result<()> {
        if let tensors @ [first, ..] = side::tensors(self.model).as_slice() {
            let reason = format!(
                "it changes what a quantised weight means, as {} tensors of this checkpoint do, \
                 and the layout has no place for it",
                tensors.len()
            );
            return Err(self.refuse(first, reason));
        }
        let transforms = side::transforms(self.model);
        if transforms.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "the weights are rotated ({}), and readers of the output would not rotate inputs",
            transforms.join(", ")
        );
        Err(self.refuse("transform_config", reason))
    }

    fn other_layers(&self, extras: &Extras) -> Result<()> {
        let known = |layout| matches!(layout, Layout::ModelOpt | Layout::CompressedTensors);
        // Quark's and AutoRound's have the same tensors.
        let read = known(self.from) || !self.from.is_written() || self.from == Layout::Mlx;
        for other in &extras.others {
            let fits = match other.format {
                OtherFormat::Fp8 => known(self.to),
                OtherFormat::Mxfp8 => {
                    self.to == Layout::CompressedTensors && self.has_no_input(other)
                }
                OtherFormat::Fp8Blocks => {
                    self.to == Layout::CompressedTensors
                        && self.has_no_input(other)
                        && self.blocks_of_128(&other.weight)?.is_some()
                }
                // They become floats.
                OtherFormat::MlxIntegers => self.from == Layout::Mlx,
                other => other.described().is_some(),
            };
            if fits && read {
                continue;
            }
            let reason = format!(
                "it is in {}, which the output's configuration cannot describe",
                other.format.name()
            );
            return Err(self.refuse(&other.weight, reason));
        }
        Ok(())
    }

    /// Whether there is no scale from calibration for a layer's inputs.
    fn has_no_input(&self, other: &OtherLayer) -> bool {
        !self.model.contains(&format!("{}.input_scale", other.module))
    }

    /// The float scales of a matrix in FP8 that has one for each 128 x 128 elements.
    fn blocks_of_128(&self, weight: &str) -> Result<Option<String>> {
        let Some(encoded) = Encoded::of(self.model, weight)? else { return Ok(None) };
        let Some(scales) = encoded.scales_of_128().filter(|_| encoded.shape.len() == 2) else {
            return Ok(None);
        };
        let float = matches!(self.model.raw(scales)?.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
        Ok(float.then(|| scales.to_owned()))
    }

    /// Finds the layers in other formats whose inputs are quantised at run time.
    fn dynamic(&self, said: &Said<'_>, extras: &mut Extras) {
        let whole = self.model.quantization_config().map(|config| &config["activation_scheme"]);
        let whole = whole.is_some_and(|scheme| *scheme == "dynamic");
        let others = extras.others.iter().filter(|other| {
            // ModelOpt's algorithm MXFP8 quantises inputs, too.
            let by_name = other.format == OtherFormat::Mxfp8 && self.from == Layout::ModelOpt;
            by_name || whole || said.has_inputs(&other.module)
        });
        extras.dynamic = others.map(|other| other.module.clone()).collect();
    }

    fn kv_cache(&self, kv: &KvCache) -> Result<()> {
        let known = |layout| matches!(layout, Layout::ModelOpt | Layout::CompressedTensors);
        if *kv == KvCache::Fp8 && known(self.to) {
            return Ok(());
        }
        let reason =
            format!("the KV cache is quantised ({}), which the layout cannot say", kv.name());
        Err(self.refuse("KV cache", reason))
    }

    /// A tensor under the target's name, in the target's type; `eight` are the modules in FP8.
    fn copied(
        &self,
        name: String,
        verbatim: bool,
        eight: &BTreeMap<String, OtherFormat>,
    ) -> Result<Copied> {
        let raw = self.model.raw(&name)?;
        let decoded =
            self.model.kind(&name).is_some() || (!verbatim && is_of_mlx(self.model, &name));
        if decoded && let Some(encoded) = Encoded::of(self.model, &name)? {
            let spec = TensorSpec { name: name.clone(), dtype: Dtype::F32, shape: encoded.shape };
            return Ok(Copied { from: name, spec });
        }
        let mut spec = TensorSpec { name: name.clone(), dtype: raw.dtype, shape: raw.shape };
        if !verbatim && let Some(renamed) = self.other_scales(&name, &spec, eight)? {
            return Ok(Copied { from: name, spec: renamed });
        }
        let scalar = spec.shape.iter().product::<usize>() == 1;
        let of_fp8 = || {
            let of = name.strip_suffix(".weight_scale").or(name.strip_suffix(".input_scale"));
            of.is_some_and(|of| eight.contains_key(of))
        };
        let kv = self.kv_name(&name);
        if verbatim || !scalar || !(kv.is_some() || of_fp8()) {
            return Ok(Copied { from: name, spec });
        }
        spec.name = kv.unwrap_or(spec.name);
        if matches!(spec.dtype, Dtype::BF16 | Dtype::F16) {
            spec.dtype = Dtype::F32;
        }
        spec.shape = match self.to {
            Layout::CompressedTensors | Layout::AutoRound => vec![1],
            Layout::ModelOpt
            | Layout::TorchAo
            | Layout::GptOss
            | Layout::Gguf
            | Layout::Mlx
            | Layout::DeepSeek
            | Layout::Quark => vec![],
        };
        Ok(Copied { from: name, spec })
    }

    /// The scales of a layer in MXFP8, or in FP8 with blocks, as compressed-tensors has them; `None` for another tensor.
    fn other_scales(
        &self,
        name: &str,
        spec: &TensorSpec,
        eight: &BTreeMap<String, OtherFormat>,
    ) -> Result<Option<TensorSpec>> {
        let of =
            [".weight_scale_inv", ".weight_scale"].iter().find_map(|end| name.strip_suffix(end));
        let format = of.and_then(|of| eight.get(of));
        let (Some(of), Some(OtherFormat::Fp8Blocks | OtherFormat::Mxfp8)) = (of, format) else {
            return Ok(None);
        };
        let weight = format!("{of}.weight");
        let mut spec = TensorSpec { name: format!("{weight}_scale"), ..spec.clone() };
        if format == Some(&OtherFormat::Mxfp8) {
            spec.dtype = Dtype::U8;
            return Ok(Some(spec));
        }
        if self.blocks_of_128(&weight)?.as_deref() != Some(name) {
            return Ok(None);
        }
        // ModelOpt's have dimensions of 1.
        let sizes = self.model.raw(&weight)?.shape;
        spec.shape = sizes.iter().map(|size| size.div_ceil(128)).collect();
        Ok(Some(spec))
    }

    /// The target's name of a scale of keys or values.
    fn kv_name(&self, name: &str) -> Option<String> {
        KV_SCALES.iter().find_map(|(modelopt, compressed_tensors)| {
            let of = match self.from {
                Layout::ModelOpt => name.strip_suffix(modelopt)?,
                Layout::CompressedTensors => name.strip_suffix(compressed_tensors)?,
                Layout::TorchAo
                | Layout::GptOss
                | Layout::Gguf
                | Layout::Mlx
                | Layout::DeepSeek
                | Layout::Quark
                | Layout::AutoRound => return None,
            };
            match self.to {
                Layout::ModelOpt => Some(format!("{of}{modelopt}")),
                Layout::CompressedTensors => Some(format!("{of}{compressed_tensors}")),
                Layout::TorchAo
                | Layout::GptOss
                | Layout::Gguf
                | Layout::Mlx
                | Layout::DeepSeek
                | Layout::Quark
                | Layout::AutoRound => None,
            }
        })
    }
}
