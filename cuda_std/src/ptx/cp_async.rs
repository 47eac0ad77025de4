//! Copies from global to shared memory that a thread starts and waits for in groups.

use core::arch::asm;

/// `cp.async.cg.shared.global.L2::128B [dst], [src], 16;` ISA 9.7.9.25.3.1. sm_80+.
/// Any thread. Through L2 only.
///
/// # Safety
/// `src` names 16 readable bytes of global memory, `dst` 16 writable ones of this CTA's
/// shared memory, both 16-byte aligned. Nobody touches the destination, and nobody
/// writes the source, before the copy's group was waited for.
#[inline(always)]
pub unsafe fn cp_async_cg_shared_global_16(dst: u32, src: u64) {
    // SAFETY: the caller vouches for both places.
    unsafe {
        asm!(
            "cp.async.cg.shared.global.L2::128B [{}], [{}], 16;",
            in(reg32) dst, in(reg64) src,
            options(nostack, preserves_flags),
        );
    }
}

/// `cp.async.commit_group;` ISA 9.7.9.25.3.2. sm_80+. Any thread. The thread's copies
/// since the last one become a group, which may be empty.
#[inline(always)]
pub fn cp_async_commit_group() {
    // SAFETY: only groups what the thread started.
    unsafe { asm!("cp.async.commit_group;", options(nostack, preserves_flags)) }
}

/// `cp.async.wait_group N;` ISA 9.7.9.25.3.3. sm_80+. Any thread. Waits until at most
/// `N` of the thread's latest groups are not complete; the thread then sees what the
/// others wrote.
#[inline(always)]
pub fn cp_async_wait_group<const N: u32>() {
    // SAFETY: only waits.
    unsafe { asm!("cp.async.wait_group {};", const N, options(nostack, preserves_flags)) }
}
