//! Qwen3-Next and Qwen3.5, with linear attention.

use super::{Architecture, GENERAL, Mlx, SWITCH_MLP};

/// Qwen3-Next and Qwen3.5.
pub(super) const QWEN_NEXT: Architecture = Architecture {
    name: "Qwen3-Next",
    model_types: &["qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"],
    classes: &[
        "Qwen3NextForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    ],
    joined: &[&["in_proj_qkv", "in_proj_z"], &["in_proj_b", "in_proj_a"]],
    floats: &[
        ("*.in_proj_ba.weight", "gates of linear attention, a few rows"),
        ("*.in_proj_a.weight", "gates of linear attention, a few rows"),
        ("*.in_proj_b.weight", "gates of linear attention, a few rows"),
    ],
    mlx: Mlx {
        differs: Some(
            "mlx-lm has one more in its norms, and another order of dimensions of its convolutions",
        ),
        ..SWITCH_MLP
    },
    ..GENERAL
};
