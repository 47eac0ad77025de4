//! gpt-oss.

use super::{Architecture, ExpertNames, GENERAL};

/// gpt-oss, whose experts transformers has in one tensor.
pub(super) const GPT_OSS: Architecture = Architecture {
    name: "gpt-oss",
    model_types: &["gpt_oss"],
    classes: &["GptOssForCausalLM"],
    experts: ExpertNames::Joint,
    ..GENERAL
};
