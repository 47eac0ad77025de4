//! How many registers the threads of a warpgroup have.

use core::arch::asm;

/// `setmaxnreg.inc.sync.aligned.u32 N;` ISA 9.7.19.5. sm_90a, sm_100a. The warpgroup. Waits until
/// the CTA's pool has enough registers.
///
/// # Safety
/// All threads of the warpgroup reach this same call; the kernel states its registers; `N`, a
/// multiple of 8 from 24 to 256, is no less than the warpgroup has, and the CTA's other
/// warpgroups give up, or have given up, as many as this needs.
#[inline(always)]
pub unsafe fn setmaxnreg_inc<const N: u32>() {
    // SAFETY: the caller vouches for convergence and count; no nomem/readonly/pure.
    unsafe {
        asm!("setmaxnreg.inc.sync.aligned.u32 {};", const N, options(nostack, preserves_flags))
    }
}

/// `setmaxnreg.dec.sync.aligned.u32 N;` ISA 9.7.19.5. sm_90a, sm_100a. The warpgroup. Gives
/// registers back to the CTA's pool.
///
/// # Safety
/// All threads of the warpgroup reach this same call; the kernel states its registers; `N`, a
/// multiple of 8 from 24 to 256, is no more than the warpgroup has.
#[inline(always)]
pub unsafe fn setmaxnreg_dec<const N: u32>() {
    // SAFETY: the caller vouches for convergence and count; no nomem/readonly/pure.
    unsafe {
        asm!("setmaxnreg.dec.sync.aligned.u32 {};", const N, options(nostack, preserves_flags))
    }
}
