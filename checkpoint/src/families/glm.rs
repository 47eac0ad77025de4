//! GLM-4.5 to 5.

use super::{Architecture, GENERAL, LATENT};

/// GLM with experts.
pub(super) const GLM: Architecture = Architecture {
    name: "GLM",
    model_types: &["glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm5", "glm_moe_dsa"],
    classes: &["Glm4MoeForCausalLM"],
    floats: &[
        ("*.eh_proj.weight", "the joint input of the multi-token predictor"),
        ("*.indexer.*", "the indexer of sparse attention, whose choices decide what is read"),
    ],
    mlx: LATENT,
    ..GENERAL
};
