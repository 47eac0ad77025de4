//! The parts of the workspace of a kernel that takes decoded or quantised activations.

use fp4_formats::gemm::Problem;

use crate::error::{Error, Result};

/// Bytes that are zero before a launch and after it, whatever the plan, so that plans can share a workspace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zeroed {
    /// Bytes of the flags of all CTAs.
    pub flags: usize,
    /// Bytes of the places of partial sums that show by themselves that they are there, of all CTAs.
    pub marked: usize,
}

/// The partial sums of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Partials {
    /// No tile is cut.
    None,
    /// Partial sums that show by themselves that they are there.
    Marked,
    /// Partial sums that flags announce, in so many bytes.
    Flagged(u64),
}

/// Offsets in the workspace. Bytes that are [zero](Zeroed) between launches are at its start, the flags first; decoded or quantised
/// activations and partial sums that flags announce follow.
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

    /// The parts of the workspace of a product: `made` bytes of activations and of their scales. `made` is `None` where
    /// they cannot be counted.
    ///
    /// # Errors
    /// [`Error::Overflow`].
    pub fn new(
        problem: &Problem,
        zeroed: Zeroed,
        made: Option<[usize; 2]>,
        partials: Partials,
    ) -> Result<Self> {
        let overflow = || Error::Overflow {
            what: "workspace".into(),
            detail: format!("activations of {problem:?} and {partials:?}"),
        };
        let align = |bytes: usize| bytes.checked_next_multiple_of(Self::ALIGNMENT);
        let Zeroed { flags, marked } = zeroed;
        let counted = || {
            let [elements, of_rows] = made?;
            let first = align(flags)?;
            let activations = align(first.checked_add(marked)?)?;
            let scales = align(activations.checked_add(elements)?)?;
            let end = align(scales.checked_add(of_rows)?)?;
            let (partials, bytes) = match partials {
                Partials::None if elements == 0 => (end, 0),
                Partials::None => (end, end),
                Partials::Marked => (first, end),
                Partials::Flagged(bytes) => (end, end.checked_add(usize::try_from(bytes).ok()?)?),
            };
            Some(Self { activations, scales, partials, bytes })
        };
        counted().ok_or_else(overflow)
    }
}
