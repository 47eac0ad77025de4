//! Nemotron-H and Nemotron 3, with Mamba layers.

use super::{Architecture, GENERAL, Mlx, SWITCH_MLP};

/// Nemotron with Mamba layers.
pub(super) const NEMOTRON: Architecture = Architecture {
    name: "Nemotron",
    model_types: &["nemotron_h", "nemotron3", "nemotron"],
    classes: &["NemotronHForCausalLM"],
    floats: &[("*.mixer.conv1d.*", "a convolution"), ("*.mixer.A_log", "a state matrix")],
    mlx: Mlx {
        differs: Some(
            "mlx-lm has another order of dimensions of its convolutions, and other names of its experts",
        ),
        ..SWITCH_MLP
    },
    ..GENERAL
};
