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
}

impl Architecture {
    /// All architectures.
    pub const ALL: [Self; 5] =
        [Self::Llama, Self::Qwen3, Self::Qwen3Moe, Self::Mixtral, Self::GptOss];

    /// Its `model_type` in `config.json`.
    #[must_use]
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Mixtral => "mixtral",
            Self::GptOss => "gpt_oss",
        }
    }
}
