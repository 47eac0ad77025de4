//! Llama 4.

use super::{Architecture, FloatExperts, GENERAL, Mlx, SWITCH_MLP};

/// Llama 4, whose experts are `[experts, K, N]`, the gate's columns first.
pub(super) const LLAMA4: Architecture = Architecture {
    name: "Llama 4",
    model_types: &["llama4", "llama4_text"],
    classes: &["Llama4ForCausalLM", "Llama4ForConditionalGeneration"],
    float_experts: FloatExperts::InputFirst { alternate: false },
    mlx: Mlx { experts: "experts", ..SWITCH_MLP },
    ..GENERAL
};
