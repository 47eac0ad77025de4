//! Control of the grid: dependent launches, and clusters that take over the work of
//! clusters which have not begun.

use core::arch::asm;

/// `griddepcontrol.wait;` ISA 9.7.13.13. sm_90+. Any thread. Until the grids that
/// this one depends on are complete and their writes visible; returns at once if
/// there are none.
#[inline(always)]
pub fn griddepcontrol_wait() {
    // SAFETY: waits; no nomem, so accesses stay behind it.
    unsafe { asm!("griddepcontrol.wait;", options(nostack, preserves_flags)) }
}

/// `griddepcontrol.launch_dependents;` ISA 9.7.13.13. sm_90+. Any thread. Grids that
/// depend on this one may begin once all its CTAs said so or ended; makes nothing
/// visible to them.
#[inline(always)]
pub fn griddepcontrol_launch_dependents() {
    // SAFETY: names no memory.
    unsafe { asm!("griddepcontrol.launch_dependents;", options(nostack, preserves_flags)) }
}

/// Bytes of the response of `clusterlaunchcontrol.try_cancel`.
pub const RESPONSE_BYTES: u32 = 16;

/// `clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128
/// [response], [mbar];` ISA 9.7.13.16. sm_100+. One thread. Asks for a cluster that has
/// not begun; completes 16 bytes on the mbarrier.
///
/// # Safety
/// `response` names 16 aligned bytes of the CTA's shared memory that nobody uses until
/// `barrier` says so; no earlier request was seen to fail.
#[cfg(gpu_cluster_launch_control = "yes")]
#[inline(always)]
pub unsafe fn clusterlaunchcontrol_try_cancel(response: u32, barrier: u32) {
    // SAFETY: the caller vouches for the addresses.
    unsafe {
        asm!(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [{}], [{}];",
            in(reg32) response, in(reg32) barrier, options(nostack, preserves_flags),
        );
    }
}

/// `clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes
/// .multicast::cluster::all.b128 [response], [mbar];` ISA 9.7.13.16. sm_100a. One thread
/// of a cluster. As [`clusterlaunchcontrol_try_cancel`], with the response and its bytes
/// at the same places of every CTA of the cluster.
///
/// # Safety
/// As [`clusterlaunchcontrol_try_cancel`], in every CTA of the cluster.
#[cfg(gpu_cluster_launch_control = "yes")]
#[inline(always)]
pub unsafe fn clusterlaunchcontrol_try_cancel_multicast(response: u32, barrier: u32) {
    // SAFETY: the caller vouches for the addresses.
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
/// Neither predicates nor 128-bit registers are classes of inline assembly; the packing
/// `mov` and the `selp` therefore belong to the wrapper.
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
