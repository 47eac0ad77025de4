//! Lists a checkpoint: its layout, its weights, its tensors.

use std::fmt;

use serde::Serialize;

use super::file::TensorEntry;
use super::layout::Layout;
use super::load::outline;
use super::model::Model;
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
    /// Quantised weights.
    pub weights: Vec<WeightEntry>,
    /// All tensors in the order of their data.
    pub tensors: Vec<TensorEntry>,
    /// Tensors that the index does not list.
    pub unlisted: Vec<String>,
    /// Bytes of all tensors.
    pub bytes: u64,
}

/// Lists a checkpoint. Only headers are read.
///
/// # Errors
/// None; damage is part of the list.
pub fn inspect(model: &Model) -> Result<Contents> {
    let layout = Layout::detect(model);
    let size = |name: &str| model.raw(name).map_or(0, |raw| raw.data.len() as u64);
    let parts = layout.map(|layout| layout.find(model)).unwrap_or_default();
    let weights = parts
        .iter()
        .map(|part| {
            let outline = outline(model, part);
            let problem = outline.as_ref().err().map(ToString::to_string);
            let outline = outline.ok();
            WeightEntry {
                name: part.name.clone(),
                format: part.format.name(),
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
        unlisted: model.unlisted().to_vec(),
        bytes: tensors.iter().map(|entry| entry.bytes as u64).sum(),
        tensors,
    })
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join =
            |shape: &[usize]| shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ");
        let width = self.tensors.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
        for entry in &self.tensors {
            let TensorEntry { name, dtype, shape, bytes, .. } = entry;
            writeln!(f, "{name:width$}  {dtype:8}  {:>16}  {bytes:>12} bytes", join(shape))?;
        }
        if let Some(layout) = self.layout {
            writeln!(f, "quantised weights, layout {layout}:")?;
            for weight in &self.weights {
                let shape = weight.shape.as_deref().map_or("?".into(), join);
                let scales = weight.scales.unwrap_or("?");
                let WeightEntry { name, format, .. } = weight;
                writeln!(f, "  {name:width$}  {format}  {shape:>16}  {scales} scales")?;
                if let Some(problem) = &weight.problem {
                    writeln!(f, "    {problem}")?;
                }
            }
        }
        for name in &self.unlisted {
            writeln!(f, "not in the index: {name}")?;
        }
        writeln!(f, "{} tensors, {} bytes", self.tensors.len(), self.bytes)
    }
}
