//! DeepSeek V3, V3.2, V4 and Kimi K2, which has V3's classes.

use super::{Architecture, GENERAL};

/// DeepSeek V2 to V4, Kimi K2.
pub(super) const DEEPSEEK: Architecture = Architecture {
    name: "DeepSeek",
    model_types: &[
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "kimi_k2",
        "kimi_k25",
        "kimi_vl",
    ],
    classes: &["DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM"],
    joined: &[&["wq_a", "wkv_a_with_mqa"]],
    floats: &[
        ("*.indexer.*", "the indexer of sparse attention, whose choices decide what is read"),
        ("*.eh_proj.weight", "the joint input of the multi-token predictor"),
        ("*.compressor.*", "the compressor of keys"),
        ("*.hc_*", "hyper-connections"),
    ],
    ..GENERAL
};
