//! Multi-head latent attention: keys and values of all heads come from one small vector of each token, which is what the
//! cache has, beside one turned key that all heads share.
//!
//! Queries are brought into the vectors' space by the part of `kv_b_proj` that would make keys, and mixed vectors out of it by
//! the part that makes values, so that no key or value of a head is ever made. Both parts are products of each head, of floats.

use std::sync::Arc;

use candle_core::{Module, Result, Tensor};
use candle_nn::ops::{rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::{rope, rope_i};

use super::attention::Attention;
use super::cache::KeyValues;
use super::config::{Config, LayerConfig};
use super::deepseek::LatentConfig;
use super::layers::{Joined, Projection};
use super::step::{Apart, Step};
use super::store::Loader;
use crate::Engine;

/// The number that norms of queries and of latent vectors add, whatever the configuration says for others.
const EPSILON: f32 = 1e-6;

/// The attention of a layer.
pub(super) enum Attending {
    Grouped(Attention),
    Latent(Latent),
}

impl Attending {
    /// Loads the attention of the layer that `loader` is at, for an engine.
    pub fn load(
        loader: &Loader,
        config: &Config,
        layer: LayerConfig,
        engine: &Arc<Engine>,
    ) -> Result<Self> {
        match config.latent {
            Some(latent) => Latent::load(loader, config, latent).map(Self::Latent),
            None => Attention::load(loader, config, layer.window, engine).map(Self::Grouped),
        }
    }

    /// The number of products with weights.
    pub fn products(&self) -> usize {
        match self {
            Self::Grouped(attention) => attention.products(),
            Self::Latent(attention) => attention.products(),
        }
    }

    /// Whether the library's kernel takes steps of one token of each of so many texts of at most `capacity` tokens.
    pub fn fuses(&self, texts: usize, capacity: usize) -> bool {
        match self {
            Self::Grouped(attention) => attention.fuses(texts, capacity),
            Self::Latent(_) => false,
        }
    }

    /// The result for rows `x`, `[texts, tokens, hidden]`, plus `residual`. The cache is given what later ones need.
    pub fn forward(
        &self,
        x: &Tensor,
        residual: &Tensor,
        step: &Step,
        cache: &KeyValues,
    ) -> Result<Tensor> {
        match self {
            Self::Grouped(attention) => attention.forward(x, residual, step, cache),
            Self::Latent(attention) => attention.forward(x, residual, step.apart()?, cache),
        }
    }
}

/// The weights of a layer's latent attention.
pub(super) struct Latent {
    heads: usize,
    sizes: LatentConfig,
    /// The factor of scores.
    scale: f64,
    /// Queries, or what they are made of, and the latent vector with the turned key.
    inputs: Joined,
    /// The norm and the projection of queries that are made of fewer numbers.
    queries: Option<(Tensor, Projection)>,
    norm: Tensor,
    /// `[heads, elements that are not turned, rank]`.
    of_keys: Tensor,
    /// `[heads, rank, elements of a value]`.
    of_values: Tensor,
    output: Projection,
}

impl Latent {
    fn load(loader: &Loader, config: &Config, sizes: LatentConfig) -> Result<Self> {
        let &Config { hidden, heads, attention_bias: bias, .. } = config;
        let LatentConfig { query_rank, rank, plain, turned, value, .. } = sizes;
        let own = loader.at("self_attn");
        let (of_head, latent) = (plain + turned, "kv_a_proj_with_mqa");
        let outputs = [query_rank.unwrap_or(heads * of_head), rank + turned];
        let inputs = match query_rank {
            Some(_) => own.joined(&["q_a_proj", latent], hidden, &outputs, bias)?,
            // Queries that are made at once have no bias.
            None if bias => {
                let query = own.linear("q_proj", [hidden, outputs[0]], false)?;
                Joined::new(vec![query, own.linear(latent, [hidden, outputs[1]], true)?], &outputs)
            }
            None => own.joined(&["q_proj", latent], hidden, &outputs, false)?,
        };
        let queries = |rank: usize| -> Result<(Tensor, Projection)> {
            let norm = own.tensor("q_a_layernorm.weight", &[rank])?;
            Ok((norm, own.linear("q_b_proj", [rank, heads * of_head], false)?))
        };
        let both = own.tensor("kv_b_proj.weight", &[heads * (plain + value), rank])?;
        let both = both.reshape((heads, plain + value, rank))?;
        Ok(Self {
            heads,
            sizes,
            scale: (of_head as f64).powf(-0.5) * config.rope.of_scores(),
            inputs,
            queries: query_rank.map(queries).transpose()?,
            norm: own.tensor("kv_a_layernorm.weight", &[rank])?,
            of_keys: both.narrow(1, 0, plain)?.contiguous()?,
            of_values: both.narrow(1, plain, value)?.transpose(1, 2)?.contiguous()?,
            output: own.linear("o_proj", [heads * value, hidden], bias)?,
        })
    }

    fn products(&self) -> usize {
        const OF_HEADS: usize = 2;
        self.inputs.products() + usize::from(self.queries.is_some()) + OF_HEADS + 1
    }

    fn forward(
        &self,
        x: &Tensor,
        residual: &Tensor,
        step: &Apart,
        cache: &KeyValues,
    ) -> Result<Tensor> {
        let (texts, tokens, _) = x.dims3()?;
        let heads = self.heads;
        let LatentConfig { rank, plain, turned, value, alternating, query_rank: _ } = self.sizes;
        let turn = |x: Tensor| {
            let [cosines, sines] = step.rope();
            if alternating { rope_i(&x, cosines, sines) } else { rope(&x, cosines, sines) }
        };
        let all = self.inputs.forward(x)?;
        let query = match &self.queries {
            Some((norm, projection)) => {
                projection.forward(&rms_norm(&all[0].contiguous()?, norm, EPSILON)?)?
            }
            None => all[0].clone(),
        };
        let query = (query.reshape((texts, tokens, heads, plain + turned))? * self.scale)?;
        let turned_query = turn(query.narrow(3, plain, turned)?.transpose(1, 2)?.contiguous()?)?;
        // Rows of each head: `[heads, texts tokens, ..]`.
        let of_heads = query.narrow(3, 0, plain)?.permute((2, 0, 1, 3))?.contiguous()?;
        let query = of_heads.reshape((heads, texts * tokens, plain))?.matmul(&self.of_keys)?;
        let query = query.reshape((heads, texts, tokens, rank))?.transpose(0, 1)?.contiguous()?;

        let latent = rms_norm(&all[1].narrow(2, 0, rank)?.contiguous()?, &self.norm, EPSILON)?;
        let key = turn(all[1].narrow(2, rank, turned)?.contiguous()?.unsqueeze(1)?)?;
        let [latents, keys] = cache.append(step, None, [&latent.unsqueeze(1)?, &key])?;
        let places = latents.dim(2)?;
        let rows = heads * tokens;
        let by_latent = query.reshape((texts, 1, rows, rank))?.matmul(&latents.t()?)?;
        let by_key = turned_query.reshape((texts, 1, rows, turned))?.matmul(&keys.t()?)?;
        let mut scores = (by_latent + by_key)?.reshape((texts, heads, tokens, places))?;
        if let Some(mask) = step.mask(None) {
            scores = scores.broadcast_add(mask)?;
        }
        let shares = softmax_last_dim(&scores)?.reshape((texts, 1, rows, places))?;
        let mixed = shares.matmul(&latents)?.reshape((texts, heads, tokens, rank))?;
        let mixed = mixed.transpose(0, 1)?.contiguous()?.reshape((heads, texts * tokens, rank))?;
        let mixed = mixed.matmul(&self.of_values)?.reshape((heads, texts, tokens, value))?;
        let mixed = mixed.permute((1, 2, 0, 3))?.reshape((texts, tokens, heads * value))?;
        self.output.forward_add(&mixed, residual)
    }
}
