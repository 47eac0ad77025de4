//! Attention with grouped heads, rotary positions, windows and sinks.

use std::sync::Arc;

use candle_core::{D, Result, Tensor};
use candle_nn::ops::{rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::rope;
use nvfp4::attention::AttentionOptions;

use super::architecture::Architecture;
use super::cache::KeyValues;
use super::config::Config;
use super::layers::{Joined, Projection};
use super::one_token::OneToken;
use super::step::{Apart, Step};
use super::store::Loader;
use crate::Engine;

/// The weights of a layer's attention.
pub(super) struct Attention {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    epsilon: f32,
    window: Option<usize>,
    qkv: Joined,
    output: Projection,
    /// Weights of the norms of each head's queries and keys.
    norms: Option<[Tensor; 2]>,
    /// A score of each head that takes part in the softmax, and has no value: `[1, heads, 1, 1]`.
    sinks: Option<Tensor>,
    /// The kernel for one token of each text.
    one_token: OneToken,
}

impl Attention {
    /// Loads the attention of the layer that `loader` is at, for an engine.
    pub fn load(
        loader: &Loader,
        config: &Config,
        window: Option<usize>,
        engine: &Arc<Engine>,
    ) -> Result<Self> {
        let Config {
            hidden, heads, kv_heads, head_dim: dim, epsilon, attention_bias: bias, ..
        } = *config;
        let own = loader.at("self_attn");
        let (q, kv) = (heads * dim, kv_heads * dim);
        let norms = match config.architecture {
            Architecture::Qwen3 | Architecture::Qwen3Moe => {
                let norm = |name: &str| own.tensor(name, &[dim]);
                Some([norm("q_norm.weight")?, norm("k_norm.weight")?])
            }
            Architecture::Llama
            | Architecture::Mixtral
            | Architecture::GptOss
            | Architecture::DeepseekV3 => None,
        };
        let sinks = match config.architecture {
            Architecture::GptOss => Some(own.tensor("sinks", &[heads])?.reshape((1, heads, 1, 1))?),
            Architecture::Llama
            | Architecture::Qwen3
            | Architecture::Qwen3Moe
            | Architecture::Mixtral
            | Architecture::DeepseekV3 => None,
        };
        let of_head = sinks.as_ref().map(|sinks: &Tensor| sinks.flatten_all()).transpose()?;
        let mut options = AttentionOptions::new((dim as f32).sqrt().recip()).window(window);
        if norms.is_some() {
            options = options.norm(Some(epsilon));
        }
        let sizes = [heads, kv_heads, dim];
        Ok(Self {
            one_token: OneToken::new(engine, sizes, options, norms.clone(), of_head),
            heads,
            kv_heads,
            dim,
            epsilon,
            window,
            qkv: own.joined(&["q_proj", "k_proj", "v_proj"], hidden, &[q, kv, kv], bias)?,
            output: own.linear("o_proj", [q, hidden], bias)?,
            norms,
            sinks,
        })
    }

    /// The number of products with weights.
    pub fn products(&self) -> usize {
        self.qkv.products() + 1
    }

    /// Whether the library's kernel takes steps of one token of each of so many texts of at most `capacity` tokens.
    pub fn fuses(&self, texts: usize, capacity: usize) -> bool {
        self.one_token.takes(texts, capacity)
    }

    /// The result for rows `x`, `[texts, tokens, hidden]`, plus `residual`. Keys and values are appended to the cache.
    pub fn forward(
        &self,
        x: &Tensor,
        residual: &Tensor,
        step: &Step,
        cache: &KeyValues,
    ) -> Result<Tensor> {
        let mixed = match step {
            Step::Fused(step) => self.one_token.forward(&self.qkv.whole(x)?, step, cache)?,
            Step::Apart(step) => self.apart(x, step, cache)?,
        };
        self.output.forward_add(&mixed, residual)
    }

    /// The heads' results by candle's operations.
    fn apart(&self, x: &Tensor, step: &Apart, cache: &KeyValues) -> Result<Tensor> {
        let (texts, tokens, _) = x.dims3()?;
        let Self { heads, kv_heads, dim, .. } = *self;
        let all = self.qkv.forward(x)?;
        let by_head = |x: &Tensor, heads: usize| x.reshape((texts, tokens, heads, dim));
        let turned = |x: &Tensor, heads: usize, norm: Option<&Tensor>| -> Result<Tensor> {
            let x = by_head(x, heads)?;
            let x = match norm {
                Some(weight) => rms_norm(&x.contiguous()?, weight, self.epsilon)?,
                None => x,
            };
            let [cosines, sines] = step.rope();
            rope(&x.transpose(1, 2)?.contiguous()?, cosines, sines)
        };
        let [of_q, of_k] = match &self.norms {
            Some([q, k]) => [Some(q), Some(k)],
            None => [None, None],
        };
        let query = (turned(&all[0], heads, of_q)? * (dim as f64).powf(-0.5))?;
        let key = turned(&all[1], kv_heads, of_k)?;
        let value = by_head(&all[2], kv_heads)?.transpose(1, 2)?.contiguous()?;
        let [keys, values] = cache.append(step, self.window, [&key, &value])?;
        let places = keys.dim(2)?;
        // Heads that share keys are rows of one product.
        let rows = heads / kv_heads * tokens;
        let scores = query.reshape((texts, kv_heads, rows, dim))?.matmul(&keys.t()?)?;
        let mut scores = scores.reshape((texts, heads, tokens, places))?;
        if let Some(mask) = step.mask(self.window) {
            scores = scores.broadcast_add(mask)?;
        }
        let shares = match &self.sinks {
            Some(sinks) => {
                let sinks = sinks.broadcast_as((texts, heads, tokens, 1))?.contiguous()?;
                let all = Tensor::cat(&[scores, sinks], D::Minus1)?;
                softmax_last_dim(&all)?.narrow(D::Minus1, 0, places)?
            }
            None => softmax_last_dim(&scores)?,
        };
        let shares = shares.reshape((texts, kv_heads, rows, places))?;
        let mixed = shares.matmul(&values)?.reshape((texts, heads, tokens, dim))?;
        mixed.transpose(1, 2)?.reshape((texts, tokens, heads * dim))
    }
}
