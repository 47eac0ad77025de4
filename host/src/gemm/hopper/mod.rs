//! GEMM on sm_90a: weights are decoded on their way to the tensor core, block-scaled activations
//! by launches before.

mod launch;
mod plan;

use fp4_formats::ScaleLayout;
use fp4_formats::quantize::Format;

pub(super) use launch::launch;
pub(super) use plan::{HopperChoice, plan};

use super::ActivationKind;

/// The decoded activations of MXFP4 are times this: its largest scales exceed bf16, its
/// smallest do not need all of bf16's subnormals.
const MXFP4_DECODED: f32 = 0.125;

/// What decoded activations are times.
pub(super) fn decoded_scale(kind: ActivationKind) -> f32 {
    match kind {
        ActivationKind::Blocks { format: Format::Mxfp4, .. } => MXFP4_DECODED,
        _ => 1.0,
    }
}

/// How many launches decode `l` batch entries of activations.
fn decode_launches(layout: ScaleLayout, l: usize) -> usize {
    match layout {
        ScaleLayout::Linear => 1,
        ScaleLayout::Blocked128x4 => l,
    }
}
