//! The oracle of a GEMM: its f64 reference, and the comparison of a result with it.

mod exact;
mod reference;
mod verify;

use fp4_formats::gemm::Adding;
use fp4_formats::gemm::sm90::config::{Sm90Config, all};
use nvfp4::gemm::GemmOverrides;

pub(crate) use exact::exactly_gated;
pub use reference::{reference, reference_for, reference_grouped, reference_grouped_for};
pub use verify::Verify;

/// The way of adding that the kernel which is asked for needs; the usual one where none is.
#[must_use]
pub fn adding_of(overrides: &GemmOverrides) -> Adding {
    let asked = |config: &&Sm90Config| overrides.kernel.as_deref() == Some(config.name);
    all().find(asked).map_or(Adding::default(), |config| config.adding)
}
