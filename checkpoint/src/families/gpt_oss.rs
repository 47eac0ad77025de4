//! gpt-oss.

use super::{Architecture, ExpertNames, FloatExperts, GENERAL, Mlx, SWITCH_MLP};

/// gpt-oss, whose experts transformers has in one tensor.
pub(super) const GPT_OSS: Architecture = Architecture {
    name: "gpt-oss",
    model_types: &["gpt_oss"],
    classes: &["GptOssForCausalLM"],
    experts: ExpertNames::Joint,
    float_experts: FloatExperts::InputFirst { alternate: true },
    mlx: Mlx { experts: "experts", ..SWITCH_MLP },
    ..GENERAL
};
