//! Encoders of images alone.

use super::{Architecture, GENERAL};

/// CLIP, SigLIP and other encoders of images.
pub(super) const VISION: Architecture = Architecture {
    name: "vision encoder",
    model_types: &["clip", "clip_vision_model", "siglip", "siglip2", "dinov2", "dinov3_vit", "vit"],
    ..GENERAL
};
