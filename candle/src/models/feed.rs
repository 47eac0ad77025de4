//! The part of a layer after its attention: gated projections, or a mixture of experts.

use std::sync::Arc;

use candle_core::{D, DType, Module, Result, Tensor};
use candle_nn::ops::{sigmoid, silu};
use nvfp4::gemm::Activation as Function;

use super::architecture::Architecture;
use super::config::{Feed, LayerConfig, Mixture, SwiGlu, Weighing};
use super::layers::{Experts, Gated, Projection};
use super::matrices::{Below, Matrices};
use super::meter::Meter;
use super::store::Loader;
use super::values::Floats;
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
                let rows = |x: &Tensor| x.reshape(((), hidden));
                let added = match &mixed.shared {
                    Some(shared) => &shared.forward(x, residual)?,
                    None => residual,
                };
                mixed.forward(&rows(x)?, &rows(added)?)?.reshape(x.dims())
            }
        }
    }

    /// The number of products with weights.
    pub fn products(&self) -> usize {
        match self {
            Self::Dense { gate_up, .. } => gate_up.products() + 1,
            Self::Mixture(mixed) => {
                let routed = match mixed.projections {
                    Projections::Whole(..)
                    | Projections::Apart { gate_up: GateUp::Joint(..), .. } => 3,
                    Projections::Apart { gate_up: GateUp::Apart(..), .. } => 4,
                };
                routed + mixed.shared.as_ref().map_or(0, Self::products)
            }
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
    /// One layer, with the activation in it if it is in four bits.
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
    /// Numbers `[1, experts]` that are added to scores when experts are chosen.
    correction: Option<Tensor>,
    projections: Projections,
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
        let projections = match (gate_up, down) {
            (GateUp::Joint(Experts::Packed(first, meter), _), Experts::Packed(second, _)) => {
                Projections::Whole(MoeMlp::new(first, second)?, meter)
            }
            (gate_up, down) => Projections::Apart { gate_up, down },
        };
        Ok(Self { config, activation, router, correction, projections, shared })
    }

    /// The result for rows `[tokens, hidden]`, plus `residual`.
    fn forward(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let logits = match &self.correction {
            Some(correction) => self.router.forward(&x.to_dtype(correction.dtype())?)?,
            None => self.router.forward(x)?,
        };
        let (weights, ids) = self.config.choose(&logits, self.correction.as_ref())?;
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
