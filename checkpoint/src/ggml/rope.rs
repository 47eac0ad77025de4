//! The scaling of rotary positions: `rope_parameters` or `rope_scaling` of `config.json`, and ggml's keys and its
//! tensor of factors for Llama 3's.

use std::collections::BTreeMap;
use std::f64::consts::TAU;

use nvfp4_gguf::{Scalar, Value};
use serde_json::{Map, Value as Json, json};

use super::names::size;

/// ggml's tensor of Llama 3's factors, by which frequencies are divided.
pub(crate) const FREQUENCIES: &str = "rope_freqs.weight";

/// Numbers of YaRN: ggml's key after `rope.scaling.`, and that of `config.json`.
const YARN: [(&str, &str); 2] = [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")];

/// A scaling in ggml's terms.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Rope {
    /// Keys of the metadata, without the architecture.
    pub keys: BTreeMap<String, Value>,
    /// Factors of the frequencies.
    pub factors: Option<Vec<f32>>,
}

/// The object with the scaling of all layers, or of those with full attention.
fn stated(config: &Json) -> Option<&Map<String, Json>> {
    let texts = [config, &config["text_config"]];
    let places = texts.into_iter().flat_map(|text| {
        let parameters = &text["rope_parameters"];
        [&parameters["full_attention"], parameters, &text["rope_scaling"]]
    });
    places.filter_map(Json::as_object).find(|place| kind(place).is_some())
}

fn kind(stated: &Map<String, Json>) -> Option<&str> {
    ["rope_type", "type"].into_iter().find_map(|key| stated.get(key)?.as_str())
}

impl Rope {
    /// The scaling that a configuration states.
    ///
    /// # Errors
    /// The reason why ggml has no form of it.
    pub fn of_config(config: &Json) -> Result<Self, String> {
        let Some(stated) = stated(config) else { return Ok(Self::default()) };
        let number = |key: &str| {
            let value = stated.get(key).and_then(Json::as_f64);
            value.ok_or_else(|| format!("its scaling of rotary positions has no number {key}"))
        };
        let text = |text: &str| Value::String(text.into());
        let float = |value: f64| Value::Scalar(Scalar::F32(value as f32));
        let mut rope = Self::default();
        let mut key = |key: &str, value| rope.keys.insert(format!("rope.scaling.{key}"), value);
        match kind(stated).unwrap_or_default() {
            "default" | "" => {}
            "linear" => {
                key("type", text("linear"));
                key("factor", float(number("factor")?));
            }
            "yarn" => {
                key("type", text("yarn"));
                key("factor", float(number("factor")?));
                let original = number("original_max_position_embeddings")?;
                key("original_context_length", Value::Scalar(Scalar::U32(original as u32)));
                for (own, name) in YARN {
                    if let Some(value) = stated.get(name).and_then(Json::as_f64) {
                        key(own, float(value));
                    }
                }
                // ggml computes the factor of attention from `factor`, as transformers does without these.
                for name in ["attention_factor", "mscale", "mscale_all_dim"] {
                    if stated.get(name).is_some_and(|value| !value.is_null()) {
                        return Err(format!("its scaling of rotary positions, yarn, has {name}"));
                    }
                }
            }
            "llama3" => {
                let llama3 = Llama3 {
                    factor: number("factor")?,
                    low: number("low_freq_factor")?,
                    high: number("high_freq_factor")?,
                    original: number("original_max_position_embeddings")?,
                };
                let (theta, dim) = frequencies(config).ok_or("it has no rope_theta or head_dim")?;
                rope.factors = Some(llama3.factors(theta, dim));
            }
            other => {
                return Err(format!("its scaling of rotary positions, {other}, has no form there"));
            }
        }
        Ok(rope)
    }
}

/// The base of the frequencies, and the dimension of a head.
fn frequencies(config: &Json) -> Option<(f64, usize)> {
    let number = |key: &str| size(config, key).and_then(|value| value.as_f64());
    let whole = || Some(number("hidden_size")? / number("num_attention_heads")?);
    let dim = number("head_dim").or_else(whole)? as usize;
    Some((number("rope_theta")?, dim.min(1 << 16)))
}

/// Llama 3's scaling: long waves are stretched, short ones are not, and between them there is a line.
#[derive(Clone, Copy, Debug)]
struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    original: f64,
}

impl Llama3 {
    fn factors(self, theta: f64, dim: usize) -> Vec<f32> {
        let Self { factor, low, high, original } = self;
        let of = |pair: usize| {
            let waves = original / wave(theta, dim, pair);
            if waves > high {
                return 1.0;
            }
            if waves < low {
                return factor as f32;
            }
            let smooth = (waves - low) / (high - low);
            (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
        };
        (0..dim / 2).map(of).collect()
    }

    /// The number of positions with which these are the factors, from one that lies on the line.
    fn original(self, theta: f64, dim: usize, factors: &[f32]) -> Option<u64> {
        let Self { factor, low, high, .. } = self;
        let between = |x: f64| x > 1.001 && x < factor * 0.999;
        let (pair, on_line) =
            factors.iter().map(|&x| f64::from(x)).enumerate().find(|(_, x)| between(*x))?;
        let smooth = (1.0 / on_line - 1.0 / factor) / (1.0 - 1.0 / factor);
        let original = ((smooth * (high - low) + low) * wave(theta, dim, pair)).round();
        let own = Self { original, ..self }.factors(theta, dim);
        let close = |(x, y): (&f32, &f32)| (x / y - 1.0).abs() < 1e-4;
        let same = own.len() == factors.len() && own.iter().zip(factors).all(close);
        same.then_some(original as u64)
    }
}

/// Positions of a wave of the frequency of a pair.
fn wave(theta: f64, dim: usize, pair: usize) -> f64 {
    TAU * theta.powf((2 * pair) as f64 / dim as f64)
}

/// The scaling in the terms of `config.json`, from ggml's keys (`get`, after the architecture) and factors of the
/// frequencies; `None` if there is none. The second is whether the factors are in it: they are if they are those of
/// Llama 3.1's parameters for `config`.
pub(crate) fn to_config<'a>(
    config: &Json,
    get: impl Fn(&str) -> Option<&'a Value>,
    factors: Option<&[f32]>,
) -> (Option<Json>, bool) {
    if let (Some(factors), Some((theta, dim))) = (factors, frequencies(config)) {
        let factor = factors.iter().copied().fold(1f32, f32::max);
        let llama3 = Llama3 { factor: factor.into(), low: 1.0, high: 4.0, original: 0.0 };
        if let Some(original) = llama3.original(theta, dim, factors) {
            let stated = json!({
                "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": original,
            });
            return (Some(stated), true);
        }
    }
    let Some(kind @ ("linear" | "yarn")) = get("rope.scaling.type").and_then(Value::as_str) else {
        return (None, false);
    };
    let mut stated = Map::from_iter([("rope_type".to_owned(), Json::from(kind))]);
    let keys =
        [("factor", "factor"), ("original_context_length", "original_max_position_embeddings")];
    for (own, name) in keys.into_iter().chain(YARN) {
        let value = get(&format!("rope.scaling.{own}")).and_then(super::names::to_json);
        if let Some(value) = value {
            stated.insert(name.into(), value);
        }
    }
    (Some(stated.into()), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Llama 3.1's converter: the first pairs as they are, the last a factor of 8.
    #[test]
    fn llama3_stretches_long_waves() {
        let config = json!({
            "head_dim": 128, "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        });
        let rope = Rope::of_config(&config).expect("known");
        let factors = rope.factors.expect("stretched");
        assert_eq!((factors.len(), factors[0], factors[63]), (64, 1.0, 8.0));
        // Half of the way: a wave of 8192 / 2.5.
        assert!(factors.windows(2).all(|pair| pair[0] <= pair[1]), "{factors:?}");
        let middle = factors.iter().filter(|&&x| x > 1.0 && x < 8.0).count();
        assert!((4..=10).contains(&middle), "{factors:?}");
        let (back, whole) = to_config(&config, |_| None, Some(&factors));
        assert!(whole);
        assert_eq!(back.expect("known")["original_max_position_embeddings"], 8192);
        let other: Vec<f32> = factors.iter().map(|x| x + 0.1).collect();
        assert_eq!(to_config(&config, |_| None, Some(&other)), (None, false));
    }

    #[test]
    fn keys_are_those_of_ggml() {
        let yarn = json!({"rope_parameters": {
            "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
        }});
        let rope = Rope::of_config(&yarn).expect("known");
        assert_eq!(rope.keys.len(), 5);
        let (back, _) = to_config(&json!({}), |key| rope.keys.get(key), None);
        let mut stated = yarn["rope_parameters"].clone();
        stated.as_object_mut().expect("an object").remove("rope_theta");
        stated["beta_fast"] = 32.0.into();
        assert_eq!(back, Some(stated));
        let plain = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}});
        assert_eq!(Rope::of_config(&plain), Ok(Rope::default()));
        assert_eq!(Rope::of_config(&json!({"rope_scaling": null})), Ok(Rope::default()));
        for kind in ["dynamic", "longrope"] {
            let other = json!({"rope_scaling": {"type": kind, "factor": 2.0}});
            assert!(Rope::of_config(&other).expect_err("refused").contains(kind));
        }
    }
}
