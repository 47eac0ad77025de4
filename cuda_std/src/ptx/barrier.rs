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

/// `bar.warp.sync mask;` ISA 9.7.13.2. sm_30+. All lanes named in `mask`; orders
/// their memory accesses.
///
/// # Safety
/// Every lane named in `mask`, the caller among them, reaches this same call.
#[inline(always)]
pub unsafe fn bar_warp_sync(mask: u32) {
    // SAFETY: the caller vouches for the lanes; no nomem/readonly/pure, so
    // memory accesses stay on their side of it.
    unsafe { asm!("bar.warp.sync {};", in(reg32) mask, options(nostack, preserves_flags)) }
}
