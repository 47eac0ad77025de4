//! Architectures that ggml and transformers both have, as data: names of tensors and of sizes.

use nvfp4_gguf::{Scalar, Value};
use serde_json::{Value as Json, json};

use crate::projections::PROJECTIONS;

/// An architecture under the names of both.
#[derive(Debug)]
pub(crate) struct Names {
    /// `general.architecture`.
    pub ggml: &'static str,
    /// `model_type` of `config.json`.
    pub model_type: &'static str,
    /// Its class in `architectures` of `config.json`.
    pub class: &'static str,
    /// Modules of a layer, ggml's name first.
    pub layer: &'static [(&'static str, &'static str)],
    /// Experts' projections: ggml's tensor of all, and that of one expert between `{}`.
    pub experts: &'static [(&'static str, &'static str)],
    /// Whether ggml has the rows of q and k in another order.
    pub turns: bool,
    /// Whether ggml has one more in the weights of norms.
    pub one_more: bool,
    /// The key of `config.json` for the number of experts.
    pub expert_count: &'static str,
    /// The key for the inner size of one.
    pub expert_inner: &'static str,
    /// Modules whose tensor-level scale llama.cpp (ggml 0.26) does not apply, ggml's names.
    pub unscaled: &'static [&'static str],
    /// `tokenizer.ggml.pre`, where tokenizers of the family agree.
    pub pre: Option<&'static str>,
}

/// Modules outside layers.
pub(crate) const OUTSIDE: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Modules of a layer in all architectures.
pub(crate) const SHARED: [(&str, &str); 8] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

const NORM_BEFORE_FFN: (&str, &str) = ("ffn_norm", "post_attention_layernorm");
const NORM_OF_Q: (&str, &str) = ("attn_q_norm", "self_attn.q_norm");
const NORM_OF_K: (&str, &str) = ("attn_k_norm", "self_attn.k_norm");

const EXPERTS: [(&str, &str); 3] = [
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
];

const LLAMA: Names = Names {
    ggml: "llama",
    model_type: "llama",
    class: "LlamaForCausalLM",
    layer: &[NORM_BEFORE_FFN],
    experts: &[],
    turns: true,
    one_more: false,
    expert_count: "num_local_experts",
    expert_inner: EXPERT_INNER,
    unscaled: &[],
    pre: Some("llama-bpe"),
};

/// ggml has Llama's architecture for it, with experts.
const MIXTRAL: Names = Names {
    model_type: "mixtral",
    class: "MixtralForCausalLM",
    layer: &[NORM_BEFORE_FFN, ("ffn_gate_inp", "block_sparse_moe.gate")],
    experts: &[
        ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
        ("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
        ("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
    ],
    pre: None,
    ..LLAMA
};

const QWEN3: Names = Names {
    ggml: "qwen3",
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    layer: &[NORM_BEFORE_FFN, NORM_OF_Q, NORM_OF_K],
    experts: &[],
    turns: false,
    one_more: false,
    expert_count: "num_experts",
    expert_inner: EXPERT_INNER,
    unscaled: &[],
    pre: Some("qwen2"),
};

const QWEN3_MOE: Names = Names {
    ggml: "qwen3moe",
    model_type: "qwen3_moe",
    class: "Qwen3MoeForCausalLM",
    layer: &[NORM_BEFORE_FFN, NORM_OF_Q, NORM_OF_K, ("ffn_gate_inp", "mlp.gate")],
    experts: &EXPERTS,
    ..QWEN3
};

const GPT_OSS: Names = Names {
    ggml: "gpt-oss",
    model_type: "gpt_oss",
    class: "GptOssForCausalLM",
    layer: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_gate_inp", "mlp.router"),
        ("attn_sinks", "self_attn.sinks"),
    ],
    experts: &EXPERTS,
    turns: false,
    one_more: false,
    expert_count: "num_local_experts",
    expert_inner: "intermediate_size",
    unscaled: &["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"],
    pre: Some("gpt-4o"),
};

const GEMMA: Names = Names {
    ggml: "gemma",
    model_type: "gemma",
    class: "GemmaForCausalLM",
    layer: &[NORM_BEFORE_FFN],
    experts: &[],
    turns: false,
    one_more: true,
    expert_count: "num_experts",
    expert_inner: EXPERT_INNER,
    unscaled: &["ffn_gate", "ffn_up", "ffn_down"],
    pre: None,
};

const GEMMA2: Names = Names {
    ggml: "gemma2",
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    layer: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ],
    ..GEMMA
};

const GEMMA3: Names = Names {
    ggml: "gemma3",
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    layer: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
        NORM_OF_Q,
        NORM_OF_K,
    ],
    ..GEMMA2
};

/// All architectures; of two with one name in ggml, that with experts last.
pub(crate) const ALL: [&Names; 8] =
    [&LLAMA, &QWEN3, &QWEN3_MOE, &GPT_OSS, &GEMMA, &GEMMA2, &GEMMA3, &MIXTRAL];

/// The type that ggml has a size in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum As {
    U32,
    F32,
}

/// Sizes: ggml's key after the architecture, the key of `config.json`, and its type in ggml.
pub(crate) const SIZES: [(&str, &str, As); 15] = [
    ("block_count", "num_hidden_layers", As::U32),
    ("context_length", "max_position_embeddings", As::U32),
    ("embedding_length", "hidden_size", As::U32),
    ("feed_forward_length", "intermediate_size", As::U32),
    ("attention.head_count", "num_attention_heads", As::U32),
    ("attention.head_count_kv", "num_key_value_heads", As::U32),
    ("attention.key_length", "head_dim", As::U32),
    ("attention.value_length", "head_dim", As::U32),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps", As::F32),
    ("attention.sliding_window", "sliding_window", As::U32),
    ("rope.freq_base", "rope_theta", As::F32),
    ("vocab_size", "vocab_size", As::U32),
    ("expert_count", EXPERT_COUNT, As::U32),
    ("expert_used_count", "num_experts_per_tok", As::U32),
    ("expert_feed_forward_length", EXPERT_INNER, As::U32),
];

/// The key in [`SIZES`] for the number of experts, whose name depends on the architecture.
const EXPERT_COUNT: &str = "num_local_experts";
/// The key in [`SIZES`] for their inner size.
const EXPERT_INNER: &str = "moe_intermediate_size";
/// All keys for the number of experts: transformers 5 has another one than published files.
const EXPERT_COUNTS: [&str; 2] = [EXPERT_COUNT, "num_experts"];

impl Names {
    /// The architecture of a GGUF file; with experts where it has any.
    pub fn of_ggml(name: &str, experts: bool) -> Option<&'static Self> {
        let mut found = ALL.into_iter().filter(|names| names.ggml == name);
        match found.clone().count() {
            0 | 1 => found.next(),
            _ => found.find(|names| names.experts.is_empty() != experts),
        }
    }

    /// The architecture of a configuration.
    pub fn of_config(config: &Json) -> Option<&'static Self> {
        let kinds = [&config["model_type"], &config["text_config"]["model_type"]];
        let found = |kind: &&Json| ALL.into_iter().find(|names| **kind == names.model_type);
        kinds.iter().find_map(found)
    }

    /// All modules of a layer.
    fn modules(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        SHARED.iter().chain(self.layer).copied()
    }

    /// The module of transformers for ggml's; `{}` stands for the expert.
    pub fn module(&self, ggml: &str) -> Option<String> {
        if let Some(&(_, name)) = OUTSIDE.iter().find(|(own, _)| *own == ggml) {
            return Some(name.into());
        }
        let (layer, own) = ggml.strip_prefix("blk.")?.split_once('.')?;
        layer.parse::<usize>().ok()?;
        let mut all = self.modules().chain(self.experts.iter().copied());
        let (_, name) = all.find(|(ggml, _)| *ggml == own)?;
        Some(format!("model.layers.{layer}.{name}"))
    }

    /// ggml's module for that of transformers, with the expert, if it is one's.
    pub fn ggml_module(&self, module: &str) -> Option<(String, Option<usize>)> {
        if let Some(&(own, _)) = OUTSIDE.iter().find(|(_, name)| *name == module) {
            return Some((own.into(), None));
        }
        let (layer, rest) = module.strip_prefix("model.layers.")?.split_once('.')?;
        layer.parse::<usize>().ok()?;
        if let Some((own, _)) = self.modules().find(|(_, name)| *name == rest) {
            return Some((format!("blk.{layer}.{own}"), None));
        }
        self.experts.iter().find_map(|(own, name)| {
            let (before, after) = name.split_once("{}")?;
            let rest = rest.strip_prefix(before)?;
            // Mixtral's projections have general names in compressed-tensors.
            let (expert, projection) = rest.split_once('.')?;
            let numbered = PROJECTIONS.iter();
            let general = numbered.clone().find(|(_, numbered)| *numbered == projection);
            let same = |name: &str| after.strip_prefix('.') == Some(name);
            let fits = same(projection)
                || general.is_some_and(|(general, _)| same(general))
                || numbered.clone().any(|(general, own)| *general == projection && same(own));
            fits.then_some(())?;
            Some((format!("blk.{layer}.{own}"), Some(expert.parse().ok()?)))
        })
    }

    /// The key of `config.json` for one in [`SIZES`].
    pub fn size_key(&self, key: &'static str) -> &'static str {
        match key {
            EXPERT_COUNT => self.expert_count,
            EXPERT_INNER => self.expert_inner,
            key => key,
        }
    }

    /// The value of a configuration for a key in [`SIZES`].
    pub fn size(&self, config: &Json, key: &'static str) -> Option<Json> {
        let others = EXPERT_COUNTS.iter().filter(|_| key == EXPERT_COUNT).copied();
        std::iter::once(self.size_key(key)).chain(others).find_map(|key| size(config, key))
    }

    /// Whether ggml's values of a tensor are larger by one.
    pub fn is_one_more(&self, module: &str) -> bool {
        self.one_more && module.ends_with("norm")
    }
}

/// A size of `config.json`, also where it belongs to the text or to the positions.
pub(crate) fn size(config: &Json, key: &str) -> Option<Json> {
    let texts = [config, &config["text_config"]];
    let places = texts.into_iter().flat_map(|text| {
        let positions = &text["rope_parameters"];
        [&text[key], &positions[key], &positions["full_attention"][key]]
    });
    places.into_iter().find(|value| value.is_number()).cloned()
}

/// A size in ggml's type; `None` if it does not fit.
pub(crate) fn to_ggml(value: &Json, kind: As) -> Option<Value> {
    Some(Value::Scalar(match kind {
        As::U32 => Scalar::U32(u32::try_from(value.as_u64()?).ok()?),
        As::F32 => Scalar::F32(value.as_f64()? as f32),
    }))
}

/// A size for `config.json`.
pub(crate) fn to_json(value: &Value) -> Option<Json> {
    match value {
        // The shortest decimal that is this f32, so that 1e-6 stays 1e-6.
        Value::Scalar(Scalar::F32(x)) => x.to_string().parse::<f64>().ok().map(|x| json!(x)),
        Value::Scalar(Scalar::F64(x)) => Some(json!(x)),
        other => other.as_u64().map(|x| json!(x)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_comes_back() {
        for names in ALL {
            let modules = names.modules().chain(names.experts.iter().copied());
            let layered = modules
                .map(|(own, name)| (format!("blk.7.{own}"), format!("model.layers.7.{name}")));
            let outside = OUTSIDE.iter().map(|(own, name)| ((*own).to_owned(), (*name).to_owned()));
            for (own, name) in layered.chain(outside) {
                assert_eq!(names.module(&own).as_deref(), Some(name.as_str()));
                let expert = name.contains("{}").then_some(12);
                let name = name.replace("{}", "12");
                assert_eq!(names.ggml_module(&name), Some((own, expert)), "{name}");
            }
            assert_eq!(names.ggml_module("model.layers.7.mlp.other"), None);
        }
    }

    #[test]
    fn mixtral_is_llama_with_experts() {
        let of = |name, experts| Names::of_ggml(name, experts).map(|names| names.model_type);
        assert_eq!(of("llama", false), Some("llama"));
        assert_eq!(of("llama", true), Some("mixtral"));
        assert_eq!(of("qwen3moe", true), Some("qwen3_moe"));
        assert_eq!(of("rwkv7", false), None);
        let general = "model.layers.1.block_sparse_moe.experts.3.down_proj";
        assert_eq!(MIXTRAL.ggml_module(general), Some(("blk.1.ffn_down_exps".into(), Some(3))));
    }
}
