//! The layout of the workspace of a product on sm_100a.

use crate::plan::sm100::Estimate;
use fp4_formats::gemm::sm100::config::flag_bytes;

/// CTAs of a launch under stream-K on a machine without as many SMs: one pair.
const LEAST_CTAS: u32 = 2;
/// Partial sums, and codes and scales that are laid out, start at multiples of this.
const ALIGNMENT: u64 = 512;

/// Offsets in the workspace. The flags are at its start, whatever the plan, so that plans can share one.
/// Partial sums follow, and then activations that are laid out or quantised, whose size depends on
/// their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sm100Workspace {
    /// Offset of the partial sums.
    pub partials: u64,
    /// Offset of the activations; that of the partial sums where there are none.
    pub activations: u64,
}

impl Sm100Workspace {
    /// Lays out the workspace for a choice on a machine of so many SMs.
    pub const fn new(sms: u32, choice: &Estimate) -> Self {
        let Estimate { config, schedule, clusters, .. } = choice;
        let most = if sms > LEAST_CTAS { sms } else { LEAST_CTAS };
        let partials = flag_bytes(most).next_multiple_of(ALIGNMENT);
        // Under a schedule with a fix-up, a launch has no more CTAs than the estimate's clusters do.
        let ctas =
            if schedule.has_fix_up() { *clusters as u64 * config.cluster() as u64 } else { 0 };
        let sums = (ctas * config.partial_bytes() as u64).next_multiple_of(ALIGNMENT);
        Self { partials, activations: partials + sums }
    }

    /// Bytes of the workspace with so many of activations; 0 where it would have nothing but flags.
    /// `None` beyond what memory can hold.
    pub fn bytes(&self, made: u64) -> Option<usize> {
        let needed = made > 0 || self.activations > self.partials;
        let bytes = if needed { self.activations.checked_add(made)? } else { 0 };
        usize::try_from(bytes).ok()
    }
}
