//! Qwen2, Qwen3 and Qwen3 with experts.

use super::{Architecture, GENERAL};

/// Qwen2 and Qwen3.
pub(super) const QWEN: Architecture = Architecture {
    name: "Qwen",
    model_types: &[
        "qwen2",
        "qwen2_moe",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3",
        "qwen3_moe",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_vl_text",
    ],
    classes: &["Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen2ForCausalLM"],
    ..GENERAL
};
