//! The number of registers that the threads of a warpgroup have.

use core::arch::asm;

/// `setmaxnreg.inc.sync.aligned.u32 N;` ISA 9.7.19.5. sm_90a, sm_100a. The warpgroup. Waits until
/// the CTA's pool has enough registers.
///
/// # Safety
/// * All threads of the warpgroup reach this same call.
/// * The kernel limits its registers (`.maxnreg`, or launch bounds with `.minnctapersm`).
/// * `N` is a multiple of 8 from 24 to 256 and not less than the warpgroup has, and the CTA's
///   other warpgroups release, or have released, as many registers as this call needs.
#[inline(always)]
pub unsafe fn setmaxnreg_inc<const N: u32>() {
    // SAFETY: the caller guarantees convergence and count; no nomem/readonly/pure.
    unsafe {
        asm!("setmaxnreg.inc.sync.aligned.u32 {};", const N, options(nostack, preserves_flags))
    }
}

/// `setmaxnreg.dec.sync.aligned.u32 N;` ISA 9.7.19.5. sm_90a, sm_100a. The warpgroup.
/// Releases registers to the CTA's pool.
///
/// # Safety
/// * All threads of the warpgroup reach this same call.
/// * The kernel limits its registers (`.maxnreg`, or launch bounds with `.minnctapersm`).
/// * `N` is a multiple of 8 from 24 to 256 and not more than the warpgroup has.
#[inline(always)]
pub unsafe fn setmaxnreg_dec<const N: u32>() {
    // SAFETY: the caller guarantees convergence and count; no nomem/readonly/pure.
    unsafe {
        asm!("setmaxnreg.dec.sync.aligned.u32 {};", const N, options(nostack, preserves_flags))
    }
}
