//! GEMM on sm_100a: 4-bit operands stay as they are, multiplied with their scales by the
//! tensor core; beside 16-bit activations, weights are decoded on the way there.
//!
//! Weights are padded once at load: rows of codes to multiples of 16 bytes, scales to whole
//! tiles of the 128x4 layout. Activations that need it are laid out in the workspace by
//! launches before the product.

mod launch;
mod plan;
mod prepare;
mod weights;

use fp4_formats::gemm::Problem;
use fp4_formats::gemm::hopper::Operand;
use fp4_formats::quantize::Format;

pub(super) use launch::{launch, way_out};
pub(super) use plan::plan;
pub(super) use weights::repack;

use super::ActivationKind;
use super::check::formats;
use super::strides::Entries;
use crate::error::Result;
use crate::quantize::device::Step;
use prepare::Preparation;

/// The launches that lay out activations.
pub(super) fn prepare_steps(
    problem: &Problem,
    kind: ActivationKind,
    entries: Entries,
) -> Vec<Step> {
    Preparation::of(problem, kind, entries).map_or(Vec::new(), |preparation| preparation.steps())
}

/// The type of 16-bit activations; none for activations in the weights' format.
///
/// # Errors
/// [`Error::Shape`] for activations that have no kernel.
fn left(format: Format, kind: ActivationKind) -> Result<Option<Operand>> {
    formats(format, kind)?;
    Ok(match kind {
        ActivationKind::Halves(operand) => Some(operand),
        ActivationKind::Blocks { .. } => None,
    })
}
