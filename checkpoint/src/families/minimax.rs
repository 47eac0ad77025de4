//! MiniMax-M2 and M3.

use super::{Architecture, ExpertNames, GENERAL, Mlx, SWITCH_MLP};

/// MiniMax-01 and M2, whose experts have Mixtral's names.
pub(super) const MINIMAX: Architecture = Architecture {
    name: "MiniMax",
    model_types: &["minimax", "minimax_m2"],
    classes: &["MiniMaxM2ForCausalLM"],
    floats: &[("*.block_sparse_moe.gate.weight", "a router")],
    experts: ExpertNames::Numbered,
    ..GENERAL
};

/// MiniMax-M3, with an encoder of images.
pub(super) const MINIMAX_M3: Architecture = Architecture {
    name: "MiniMax-M3",
    model_types: &["minimax_m3", "minimax_m3_vl"],
    classes: &[],
    mlx: Mlx { differs: Some("mlx-lm has other modules for it"), ..SWITCH_MLP },
    ..MINIMAX
};
