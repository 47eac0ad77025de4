//! Nemotron-H and Nemotron 3, with Mamba layers.

use super::{Architecture, GENERAL};

/// Nemotron with Mamba layers.
pub(super) const NEMOTRON: Architecture = Architecture {
    name: "Nemotron",
    model_types: &["nemotron_h", "nemotron3", "nemotron"],
    classes: &["NemotronHForCausalLM"],
    floats: &[("*.mixer.conv1d.*", "a convolution"), ("*.mixer.A_log", "a state matrix")],
    ..GENERAL
};
