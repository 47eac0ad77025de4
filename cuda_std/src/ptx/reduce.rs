//! Reductions into global memory, `red`. They are relaxed and have the scope of the GPU: they combine
//! the values of different threads and order nothing else.

use core::arch::asm;

/// `red.relaxed.gpu.global.max.u32 [a], v;` ISA 9.7.13.11. sm_70+. Any thread.
///
/// # Safety
/// `address` is 4-byte aligned and names 4 initialised writable bytes of global
/// memory that other threads access by reductions only.
#[inline(always)]
pub unsafe fn red_relaxed_gpu_global_max_u32(address: u64, value: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("red.relaxed.gpu.global.max.u32 [{}], {};", in(reg64) address, in(reg32) value,
            options(nostack, preserves_flags));
    }
}

/// `red.relaxed.gpu.global.min.u64 [a], v;` ISA 9.7.13.11. sm_70+. Any thread.
///
/// # Safety
/// `address` is 8-byte aligned and names 8 initialised writable bytes of global
/// memory that other threads access by reductions only.
#[inline(always)]
pub unsafe fn red_relaxed_gpu_global_min_u64(address: u64, value: u64) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("red.relaxed.gpu.global.min.u64 [{}], {};", in(reg64) address, in(reg64) value,
            options(nostack, preserves_flags));
    }
}
