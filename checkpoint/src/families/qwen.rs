//! Qwen2, Qwen3 and Qwen3 with experts.

use super::{Architecture, GENERAL, Mlx, RENAMED, SWITCH_MLP};

/// Qwen2 and Qwen3.
pub(super) const QWEN: Architecture = Architecture {
    name: "Qwen",
    model_types: &["qwen2", "qwen2_moe", "qwen3", "qwen3_moe"],
    classes: &["Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen2ForCausalLM"],
    ..GENERAL
};

/// Qwen2-VL to Qwen3-VL.
pub(super) const QWEN_VL: Architecture = Architecture {
    name: "Qwen-VL",
    model_types: &["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_vl_text"],
    classes: &["Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"],
    mlx: Mlx { differs: Some(RENAMED), ..SWITCH_MLP },
    ..GENERAL
};
