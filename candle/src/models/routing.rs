//! The choice of experts.

use candle_core::{DType, Result, Tensor};
use candle_nn::ops::{sigmoid, softmax_last_dim};

use super::config::{Mixture, Weighing};

impl Mixture {
    /// Weights and ids `[tokens, chosen]` from the router's results, on the device.
    pub fn choose(&self, logits: &Tensor, correction: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let logits = logits.to_dtype(DType::F32)?.contiguous()?;
        let largest = |of: &Tensor| -> Result<Tensor> {
            of.arg_sort_last_dim(false)?.narrow(1, 0, self.chosen)?.contiguous()
        };
        match self.weighing {
            Weighing::Chosen => {
                let ids = largest(&logits)?;
                Ok((softmax_last_dim(&logits.gather(&ids, 1)?)?, ids))
            }
            Weighing::All { normalized } => {
                let ids = largest(&logits)?;
                let weights = softmax_last_dim(&logits)?.gather(&ids, 1)?;
                match normalized {
                    true => Ok((weights.broadcast_div(&weights.sum_keepdim(1)?)?, ids)),
                    false => Ok((weights, ids)),
                }
            }
            Weighing::Scores { groups, kept, normalized, factor } => {
                let scores = sigmoid(&logits)?;
                let corrected = match correction {
                    Some(correction) => scores.broadcast_add(correction)?,
                    None => scores.clone(),
                };
                let ids = largest(&in_groups(&corrected, groups, kept)?)?;
                let weights = scores.gather(&ids, 1)?;
                let weights = match normalized {
                    true => weights.broadcast_div(&(weights.sum_keepdim(1)? + LEAST)?)?,
                    false => weights,
                };
                Ok(((weights * factor)?, ids))
            }
        }
    }
}

/// The addend of a sum of scores, which may be 0, before it divides.
const LEAST: f64 = 1e-20;

/// More than scores differ by.
const HIDDEN: f64 = 1e30;

/// Scores `[tokens, experts]`, lower by [`HIDDEN`] or more outside of the `kept` groups whose two largest have the largest sums.
fn in_groups(scores: &Tensor, groups: usize, kept: usize) -> Result<Tensor> {
    if kept == groups {
        return Ok(scores.clone());
    }
    let (tokens, experts) = scores.dims2()?;
    let by_group = scores.reshape((tokens, groups, experts / groups))?;
    let (sorted, _) = by_group.sort_last_dim(false)?;
    let sums = sorted.narrow(2, 0, 2)?.sum(2)?.contiguous()?;
    // The order of the order is each group's place. Arithmetic hides the last: comparisons would bring a number to the device.
    let order = sums.arg_sort_last_dim(false)?.to_dtype(DType::F32)?;
    let places = order.arg_sort_last_dim(true)?.to_dtype(DType::F32)?;
    let hidden = ((places - (kept as f64 - 1.))?.relu()? * -HIDDEN)?;
    by_group.broadcast_add(&hidden.unsqueeze(2)?)?.reshape((tokens, experts))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::super::config::SwiGlu;
    use super::*;

    /// The weights and ids that a plain loop gives a token.
    fn expected(logits: &[f32], correction: &[f32], mixture: Mixture) -> Vec<(u32, f32)> {
        let Weighing::Scores { groups, kept, normalized, factor } = mixture.weighing else {
            panic!("by scores")
        };
        let scores: Vec<f32> = logits.iter().map(|x| 1. / (1. + (-x).exp())).collect();
        let corrected: Vec<f32> = scores.iter().zip(correction).map(|(x, y)| x + y).collect();
        let size = logits.len() / groups;
        let descending = |list: &[f32]| {
            let mut order: Vec<usize> = (0..list.len()).collect();
            order.sort_by(|&x, &y| list[y].total_cmp(&list[x]));
            order
        };
        let sums: Vec<f32> = corrected
            .chunks(size)
            .map(|group| descending(group)[..2].iter().map(|&at| group[at]).sum())
            .collect();
        let best = &descending(&sums)[..kept];
        let open = |at: &usize| best.contains(&(at / size));
        let ids: Vec<usize> =
            descending(&corrected).into_iter().filter(open).take(mixture.chosen).collect();
        let sum: f32 = if normalized { ids.iter().map(|&at| scores[at]).sum() } else { 1. };
        ids.iter().map(|&at| (at as u32, scores[at] / sum * factor as f32)).collect()
    }

    #[test]
    fn experts_are_chosen_in_groups() -> Result<()> {
        const TOKENS: usize = 50;
        for (experts, groups, kept, chosen, normalized) in
            [(8, 4, 2, 3, true), (12, 3, 1, 4, false), (16, 8, 7, 8, true), (6, 1, 1, 2, true)]
        {
            let weighing = Weighing::Scores { groups, kept, normalized, factor: 2.5 };
            let (gate, bias) = (SwiGlu::Plain, false);
            let mixture = Mixture { experts, chosen, inner: 1, shared: None, weighing, gate, bias };
            let logits = Tensor::randn(0f32, 1., (TOKENS, experts), &Device::Cpu)?;
            let correction = Tensor::randn(0f32, 0.3, (1, experts), &Device::Cpu)?;
            let (weights, ids) = mixture.choose(&logits, Some(&correction))?;
            let correction: Vec<f32> = correction.flatten_all()?.to_vec1()?;
            let (weights, ids) = (weights.to_vec2::<f32>()?, ids.to_vec2::<u32>()?);
            for (token, logits) in logits.to_vec2::<f32>()?.iter().enumerate() {
                let right = expected(logits, &correction, mixture);
                let found = ids[token].iter().zip(&weights[token]);
                for ((id, weight), (right_id, right)) in found.zip(right) {
                    assert_eq!(*id, right_id, "{experts} {groups} token {token}");
                    assert!((weight - right).abs() < 1e-5, "{weight} {right}");
                }
            }
        }
        Ok(())
    }
}
