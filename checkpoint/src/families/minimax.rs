//! MiniMax-M2 and M3.

use super::{Architecture, ExpertNames, GENERAL};

/// MiniMax-M2 and M3, whose experts have Mixtral's names.
pub(super) const MINIMAX: Architecture = Architecture {
    name: "MiniMax",
    model_types: &["minimax", "minimax_m2", "minimax_m3"],
    classes: &["MiniMaxM2ForCausalLM"],
    floats: &[("*.block_sparse_moe.gate.weight", "a router")],
    experts: ExpertNames::Numbered,
    ..GENERAL
};
