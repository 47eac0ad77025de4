//! mbarrier objects: 8 bytes of shared memory, 8-byte aligned, that count
//! arrivals and transferred bytes in phases.
//!
//! Addresses are 32-bit addresses of the shared window: of the CTA's own memory in
//! `shared::cta` forms, of any CTA of the cluster (see `cluster::mapa_shared_cluster_u32`)
//! in `shared::cluster` forms. A phase is complete when all expected arrivals have
//! occurred and all expected bytes have been transferred.

use core::arch::asm;

/// `mbarrier.init.shared::cta.b64 [a], count;` ISA 9.7.13.15.9. sm_80+. One
/// thread. The phase is 0; each phase expects `count` arrivals.
///
/// # Safety
/// `barrier` is the address of 8 aligned bytes of the CTA's shared memory that hold no live
/// mbarrier. A fence and a barrier order the initialisation before any other use.
#[inline(always)]
pub unsafe fn mbarrier_init_shared_cta_b64(barrier: u32, count: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("mbarrier.init.shared::cta.b64 [{}], {};", in(reg32) barrier, in(reg32) count,
            options(nostack, preserves_flags));
    }
}

/// `mbarrier.inval.shared::cta.b64 [a];` ISA 9.7.13.15.10. sm_80+. One thread.
/// The bytes become ordinary memory again.
///
/// # Safety
/// `barrier` is an mbarrier of the CTA that is no longer in use.
#[inline(always)]
pub unsafe fn mbarrier_inval_shared_cta_b64(barrier: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("mbarrier.inval.shared::cta.b64 [{}];", in(reg32) barrier,
            options(nostack, preserves_flags));
    }
}

/// `mbarrier.arrive.release.cta.shared::cta.b64 _, [a];` ISA 9.7.13.15.13. sm_80+.
/// Any thread. One arrival, which the thread's earlier accesses precede.
///
/// # Safety
/// `barrier` is an mbarrier of the CTA that expects this arrival.
#[inline(always)]
pub unsafe fn mbarrier_arrive_shared_cta_b64(barrier: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("mbarrier.arrive.release.cta.shared::cta.b64 _, [{}];", in(reg32) barrier,
            options(nostack, preserves_flags));
    }
}

/// `@p mbarrier.arrive.release.cta.shared::cta.b64 _, [a];` ISA 9.7.13.15.13.
/// sm_80+. Any thread. [`mbarrier_arrive_shared_cta_b64`] by the threads for which
/// `arrives` is true, without a branch: ptxas serialises the products of a `wgmma`
/// pipeline if the control flow within it branches.
///
/// # Safety
/// The obligations of [`mbarrier_arrive_shared_cta_b64`] hold if `arrives`.
#[inline(always)]
pub unsafe fn mbarrier_arrive_shared_cta_b64_if(barrier: u32, arrives: bool) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "{{ .reg .pred arrives;",
            "setp.ne.u32 arrives, {1}, 0;",
            "@arrives mbarrier.arrive.release.cta.shared::cta.b64 _, [{0}]; }}",
            in(reg32) barrier, in(reg32) u32::from(arrives),
            options(nostack, preserves_flags),
        );
    }
}

/// `mbarrier.arrive.release.cluster.shared::cluster.b64 _, [a];` ISA 9.7.13.15.13.
/// sm_90+. Any thread. One arrival at an mbarrier of any CTA of the cluster.
///
/// # Safety
/// `barrier` is an mbarrier that expects this arrival, of a CTA that has not
/// ended.
#[inline(always)]
pub unsafe fn mbarrier_arrive_shared_cluster_b64(barrier: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{}];", in(reg32) barrier,
            options(nostack, preserves_flags));
    }
}

/// `mbarrier.arrive.release.cta.shared::cluster.b64 _, [a];` ISA 9.7.13.15.13. sm_90+. Any
/// thread. One arrival at an mbarrier of any CTA of the cluster. The release has the scope of
/// the CTA, so it publishes no writes to other CTAs; a release with the scope of the cluster
/// would wait for all outstanding accesses of the thread.
///
/// # Safety
/// The obligations of [`mbarrier_arrive_shared_cluster_b64`] hold.
#[inline(always)]
pub unsafe fn mbarrier_arrive_release_cta_shared_cluster_b64(barrier: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("mbarrier.arrive.release.cta.shared::cluster.b64 _, [{}];", in(reg32) barrier,
            options(nostack, preserves_flags));
    }
}

/// `@p mbarrier.arrive.release.cta.shared::cluster.b64 _, [a];` ISA 9.7.13.15.13.
/// sm_90+. Any thread. [`mbarrier_arrive_release_cta_shared_cluster_b64`] if `arrives` is true,
/// without a branch.
///
/// # Safety
/// The obligations of [`mbarrier_arrive_shared_cluster_b64`] hold if `arrives`.
#[inline(always)]
pub unsafe fn mbarrier_arrive_release_cta_shared_cluster_b64_if(barrier: u32, arrives: bool) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "{{ .reg .pred arrives;",
            "setp.ne.u32 arrives, {1}, 0;",
            "@arrives mbarrier.arrive.release.cta.shared::cluster.b64 _, [{0}]; }}",
            in(reg32) barrier, in(reg32) u32::from(arrives),
            options(nostack, preserves_flags),
        );
    }
}

/// `mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [a], bytes;` ISA
/// 9.7.13.15.13. sm_90+. Any thread. Adds `bytes` to the expected bytes, then arrives once.
///
/// # Safety
/// `barrier` is an mbarrier of the CTA that expects this arrival.
#[inline(always)]
pub unsafe fn mbarrier_arrive_expect_tx_shared_cta_b64(barrier: u32, bytes: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [{}], {};",
            in(reg32) barrier, in(reg32) bytes, options(nostack, preserves_flags));
    }
}

/// `mbarrier.arrive.expect_tx.release.cta.shared::cluster.b64 _, [a], bytes;`
/// ISA 9.7.13.15.13. sm_90+. Any thread. The same at an mbarrier of any
/// CTA of the cluster; it publishes no writes to other CTAs.
///
/// # Safety
/// The obligations of [`mbarrier_arrive_shared_cluster_b64`] hold.
#[inline(always)]
pub unsafe fn mbarrier_arrive_expect_tx_release_cta_shared_cluster_b64(barrier: u32, bytes: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("mbarrier.arrive.expect_tx.release.cta.shared::cluster.b64 _, [{}], {};",
            in(reg32) barrier, in(reg32) bytes, options(nostack, preserves_flags));
    }
}

/// `mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [a], bytes;` ISA 9.7.13.15.11.
/// sm_90+. Any thread. Adds `bytes` to the expected bytes without arriving.
///
/// # Safety
/// `barrier` is an mbarrier of the CTA whose phase is not complete.
#[inline(always)]
pub unsafe fn mbarrier_expect_tx_shared_cta_b64(barrier: u32, bytes: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{}], {};",
            in(reg32) barrier, in(reg32) bytes, options(nostack, preserves_flags));
    }
}

/// `mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [a], parity;` ISA
/// 9.7.13.15.16. sm_90+. Any thread. Whether the phase of that parity is complete.
/// It may suspend the thread for a limited time before it returns false.
///
/// The result is a predicate, a class that inline assembly cannot name, so the wrapper
/// includes a `selp`.
///
/// # Safety
/// `barrier` is an mbarrier of the CTA, at most one phase past `parity`.
#[inline(always)]
pub unsafe fn mbarrier_try_wait_parity_shared_cta_b64(barrier: u32, parity: u32) -> bool {
    let done: u32;
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "{{ .reg .pred done;",
            "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [{1}], {2};",
            "selp.b32 {0}, 1, 0, done; }}",
            out(reg32) done, in(reg32) barrier, in(reg32) parity,
            options(nostack, preserves_flags),
        );
    }
    done != 0
}

/// `mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [a], parity;` ISA
/// 9.7.13.15.16. sm_90+. Any thread. The same with the scope of the cluster, so that
/// the writes of other CTAs before their arrivals are visible.
///
/// # Safety
/// The obligations of [`mbarrier_try_wait_parity_shared_cta_b64`] hold.
#[inline(always)]
pub unsafe fn mbarrier_try_wait_parity_cluster_shared_cta_b64(barrier: u32, parity: u32) -> bool {
    let done: u32;
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "{{ .reg .pred done;",
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [{1}], {2};",
            "selp.b32 {0}, 1, 0, done; }}",
            out(reg32) done, in(reg32) barrier, in(reg32) parity,
            options(nostack, preserves_flags),
        );
    }
    done != 0
}

/// Waits until the phase of that parity is complete, by a loop over
/// [`mbarrier_try_wait_parity_shared_cta_b64`]. The lanes of a warp may leave the loop at
/// different times.
///
/// # Safety
/// `barrier` is an mbarrier of the CTA, at most one phase past `parity`.
#[inline(always)]
pub unsafe fn wait_parity(barrier: u32, parity: u32) {
    // SAFETY: the caller guarantees the mbarrier and its phase.
    while !unsafe { mbarrier_try_wait_parity_shared_cta_b64(barrier, parity) } {}
}

/// [`wait_parity`] with the scope of the cluster.
///
/// # Safety
/// `barrier` is an mbarrier of the CTA, at most one phase past `parity`.
#[inline(always)]
pub unsafe fn wait_parity_cluster(barrier: u32, parity: u32) {
    // SAFETY: the caller guarantees the mbarrier and its phase.
    while !unsafe { mbarrier_try_wait_parity_cluster_shared_cta_b64(barrier, parity) } {}
}
