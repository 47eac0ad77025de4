//! Asynchronous copies from global to shared memory, which a thread starts and waits for in groups.

use core::arch::asm;

/// `cp.async.cg.shared.global.L2::128B [dst], [src], 16;` ISA 9.7.9.25.3.1. sm_80+.
/// Any thread. Bypasses L1.
///
/// # Safety
/// * `src` is the address of 16 readable bytes of global memory, `dst` that of 16 bytes of
///   this CTA's shared memory; both are 16-byte aligned.
/// * Until the copy's group has been waited for, nothing accesses the destination and
///   nothing writes the source.
#[inline(always)]
pub unsafe fn cp_async_cg_shared_global_16(dst: u32, src: u64) {
    // SAFETY: the caller guarantees both places.
    unsafe {
        asm!(
            "cp.async.cg.shared.global.L2::128B [{}], [{}], 16;",
            in(reg32) dst, in(reg64) src,
            options(nostack, preserves_flags),
        );
    }
}

/// `cp.async.cg.shared.global.L2::128B [dst], [src], 16, bytes;` ISA 9.7.9.25.3.1. sm_80+.
/// Any thread. Bypasses L1. Copies `bytes` bytes, and zeros to fill 16.
///
/// # Safety
/// * `src` is the address of `bytes` readable bytes of global memory, at most 16, `dst` that of 16 bytes of
///   this CTA's shared memory; both are 16-byte aligned.
/// * Until the copy's group has been waited for, nothing accesses the destination and
///   nothing writes the source.
#[inline(always)]
pub unsafe fn cp_async_cg_shared_global_16_zfill(dst: u32, src: u64, bytes: u32) {
    // SAFETY: the caller guarantees both places.
    unsafe {
        asm!(
            "cp.async.cg.shared.global.L2::128B [{}], [{}], 16, {};",
            in(reg32) dst, in(reg64) src, in(reg32) bytes,
            options(nostack, preserves_flags),
        );
    }
}

/// `@p cp.async.cg.shared.global.L2::128B [dst], [src], 16, bytes;` ISA 9.7.9.25.3.1. sm_80+.
/// Any thread. Bypasses L1. Copies `bytes` bytes, and zeros to fill 16; nothing unless `copy`.
///
/// Inline assembly cannot name predicates, so the wrapper includes the `setp`.
///
/// # Safety
/// The obligations of [`cp_async_cg_shared_global_16_zfill`], if `copy`.
#[inline(always)]
pub unsafe fn cp_async_cg_shared_global_16_zfill_if(copy: bool, dst: u32, src: u64, bytes: u32) {
    // SAFETY: the caller guarantees both places.
    unsafe {
        asm!(
            "{{ .reg .pred copy;",
            "setp.ne.u32 copy, {3}, 0;",
            "@copy cp.async.cg.shared.global.L2::128B [{0}], [{1}], 16, {2}; }}",
            in(reg32) dst, in(reg64) src, in(reg32) bytes, in(reg32) u32::from(copy),
            options(nostack, preserves_flags),
        );
    }
}

/// `cp.async.ca.shared.global [dst], [src], N, bytes;` ISA 9.7.9.25.3.1. sm_80+. Any thread. Copies `bytes`
/// bytes, and zeros to fill `N`, which is 4 or 8.
///
/// # Safety
/// * `src` is the address of `bytes` readable bytes of global memory, at most `N`, `dst` that of `N` bytes of
///   this CTA's shared memory; both are multiples of `N`.
/// * Until the copy's group has been waited for, nothing accesses the destination and
///   nothing writes the source.
#[inline(always)]
pub unsafe fn cp_async_ca_shared_global_zfill<const N: u32>(dst: u32, src: u64, bytes: u32) {
    const { assert!(N == 4 || N == 8) };
    // SAFETY: the caller guarantees both places.
    unsafe {
        asm!(
            "cp.async.ca.shared.global [{}], [{}], {}, {};",
            in(reg32) dst, in(reg64) src, const N, in(reg32) bytes,
            options(nostack, preserves_flags),
        );
    }
}

/// `cp.async.commit_group;` ISA 9.7.9.25.3.2. sm_80+. Any thread. The thread's copies
/// since its last commit become a group, which may be empty.
#[inline(always)]
pub fn cp_async_commit_group() {
    // SAFETY: accesses no memory.
    unsafe { asm!("cp.async.commit_group;", options(nostack, preserves_flags)) }
}

/// `cp.async.wait_group N;` ISA 9.7.9.25.3.3. sm_80+. Any thread. Waits until at most
/// the latest `N` groups of the thread are incomplete. The data of the other groups is then
/// visible to the thread.
#[inline(always)]
pub fn cp_async_wait_group<const N: u32>() {
    // SAFETY: only waits.
    unsafe { asm!("cp.async.wait_group {};", const N, options(nostack, preserves_flags)) }
}
