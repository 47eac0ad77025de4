//! Products with weights in four bits or in floats.

use std::sync::Arc;

use candle_core::{D, IndexOp, Module, Result, Tensor};

use super::meter::Meter;
use crate::{Linear, MoeLinear};

/// `y = x W^T + b`.
pub(super) enum Projection {
    Packed(Linear, Arc<Meter>),
    Floats(candle_nn::Linear),
}

impl Projection {
    /// `x W^T + b + added`.
    pub fn forward_add(&self, x: &Tensor, added: &Tensor) -> Result<Tensor> {
        match self {
            Self::Packed(linear, meter) => meter.time(x.device(), || linear.forward_add(x, added)),
            Self::Floats(linear) => linear.forward(x)? + added,
        }
    }
}

impl Module for Projection {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Packed(linear, meter) => meter.time(x.device(), || linear.forward(x)),
            Self::Floats(linear) => linear.forward(x),
        }
    }
}

/// Projections of the same inputs.
pub(super) struct Joined {
    /// One for all, or one for each.
    layers: Vec<Projection>,
    outputs: Vec<usize>,
}

impl Joined {
    pub fn new(layers: Vec<Projection>, outputs: &[usize]) -> Self {
        Self { layers, outputs: outputs.to_vec() }
    }

    pub fn forward(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        let [one] = self.layers.as_slice() else {
            return self.layers.iter().map(|layer| layer.forward(x)).collect();
        };
        let (y, mut from) = (one.forward(x)?, 0);
        let mut part = |&size: &usize| {
            from += size;
            y.narrow(D::Minus1, from - size, size)
        };
        self.outputs.iter().map(&mut part).collect()
    }

    /// All projections of each row, one after the other.
    pub fn whole(&self, x: &Tensor) -> Result<Tensor> {
        match self.layers.as_slice() {
            [one] => one.forward(x),
            _ => Tensor::cat(&self.forward(x)?, D::Minus1),
        }
    }

    /// The number of products.
    pub fn products(&self) -> usize {
        self.layers.len()
    }
}

/// Projections to a gate and to up.
pub(super) enum Gated {
    /// One product, with the activation in it.
    Whole(Linear, Arc<Meter>),
    /// Products without the activation.
    Apart(Joined),
}

impl Gated {
    /// `act(gate) * up`.
    pub fn forward(
        &self,
        x: &Tensor,
        activation: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        match self {
            Self::Whole(linear, meter) => meter.time(x.device(), || linear.forward(x)),
            Self::Apart(joined) => {
                let halves = joined.forward(x)?;
                activation(&halves[0], &halves[1])
            }
        }
    }

    /// The number of products.
    pub fn products(&self) -> usize {
        match self {
            Self::Whole(..) => 1,
            Self::Apart(joined) => joined.products(),
        }
    }
}

/// Products with the matrix of each choice, as [`MoeLinear`]'s.
pub(super) enum Experts {
    Packed(MoeLinear, Arc<Meter>),
    /// `[experts, N, K]` and `[experts, N]`.
    Floats {
        weight: Tensor,
        bias: Option<Tensor>,
    },
}

impl Experts {
    /// `x` is `[tokens, K]` or `[tokens, choices, K]`, `ids` is `[tokens, choices]`.
    pub fn forward(&self, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (weight, bias) = match self {
            Self::Packed(layer, meter) => {
                return meter.time(x.device(), || layer.gather_forward(x, ids));
            }
            Self::Floats { weight, bias } => (weight, bias.as_ref()),
        };
        let (tokens, choices) = ids.dims2()?;
        let (experts, n, k) = weight.dims3()?;
        let x = match x.dims().len() {
            2 => x.unsqueeze(1)?.broadcast_as((tokens, choices, k))?,
            _ => x.clone(),
        };
        let (rows, count) = (x.reshape((tokens * choices, k))?, tokens * choices);
        let flat = ids.flatten_all()?;
        if count <= experts {
            // No more matrices are copied than there are.
            let chosen = weight.index_select(&flat, 0)?;
            let y = rows.unsqueeze(1)?.matmul(&chosen.t()?)?.squeeze(1)?;
            let y = match bias {
                Some(bias) => (y + bias.index_select(&flat, 0)?)?,
                None => y,
            };
            return y.reshape((tokens, choices, n));
        }
        // Rows in the order of experts: which they are is known on the host only after a copy.
        let ids: Vec<u32> = flat.to_vec1()?;
        let mut order: Vec<u32> = (0..count as u32).collect();
        order.sort_by_key(|&row| ids[row as usize]);
        let mut back = vec![0u32; count];
        order.iter().zip(0..).for_each(|(&row, at)| back[row as usize] = at);
        let [order, back] =
            [order, back].map(|rows| Tensor::from_vec(rows, count, weight.device()));
        let rows = rows.index_select(&order?, 0)?;
        let (mut from, mut parts) = (0, Vec::new());
        for expert in 0..experts {
            let of_expert = ids.iter().filter(|&&id| id as usize == expert).count();
            if of_expert == 0 {
                continue;
            }
            let y = rows.narrow(0, from, of_expert)?.matmul(&weight.i(expert)?.t()?)?;
            parts.push(match bias {
                Some(bias) => y.broadcast_add(&bias.i(expert)?)?,
                None => y,
            });
            from += of_expert;
        }
        Tensor::cat(&parts, 0)?.index_select(&back?, 0)?.reshape((tokens, choices, n))
    }
}
