//! Clusters: the barrier of all their threads, and addresses in other CTAs.

use core::arch::asm;

/// `barrier.cluster.arrive.release.aligned;` ISA 9.7.13.3. sm_90+. All threads of
/// the cluster, each warp converged.
///
/// # Safety
/// Every thread of the cluster reaches this call, and then a wait.
#[inline(always)]
pub unsafe fn barrier_cluster_arrive_release_aligned() {
    // SAFETY: the caller guarantees convergence; no nomem/readonly/pure.
    unsafe { asm!("barrier.cluster.arrive.release.aligned;", options(nostack, preserves_flags)) }
}

/// `barrier.cluster.arrive.relaxed.aligned;` ISA 9.7.13.3. sm_90+. All threads of
/// the cluster, each warp converged. Orders nothing.
///
/// # Safety
/// Every thread of the cluster reaches this call, and then a wait.
#[inline(always)]
pub unsafe fn barrier_cluster_arrive_relaxed_aligned() {
    // SAFETY: the caller guarantees convergence; no nomem/readonly/pure.
    unsafe { asm!("barrier.cluster.arrive.relaxed.aligned;", options(nostack, preserves_flags)) }
}

/// `barrier.cluster.wait.acquire.aligned;` ISA 9.7.13.3. sm_90+. All threads of the
/// cluster, each warp converged.
///
/// # Safety
/// Every thread of the cluster has arrived or will arrive.
#[inline(always)]
pub unsafe fn barrier_cluster_wait_acquire_aligned() {
    // SAFETY: the caller guarantees convergence; no nomem/readonly/pure.
    unsafe { asm!("barrier.cluster.wait.acquire.aligned;", options(nostack, preserves_flags)) }
}

/// `mapa.shared::cluster.u32 d, a, rank;` ISA 9.7.9.22. sm_90+. Any thread. The
/// cluster-window address of the byte of CTA `rank` that corresponds to `address`.
#[inline(always)]
pub fn mapa_shared_cluster_u32(address: u32, rank: u32) -> u32 {
    let mapped;
    // SAFETY: arithmetic on an address.
    unsafe {
        asm!("mapa.shared::cluster.u32 {}, {}, {};",
            out(reg32) mapped, in(reg32) address, in(reg32) rank,
            options(pure, nomem, nostack, preserves_flags));
    }
    mapped
}
