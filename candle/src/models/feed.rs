//! The part of a layer after its attention: gated projections, or a mixture of experts.

use candle_core::{D, Module, Result, Tensor};
use candle_nn::ops::{sigmoid, silu, softmax_last_dim};

use super::architecture::Architecture;
use super::config::{Feed, Gate, LayerConfig, Mixture, Weighing};
use super::layers::{Experts, Joined, Projection};
use super::store::{Below, Loader, Matrices};
use super::values::Floats;

/// The weights of the part.
pub(super) enum Forward {
    Dense { gate_up: Joined, down: Projection },
    Mixture(Box<Mixed>),
}

/// An activation with its limits where it is computed: a number on the host would be copied in each step.
enum Activation {
    Silu,
    Clamped { most: Tensor, least: Tensor, slope: f64 },
}

impl Activation {
    fn new(gate: Gate, loader: &Loader) -> Result<Self> {
        match gate {
            Gate::Silu => Ok(Self::Silu),
            Gate::Clamped { limit, slope } => {
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
            Feed::Dense { inner, bias } => Ok(Self::Dense {
                gate_up: mlp.joined(&["gate_proj", "up_proj"], hidden, &[inner, inner], bias)?,
                down: mlp.linear("down_proj", [inner, hidden], bias)?,
            }),
            Feed::Mixture(mixture) => {
                let (module, router) = match architecture {
                    Architecture::Mixtral => (loader.at("block_sparse_moe"), "gate"),
                    Architecture::GptOss => (mlp, "router"),
                    Architecture::Llama | Architecture::Qwen3 | Architecture::Qwen3Moe => {
                        (mlp, "gate")
                    }
                };
                let mixed = Mixed::load(&module, router, architecture, hidden, mixture)?;
                Ok(Self::Mixture(Box::new(mixed)))
            }
        }
    }

    /// The result for rows `[.., hidden]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense { gate_up, down } => {
                let halves = gate_up.forward(x)?;
                down.forward(&Activation::Silu.apply(&halves[0], &halves[1])?)
            }
            Self::Mixture(mixed) => {
                let hidden = x.dim(D::Minus1)?;
                mixed.forward(&x.reshape(((), hidden))?)?.reshape(x.dims())
            }
        }
    }

    /// The number of products with weights.
    pub fn products(&self) -> usize {
        match self {
            Self::Dense { gate_up, .. } => gate_up.products() + 1,
            Self::Mixture(mixed) => match mixed.gate_up {
                GateUp::Joint { .. } => 3,
                GateUp::Apart(..) => 4,
            },
        }
    }
}

/// The projections of experts before the activation.
enum GateUp {
    /// Rows of gate and up alternate, or those of the gate come first.
    Joint {
        layer: Experts,
        alternate: bool,
    },
    Apart(Experts, Experts),
}

/// A mixture's weights.
pub(super) struct Mixed {
    config: Mixture,
    activation: Activation,
    router: Projection,
    gate_up: GateUp,
    down: Experts,
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
        let joint = |name: &str, sizes: [usize; 3]| -> Result<Option<Experts>> {
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
            own.experts(own.matrices(tensor, sizes, is_turned)?, bias.as_ref()).map(Some)
        };
        let (up, down) = ([count, inner, hidden], [count, hidden, inner]);
        let names = match has("0.w1.weight") || has("0.w2.weight") {
            true => ["w1", "w3", "w2"],
            false => ["gate_proj", "up_proj", "down_proj"],
        };
        let gate_up = match joint("gate_up_proj", [count, 2 * inner, hidden])? {
            Some(layer) => GateUp::Joint { layer, alternate: is_gpt_oss },
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
                        GateUp::Joint { layer: own.experts(one, bias.as_ref())?, alternate: false }
                    }
                    Below::Apart(mut all) => {
                        let up = all.pop().map(|up| own.experts(up, of_up.as_ref())).transpose()?;
                        let gate = all
                            .pop()
                            .map(|gate| own.experts(gate, of_gate.as_ref()))
                            .transpose()?;
                        match (gate, up) {
                            (Some(gate), Some(up)) => GateUp::Apart(gate, up),
                            _ => unreachable!("two matrices that are not joined are two"),
                        }
                    }
                }
            }
        };
        let down = match joint("down_proj", down)? {
            Some(layer) => layer,
            None => {
                let bias = own.bias_of_each(names[2], [count, hidden], bias)?;
                own.experts(own.of_each(names[2], down)?, bias.as_ref())?
            }
        };
        // Choices are made in floats in every checkpoint.
        let builder = module.builder.without_quantizing();
        let router = Loader { builder, ..module.clone() }.linear(router, [hidden, count], bias)?;
        let activation = Activation::new(config.gate, module)?;
        Ok(Self { config, activation, router, gate_up, down })
    }

    /// The result for rows `[tokens, hidden]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (weights, ids) = self.config.choose(&self.router.forward(x)?)?;
        let (gate, up) = match &self.gate_up {
            GateUp::Joint { layer, alternate } => {
                let both = layer.forward(x, &ids)?;
                let (tokens, chosen, inner) = both.dims3()?;
                match alternate {
                    true => {
                        let pairs = both.reshape((tokens, chosen, inner / 2, 2))?;
                        (pairs.narrow(3, 0, 1)?.squeeze(3)?, pairs.narrow(3, 1, 1)?.squeeze(3)?)
                    }
                    false => (both.narrow(2, 0, inner / 2)?, both.narrow(2, inner / 2, inner / 2)?),
                }
            }
            GateUp::Apart(gate, up) => (gate.forward(x, &ids)?, up.forward(x, &ids)?),
        };
        let y = self.down.forward(&self.activation.apply(&gate, &up)?.contiguous()?, &ids)?;
        y.broadcast_mul(&weights.unsqueeze(2)?.to_dtype(y.dtype())?)?.sum(1)
    }
}

impl Mixture {
    /// Weights and ids `[tokens, chosen]` from the router's results, on the device.
    fn choose(&self, logits: &Tensor) -> Result<(Tensor, Tensor)> {
        let logits = logits.to_dtype(candle_core::DType::F32)?.contiguous()?;
        let ids = logits.arg_sort_last_dim(false)?.narrow(1, 0, self.chosen)?.contiguous()?;
        let weights = match self.weighing {
            Weighing::Chosen => softmax_last_dim(&logits.gather(&ids, 1)?)?,
            Weighing::All { normalized } => {
                let weights = softmax_last_dim(&logits)?.gather(&ids, 1)?;
                match normalized {
                    true => weights.broadcast_div(&weights.sum_keepdim(1)?)?,
                    false => weights,
                }
            }
        };
        Ok((weights, ids))
    }
}
