//! Bulk copies of contiguous bytes by the copy engine, and the L2 policies of
//! copies. Addresses and sizes are multiples of 16.

use core::arch::asm;

/// `createpolicy.fractional.L2::evict_first.b64 d;` ISA 9.7.9.18. sm_80+. Any
/// thread. For data that is read once.
#[inline(always)]
pub fn createpolicy_fractional_l2_evict_first_b64() -> u64 {
    let policy;
    // SAFETY: writes a register only.
    unsafe {
        asm!("createpolicy.fractional.L2::evict_first.b64 {};", out(reg64) policy,
            options(pure, nomem, nostack, preserves_flags));
    }
    policy
}

/// `createpolicy.fractional.L2::evict_last.b64 d;` ISA 9.7.9.18. sm_80+. Any
/// thread. For data that other CTAs read too.
#[inline(always)]
pub fn createpolicy_fractional_l2_evict_last_b64() -> u64 {
    let policy;
    // SAFETY: writes a register only.
    unsafe {
        asm!("createpolicy.fractional.L2::evict_last.b64 {};", out(reg64) policy,
            options(pure, nomem, nostack, preserves_flags));
    }
    policy
}

/// `createpolicy.fractional.L2::evict_normal.b64 d;` ISA 9.7.9.18. sm_80+. Any
/// thread. The default.
#[inline(always)]
pub fn createpolicy_fractional_l2_evict_normal_b64() -> u64 {
    let policy;
    // SAFETY: writes a register only.
    unsafe {
        asm!("createpolicy.fractional.L2::evict_normal.b64 {};", out(reg64) policy,
            options(pure, nomem, nostack, preserves_flags));
    }
    policy
}

/// `cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint
/// [dst], [src], bytes, [mbar], policy;` ISA 9.7.9.25.4.1. sm_90+, PTX 8.6. One
/// thread. Completes `bytes` on the mbarrier.
///
/// # Safety
/// * `destination` and `source` are 16-byte aligned addresses of `bytes` bytes (a multiple
///   of 16) of the CTA's shared memory and of global memory.
/// * Nothing accesses the destination until the phase of `barrier` is complete.
#[inline(always)]
pub unsafe fn cp_async_bulk_shared_cta_global(
    destination: u32,
    source: u64,
    bytes: u32,
    barrier: u32,
    policy: u64,
) {
    // SAFETY: the caller guarantees the addresses.
    unsafe {
        asm!(
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [{}], [{}], {}, [{}], {};",
            in(reg32) destination, in(reg64) source, in(reg32) bytes, in(reg32) barrier,
            in(reg64) policy,
            options(nostack, preserves_flags),
        );
    }
}

/// `cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
/// .multicast::cluster.L2::cache_hint [dst], [src], bytes, [mbar], ctas, policy;`
/// ISA 9.7.9.25.4.1. sm_90+. One thread. Copies to the same offset of the shared memory of
/// each CTA in `ctas`, and completes `bytes` on the mbarrier at the offset of `barrier` in each.
///
/// # Safety
/// The obligations of [`cp_async_bulk_shared_cta_global`] hold in every CTA of `ctas`, and none
/// of these has ended.
#[inline(always)]
pub unsafe fn cp_async_bulk_shared_cluster_global_multicast(
    destination: u32,
    source: u64,
    bytes: u32,
    barrier: u32,
    ctas: u16,
    policy: u64,
) {
    // SAFETY: the caller guarantees the addresses.
    unsafe {
        asm!(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [{}], [{}], {}, [{}], {}, {};",
            in(reg32) destination, in(reg64) source, in(reg32) bytes, in(reg32) barrier,
            in(reg16) ctas, in(reg64) policy,
            options(nostack, preserves_flags),
        );
    }
}

/// `cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [dst],
/// [src], bytes, [mbar];` ISA 9.7.9.25.4.1. sm_90+. One thread. Copies to another CTA of
/// the cluster; the mbarrier is in that CTA.
///
/// # Safety
/// The obligations of [`cp_async_bulk_shared_cta_global`] hold, with `destination` and
/// `barrier` in one other CTA of the cluster that has not ended. The source is not written
/// until the copy is complete.
#[inline(always)]
pub unsafe fn cp_async_bulk_shared_cluster_shared_cta(
    destination: u32,
    source: u32,
    bytes: u32,
    barrier: u32,
) {
    // SAFETY: the caller guarantees the addresses.
    unsafe {
        asm!(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [{}], [{}], {}, [{}];",
            in(reg32) destination, in(reg32) source, in(reg32) bytes, in(reg32) barrier,
            options(nostack, preserves_flags),
        );
    }
}

/// `cp.async.bulk.global.shared::cta.bulk_group [dst], [src], bytes;` ISA
/// 9.7.9.25.4.1. sm_90+. One thread. The copy belongs to the thread's next bulk group.
///
/// # Safety
/// * `destination` and `source` are 16-byte aligned addresses of `bytes` bytes (a multiple
///   of 16) of global memory and of the CTA's shared memory.
/// * A proxy fence orders earlier writes of the source before the copy.
/// * Nothing writes the source until the group's reads are complete.
#[inline(always)]
pub unsafe fn cp_async_bulk_global_shared_cta(destination: u64, source: u32, bytes: u32) {
    // SAFETY: the caller guarantees the addresses.
    unsafe {
        asm!(
            "cp.async.bulk.global.shared::cta.bulk_group [{}], [{}], {};",
            in(reg64) destination, in(reg32) source, in(reg32) bytes,
            options(nostack, preserves_flags),
        );
    }
}

/// `cp.async.bulk.commit_group;` ISA 9.7.9.25.4.4. sm_90+. Any thread. Closes the
/// thread's group of bulk stores.
///
/// # Safety
/// None beyond the order of the thread's copies.
#[inline(always)]
pub unsafe fn cp_async_bulk_commit_group() {
    // SAFETY: accesses no memory of the program.
    unsafe { asm!("cp.async.bulk.commit_group;", options(nostack, preserves_flags)) }
}

/// `cp.async.bulk.wait_group N;` ISA 9.7.9.25.4.5. sm_90+. Any thread. Waits until
/// at most the last `N` groups of the thread are incomplete.
///
/// # Safety
/// None beyond the order of the thread's copies.
#[inline(always)]
pub unsafe fn cp_async_bulk_wait_group<const N: u32>() {
    // SAFETY: accesses no memory of the program.
    unsafe { asm!("cp.async.bulk.wait_group {};", const N, options(nostack, preserves_flags)) }
}

/// `cp.async.bulk.wait_group.read N;` ISA 9.7.9.25.4.5. sm_90+. Any thread. Waits
/// until at most the last `N` groups of the thread still read their sources.
///
/// # Safety
/// None beyond the order of the thread's copies.
#[inline(always)]
pub unsafe fn cp_async_bulk_wait_group_read<const N: u32>() {
    // SAFETY: accesses no memory of the program.
    unsafe {
        asm!("cp.async.bulk.wait_group.read {};", const N, options(nostack, preserves_flags));
    }
}

/// `cp.async.bulk.prefetch.L2.global [a], bytes;` ISA 9.7.9.25.4.3. sm_90+. One
/// thread.
///
/// # Safety
/// `source` is the 16-byte aligned address of `bytes` readable bytes (a multiple of 16).
#[inline(always)]
pub unsafe fn cp_async_bulk_prefetch_l2_global(source: u64, bytes: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("cp.async.bulk.prefetch.L2.global [{}], {};", in(reg64) source, in(reg32) bytes,
            options(nostack, preserves_flags));
    }
}
