//! GEMM on sm_90a: weights are decoded on their way to the tensor core, block-scaled activations
//! by launches before.

mod launch;
mod plan;

use fp4_formats::ScaleLayout;
use fp4_formats::gemm::Problem;
use fp4_formats::quantize::Format;

pub(super) use launch::launch;
pub(super) use plan::{HopperChoice, decode_steps, plan};

use super::ActivationKind;
use super::strides::Entries;

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

/// The launches that decode the activations of a batch, and the rows of each: all rows at once
/// where they follow each other, and their scales do; those of 128x4 scales never do, because each
/// entry's are padded.
fn decode_launches(problem: &Problem, layout: ScaleLayout, entries: Entries) -> (u32, u64) {
    let &Problem { m, l, .. } = problem;
    match (entries, layout) {
        (Entries::Dense, ScaleLayout::Linear) => (1, u64::from(l) * u64::from(m)),
        (Entries::Shared, _) => (1, m.into()),
        (Entries::Dense | Entries::Apart, _) => (l, m.into()),
    }
}
