//! Hunyuan.

use super::{Architecture, GENERAL};

/// Hunyuan with experts, whose router is `gate.wg`.
pub(super) const HUNYUAN: Architecture = Architecture {
    name: "Hunyuan",
    model_types: &["hunyuan", "hunyuan_v1_moe", "hunyuan_v1_dense"],
    classes: &["HunYuanMoEV1ForCausalLM"],
    floats: &[("*.gate.wg.weight", "a router")],
    ..GENERAL
};
