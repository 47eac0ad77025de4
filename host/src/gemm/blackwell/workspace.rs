//! What is where in the workspace of a product on sm_100a.

use fp4_formats::gemm::blackwell::choose::Estimate;
use fp4_formats::gemm::blackwell::config::flag_bytes;

/// CTAs of a launch under stream-K on a machine without as many SMs: one pair.
const LEAST_CTAS: u32 = 2;
/// Codes and scales that are laid out, and partial sums, start at multiples of this.
const ALIGNMENT: u64 = 512;

/// Offsets in the workspace. The flags are at its start, whatever the plan, so that plans can share one;
/// activations that are laid out or quantised, and partial sums, follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlackwellWorkspace {
    /// Offset of the activations.
    pub activations: u64,
    /// Offset of the partial sums.
    pub partials: u64,
    /// Bytes of the workspace; 0 where none is needed.
    pub bytes: usize,
}

impl BlackwellWorkspace {
    /// For `made` bytes of activations, and the partial sums of a choice on a machine of so many SMs. `None`
    /// beyond what memory can hold.
    pub fn new(sms: u32, made: u64, choice: &Estimate) -> Option<Self> {
        let Estimate { config, schedule, clusters, .. } = choice;
        let ctas = u64::from(*clusters) * u64::from(config.cluster());
        let sums = if schedule.has_fix_up() { ctas * u64::from(config.partial_bytes()) } else { 0 };
        let activations = flag_bytes(sms.max(LEAST_CTAS)).next_multiple_of(ALIGNMENT);
        let partials = activations.checked_add(made)?.checked_next_multiple_of(ALIGNMENT)?;
        let bytes = if made + sums == 0 { 0 } else { partials.checked_add(sums)? };
        Some(Self { activations, partials, bytes: usize::try_from(bytes).ok()? })
    }
}
