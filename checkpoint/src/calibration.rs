//! Largest magnitudes of layers' inputs from calibration, and the scales of inputs that follow from them.
//!
//! A file of calibration is a safetensors file with a float scalar for each layer, under the name of its module:
//! `model.layers.0.mlp.up_proj`. Experts in one tensor have the tensor's name, `..mlp.experts.down_proj`, and one scalar
//! for all of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fp4_formats::quantize::Format;
use fp4_formats::{Nvfp4, e4m3};

use super::error::CheckpointError;
use super::file::Checkpoint;
use super::inputs::Inputs;
use super::orientation::EXPERTS;
use super::parts::Layout;
use super::shared;
use super::weight::{Convention, GlobalScale, module};
use crate::error::Result;

/// Elements with one scale in a weight whose inputs are FP8: ModelOpt's `W4A8_NVFP4_FP8`.
pub(super) const GROUP_OF_FP8: usize = 32;

/// The largest magnitudes of layers' inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    path: PathBuf,
    magnitudes: BTreeMap<String, f32>,
}

impl Calibration {
    /// Reads a file of calibration.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::open`] and [`Checkpoint::scalar`]; [`CheckpointError::Malformed`] for a number
    /// below zero.
    pub fn open(path: &Path) -> Result<Self> {
        let file = Checkpoint::open(path)?;
        let mut magnitudes = BTreeMap::new();
        for entry in file.entries() {
            let magnitude = file.scalar(&entry.name)?;
            if magnitude < 0.0 {
                let reason = format!("`{}` is {magnitude}, no magnitude", entry.name);
                return Err(CheckpointError::Malformed { path: path.into(), reason });
            }
            magnitudes.insert(entry.name, magnitude);
        }
        Ok(Self { path: path.into(), magnitudes })
    }
}

/// The quantisation of layers' inputs in the output of [`quantize_model`](super::quantize_model).
#[derive(Clone, Debug, Default, PartialEq)]
pub enum QuantizedInputs {
    /// Inputs that are not quantised: W4A16.
    #[default]
    Float,
    /// Inputs in NVFP4 with a tensor-level scale from calibration: W4A4.
    Nvfp4(Calibration),
    /// Inputs in FP8 with a scale from calibration, weights with one scale for 32 elements: W4A8 in ModelOpt's layout.
    Fp8(Calibration),
}

/// The scales of weights' inputs.
#[derive(Debug, Default)]
pub(super) struct InputScales {
    /// The scale of each weight.
    pub of: BTreeMap<String, GlobalScale>,
    /// Experts that calibration never reached.
    pub filled: Vec<String>,
}

impl QuantizedInputs {
    /// The kind of inputs that the output's configuration states.
    pub(super) const fn stated(&self) -> Inputs {
        match self {
            Self::Float => Inputs::Float,
            Self::Nvfp4(_) => Inputs::Calibrated,
            Self::Fp8(_) => Inputs::Fp8,
        }
    }

    /// The same in words.
    pub(super) const fn words(&self) -> &'static str {
        match self {
            Self::Float => "inputs are not quantised (W4A16)",
            Self::Nvfp4(_) => "inputs are NVFP4 with scales from calibration (W4A4)",
            Self::Fp8(_) => "inputs are FP8 with scales from calibration (W4A8)",
        }
    }

    /// Elements with one stored scale in a weight of `format`.
    pub(super) const fn group(&self, format: Format) -> usize {
        match self {
            Self::Float | Self::Nvfp4(_) => format.block() as usize,
            Self::Fp8(_) => GROUP_OF_FP8,
        }
    }

    /// The scales of the inputs of `weights`. Weights that readers join have one, from their largest magnitude.
    ///
    /// # Errors
    /// [`CheckpointError::Malformed`], naming a layer without a magnitude above zero. An expert of several may lack one:
    /// it gets the largest of its layer.
    pub(super) fn scales(&self, weights: &[String], layout: Layout) -> Result<InputScales> {
        let (calibration, largest_code) = match self {
            Self::Float => return Ok(InputScales::default()),
            Self::Nvfp4(calibration) => (calibration, Nvfp4::MAX_SCALED),
            Self::Fp8(calibration) => (calibration, e4m3::MAX),
        };
        let Calibration { path, magnitudes } = calibration;
        let layer = |weight: &String| match weight.ends_with(EXPERTS) {
            true => weight.clone(),
            false => module(weight).to_owned(),
        };
        let usable = |amax: &f32| *amax > 0.0 && (largest_code / amax).is_finite();
        let reached = |weight| magnitudes.get(&layer(weight)).copied().filter(usable);
        let mut of_layer: BTreeMap<String, f32> = BTreeMap::new();
        for weight in weights {
            if let (Some(experts), Some(amax)) =
                (shared::among_experts(module(weight)), reached(weight))
            {
                let largest = of_layer.entry(experts).or_default();
                *largest = largest.max(amax);
            }
        }
        let (mut own, mut filled) = (Vec::new(), Vec::new());
        for weight in weights {
            let amax = reached(weight).or_else(|| {
                filled.push(weight.clone());
                of_layer.get(&shared::among_experts(module(weight))?).copied()
            });
            let Some(amax) = amax else {
                let reason = format!(
                    "it has no magnitude above zero for `{}`, the inputs of a layer that is quantised; --exclude \
                     leaves layers out",
                    layer(weight)
                );
                return Err(CheckpointError::Malformed { path: path.clone(), reason });
            };
            own.push(amax);
        }
        for group in shared::groups(weights.iter().map(String::as_str)) {
            let largest = group.iter().map(|&at| own[at]).fold(0f32, f32::max);
            group.iter().for_each(|&at| own[at] = largest);
        }
        let scale = |amax: f32| match layout.convention() {
            Convention::Multiplier | Convention::Largest => {
                GlobalScale::Multiplier(amax / largest_code)
            }
            Convention::Divisor => GlobalScale::Divisor(largest_code / amax),
        };
        let of = weights.iter().zip(own).map(|(weight, amax)| (weight.clone(), scale(amax)));
        Ok(InputScales { of: of.collect(), filled })
    }
}
