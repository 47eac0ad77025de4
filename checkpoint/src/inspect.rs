//! Lists a checkpoint: its layout, its weights, its tensors.

use std::fmt;

use serde::Serialize;

use super::file::TensorEntry;
use super::inputs::Inputs;
use super::load::outline;
use super::model::Model;
use super::others::{self, OtherLayer};
use super::parts::Layout;
use super::report::shown;
use super::side;
use super::stated::{KvCache, Said};
use crate::error::Result;

/// A quantised weight in the table of contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WeightEntry {
    /// Name before it was quantised.
    pub name: String,
    /// The format.
    pub format: &'static str,
    /// Shape before it was quantised; absent if the tensors do not fit each other.
    pub shape: Option<Vec<usize>>,
    /// The quantisation of the layer's inputs.
    pub inputs: Inputs,
    /// Layout of its block scales.
    pub scales: Option<&'static str>,
    /// The error message, if the tensors do not fit each other.
    pub problem: Option<String>,
    /// Bytes of the tensors that hold it.
    pub bytes: u64,
}

/// The table of contents, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// The path.
    pub path: String,
    /// The layout of its quantised weights; absent if there are none.
    pub layout: Option<Layout>,
    /// Files with tensors.
    pub shards: Vec<String>,
    /// The configuration's name of the quantisation.
    pub algorithm: Option<String>,
    /// The quantisation of the KV cache.
    pub kv_cache: Option<String>,
    /// Rotations of weights.
    pub transforms: Vec<String>,
    /// Quantised weights.
    pub weights: Vec<WeightEntry>,
    /// Layers in other formats, some of which `dequantize` and `quantize` read.
    pub others: Vec<OtherLayer>,
    /// Tensors that change what a quantised weight means.
    pub side_data: Vec<String>,
    /// All tensors in the order of their data.
    pub tensors: Vec<TensorEntry>,
    /// Tensors that the index does not list.
    pub unlisted: Vec<String>,
    /// Files of tensors that the index does not name.
    pub beside: Vec<String>,
    /// Bytes of all tensors.
    pub bytes: u64,
}

/// Lists a checkpoint. Only headers are read.
///
/// # Errors
/// None; damage is part of the list.
pub fn inspect(model: &Model) -> Result<Contents> {
    let detected = Layout::detect_weights(model);
    let layout = detected.as_ref().map(|(layout, _)| *layout);
    let size = |name: &str| model.raw(name).map_or(0, |raw| raw.data.len() as u64);
    let parts = detected.map(|(_, parts)| parts).unwrap_or_default();
    let said = Said::of(model);
    let weights = parts
        .iter()
        .map(|part| {
            let outline = outline(model, part);
            let problem = outline.as_ref().err().map(ToString::to_string);
            let outline = outline.ok();
            WeightEntry {
                name: part.name.clone(),
                format: part.format.name(),
                inputs: layout
                    .map(|layout| Inputs::of(model, layout, &said, part))
                    .unwrap_or_default(),
                scales: outline.as_ref().map(|outline| outline.scales.name()),
                shape: outline.map(|outline| outline.spec.shape),
                problem,
                bytes: part.tensors().map(size).sum(),
            }
        })
        .collect();
    let tensors = model.entries();
    Ok(Contents {
        path: model.path().display().to_string(),
        layout,
        shards: model.shards().iter().map(|shard| shard.path().display().to_string()).collect(),
        weights,
        algorithm: algorithm(model),
        kv_cache: KvCache::of(model).map(|kv| kv.name().to_owned()),
        transforms: side::transforms(model).into_iter().map(str::to_owned).collect(),
        others: others::find(model, &parts),
        side_data: side::tensors(model).into_iter().map(str::to_owned).collect(),
        unlisted: model.unlisted().to_vec(),
        beside: model.beside().iter().map(|path| path.display().to_string()).collect(),
        bytes: tensors.iter().map(|entry| entry.bytes as u64).sum(),
        tensors,
    })
}

/// The name of the algorithm or of the storage format in the configuration.
fn algorithm(model: &Model) -> Option<String> {
    let stated = model.hf_quant_config().map(|x| &x["quantization"]["quant_algo"]);
    let config = model.quantization_config();
    let keys = ["quant_algo", "format", "quant_type", "quant_method"];
    let said = keys.into_iter().filter_map(|key| config.map(|config| &config[key]));
    let said = stated.into_iter().chain(said).find(|said| !said.is_null())?;
    let class = said["default"]["_type"].as_str();
    Some(said.as_str().or(class).map_or_else(|| said.to_string(), str::to_owned))
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join =
            |shape: &[usize]| shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ");
        let width = self.tensors.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
        for entry in &self.tensors {
            let TensorEntry { dtype, shape, bytes, .. } = entry;
            let name = shown(&entry.name);
            writeln!(f, "{name:width$}  {dtype:8}  {:>16}  {bytes:>12} bytes", join(shape))?;
        }
        if let Some(layout) = self.layout {
            writeln!(f, "quantised weights, layout {layout}:")?;
            for weight in &self.weights {
                let shape = weight.shape.as_deref().map_or("?".into(), join);
                let scales = weight.scales.unwrap_or("?");
                let format = weight.format;
                let name = shown(&weight.name);
                let inputs = match weight.inputs {
                    Inputs::Float => "",
                    Inputs::Calibrated => ", inputs by calibration",
                    Inputs::Dynamic => ", inputs at run time",
                    Inputs::OneLevel => ", inputs at run time with one level",
                    Inputs::Fp8 => ", inputs to FP8",
                    Inputs::Other => ", inputs to a format that is not read",
                };
                writeln!(f, "  {name:width$}  {format}  {shape:>16}  {scales} scales{inputs}")?;
                if let Some(problem) = &weight.problem {
                    writeln!(f, "    {problem}")?;
                }
            }
        }
        if !self.others.is_empty() {
            writeln!(f, "quantised layers in other formats:")?;
            for OtherLayer { module, format, .. } in &self.others {
                let module = shown(module);
                writeln!(f, "  {module:width$}  {}", format.name())?;
            }
        }
        for (what, names) in [
            ("algorithm", self.algorithm.as_slice()),
            ("KV cache", self.kv_cache.as_slice()),
            ("rotations", &self.transforms),
            ("side data", &self.side_data),
            ("not in the index", &self.unlisted),
            ("file not in the index", &self.beside),
        ] {
            for name in names {
                writeln!(f, "{what}: {}", shown(name))?;
            }
        }
        writeln!(f, "{} tensors, {} bytes", self.tensors.len(), self.bytes)
    }
}
