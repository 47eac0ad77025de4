//! T5 and UMT5.

use super::{Architecture, GENERAL};

/// T5.
pub(super) const T5: Architecture = Architecture {
    name: "T5",
    model_types: &["t5", "umt5", "mt5"],
    classes: &["T5EncoderModel", "T5ForConditionalGeneration", "UMT5EncoderModel"],
    floats: &[("shared.weight", "the embedding")],
    ..GENERAL
};
