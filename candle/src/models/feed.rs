//! The part of a layer after its attention: gated projections, or a mixture of experts.

use candle_core::{D, DType, Module, Result, Tensor};
use candle_nn::ops::{sigmoid, silu, softmax_last_dim};
use nvfp4::gemm::Activation as Function;

use super::architecture::Architecture;
use super::config::{Feed, LayerConfig, Mixture, SwiGlu, Weighing};
use super::layers::{Experts, Gated, Projection};
use super::store::{Below, Loader, Matrices};
use super::values::Floats;
use crate::{Gate, GateOrder};

/// The weights of the part.
pub(super) enum Forward {
    Dense { gate_up: Gated, down: Projection },
    Mixture(Box<Mixed>),
}

/// An activation with its limits where it is computed: a number on the host would be copied in each step.
enum Activation {
    Silu,
    Clamped { most: Tensor, least: Tensor, slope: f64 },
}

impl Activation {
    fn new(gate: SwiGlu, loader: &Loader) -> Result<Self> {
        match gate {
            SwiGlu::Plain => Ok(Self::Silu),
            SwiGlu::Clamped { limit, slope } => {
                let (most, least) = (loader.number(limit)?, loader.number(-limit)?);
                Ok(Self::Clamped { most, least, slope })
            }
        }
    }

    fn apply(&self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        match self {
            Self::Silu => silu(gate)? * up,
            Self::Clamped { most, least, slope } => {
                let gate = gate.broadcast_minimum(most)?;
                let up = up.broadcast_minimum(most)?.broadcast_maximum(least)?;
                (up + 1.)? * (&gate * sigmoid(&(&gate * *slope)?)?)?
            }
        }
    }
}

impl Forward {
    /// Loads the part of the layer that `loader` is at.
    pub fn load(
        loader: &Loader,
        architecture: Architecture,
        hidden: usize,
        layer: LayerConfig,
    ) -> Result<Self> {
        let mlp = loader.at("mlp");
        match layer.feed {
            Feed::Dense { inner, bias } => Self::dense(&mlp, [hidden, inner], bias),
            Feed::Mixture(mixture) => {
                let (module, router) = match architecture {
                    Architecture::Mixtral => (loader.at("block_sparse_moe"), "gate"),
                    Architecture::GptOss => (mlp, "router"),
                    Architecture::Llama
                    | Architecture::Qwen3
                    | Architecture::Qwen3Moe
                    | Architecture::DeepseekV3 => (mlp, "gate"),
                };
                let mixed = Mixed::load(&module, router, architecture, hidden, mixture)?;
                Ok(Self::Mixture(Box::new(mixed)))
            }
        }
    }

    /// Loads the projections of the module that `mlp` is at.
    fn dense(mlp: &Loader, [hidden, inner]: [usize; 2], bias: bool) -> Result<Self> {
        let (paths, gate) = (["gate_proj", "up_proj"], SwiGlu::Plain.of(GateOrder::Halves));
        Ok(Self::Dense {
            gate_up: mlp.gated(paths, hidden, inner, bias, gate)?,
            down: mlp.linear("down_proj", [inner, hidden], bias)?,
        })
    }

    /// The result for rows `x`, `[.., hidden]`, plus `residual`.
    pub fn forward(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense { gate_up, down } => {
                let inner = gate_up.forward(x, |gate, up| Activation::Silu.apply(gate, up))?;
                down.forward_add(&inner, residual)
            }
            Self::Mixture(mixed) => {
                let hidden = x.dim(D::Minus1)?;
                let routed = mixed.forward(&x.reshape(((), hidden))?)?.reshape(x.dims())?;
                match &mixed.shared {
                    Some(shared) => routed + shared.forward(x, residual)?,
                    None => routed + residual,
                }
            }
        }
    }

    /// The number of products with weights.
    pub fn products(&self) -> usize {
        match self {
            Self::Dense { gate_up, .. } => gate_up.products() + 1,
            Self::Mixture(mixed) => {
                let routed = match mixed.gate_up {
                    GateUp::Joint(..) => 3,
                    GateUp::Apart(..) => 4,
                };
                routed + mixed.shared.as_ref().map_or(0, Self::products)
            }
        }
    }
}

/// The projections of experts before the activation.
enum GateUp {
    /// With the activation between them if they are in four bits.
    Joint(Experts, Gate),
    Apart(Experts, Experts),
}

/// A mixture's weights.
pub(super) struct Mixed {
    config: Mixture,
    activation: Activation,
    router: Projection,
    /// Numbers `[1, experts]` that are added to scores when experts are chosen.
    correction: Option<Tensor>,
    gate_up: GateUp,
    down: Experts,
    /// The experts that all tokens take.
    shared: Option<Forward>,
}

impl Mixed {
    fn load(
        module: &Loader,
        router: &str,
        architecture: Architecture,
        hidden: usize,
        config: Mixture,
    ) -> Result<Self> {
        let Mixture { experts: count, inner, bias, .. } = config;
        let own = module.at("experts");
        let has = |name: &str| own.builder.contains(name);
        // gpt-oss's floats have the inputs first, and gate and up alternate in one tensor.
        let is_gpt_oss = architecture == Architecture::GptOss;
        let joint = |name: &str, sizes: [usize; 3], gate| -> Result<Option<Experts>> {
            let weight = format!("{name}.weight");
            let Some(tensor) = [name, &weight].into_iter().find(|name| has(name)) else {
                return Ok(None);
            };
            let biases = [format!("{name}_bias"), format!("{name}.bias")];
            let bias = own.experts_bias(
                &biases.each_ref().map(String::as_str),
                [sizes[0], sizes[1]],
                bias,
            )?;
            let is_turned = is_gpt_oss && tensor == name;
            own.experts(own.matrices(tensor, sizes, is_turned)?, bias.as_ref(), gate).map(Some)
        };
        let (up, down) = ([count, inner, hidden], [count, hidden, inner]);
        let names = match has("0.w1.weight") || has("0.w2.weight") {
            true => ["w1", "w3", "w2"],
            false => ["gate_proj", "up_proj", "down_proj"],
        };
        let order = if is_gpt_oss { GateOrder::Alternating } else { GateOrder::Halves };
        let own_order = config.gate.of(order);
        let gate_up = match joint("gate_up_proj", [count, 2 * inner, hidden], Some(own_order))? {
            Some(layer) => GateUp::Joint(layer, own_order),
            None => {
                let [gate, linear] = [names[0], names[1]];
                let biases =
                    [gate, linear].map(|name| own.bias_of_each(name, [count, inner], bias));
                let [of_gate, of_up] = biases;
                let (of_gate, of_up) = (of_gate?, of_up?);
                let all = vec![own.of_each(gate, up)?, own.of_each(linear, up)?];
                match Matrices::joined(all)? {
                    Below::One(one) => {
                        let biases = of_gate.zip(of_up);
                        let bias = biases.map(|(gate, up)| Floats::joined(vec![gate, up], count));
                        let gate = config.gate.of(GateOrder::Halves);
                        GateUp::Joint(own.experts(one, bias.as_ref(), Some(gate))?, gate)
                    }
                    Below::Apart(mut all) => {
                        let mut layer = |bias: Option<Floats>| {
                            all.pop().map(|one| own.experts(one, bias.as_ref(), None)).transpose()
                        };
                        let (up, gate) = (layer(of_up)?, layer(of_gate)?);
                        match (gate, up) {
                            (Some(gate), Some(up)) => GateUp::Apart(gate, up),
                            _ => unreachable!("two matrices that are not joined are two"),
                        }
                    }
                }
            }
        };
        let down = match joint("down_proj", down, None)? {
            Some(layer) => layer,
            None => {
                let bias = own.bias_of_each(names[2], [count, hidden], bias)?;
                own.experts(own.of_each(names[2], down)?, bias.as_ref(), None)?
            }
        };
        // Choices are made in floats in every checkpoint.
        let builder = module.builder.without_quantizing();
        let (dtype, by_scores) = match config.weighing {
            // Scores are near each other, so that they are those of f32.
            Weighing::Scores { .. } => (DType::F32, true),
            Weighing::All { .. } | Weighing::Chosen => (module.dtype, false),
        };
        let of_router = Loader { builder, dtype, ..module.clone() };
        let correction = || -> Result<Tensor> {
            let correction = of_router.at(router).tensor("e_score_correction_bias", &[count])?;
            correction.reshape((1, count))
        };
        let correction = by_scores.then(correction).transpose()?;
        let router = of_router.linear(router, [hidden, count], bias)?;
        let dense = |inner| Forward::dense(&module.at("shared_experts"), [hidden, inner], false);
        let shared = config.shared.map(dense).transpose()?;
        let activation = Activation::new(config.gate, module)?;
        Ok(Self { config, activation, router, correction, gate_up, down, shared })
    }

    /// The result for rows `[tokens, hidden]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let logits = match &self.correction {
            Some(correction) => self.router.forward(&x.to_dtype(correction.dtype())?)?,
            None => self.router.forward(x)?,
        };
        let (weights, ids) = self.config.choose(&logits, self.correction.as_ref())?;
        let inner = match &self.gate_up {
            GateUp::Joint(layer, gate) => {
                let both = layer.forward(x, &ids)?;
                match layer {
                    Experts::Packed(..) => both,
                    Experts::Floats { .. } => {
                        let [gate, up] = gate.halves(&both)?;
                        self.activation.apply(&gate, &up)?
                    }
                }
            }
            GateUp::Apart(gate, up) => {
                self.activation.apply(&gate.forward(x, &ids)?, &up.forward(x, &ids)?)?
            }
        };
        let y = self.down.forward(&inner.contiguous()?, &ids)?;
        y.broadcast_mul(&weights.unsqueeze(2)?.to_dtype(y.dtype())?)?.sum(1)
    }
}

impl SwiGlu {
    /// The same as products compute it.
    fn of(self, order: GateOrder) -> Gate {
        let activation = match self {
            Self::Plain => Function::Silu,
            Self::Clamped { limit, slope } => {
                Function::ClampedSwiglu { limit: limit as f32, slope: slope as f32 }
            }
        };
        Gate { activation, order }
    }
}

impl Mixture {
    /// Weights and ids `[tokens, chosen]` from the router's results, on the device.
    fn choose(&self, logits: &Tensor, correction: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
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

/// A sum of scores is not divided by less.
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
