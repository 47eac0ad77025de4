//! Control of the grid: programmatic dependent launch, and cluster launch control, with which a
//! running cluster takes over the work of one that has not started.

#[cfg(gpu_dependent_launches = "yes")]
use core::arch::asm;

/// `griddepcontrol.wait;` ISA 9.7.13.13. sm_90+. Any thread. Waits until the
/// grids that this one depends on are complete and their writes visible. Returns
/// immediately if there are none.
#[cfg(gpu_dependent_launches = "yes")]
#[inline(always)]
pub fn griddepcontrol_wait() {
    // SAFETY: only waits. Without nomem, later accesses stay after it.
    unsafe { asm!("griddepcontrol.wait;", options(nostack, preserves_flags)) }
}

/// `griddepcontrol.launch_dependents;` ISA 9.7.13.13. sm_90+. Any thread. Grids that
/// depend on this one may start once all its CTAs have executed this or ended. Makes no
/// writes visible to them.
#[cfg(gpu_dependent_launches = "yes")]
#[inline(always)]
pub fn griddepcontrol_launch_dependents() {
    // SAFETY: accesses no memory.
    unsafe { asm!("griddepcontrol.launch_dependents;", options(nostack, preserves_flags)) }
}

/// Bytes of the response of `clusterlaunchcontrol.try_cancel`.
pub const RESPONSE_BYTES: u32 = 16;

/// `clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128
/// [response], [mbar];` ISA 9.7.13.16. sm_100+. One thread. Requests a cluster that has
/// not started, and completes 16 bytes on the mbarrier.
///
/// # Safety
/// * `response` is the address of 16 aligned bytes of the CTA's shared memory, which nothing
///   accesses until the phase of `barrier` is complete.
/// * No earlier request has been observed to fail.
#[cfg(gpu_cluster_launch_control = "yes")]
#[inline(always)]
pub unsafe fn clusterlaunchcontrol_try_cancel(response: u32, barrier: u32) {
    // SAFETY: the caller guarantees the addresses.
    unsafe {
        asm!(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [{}], [{}];",
            in(reg32) response, in(reg32) barrier, options(nostack, preserves_flags),
        );
    }
}

/// `clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes
/// .multicast::cluster::all.b128 [response], [mbar];` ISA 9.7.13.16. sm_100a. One thread
/// of a cluster. The same as [`clusterlaunchcontrol_try_cancel`], with the response written
/// and its bytes completed at the same offsets in every CTA of the cluster.
///
/// # Safety
/// The obligations of [`clusterlaunchcontrol_try_cancel`] hold in every CTA of the cluster.
#[cfg(gpu_cluster_launch_control = "yes")]
#[inline(always)]
pub unsafe fn clusterlaunchcontrol_try_cancel_multicast(response: u32, barrier: u32) {
    // SAFETY: the caller guarantees the addresses.
    unsafe {
        asm!(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [{}], [{}];",
            in(reg32) response, in(reg32) barrier, options(nostack, preserves_flags),
        );
    }
}

/// `clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, response;` ISA 9.7.13.16.
/// sm_100+. Any thread. Whether there was a cluster to take over.
///
/// Inline assembly can name neither predicates nor 128-bit registers, so the wrapper
/// includes the `mov` that packs the response and the `selp`.
#[cfg(gpu_cluster_launch_control = "yes")]
#[inline(always)]
pub fn clusterlaunchcontrol_query_cancel_is_canceled([low, high]: [u64; 2]) -> bool {
    let canceled: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "{{ .reg .b128 response; .reg .pred canceled;",
            "mov.b128 response, {{{1}, {2}}};",
            "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 canceled, response;",
            "selp.b32 {0}, 1, 0, canceled; }}",
            out(reg32) canceled, in(reg64) low, in(reg64) high,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    canceled != 0
}

/// `clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 x, response;` ISA
/// 9.7.13.16. sm_100+. Any thread. `%ctaid.x` of the first CTA of the cluster to take
/// over; undefined if there is none.
#[cfg(gpu_cluster_launch_control = "yes")]
#[inline(always)]
pub fn clusterlaunchcontrol_query_cancel_get_first_ctaid_x([low, high]: [u64; 2]) -> u32 {
    let x;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "{{ .reg .b128 response;",
            "mov.b128 response, {{{1}, {2}}};",
            "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 {0}, response; }}",
            out(reg32) x, in(reg64) low, in(reg64) high,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    x
}
