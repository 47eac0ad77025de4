//! Kimi K2 and its relatives, which have DeepSeek V3's modules.

use super::deepseek::DEEPSEEK;
use super::{Architecture, LATENT};

/// Kimi K2, K2 Thinking and K2.5, whose configuration names DeepSeek's class.
pub(super) const KIMI: Architecture = Architecture {
    name: "Kimi K2",
    model_types: &["kimi_k2", "kimi_k25", "kimi_vl"],
    classes: &["KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration"],
    joined: &[],
    mlx: LATENT,
    ..DEEPSEEK
};
