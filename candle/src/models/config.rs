//! Sizes and choices of a decoder, from `config.json`: every field that changes the mathematics is honoured or refused.

use candle_core::Result;
use serde_json::Value;

use super::architecture::Architecture;
use super::deepseek::{LatentConfig, latent, scores};
use super::fields::Fields;
use super::known::{REFUSED, WITHOUT_EFFECT, computes};
use super::rope::Rope;
use crate::error::shape;

/// The activation between the projections up and down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SwiGlu {
    /// `silu(gate) up`.
    Plain,
    /// gpt-oss's: `(up + 1) gate sigmoid(slope gate)`, gate at most, and up between minus and plus, the limit.
    Clamped { limit: f64, slope: f64 },
}

/// The weights of the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Weighing {
    /// A softmax over all experts, of which the largest are taken, and scaled to the sum 1 or not.
    All { normalized: bool },
    /// A softmax over those taken.
    Chosen,
    /// A sigmoid of each. The largest are taken after a number of each expert is added, in those of `groups` groups whose
    /// two largest have the largest sums; then they are scaled to the sum 1 or not, and multiplied by `factor`.
    Scores { groups: usize, kept: usize, normalized: bool, factor: f64 },
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mixture {
    pub experts: usize,
    pub chosen: usize,
    pub inner: usize,
    /// The inner size of the experts that all tokens take, as one.
    pub shared: Option<usize>,
    pub weighing: Weighing,
    pub gate: SwiGlu,
    /// Whether the router and the experts have biases.
    pub bias: bool,
}

/// The part of a layer after its attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Feed {
    Dense { inner: usize, bias: bool },
    Mixture(Mixture),
}

/// A layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LayerConfig {
    /// The number of tokens that a query sees, itself included; `None` for all before it.
    pub window: Option<usize>,
    pub feed: Feed,
}

/// The configuration of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub(super) architecture: Architecture,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) vocabulary: usize,
    pub(super) positions: usize,
    pub(super) epsilon: f32,
    pub(super) tied: bool,
    pub(super) attention_bias: bool,
    pub(super) latent: Option<LatentConfig>,
    pub(super) rope: Rope,
    pub(super) layers: Vec<LayerConfig>,
    end: Vec<u32>,
    unread: Vec<String>,
}

impl Config {
    /// Reads a configuration.
    ///
    /// # Errors
    /// For an architecture, an activation, a kind of positions or another choice that is not computed, naming the field, its
    /// value and what is supported; for fields that are missing or contradict each other.
    pub fn from_json(config: &Value) -> Result<Self> {
        let fields = Fields::new(config)?;
        let kind = fields.text("model_type")?;
        let Some(architecture) = kind.and_then(Architecture::named) else {
            let names = Architecture::ALL.map(Architecture::model_type).join(", ");
            return Err(fields.wrong("model_type", format!("one of {names}")));
        };
        for (field, neutral) in REFUSED {
            let value = fields.value(field);
            let is_neutral = value.is_null() || *value == false || value.as_f64() == neutral;
            if computes(architecture, field) {
                continue;
            }
            if !(is_neutral || value.as_array().is_some_and(Vec::is_empty)) {
                let required = neutral.map_or("absent".to_owned(), |x| format!("absent or {x}"));
                return Err(fields.wrong(field, format!("{required}, as others are not computed")));
            }
        }
        if fields.text("hidden_act")?.unwrap_or("silu") != "silu" {
            return Err(fields.wrong("hidden_act", "\"silu\""));
        }
        let (hidden, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
        let kv_heads = fields.optional_size("num_key_value_heads")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(
                fields.wrong("num_key_value_heads", format!("a divisor of {heads}, the heads"))
            );
        }
        let latent = latent(&fields, architecture, [heads, kv_heads])?;
        let head_dim = match latent {
            Some(latent) => latent.turned,
            None => head_dim(&fields, hidden, heads)?,
        };
        if !head_dim.is_multiple_of(2) {
            let field = if latent.is_some() { "qk_rope_head_dim" } else { "head_dim" };
            return Err(fields.wrong(field, "even"));
        }
        let positions = fields.size("max_position_embeddings")?;
        let epsilon = fields.number("rms_norm_eps")? as f32;
        let tied = fields.flag("tie_word_embeddings", false)?;
        let is_gpt_oss = architecture == Architecture::GptOss;
        let attention_bias = match architecture {
            Architecture::Mixtral => false,
            Architecture::Llama
            | Architecture::Qwen3
            | Architecture::Qwen3Moe
            | Architecture::GptOss
            | Architecture::DeepseekV3 => fields.flag("attention_bias", is_gpt_oss)?,
        };
        let rope = Rope::of(&fields, head_dim, positions, architecture)?;
        let layers = layers(&fields, architecture)?;
        let end = fields.ids("eos_token_id")?;
        let vocabulary = fields.size("vocab_size")?;
        let unread = fields.unread(&WITHOUT_EFFECT);
        Ok(Self {
            architecture,
            hidden,
            heads,
            kv_heads,
            head_dim,
            vocabulary,
            positions,
            epsilon,
            tied,
            attention_bias,
            latent,
            rope,
            layers,
            end,
            unread,
        })
    }

    /// Heads of the cache, and elements of a key and of a value there.
    pub(super) fn cached(&self) -> [usize; 3] {
        match self.latent {
            Some(latent) => [1, latent.rank, latent.turned],
            None => [self.kv_heads, self.head_dim, self.head_dim],
        }
    }

    /// The architecture.
    #[must_use]
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// The number of layers.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// The number of tokens of the vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The largest number of tokens that the model has positions for.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Tokens that end a text.
    #[must_use]
    pub fn end(&self) -> &[u32] {
        &self.end
    }

    /// Fields of `config.json` that are neither read nor known to have no effect, such as those that other programs add.
    /// transformers' class of the architecture has none of them.
    #[must_use]
    pub fn unread(&self) -> &[String] {
        &self.unread
    }
}

/// The elements of a head.
fn head_dim(fields: &Fields<'_>, hidden: usize, heads: usize) -> Result<usize> {
    match fields.optional_size("head_dim")? {
        Some(size) => Ok(size),
        None if hidden.is_multiple_of(heads) => Ok(hidden / heads),
        None => Err(fields.wrong("num_attention_heads", format!("a divisor of {hidden}"))),
    }
}

/// The layers of an architecture.
fn layers(fields: &Fields<'_>, architecture: Architecture) -> Result<Vec<LayerConfig>> {
    let count = fields.size("num_hidden_layers")?;
    let windows = windows(fields, architecture, count)?;
    let dense = || -> Result<Feed> {
        let bias = architecture == Architecture::Llama && fields.flag("mlp_bias", false)?;
        Ok(Feed::Dense { inner: fields.size("intermediate_size")?, bias })
    };
    let mixture = |experts: &str, inner: &str, weighing, gate| -> Result<Feed> {
        let (experts, chosen) = (fields.size(experts)?, fields.size("num_experts_per_tok")?);
        if chosen > experts {
            return Err(
                fields.wrong("num_experts_per_tok", format!("at most {experts}, the experts"))
            );
        }
        let bias = architecture == Architecture::GptOss;
        let inner = fields.size(inner)?;
        let shared = None;
        Ok(Feed::Mixture(Mixture { experts, chosen, inner, shared, weighing, gate, bias }))
    };
    let feed = |at: usize| match architecture {
        Architecture::Llama | Architecture::Qwen3 => dense(),
        Architecture::Qwen3Moe => {
            let step = fields.optional_size("decoder_sparse_step")?.unwrap_or(1);
            let only = fields.value("mlp_only_layers").as_array();
            if only.is_some_and(|only| only.iter().any(|layer| *layer == at))
                || !(at + 1).is_multiple_of(step)
            {
                return dense();
            }
            let Some(normalized) = fields.value("norm_topk_prob").as_bool() else {
                return Err(fields.wrong("norm_topk_prob", "true or false"));
            };
            let weighing = Weighing::All { normalized };
            let experts = ["num_experts", "num_local_experts"];
            let experts = experts.into_iter().find(|name| !fields.value(name).is_null());
            mixture(
                experts.unwrap_or("num_experts"),
                "moe_intermediate_size",
                weighing,
                SwiGlu::Plain,
            )
        }
        Architecture::Mixtral => {
            let weighing = Weighing::All { normalized: true };
            mixture("num_local_experts", "intermediate_size", weighing, SwiGlu::Plain)
        }
        Architecture::GptOss => {
            let limit = fields.optional_number("swiglu_limit")?.unwrap_or(7.);
            if limit <= 0. {
                return Err(fields.wrong("swiglu_limit", "above 0"));
            }
            let slope = fields.optional_number("swiglu_alpha")?.unwrap_or(1.702);
            let gate = SwiGlu::Clamped { limit, slope };
            mixture("num_local_experts", "intermediate_size", Weighing::Chosen, gate)
        }
        Architecture::DeepseekV3 => {
            if at < fields.count("first_k_dense_replace")? {
                return dense();
            }
            let weighing = scores(fields)?;
            let routed =
                mixture("n_routed_experts", "moe_intermediate_size", weighing, SwiGlu::Plain)?;
            let Feed::Mixture(routed) = routed else { return Ok(routed) };
            let shared = fields.count("n_shared_experts")? * routed.inner;
            Ok(Feed::Mixture(Mixture { shared: (shared > 0).then_some(shared), ..routed }))
        }
    };
    let layer = |(at, window)| Ok(LayerConfig { window, feed: feed(at)? });
    windows.into_iter().enumerate().map(layer).collect()
}

/// The window of each layer.
fn windows(
    fields: &Fields<'_>,
    architecture: Architecture,
    count: usize,
) -> Result<Vec<Option<usize>>> {
    let qwen = matches!(architecture, Architecture::Qwen3 | Architecture::Qwen3Moe);
    let uses = !qwen || fields.flag("use_sliding_window", false)?;
    let window = match architecture {
        Architecture::Llama | Architecture::DeepseekV3 => None,
        Architecture::Qwen3
        | Architecture::Qwen3Moe
        | Architecture::Mixtral
        | Architecture::GptOss => match uses {
            true => fields.optional_size("sliding_window")?,
            false => None,
        },
    };
    // transformers has a window of its own for each of these if a file has none.
    let needs = uses && (qwen || architecture == Architecture::GptOss);
    if needs && window.is_none() {
        return Err(fields.wrong("sliding_window", "a number of tokens"));
    }
    if let Some(types) = fields.value("layer_types").as_array() {
        if types.len() != count {
            return Err(
                fields.wrong("layer_types", format!("a list of {count}, one for each layer"))
            );
        }
        let of_type = |kind: &Value| match (kind.as_str(), window) {
            (Some("full_attention"), _) => Ok(None),
            (Some("sliding_attention"), Some(window)) => Ok(Some(window)),
            (Some("sliding_attention"), None) => {
                Err(fields.wrong("sliding_window", "a number of tokens for `layer_types`"))
            }
            _ => Err(shape(
                "an entry of `layer_types` of config.json",
                "\"full_attention\" or \"sliding_attention\"",
                kind,
            )),
        };
        let types: Vec<Option<usize>> = types.iter().map(of_type).collect::<Result<_>>()?;
        // transformers has one window for all layers of these, whatever their types.
        let is_one = matches!(architecture, Architecture::Mixtral | Architecture::Qwen3Moe);
        if is_one && types.iter().any(|kind| *kind != window) {
            return Err(
                fields.wrong("layer_types", "the same for all layers, as sliding_window says")
            );
        }
        return Ok(types);
    }
    let from = match architecture {
        Architecture::Qwen3 => fields.optional_size("max_window_layers")?.unwrap_or(28),
        Architecture::Llama
        | Architecture::Qwen3Moe
        | Architecture::Mixtral
        | Architecture::DeepseekV3 => 0,
        Architecture::GptOss => {
            return Ok((0..count).map(|at| window.filter(|_| at % 2 == 0)).collect());
        }
    };
    Ok((0..count).map(|at| window.filter(|_| at >= from)).collect())
}
