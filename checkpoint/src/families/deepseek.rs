//! DeepSeek V2, V3, V3.2 and V4.

use super::{Architecture, GENERAL, LATENT, Mlx, SWITCH_MLP};

/// DeepSeek V2 to V3.2.
pub(super) const DEEPSEEK: Architecture = Architecture {
    name: "DeepSeek",
    model_types: &["deepseek_v2", "deepseek_v3", "deepseek_v32"],
    classes: &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"],
    joined: &[&["wq_a", "wkv_a_with_mqa"]],
    floats: &[
        ("*.indexer.*", "the indexer of sparse attention, whose choices decide what is read"),
        ("*.eh_proj.weight", "the joint input of the multi-token predictor"),
        ("*.compressor.*", "the compressor of keys"),
        ("*.hc_*", "hyper-connections"),
    ],
    mlx: LATENT,
    ..GENERAL
};

/// DeepSeek V4, which has the same exceptions.
pub(super) const DEEPSEEK_V4: Architecture = Architecture {
    name: "DeepSeek V4",
    model_types: &["deepseek_v4"],
    classes: &["DeepseekV4ForCausalLM"],
    joined: &[],
    mlx: Mlx { differs: Some("mlx-lm has other modules for it"), ..SWITCH_MLP },
    ..DEEPSEEK
};
