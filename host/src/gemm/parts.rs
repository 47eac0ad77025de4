//! The parts of the workspace of a kernel that takes decoded or quantised activations.

use fp4_formats::gemm::Problem;

use crate::error::{Error, Result};

/// Offsets in the workspace. The flags are at its start, whatever the plan, so that plans can
/// share one; decoded or quantised activations and partial sums follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkspaceParts {
    /// Offset of the decoded or quantised activations.
    pub activations: usize,
    /// Offset of the scales of activations in e4m3.
    pub scales: usize,
    /// Offset of the partial sums.
    pub partials: usize,
    /// Bytes of the workspace; 0 where none is needed.
    pub bytes: usize,
}

impl WorkspaceParts {
    /// Copies and vector loads start at multiples of this.
    pub const ALIGNMENT: usize = 256;

    /// The parts of the workspace of a product: `flags` bytes of flags, `made` bytes of activations and of their
    /// scales, `sums` bytes of partial sums. `made` is `None` where they cannot be counted.
    ///
    /// # Errors
    /// [`Error::Overflow`].
    pub fn new(
        problem: &Problem,
        flags: usize,
        made: Option<[usize; 2]>,
        sums: u64,
    ) -> Result<Self> {
        let overflow = || Error::Overflow {
            what: "workspace".into(),
            detail: format!("activations of {problem:?} and {sums} bytes of sums"),
        };
        let align = |bytes: usize| bytes.checked_next_multiple_of(Self::ALIGNMENT);
        let counted = || {
            let ([elements, of_rows], sums) = (made?, usize::try_from(sums).ok()?);
            let activations = align(flags)?;
            let scales = align(activations.checked_add(elements)?)?;
            let partials = align(scales.checked_add(of_rows)?)?;
            let bytes = partials.checked_add(sums)?;
            let bytes = if elements + sums == 0 { 0 } else { bytes };
            Some(Self { activations, scales, partials, bytes })
        };
        counted().ok_or_else(overflow)
    }
}
