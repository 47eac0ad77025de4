//! Gemma 2, 3 and 4.

use super::{Architecture, GENERAL, Mlx, RENAMED, SWITCH_MLP};

/// Gemma 1 to 3.
pub(super) const GEMMA: Architecture = Architecture {
    name: "Gemma",
    model_types: &["gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n"],
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    floats: &[
        ("*per_layer_*", "projections of per-layer embeddings"),
        ("*.altup.*", "predictions between streams"),
        ("*.laurel.*", "low-rank residuals"),
    ],
    ..GENERAL
};

/// Gemma 4.
pub(super) const GEMMA4: Architecture = Architecture {
    name: "Gemma 4",
    model_types: &["gemma4", "gemma4_text"],
    classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    mlx: Mlx { differs: Some(RENAMED), ..SWITCH_MLP },
    ..GEMMA
};
