//! mbarrier objects: 8 bytes of shared memory, 8-byte aligned, that count
//! arrivals and transferred bytes in phases.
//!
//! Addresses are 32-bit ones of the shared window: the CTA's own in
//! `shared::cta` forms, any of the cluster's (see `cluster::mapa_shared_cluster_u32`)
//! in `shared::cluster` forms. A phase is over when all expected arrivals came
//! and no expected bytes are missing.

use core::arch::asm;

/// `mbarrier.init.shared::cta.b64 [a], count;` ISA 9.7.13.15.9. sm_80+. One
/// thread. The phase is 0; each phase expects `count` arrivals.
///
/// # Safety
/// `barrier` names 8 aligned bytes of the CTA's shared memory that hold no live
/// mbarrier; a fence and a barrier order it before any other use.
#[inline(always)]
pub unsafe fn mbarrier_init_shared_cta_b64(barrier: u32, count: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("mbarrier.init.shared::cta.b64 [{}], {};", in(reg32) barrier, in(reg32) count,
            options(nostack, preserves_flags));
    }
}

/// `mbarrier.inval.shared::cta.b64 [a];` ISA 9.7.13.15.10. sm_80+. One thread.
/// The bytes are ordinary memory again.
///
/// # Safety
/// `barrier` is an mbarrier of the CTA that nobody uses any more.
#[inline(always)]
pub unsafe fn mbarrier_inval_shared_cta_b64(barrier: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("mbarrier.inval.shared::cta.b64 [{}];", in(reg32) barrier,
            options(nostack, preserves_flags));
    }
}

/// `mbarrier.arrive.release.cta.shared::cta.b64 _, [a];` ISA 9.7.13.15.13. sm_80+.
/// Any thread. One arrival; the thread's earlier accesses are before it.
///
/// # Safety
/// `barrier` is an mbarrier of the CTA that expects this arrival.
#[inline(always)]
pub unsafe fn mbarrier_arrive_shared_cta_b64(barrier: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("mbarrier.arrive.release.cta.shared::cta.b64 _, [{}];", in(reg32) barrier,
            options(nostack, preserves_flags));
    }
}

/// `@p mbarrier.arrive.release.cta.shared::cta.b64 _, [a];` ISA 9.7.13.15.13.
/// sm_80+. Any thread. [`mbarrier_arrive_shared_cta_b64`] for the threads for which
/// `arrives` holds, without a branch: ptxas runs the products of a `wgmma` pipeline
/// one by one where control flow divides it.
///
/// # Safety
/// As [`mbarrier_arrive_shared_cta_b64`].
#[inline(always)]
pub unsafe fn mbarrier_arrive_shared_cta_b64_if(barrier: u32, arrives: bool) {
    // SAFETY: the caller vouches for the address.
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
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{}];", in(reg32) barrier,
            options(nostack, preserves_flags));
    }
}

/// `@p mbarrier.arrive.release.cta.shared::cluster.b64 _, [a];` ISA 9.7.13.15.13.
/// sm_90+. Any thread. One arrival at an mbarrier of any CTA of the cluster if `arrives`,
/// else nothing. Publishes no writes to other CTAs; a release for the cluster waits for
/// all that the thread has under way.
///
/// # Safety
/// As [`mbarrier_arrive_shared_cluster_b64`], where it arrives.
#[inline(always)]
pub unsafe fn mbarrier_arrive_release_cta_shared_cluster_b64_if(barrier: u32, arrives: bool) {
    // SAFETY: the caller vouches for the address.
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
/// 9.7.13.15.13. sm_90+. Any thread. Expects `bytes` more, then arrives once.
///
/// # Safety
/// `barrier` is an mbarrier of the CTA that expects this arrival.
#[inline(always)]
pub unsafe fn mbarrier_arrive_expect_tx_shared_cta_b64(barrier: u32, bytes: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [{}], {};",
            in(reg32) barrier, in(reg32) bytes, options(nostack, preserves_flags));
    }
}

/// `mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [a], bytes;`
/// ISA 9.7.13.15.13. sm_90+. Any thread. As the CTA form, at an mbarrier of any
/// CTA of the cluster.
///
/// # Safety
/// As [`mbarrier_arrive_shared_cluster_b64`].
#[inline(always)]
pub unsafe fn mbarrier_arrive_expect_tx_shared_cluster_b64(barrier: u32, bytes: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [{}], {};",
            in(reg32) barrier, in(reg32) bytes, options(nostack, preserves_flags));
    }
}

/// `mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [a], bytes;` ISA 9.7.13.15.11.
/// sm_90+. Any thread. Expects `bytes` more without arriving.
///
/// # Safety
/// `barrier` is an mbarrier of the CTA whose phase is not over.
#[inline(always)]
pub unsafe fn mbarrier_expect_tx_shared_cta_b64(barrier: u32, bytes: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{}], {};",
            in(reg32) barrier, in(reg32) bytes, options(nostack, preserves_flags));
    }
}

/// `mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [a], parity;` ISA
/// 9.7.13.15.16. sm_90+. Any thread. Whether the phase of that parity is over;
/// may sleep for a while before it says no.
///
/// The result is a predicate, a class that inline assembly cannot name; the
/// `selp` therefore belongs to the wrapper.
///
/// # Safety
/// `barrier` is an mbarrier of the CTA, at most one phase past `parity`.
#[inline(always)]
pub unsafe fn mbarrier_try_wait_parity_shared_cta_b64(barrier: u32, parity: u32) -> bool {
    let done: u32;
    // SAFETY: the caller vouches for the address.
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
/// 9.7.13.15.16. sm_90+. Any thread. As the CTA form; sees what other CTAs of the
/// cluster wrote before they arrived.
///
/// # Safety
/// As [`mbarrier_try_wait_parity_shared_cta_b64`].
#[inline(always)]
pub unsafe fn mbarrier_try_wait_parity_cluster_shared_cta_b64(barrier: u32, parity: u32) -> bool {
    let done: u32;
    // SAFETY: the caller vouches for the address.
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

/// Waits until the phase of that parity is over: a loop over
/// [`mbarrier_try_wait_parity_shared_cta_b64`]. Lanes of a warp may leave it one
/// after the other.
///
/// # Safety
/// As [`mbarrier_try_wait_parity_shared_cta_b64`].
#[inline(always)]
pub unsafe fn wait_parity(barrier: u32, parity: u32) {
    // SAFETY: the caller's.
    while !unsafe { mbarrier_try_wait_parity_shared_cta_b64(barrier, parity) } {}
}

/// [`wait_parity`] with the scope of the cluster.
///
/// # Safety
/// As [`mbarrier_try_wait_parity_shared_cta_b64`].
#[inline(always)]
pub unsafe fn wait_parity_cluster(barrier: u32, parity: u32) {
    // SAFETY: the caller's.
    while !unsafe { mbarrier_try_wait_parity_cluster_shared_cta_b64(barrier, parity) } {}
}
