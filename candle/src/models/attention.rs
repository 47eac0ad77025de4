//! Attention with grouped heads, rotary positions, windows and sinks.

use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::kv_cache::KvCache;
use candle_nn::ops::{rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::rope;

use super::architecture::Architecture;
use super::config::Config;
use super::layers::{Joined, Projection};
use super::store::Loader;

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
}

/// A step's tokens: the same for all layers.
pub(super) struct Step {
    /// The place of the first token in the cache, and the number of tokens.
    pub begin: usize,
    pub tokens: usize,
    /// Cosines and sines of the tokens' positions.
    pub rope: [Tensor; 2],
    /// The windows that the model has, each with the sums for scores: 0, and minus infinity for hidden tokens.
    masks: Vec<(Option<usize>, Option<Tensor>)>,
}

impl Step {
    /// The step of `tokens` tokens from the place `begin` on, of texts that begin at the places `pads`. `tables` are cosines
    /// and sines of all positions.
    pub fn new(
        windows: &[Option<usize>],
        tables: &[Tensor; 2],
        pads: &[usize],
        [begin, tokens]: [usize; 2],
    ) -> Result<Self> {
        let device = tables[0].device();
        let is_even = pads.iter().all(|&pad| pad == 0);
        let of_table = |table: &Tensor| -> Result<Tensor> {
            if is_even {
                return table.narrow(0, begin, tokens)?.contiguous();
            }
            let places = |&pad: &usize| {
                (begin..begin + tokens).map(move |place| place.saturating_sub(pad) as u32)
            };
            let positions: Vec<u32> = pads.iter().flat_map(places).collect();
            let positions = Tensor::from_vec(positions, pads.len() * tokens, device)?;
            table.index_select(&positions, 0)?.reshape((pads.len(), tokens, ()))
        };
        let rope = [of_table(&tables[0])?, of_table(&tables[1])?];
        let mut masks: Vec<(Option<usize>, Option<Tensor>)> = Vec::new();
        for &window in windows {
            if masks.iter().all(|(known, _)| *known != window) {
                let mask = mask(window, pads, [begin, tokens], tables[0].dtype(), device)?;
                masks.push((window, mask));
            }
        }
        Ok(Self { begin, tokens, rope, masks })
    }

    /// The sums for scores of layers with a window; `None` if nothing is hidden.
    pub fn mask(&self, window: Option<usize>) -> Option<&Tensor> {
        self.masks.iter().find(|(known, _)| *known == window)?.1.as_ref()
    }
}

/// The first place that a token of the step sees through a window.
fn first_seen(window: Option<usize>, begin: usize) -> usize {
    window.map_or(0, |window| (begin + 1).saturating_sub(window))
}

/// The mask `[texts, 1, tokens, places]` from the first place that is seen on; `None` if nothing is hidden.
fn mask(
    window: Option<usize>,
    pads: &[usize],
    [begin, tokens]: [usize; 2],
    dtype: DType,
    device: &Device,
) -> Result<Option<Tensor>> {
    let from = first_seen(window, begin);
    let even = pads.iter().all(|&pad| pad <= from);
    if even && tokens == 1 {
        return Ok(None);
    }
    let (pads, end) = (if even { &pads[..1] } else { pads }, begin + tokens);
    let mut values = Vec::with_capacity(pads.len() * tokens * (end - from));
    for &pad in pads {
        for query in begin..end {
            // A place before a text sees itself, so that its scores, which nobody uses, are numbers.
            values.extend((from..end).map(|key| {
                let seen =
                    key <= query && key >= pad && window.is_none_or(|window| query - key < window);
                if seen || key == query { 0f32 } else { f32::NEG_INFINITY }
            }));
        }
    }
    let mask = Tensor::from_vec(values, (pads.len(), 1, tokens, end - from), &Device::Cpu)?;
    mask.to_dtype(dtype)?.to_device(device).map(Some)
}

impl Attention {
    /// Loads the attention of the layer that `loader` is at.
    pub fn load(loader: &Loader, config: &Config, window: Option<usize>) -> Result<Self> {
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
        Ok(Self {
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

    /// The result for rows `[texts, tokens, hidden]`, whose keys and values are appended to the cache.
    pub fn forward(&self, x: &Tensor, step: &Step, cache: &mut KvCache) -> Result<Tensor> {
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
            rope(&x.transpose(1, 2)?.contiguous()?, &step.rope[0], &step.rope[1])
        };
        let [of_q, of_k] = match &self.norms {
            Some([q, k]) => [Some(q), Some(k)],
            None => [None, None],
        };
        let query = (turned(&all[0], heads, of_q)? * (dim as f64).powf(-0.5))?;
        let key = turned(&all[1], kv_heads, of_k)?;
        let value = by_head(&all[2], kv_heads)?.transpose(1, 2)?.contiguous()?;
        let (keys, values) = cache.append(&key, &value)?;
        let from = first_seen(self.window, step.begin);
        let places = step.begin + step.tokens - from;
        let (keys, values) = (keys.narrow(2, from, places)?, values.narrow(2, from, places)?);
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
        self.output.forward(&mixed.transpose(1, 2)?.reshape((texts, tokens, heads * dim))?)
    }
}
