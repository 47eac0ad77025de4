//! Loads and stores of global memory with a scope, by which the CTAs of one grid publish data to
//! each other (PTX ISA chapter 8, memory consistency model).

use core::arch::asm;

/// `ld.acquire.gpu.global.b32 d, [a];` ISA 9.7.9.8. sm_70+. Any thread.
///
/// # Safety
/// `address` is 4-byte aligned and names 4 initialised bytes of global memory.
#[inline(always)]
pub unsafe fn ld_acquire_gpu_global_b32(address: u64) -> u32 {
    let value;
    // SAFETY: the caller guarantees the address; not `pure`, `readonly` or `nomem`, because
    // later accesses may see newer values than earlier ones.
    unsafe {
        asm!("ld.acquire.gpu.global.b32 {}, [{}];", out(reg32) value, in(reg64) address,
            options(nostack, preserves_flags));
    }
    value
}

/// `st.release.gpu.global.b32 [a], v;` ISA 9.7.9.11. sm_70+. Any thread. Earlier writes
/// of the thread, and writes of others that it has observed through a barrier, are visible to a
/// thread that acquires `v`.
///
/// # Safety
/// `address` is 4-byte aligned and names 4 writable bytes of global memory.
#[inline(always)]
pub unsafe fn st_release_gpu_global_b32(address: u64, value: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("st.release.gpu.global.b32 [{}], {};", in(reg64) address, in(reg32) value,
            options(nostack, preserves_flags));
    }
}

/// `ld.relaxed.gpu.global.v4.b32 {d0,d1,d2,d3}, [a];` ISA 9.7.9.8. sm_70+. Any thread.
/// Bypasses the L1 cache, which may hold an older value.
///
/// # Safety
/// `address` is 16-byte aligned and names 16 initialised bytes of global memory.
#[inline(always)]
pub unsafe fn ld_relaxed_gpu_global_v4_b32(address: u64) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller guarantees the address; not `pure`, because other threads write there.
    unsafe {
        asm!("ld.relaxed.gpu.global.v4.b32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address,
            options(nostack, preserves_flags));
    }
    [a, b, c, d]
}

/// `st.relaxed.gpu.global.v4.b32 [a], {v0,v1,v2,v3};` ISA 9.7.9.11. sm_70+. Any thread. Each of the four
/// numbers is seen whole, in any order.
///
/// # Safety
/// `address` is 16-byte aligned and names 16 writable bytes of global memory.
#[inline(always)]
pub unsafe fn st_relaxed_gpu_global_v4_b32(address: u64, values: [u32; 4]) {
    let [a, b, c, d] = values;
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("st.relaxed.gpu.global.v4.b32 [{}], {{{}, {}, {}, {}}};", in(reg64) address,
            in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
            options(nostack, preserves_flags));
    }
}

/// `atom.acq_rel.gpu.global.inc.u32 d, [a], b;` ISA 9.7.13.10. sm_70+. Any thread. Adds one to the number at `address`, which becomes
/// 0 behind `largest`, and returns the number before. Writes of the thread, and those
/// of others that it has observed through a barrier, are visible to the threads that count after it.
///
/// # Safety
/// `address` is 4-byte aligned and names 4 initialised writable bytes of global memory.
#[inline(always)]
pub unsafe fn atom_acq_rel_gpu_global_inc_u32(address: u64, largest: u32) -> u32 {
    let before;
    // SAFETY: the caller guarantees the address; neither `readonly` nor `nomem`.
    unsafe {
        asm!("atom.acq_rel.gpu.global.inc.u32 {}, [{}], {};",
            out(reg32) before, in(reg64) address, in(reg32) largest,
            options(nostack, preserves_flags));
    }
    before
}
