//! Names of fields of `config.json` that are refused, and of those that change nothing.

use super::architecture::Architecture;

/// Fields with which the mathematics of other families differ, and a value besides null and false that changes nothing.
pub(super) const REFUSED: [(&str, Option<f64>); 22] = [
    ("attention_multiplier", None),
    ("attn_logit_softcapping", None),
    ("final_logit_softcapping", None),
    ("embedding_multiplier", Some(1.)),
    ("residual_multiplier", Some(1.)),
    ("logits_scaling", Some(1.)),
    ("logit_scale", Some(1.)),
    ("partial_rotary_factor", Some(1.)),
    ("rotary_pct", Some(1.)),
    ("clip_qkv", None),
    ("qk_layernorm", None),
    ("use_qk_norm", None),
    ("no_rope_layers", None),
    ("no_rope_layer_interval", None),
    ("attention_chunk_size", None),
    ("attn_temperature_tuning", None),
    ("n_shared_experts", Some(0.)),
    ("shared_expert_intermediate_size", Some(0.)),
    ("kv_lora_rank", None),
    ("num_nextn_predict_layers", Some(0.)),
    ("routed_scaling_factor", Some(1.)),
    ("query_pre_attn_scalar", None),
];

/// Whether a field of [`REFUSED`] is one that an architecture has.
pub(super) fn computes(architecture: Architecture, field: &str) -> bool {
    const OF_DEEPSEEK: [&str; 4] =
        ["kv_lora_rank", "n_shared_experts", "num_nextn_predict_layers", "routed_scaling_factor"];
    architecture == Architecture::DeepseekV3 && OF_DEEPSEEK.contains(&field)
}

/// Fields that change nothing here: they are of training, of other programs, or said by the tensors themselves.
pub(super) const WITHOUT_EFFECT: [&str; 47] = [
    "_attn_implementation_autoset",
    "_name_or_path",
    "add_cross_attention",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "aux_loss_alpha",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "ep_size",
    "expert_capacity",
    "experts_per_token",
    "id2label",
    "initial_context_length",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "max_window_layers",
    "mlp_only_layers",
    "num_experts",
    "num_local_experts",
    "num_mtp_layers",
    "num_nextn_predict_layers",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "qk_head_dim",
    "quantization",
    "quantization_config",
    "resid_pdrop",
    "return_dict",
    "rope_scaling",
    "rope_theta",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "seq_aux",
    "sliding_window",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "use_sliding_window",
];
