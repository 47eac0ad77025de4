//! GPT-2, whose linear layers are `Conv1D`.

use super::{Architecture, GENERAL};

/// GPT-2.
pub(super) const GPT2: Architecture = Architecture {
    name: "GPT-2",
    model_types: &["gpt2"],
    classes: &["GPT2LMHeadModel"],
    floats: &[
        ("*.c_attn.weight", "Conv1D, stored [K, N]: blocks would run along the output dimension"),
        ("*.c_proj.weight", "Conv1D, stored [K, N]: blocks would run along the output dimension"),
        ("*.c_fc.weight", "Conv1D, stored [K, N]: blocks would run along the output dimension"),
    ],
    ..GENERAL
};
