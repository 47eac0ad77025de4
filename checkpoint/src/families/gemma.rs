//! Gemma 2, 3 and 4.

use super::{Architecture, GENERAL};

/// Gemma.
pub(super) const GEMMA: Architecture = Architecture {
    name: "Gemma",
    model_types: &["gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma4", "gemma4_text"],
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    floats: &[
        ("*per_layer_*", "projections of per-layer embeddings"),
        ("*.altup.*", "predictions between streams"),
        ("*.laurel.*", "low-rank residuals"),
    ],
    ..GENERAL
};
