//! Mistral, also under its own names (`consolidated.safetensors`).

use super::{Architecture, GENERAL};

/// Mistral.
pub(super) const MISTRAL: Architecture = Architecture {
    name: "Mistral",
    model_types: &["mistral", "mistral3", "ministral", "ministral3", "pixtral"],
    classes: &["MistralForCausalLM", "Mistral3ForConditionalGeneration"],
    joined: &[&["wq", "wk", "wv"]],
    floats: &[("*patch_merger*", "the merger of image patches")],
    ..GENERAL
};
