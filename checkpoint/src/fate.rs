//! The fate of every tensor of a model that would be quantised.

use std::fmt;

use serde::Serialize;

use super::decide::{Decision, Decisions, Source, architecture, check, sources};
use super::experts::Family;
use super::model::Model;
use super::options::ModelOptions;
use super::orientation::Orientation;
use super::quantize::Scales;
use super::report::shown;
use crate::error::Result;

/// The fate of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fate {
    /// The tensor, under the name that it has as floats.
    pub tensor: String,
    /// Its type in the input.
    pub from: String,
    /// Its shape as floats.
    pub shape: Vec<usize>,
    /// Its type in the output, or `copied`.
    pub to: String,
    /// The reason.
    pub reason: String,
}

/// The plan of [`quantize_model`](super::quantize_model), as `--list` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QuantizePlan {
    /// The input.
    pub source: String,
    /// The architecture, or that it is unknown.
    pub architecture: String,
    /// Every tensor, in the order of the files.
    pub tensors: Vec<Fate>,
    /// Weights that get one tensor-level scale.
    pub shared: Vec<Vec<String>>,
    /// The quantisation of inputs, in words.
    pub inputs: &'static str,
}

/// Names the fate of every tensor in [`quantize_model`](super::quantize_model), and the reason. Only headers are read.
///
/// # Errors
/// The errors of [`quantize_model`](super::quantize_model) that follow from names, types and shapes.
pub fn plan_quantize(model: &Model, options: &ModelOptions) -> Result<QuantizePlan> {
    check(model, options)?;
    let decisions = Decisions { model, options, family: Family::of(model) };
    let format = options.recipe.format().name();
    let (mut tensors, mut quantized) = (Vec::new(), Vec::new());
    for source in sources(model, options.save.layout)? {
        let (to, reason) = match decisions.of(&source)? {
            Decision::Quantize(orientation, _) => {
                quantized.push(source.name.clone());
                let how = match orientation {
                    Orientation::OutputFirst => "a matrix of weights",
                    Orientation::InputFirst => "experts [experts, K, N], along K",
                };
                (format.to_owned(), how.to_owned())
            }
            Decision::Leave(reason) => match source.encoded {
                Some(_) => ("BF16".into(), reason),
                None => ("copied".into(), reason),
            },
        };
        let Source { name, shape, stored, encoded, .. } = source;
        let from = encoded.map_or(stored, str::to_owned);
        tensors.push(Fate { tensor: name, from, shape, to, reason });
    }
    options.inputs.scales(&quantized, options.save.layout)?;
    Ok(QuantizePlan {
        source: model.path().display().to_string(),
        architecture: architecture(model, options),
        tensors,
        shared: Scales::new(model, options, &quantized).groups,
        inputs: options.inputs.words(),
    })
}

impl fmt::Display for QuantizePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.architecture)?;
        let width = self.tensors.iter().map(|fate| fate.tensor.len()).max().unwrap_or(0);
        for Fate { tensor, from, shape, to, reason } in &self.tensors {
            writeln!(f, "{:width$}  {from} {shape:?} -> {to}: {reason}", shown(tensor))?;
        }
        for group in &self.shared {
            writeln!(f, "one tensor-level scale: {}", group.join(", "))?;
        }
        writeln!(f, "{}", self.inputs)?;
        let count = self.tensors.iter().filter(|fate| fate.to.ends_with("fp4")).count();
        writeln!(
            f,
            "{count} of {} tensors would be quantised; nothing was written",
            self.tensors.len()
        )
    }
}
