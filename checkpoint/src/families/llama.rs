//! Llama.

use super::{Architecture, GENERAL};

/// Llama 2 and 3 and models with their classes.
pub(super) const LLAMA: Architecture = Architecture {
    name: "Llama",
    model_types: &["llama", "smollm3", "granite", "olmo2", "olmo3", "exaone4"],
    classes: &["LlamaForCausalLM"],
    ..GENERAL
};
