//! CTA-wide barriers.

use core::arch::asm;

/// `bar.sync ID;` ISA 9.7.13.1. All targets. All threads of the CTA, warp by
/// warp converged.
///
/// # Safety
/// Every thread of the CTA reaches this same call.
#[inline(always)]
pub unsafe fn bar_sync<const ID: u32>() {
    // SAFETY: the caller vouches for convergence; no nomem/readonly/pure, so
    // memory accesses stay on their side of it.
    unsafe { asm!("bar.sync {};", const ID, options(nostack, preserves_flags)) }
}
