//! Bulk copies of contiguous bytes by the copy engine, and the L2 policies that
//! copies take. Addresses and sizes are multiples of 16.

use core::arch::asm;

/// `createpolicy.fractional.L2::evict_first.b64 d;` ISA 9.7.9.18. sm_80+. Any
/// thread. For data that is read once.
#[inline(always)]
pub fn createpolicy_fractional_l2_evict_first_b64() -> u64 {
    let policy;
    // SAFETY: makes a value.
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
    // SAFETY: makes a value.
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
    // SAFETY: makes a value.
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
/// 16-byte aligned `destination` and `source` name `bytes` bytes (a multiple of
/// 16) of the CTA's shared and of global memory; the destination is not used
/// until `barrier` says so.
#[inline(always)]
pub unsafe fn cp_async_bulk_shared_cta_global(
    destination: u32,
    source: u64,
    bytes: u32,
    barrier: u32,
    policy: u64,
) {
    // SAFETY: the caller vouches for the addresses.
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
/// ISA 9.7.9.25.4.1. sm_90+. One thread. To the same place in each CTA of `ctas`,
/// completing `bytes` on the mbarrier at `barrier`'s place in each.
///
/// # Safety
/// As [`cp_async_bulk_shared_cta_global`], in every CTA of `ctas`, none of which
/// has ended.
#[inline(always)]
pub unsafe fn cp_async_bulk_shared_cluster_global_multicast(
    destination: u32,
    source: u64,
    bytes: u32,
    barrier: u32,
    ctas: u16,
    policy: u64,
) {
    // SAFETY: the caller vouches for the addresses.
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
/// [src], bytes, [mbar];` ISA 9.7.9.25.4.1. sm_90+. One thread. Into another CTA of
/// the cluster; the mbarrier is in that CTA.
///
/// # Safety
/// As [`cp_async_bulk_shared_cta_global`], with `destination` and `barrier` in one
/// other CTA of the cluster that has not ended; the source is not written until
/// the copy is complete.
#[inline(always)]
pub unsafe fn cp_async_bulk_shared_cluster_shared_cta(
    destination: u32,
    source: u32,
    bytes: u32,
    barrier: u32,
) {
    // SAFETY: the caller vouches for the addresses.
    unsafe {
        asm!(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [{}], [{}], {}, [{}];",
            in(reg32) destination, in(reg32) source, in(reg32) bytes, in(reg32) barrier,
            options(nostack, preserves_flags),
        );
    }
}

/// `cp.async.bulk.global.shared::cta.bulk_group [dst], [src], bytes;` ISA
/// 9.7.9.25.4.1. sm_90+. One thread. Belongs to the thread's next bulk group.
///
/// # Safety
/// 16-byte aligned `destination` and `source` name `bytes` bytes (a multiple of
/// 16); a proxy fence orders the writes of the source before it.
#[inline(always)]
pub unsafe fn cp_async_bulk_global_shared_cta(destination: u64, source: u32, bytes: u32) {
    // SAFETY: the caller vouches for the addresses.
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
    // SAFETY: names no memory.
    unsafe { asm!("cp.async.bulk.commit_group;", options(nostack, preserves_flags)) }
}

/// `cp.async.bulk.wait_group N;` ISA 9.7.9.25.4.5. sm_90+. Any thread. Until at most
/// the last `N` groups of the thread are incomplete.
///
/// # Safety
/// None beyond the order of the thread's copies.
#[inline(always)]
pub unsafe fn cp_async_bulk_wait_group<const N: u32>() {
    // SAFETY: names no memory.
    unsafe { asm!("cp.async.bulk.wait_group {};", const N, options(nostack, preserves_flags)) }
}

/// `cp.async.bulk.wait_group.read N;` ISA 9.7.9.25.4.5. sm_90+. Any thread. Until at
/// most the last `N` groups of the thread still read their sources.
///
/// # Safety
/// None beyond the order of the thread's copies.
#[inline(always)]
pub unsafe fn cp_async_bulk_wait_group_read<const N: u32>() {
    // SAFETY: names no memory.
    unsafe {
        asm!("cp.async.bulk.wait_group.read {};", const N, options(nostack, preserves_flags));
    }
}

/// `cp.async.bulk.prefetch.L2.global [a], bytes;` ISA 9.7.9.25.4.3. sm_90+. One
/// thread.
///
/// # Safety
/// 16-byte aligned `source` names `bytes` readable bytes (a multiple of 16).
#[inline(always)]
pub unsafe fn cp_async_bulk_prefetch_l2_global(source: u64, bytes: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("cp.async.bulk.prefetch.L2.global [{}], {};", in(reg64) source, in(reg32) bytes,
            options(nostack, preserves_flags));
    }
}
