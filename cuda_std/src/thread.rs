//! Indices and sizes of the thread, the CTA and the grid.

use crate::ptx::special;

/// Index of the thread in its CTA, x.
#[inline(always)]
pub fn thread_idx_x() -> u32 {
    special::tid_x()
}

/// Index of the CTA in the grid, x.
#[inline(always)]
pub fn block_idx_x() -> u32 {
    special::ctaid_x()
}

/// Index of the CTA in the grid, y.
#[inline(always)]
pub fn block_idx_y() -> u32 {
    special::ctaid_y()
}

/// Threads of a CTA, x.
#[inline(always)]
pub fn block_dim_x() -> u32 {
    special::ntid_x()
}

/// CTAs of the grid, x.
#[inline(always)]
pub fn grid_dim_x() -> u32 {
    special::nctaid_x()
}

/// Waits until every thread of the CTA has arrived, and orders their accesses to shared
/// memory.
///
/// # Safety
/// Every thread of the CTA reaches this same call.
#[inline(always)]
pub unsafe fn sync_threads() {
    // SAFETY: the caller guarantees that all threads of the CTA arrive.
    unsafe { crate::ptx::barrier::bar_sync::<0>() }
}
