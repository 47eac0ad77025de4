//! Tensors and settings that change what a quantised weight means.
//!
//! | where | what | effect |
//! | --- | --- | --- |
//! | `m.pre_quant_scale` | ModelOpt's AWQ and SVDQuant | inputs are multiplied by it, column by column |
//! | `m.weight_quantizer._svdquant_lora_a`, `.._b` | ModelOpt's SVDQuant | `b a` is added to the weight |
//! | `transform_config` | compressed-tensors' SpinQuant, QuIP | weights and inputs are rotated |
//! | `rotation_config`, `spinquant_config` | AutoRound | weights and inputs are rotated |
//!
//! A weight is compared with its original once the first two are folded into it. Rotations are
//! not. AWQ also moves factors into layers before, where only their best values can be found.

use super::file::FloatTensor;
use super::model::Model;
use super::weight::module;
use crate::error::{CheckpointError, Result};

const PRE_QUANT_SCALE: &str = "pre_quant_scale";
const LOW_RANK: &str = "svdquant_lora_";

/// The tensors of side data, sorted.
pub(super) fn tensors(model: &Model) -> Vec<&str> {
    let side = |name: &&str| {
        let last = name.rsplit_once('.').map_or(*name, |(_, last)| last);
        last.ends_with(PRE_QUANT_SCALE) || last.contains(LOW_RANK)
    };
    model.names().filter(side).collect()
}

/// Whether side data belongs to a weight.
pub(super) fn has(model: &Model, name: &str) -> bool {
    let of = module(name);
    let below = |tensor: &str| tensor.strip_prefix(of).is_some_and(|rest| rest.starts_with('.'));
    tensors(model).into_iter().any(below)
}

/// The names of the rotations in `transform_config`.
pub(super) fn transforms(model: &Model) -> Vec<&str> {
    let groups =
        |config: &serde_json::Value| config["transform_config"]["config_groups"].is_object();
    let config = model.quantization_config().filter(|config| groups(config));
    let groups = config.and_then(|config| config["transform_config"]["config_groups"].as_object());
    // AutoRound's, whose values are not groups.
    let own = ["rotation_config", "spinquant_config"]
        .into_iter()
        .filter(|key| model.quantization_config().is_some_and(|config| config[key].is_object()));
    groups.into_iter().flat_map(|groups| groups.keys().map(String::as_str)).chain(own).collect()
}

/// Folds the side data of a weight `[N, K]` into its values; whether it has any.
pub(super) fn fold(model: &Model, name: &str, cols: usize, values: &mut [f32]) -> Result<bool> {
    let mut folded = false;
    let of = module(name);
    let tensor = |name: &str| -> Result<Option<FloatTensor>> {
        match model.contains(name) {
            true => Ok(Some(model.file(name)?.floats(name)?)),
            false => Ok(None),
        }
    };
    let low_rank = |which: &str| format!("{of}.weight_quantizer._{LOW_RANK}{which}");
    let (a_name, b_name) = (low_rank("a"), low_rank("b"));
    if let (Some(a), Some(b)) = (tensor(&a_name)?, tensor(&b_name)?) {
        let rows = values.len() / cols.max(1);
        let rank = a.shape.first().copied().unwrap_or(0);
        if (a.shape.as_slice(), b.shape.as_slice()) != (&[rank, cols], &[rows, rank]) {
            let required = format!("[rank, {cols}], and {b_name} [{rows}, rank]");
            let actual = format!("{:?} and {:?}", a.shape, b.shape);
            return Err(CheckpointError::shape(a_name, required, actual));
        }
        let (a, b) = (a.values, b.values);
        folded = true;
        for (row, values) in values.chunks_exact_mut(cols).enumerate() {
            for (at, &factor) in b[row * rank..][..rank].iter().enumerate() {
                for (value, &x) in values.iter_mut().zip(&a[at * cols..][..cols]) {
                    *value += factor * x;
                }
            }
        }
    }
    let name = format!("{of}.{PRE_QUANT_SCALE}");
    if let Some(FloatTensor { shape, values: scales }) = tensor(&name)? {
        if scales.len() != cols {
            return Err(CheckpointError::shape(
                name,
                format!("{cols} values"),
                format!("{shape:?}"),
            ));
        }
        for values in values.chunks_exact_mut(cols.max(1)) {
            values.iter_mut().zip(&scales).for_each(|(value, &scale)| *value *= scale);
        }
        folded = true;
    }
    Ok(folded)
}

/// Whether a ModelOpt algorithm moves factors of a weight's columns into the layer before, and so
/// of that layer's rows.
pub(super) fn moves_factors(algorithm: &str) -> bool {
    algorithm.ends_with("_AWQ") || algorithm.ends_with("_SVD")
}

/// `after` with the factors of rows and columns that bring it nearest to `before`.
pub(super) fn rescaled(before: &[f32], after: &[f32], cols: usize) -> Vec<f32> {
    const ROUNDS: usize = 3;
    let factor = |[product, square]: [f64; 2]| {
        if square > 0.0 { (product / square) as f32 } else { 1.0 }
    };
    let mut values = after.to_vec();
    let cols = cols.max(1);
    for _ in 0..ROUNDS {
        let mut sums = vec![[0f64; 2]; cols];
        for (before, values) in before.chunks_exact(cols).zip(values.chunks_exact_mut(cols)) {
            let pairs = before.iter().zip(values.iter());
            let row = pairs.fold([0f64; 2], |[product, square], (&x, &y)| {
                [product + f64::from(x) * f64::from(y), square + f64::from(y).powi(2)]
            });
            let scale = factor(row);
            for ((value, &x), sums) in values.iter_mut().zip(before).zip(&mut sums) {
                *value *= scale;
                sums[0] += f64::from(x) * f64::from(*value);
                sums[1] += f64::from(*value).powi(2);
            }
        }
        for values in values.chunks_exact_mut(cols) {
            values.iter_mut().zip(&sums).for_each(|(value, &sums)| *value *= factor(sums));
        }
    }
    values
}
