//! The architectures that are computed.

/// An architecture that is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, and what has their `model_type`.
    Llama,
    /// Qwen3, with norms of queries and keys.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
    /// Mixtral.
    Mixtral,
    /// gpt-oss: sinks, windows, biases, and experts with a clamped SwiGLU.
    GptOss,
    /// DeepSeek V3 and R1, Kimi K2: latent attention, experts in groups, and shared ones.
    DeepseekV3,
}

impl Architecture {
    /// All architectures.
    pub const ALL: [Self; 6] =
        [Self::Llama, Self::Qwen3, Self::Qwen3Moe, Self::Mixtral, Self::GptOss, Self::DeepseekV3];

    /// Its `model_type` in `config.json`.
    #[must_use]
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Mixtral => "mixtral",
            Self::GptOss => "gpt_oss",
            Self::DeepseekV3 => "deepseek_v3",
        }
    }

    /// The architecture of a `model_type`.
    pub(super) fn named(kind: &str) -> Option<Self> {
        // Kimi K2's files have a name of their own for it.
        let kind = if kind == "kimi_k2" { Self::DeepseekV3.model_type() } else { kind };
        Self::ALL.into_iter().find(|known| known.model_type() == kind)
    }
}
