//! The part of a layer after its attention: gated projections, or a mixture of experts.

use std::sync::Arc;

use candle_core::{D, Module, Result, Tensor};
use candle_nn::ops::{sigmoid, silu, softmax_last_dim};
use nvfp4::gemm::Activation as Function;

use super::architecture::Architecture;
use super::config::{Feed, LayerConfig, Mixture, SwiGlu, Weighing};
use super::layers::{Experts, Gated, Projection};
use super::meter::Meter;
use super::store::{Below, Loader, Matrices};
use crate::{Gate, GateOrder, MoeMlp};

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
            Feed::Dense { inner, bias } => Ok(Self::Dense {
                gate_up: mlp.gated(
                    ["gate_proj", "up_proj"],
                    hidden,
                    inner,
                    bias,
                    SwiGlu::Plain.of(GateOrder::Halves),
                )?,
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

    /// The result for rows `x`, `[.., hidden]`, plus `residual`.
    pub fn forward(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense { gate_up, down } => {
                let inner = gate_up.forward(x, |gate, up| Activation::Silu.apply(gate, up))?;
                down.forward_add(&inner, residual)
            }
            Self::Mixture(mixed) => {
                let hidden = x.dim(D::Minus1)?;
                let rows = |x: &Tensor| x.reshape(((), hidden));
                mixed.forward(&rows(x)?, &rows(residual)?)?.reshape(x.dims())
            }
        }
    }

    /// The number of products with weights.
    pub fn products(&self) -> usize {
        match self {
            Self::Dense { gate_up, .. } => gate_up.products() + 1,
            Self::Mixture(mixed) => match mixed.projections {
                Projections::Whole(..) | Projections::Apart { gate_up: GateUp::Joint(..), .. } => 3,
                Projections::Apart { gate_up: GateUp::Apart(..), .. } => 4,
            },
        }
    }
}

/// The projections of experts.
enum Projections {
    /// All in one operation.
    Whole(MoeMlp, Arc<Meter>),
    Apart {
        gate_up: GateUp,
        down: Experts,
    },
}

/// The projections of experts before the activation.
enum GateUp {
    /// With the activation between them if they are in four bits.
    Joint(Experts, Gate),
    Apart(Experts, Experts),
}

impl GateUp {
    /// The rows between the projections.
    fn forward(&self, x: &Tensor, ids: &Tensor, activation: &Activation) -> Result<Tensor> {
        match self {
            Self::Joint(layer, gate) => {
                let both = layer.forward(x, ids)?;
                match layer {
                    Experts::Packed(..) => Ok(both),
                    Experts::Floats { .. } => {
                        let [gate, up] = gate.halves(&both)?;
                        activation.apply(&gate, &up)
                    }
                }
            }
            Self::Apart(gate, up) => activation.apply(&gate.forward(x, ids)?, &up.forward(x, ids)?),
        }
    }
}

/// A mixture's weights.
pub(super) struct Mixed {
    config: Mixture,
    activation: Activation,
    router: Projection,
    projections: Projections,
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
            own.experts(own.matrices(tensor, sizes, is_turned)?, bias, gate).map(Some)
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
                        let bias =
                            of_gate.zip(of_up).map(|(gate, up)| interleaved(&gate, &up, inner));
                        let gate = config.gate.of(GateOrder::Halves);
                        GateUp::Joint(own.experts(one, bias, Some(gate))?, gate)
                    }
                    Below::Apart(mut all) => {
                        let up = all.pop().map(|up| own.experts(up, of_up, None)).transpose()?;
                        let gate =
                            all.pop().map(|gate| own.experts(gate, of_gate, None)).transpose()?;
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
                own.experts(own.of_each(names[2], down)?, bias, None)?
            }
        };
        // Choices are made in floats in every checkpoint.
        let builder = module.builder.without_quantizing();
        let router = Loader { builder, ..module.clone() }.linear(router, [hidden, count], bias)?;
        let activation = Activation::new(config.gate, module)?;
        let projections = match (gate_up, down) {
            (GateUp::Joint(Experts::Packed(first, meter), _), Experts::Packed(second, _)) => {
                Projections::Whole(MoeMlp::new(first, second)?, meter)
            }
            (gate_up, down) => Projections::Apart { gate_up, down },
        };
        Ok(Self { config, activation, router, projections })
    }

    /// The result for rows `[tokens, hidden]`, plus `residual`.
    fn forward(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let (weights, ids) = self.config.choose(&self.router.forward(x)?)?;
        let (gate_up, down) = match &self.projections {
            Projections::Whole(layer, meter) => {
                return meter.time(x.device(), || layer.forward_add(x, &ids, &weights, residual));
            }
            Projections::Apart { gate_up, down } => (gate_up, down),
        };
        let inner = gate_up.forward(x, &ids, &self.activation)?;
        let y = down.forward(&inner.contiguous()?, &ids)?;
        y.broadcast_mul(&weights.unsqueeze(2)?.to_dtype(y.dtype())?)?.sum(1)? + residual
    }
}

/// The biases of gate and up of each expert after each other.
fn interleaved(gate: &[f32], up: &[f32], inner: usize) -> Vec<f32> {
    let pairs = gate.chunks_exact(inner).zip(up.chunks_exact(inner));
    pairs.flat_map(|(gate, up)| gate.iter().chain(up)).copied().collect()
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
