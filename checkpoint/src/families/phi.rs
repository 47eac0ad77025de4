//! Phi-3 and 4, whose q, k and v, and gate and up, are one tensor each.

use super::{Architecture, GENERAL};

/// Phi.
pub(super) const PHI: Architecture = Architecture {
    name: "Phi",
    model_types: &["phi", "phi3", "phi4", "phi4mm", "phimoe", "phi4_multimodal"],
    classes: &["Phi3ForCausalLM"],
    ..GENERAL
};
