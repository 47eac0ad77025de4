//! The oracle of a GEMM: its f64 reference, and the comparison of a result with it.

mod exact;
mod reference;
mod verify;

pub(crate) use exact::exactly_gated;
pub use reference::{reference, reference_for, reference_grouped, reference_grouped_for};
pub use verify::Verify;
