//! CTA-wide barriers.

use core::arch::asm;

/// `bar.sync ID;` ISA 9.7.13.1. All targets. All threads of the CTA, each warp
/// converged.
///
/// # Safety
/// Every thread of the CTA reaches this same call.
#[inline(always)]
pub unsafe fn bar_sync<const ID: u32>() {
    // SAFETY: the caller guarantees convergence; no nomem/readonly/pure, so
    // memory accesses stay on their side of it.
    unsafe { asm!("bar.sync {};", const ID, options(nostack, preserves_flags)) }
}

/// `bar.sync ID, THREADS;` ISA 9.7.13.1. All targets. `THREADS` threads of the CTA, a
/// multiple of 32, each warp converged.
///
/// # Safety
/// Exactly `THREADS` threads reach a call with the same `ID` and `THREADS`, and no other
/// barrier with this `ID` is in use.
#[inline(always)]
pub unsafe fn bar_sync_threads<const ID: u32, const THREADS: u32>() {
    const { assert!(ID < 16 && THREADS.is_multiple_of(32)) };
    // SAFETY: the caller guarantees convergence; no nomem/readonly/pure, so
    // memory accesses stay on their side of it.
    unsafe { asm!("bar.sync {}, {};", const ID, const THREADS, options(nostack, preserves_flags)) }
}

/// `bar.red.popc.u32 d, ID, p;` ISA 9.7.13.1. All targets. All threads of the CTA, each warp
/// converged. The number of threads with `predicate`, once all have arrived.
///
/// Inline assembly cannot name predicates, so the wrapper includes the `setp`.
///
/// # Safety
/// Every thread of the CTA reaches this same call.
#[inline(always)]
pub unsafe fn bar_red_popc_u32<const ID: u32>(predicate: bool) -> u32 {
    let count: u32;
    // SAFETY: the caller guarantees convergence; no nomem/readonly/pure, so
    // memory accesses stay on their side of it.
    unsafe {
        asm!(
            "{{ .reg .pred counts;",
            "setp.ne.u32 counts, {1}, 0;",
            "bar.red.popc.u32 {0}, {2}, counts; }}",
            out(reg32) count, in(reg32) u32::from(predicate), const ID,
            options(nostack, preserves_flags),
        );
    }
    count
}

/// `bar.warp.sync mask;` ISA 9.7.13.2. sm_30+. All lanes named in `mask`. Orders
/// their memory accesses.
///
/// # Safety
/// Every lane named in `mask`, the caller among them, reaches this same call.
#[inline(always)]
pub unsafe fn bar_warp_sync(mask: u32) {
    // SAFETY: the caller guarantees the lanes; no nomem/readonly/pure, so
    // memory accesses stay on their side of it.
    unsafe { asm!("bar.warp.sync {};", in(reg32) mask, options(nostack, preserves_flags)) }
}
