//! Rotary positions: the frequencies of `default`, `linear`, `llama3` and `yarn`, as transformers computes them.

use std::f64::consts::TAU;

use candle_core::{DType, Device, Result, Tensor};
use serde_json::Value;

use super::architecture::Architecture;
use super::fields::Fields;

/// The frequencies of a model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rope {
    base: f64,
    /// Elements of a head.
    dim: usize,
    scaling: Scaling,
}

#[derive(Clone, Debug, PartialEq)]
enum Scaling {
    Default,
    Linear { factor: f64 },
    Llama3 { factor: f64, low: f64, high: f64, original: f64 },
    Yarn(Yarn),
}

#[derive(Clone, Debug, PartialEq)]
struct Yarn {
    factor: f64,
    original: f64,
    fast: f64,
    slow: f64,
    truncate: bool,
    /// The factor of cosines and sines.
    attention: f64,
    /// The factor of scores in latent attention.
    scores: f64,
}

impl Rope {
    /// Reads `rope_parameters`, or `rope_theta` and `rope_scaling` of older files. Llama's oldest have no base.
    pub fn of(
        fields: &Fields<'_>,
        dim: usize,
        positions: usize,
        architecture: Architecture,
    ) -> Result<Self> {
        let (path, object) = match fields.value("rope_parameters") {
            Value::Null => ("rope_scaling", fields.value("rope_scaling")),
            parameters => ("rope_parameters", parameters),
        };
        let empty = Value::Object(serde_json::Map::new());
        let own = Fields::within(if object.is_null() { &empty } else { object }, path)?;
        let base = match own.optional_number("rope_theta")? {
            Some(base) => base,
            None => match fields.optional_number("rope_theta")? {
                Some(base) => base,
                None if architecture == Architecture::Llama => 10000.,
                None => return Err(fields.wrong("rope_theta", "a number")),
            },
        };
        if base <= 1. {
            return Err(fields.wrong("rope_theta", "above 1"));
        }
        if own.optional_number("partial_rotary_factor")?.is_some_and(|part| part != 1.) {
            return Err(own.wrong("partial_rotary_factor", "absent or 1"));
        }
        let key = if own.value("rope_type").is_null() { "type" } else { "rope_type" };
        // Older files have the kind under both names.
        own.value("type");
        let scaling = match own.text(key)?.unwrap_or("default") {
            "default" => Scaling::Default,
            "linear" => Scaling::Linear { factor: at_least_one(&own, "factor")? },
            "llama3" => {
                let (low, high) = (own.number("low_freq_factor")?, own.number("high_freq_factor")?);
                if !(0. < low && low < high) {
                    return Err(
                        own.wrong("high_freq_factor", format!("above {low}, the low one, above 0"))
                    );
                }
                let original = own.size("original_max_position_embeddings")? as f64;
                Scaling::Llama3 { factor: at_least_one(&own, "factor")?, low, high, original }
            }
            "yarn" => {
                // gpt-oss's files have it otherwise than the default; GGUF does not say it.
                if architecture == Architecture::GptOss && own.value("truncate").is_null() {
                    return Err(own.wrong("truncate", "true or false"));
                }
                Scaling::Yarn(Yarn::of(&own, positions)?)
            }
            _ => return Err(own.wrong(key, "\"default\", \"linear\", \"llama3\" or \"yarn\"")),
        };
        if let Some(field) = own.unread(&[]).first() {
            let required = "absent, as it is not one that this kind of positions has here";
            return Err(own.wrong(field, required));
        }
        Ok(Self { base, dim, scaling })
    }

    /// Radians for each position of each pair of elements.
    fn frequencies(&self) -> Vec<f64> {
        let half = self.dim / 2;
        let plain = |at: usize| self.base.powf(-2. * at as f64 / self.dim as f64);
        let all = (0..half).map(plain);
        match &self.scaling {
            Scaling::Default => all.collect(),
            Scaling::Linear { factor } => all.map(|frequency| frequency / factor).collect(),
            Scaling::Llama3 { factor, low, high, original } => all
                .map(|frequency| {
                    let wavelength = TAU / frequency;
                    // From 0 at the longest waves, which are stretched, to 1 at the shortest, which stay.
                    let kept = (original / wavelength - low) / (high - low);
                    let kept = kept.clamp(0., 1.);
                    (1. - kept) * frequency / factor + kept * frequency
                })
                .collect(),
            Scaling::Yarn(yarn) => {
                let [low, high] = yarn.range(self.base, self.dim);
                let ramp = |at: usize| ((at as f64 - low) / (high - low)).clamp(0., 1.);
                let mixed = |(at, frequency): (usize, f64)| {
                    frequency / yarn.factor * ramp(at) + frequency * (1. - ramp(at))
                };
                all.enumerate().map(mixed).collect()
            }
        }
    }

    /// The factor of scores in latent attention.
    pub fn of_scores(&self) -> f64 {
        match &self.scaling {
            Scaling::Yarn(yarn) => yarn.scores,
            Scaling::Default | Scaling::Linear { .. } | Scaling::Llama3 { .. } => 1.,
        }
    }

    /// Cosines and sines `[positions, dim / 2]`.
    pub fn tables(&self, positions: usize, dtype: DType, device: &Device) -> Result<[Tensor; 2]> {
        let factor = match &self.scaling {
            Scaling::Yarn(yarn) => yarn.attention as f32,
            Scaling::Default | Scaling::Linear { .. } | Scaling::Llama3 { .. } => 1.,
        };
        // Angles are products of f32, as elsewhere.
        let frequencies: Vec<f32> = self.frequencies().into_iter().map(|x| x as f32).collect();
        let table = |of: fn(f32) -> f32| -> Result<Tensor> {
            let row = |at: usize| frequencies.iter().map(move |x| of(at as f32 * x) * factor);
            let values: Vec<f32> = (0..positions).flat_map(row).collect();
            let table = Tensor::from_vec(values, (positions, frequencies.len()), &Device::Cpu)?;
            table.to_dtype(dtype)?.to_device(device)
        };
        Ok([table(f32::cos)?, table(f32::sin)?])
    }
}

fn at_least_one(fields: &Fields<'_>, name: &str) -> Result<f64> {
    let number = fields.number(name)?;
    if number < 1. { Err(fields.wrong(name, "at least 1")) } else { Ok(number) }
}

impl Yarn {
    fn of(fields: &Fields<'_>, positions: usize) -> Result<Self> {
        let original = fields.optional_size("original_max_position_embeddings")?;
        let original = original.unwrap_or(positions) as f64;
        let factor = match fields.value("factor") {
            Value::Null => positions as f64 / original,
            _ => at_least_one(fields, "factor")?,
        };
        let optional = |name: &str| fields.optional_number(name);
        // The factor of cosines and sines that a scale is worth.
        let worth = |scale: f64, by: f64| if scale <= 1. { 1. } else { 0.1 * by * scale.ln() + 1. };
        let attention =
            match (optional("attention_factor")?, optional("mscale")?, optional("mscale_all_dim")?)
            {
                (Some(factor), _, _) if factor > 0. => factor,
                (Some(_), _, _) => return Err(fields.wrong("attention_factor", "above 0")),
                (None, Some(own), Some(all)) if own != 0. && all != 0. => {
                    worth(factor, own) / worth(factor, all)
                }
                (None, _, _) => worth(factor, 1.),
            };
        let of_scores = optional("mscale_all_dim")?.filter(|all| *all != 0.);
        let scores = of_scores.map_or(1., |all| worth(factor, all).powi(2));
        let fast = optional("beta_fast")?.unwrap_or(32.);
        let slow = optional("beta_slow")?.unwrap_or(1.);
        if !(0. < slow && slow <= fast) {
            return Err(fields.wrong("beta_fast", format!("at least {slow}, beta_slow, above 0")));
        }
        let truncate = fields.flag("truncate", true)?;
        Ok(Self { factor, original, fast, slow, truncate, attention, scores })
    }

    /// The pairs of elements between which frequencies pass from kept to stretched.
    fn range(&self, base: f64, dim: usize) -> [f64; 2] {
        let pair = |rotations: f64| {
            dim as f64 * (self.original / (rotations * TAU)).ln() / (2. * base.ln())
        };
        let (mut low, mut high) = (pair(self.fast), pair(self.slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.), high.min(dim as f64 - 1.));
        [low, if low == high { high + 0.001 } else { high }]
    }
}
