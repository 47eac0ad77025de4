//! Mixtral.

use super::{Architecture, ExpertNames, GENERAL};

/// Mixtral, whose experts are `w1`, `w3`, `w2` in ModelOpt's export.
pub(super) const MIXTRAL: Architecture = Architecture {
    name: "Mixtral",
    model_types: &["mixtral"],
    classes: &["MixtralForCausalLM"],
    floats: &[("*.block_sparse_moe.gate.weight", "a router")],
    experts: ExpertNames::Numbered,
    ..GENERAL
};
