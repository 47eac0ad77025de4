//! Loads and stores. Global addresses are 64-bit, shared ones 32-bit.
//!
//! `.nc` loads are `pure, readonly`: the data must not change while the kernel
//! runs, which the instruction requires as well.

use core::arch::asm;

/// `ld.global.nc.L1::no_allocate.v4.b32 {d0,d1,d2,d3}, [a];` ISA 9.7.9.9. sm_70+.
/// Any thread. For data that is read once.
///
/// # Safety
/// `address` is 16-byte aligned and names 16 readable bytes of global memory
/// that nothing writes while the kernel runs.
#[inline(always)]
pub unsafe fn ld_global_nc_no_allocate_v4_b32(address: u64) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "ld.global.nc.L1::no_allocate.v4.b32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [a, b, c, d]
}

/// `ld.global.nc.v4.b32 {d0,d1,d2,d3}, [a];` ISA 9.7.9.9. sm_32+. Any thread.
///
/// # Safety
/// The same as [`ld_global_nc_no_allocate_v4_b32`].
#[inline(always)]
pub unsafe fn ld_global_nc_v4_b32(address: u64) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "ld.global.nc.v4.b32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [a, b, c, d]
}

/// `ld.global.nc.v2.b32 {d0,d1}, [a];` ISA 9.7.9.9. sm_32+. Any thread.
///
/// # Safety
/// `address` is 8-byte aligned and names 8 readable bytes of global memory that
/// nothing writes while the kernel runs.
#[inline(always)]
pub unsafe fn ld_global_nc_v2_b32(address: u64) -> [u32; 2] {
    let (a, b);
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "ld.global.nc.v2.b32 {{{}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, in(reg64) address,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [a, b]
}

/// `ld.global.nc.u16 d, [a];` ISA 9.7.9.9. sm_32+. Any thread.
///
/// # Safety
/// `address` is 2-byte aligned and names 2 readable bytes of global memory that
/// nothing writes while the kernel runs.
#[inline(always)]
pub unsafe fn ld_global_nc_u16(address: u64) -> u16 {
    let value;
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "ld.global.nc.u16 {}, [{}];",
            out(reg16) value, in(reg64) address,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    value
}

/// `prefetch.global.L2 [a];` ISA 9.7.9.15. All targets. Any thread. Loads the line
/// into L2. No value is read, so a kernel that is still running may write the line.
///
/// # Safety
/// `address` is one of global memory.
#[inline(always)]
pub unsafe fn prefetch_global_l2(address: u64) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("prefetch.global.L2 [{}];", in(reg64) address, options(nostack, preserves_flags));
    }
}

/// `ld.global.nc.u8 d, [a];` ISA 9.7.9.9. sm_32+. Any thread.
///
/// # Safety
/// `address` names a readable byte of global memory that nothing writes while
/// the kernel runs.
#[inline(always)]
pub unsafe fn ld_global_nc_u8(address: u64) -> u16 {
    let value;
    // SAFETY: the caller guarantees the address; an 8-bit load may target a
    // wider register.
    unsafe {
        asm!(
            "ld.global.nc.u8 {}, [{}];",
            out(reg16) value, in(reg64) address,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    value
}

/// `st.global.b16 [a], v;` ISA 9.7.9.11. All targets. Any thread.
///
/// # Safety
/// `address` is 2-byte aligned and names 2 writable bytes of global memory.
#[inline(always)]
pub unsafe fn st_global_b16(address: u64, value: u16) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("st.global.b16 [{}], {};", in(reg64) address, in(reg16) value,
            options(nostack, preserves_flags));
    }
}

/// `st.global.b32 [a], v;` ISA 9.7.9.11. All targets. Any thread.
///
/// # Safety
/// `address` is 4-byte aligned and names 4 writable bytes of global memory.
#[inline(always)]
pub unsafe fn st_global_b32(address: u64, value: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("st.global.b32 [{}], {};", in(reg64) address, in(reg32) value,
            options(nostack, preserves_flags));
    }
}

/// `ld.shared.v4.b32 {d0,d1,d2,d3}, [a];` ISA 9.7.9.8. All targets. Any thread.
///
/// # Safety
/// `address` is 16-byte aligned and names 16 initialised bytes of the CTA's
/// shared memory.
#[inline(always)]
pub unsafe fn ld_shared_v4_b32(address: u32) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "ld.shared.v4.b32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(readonly, nostack, preserves_flags),
        );
    }
    [a, b, c, d]
}

/// `ld.shared.v2.b32 {d0,d1}, [a];` ISA 9.7.9.8. All targets. Any thread.
///
/// # Safety
/// `address` is 8-byte aligned and names 8 initialised bytes of the CTA's
/// shared memory.
#[inline(always)]
pub unsafe fn ld_shared_v2_b32(address: u32) -> [u32; 2] {
    let (a, b);
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "ld.shared.v2.b32 {{{}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, in(reg32) address,
            options(readonly, nostack, preserves_flags),
        );
    }
    [a, b]
}

/// `ld.shared.b32 d, [a];` ISA 9.7.9.8. All targets. Any thread.
///
/// # Safety
/// `address` is 4-byte aligned and names 4 initialised bytes of the CTA's
/// shared memory.
#[inline(always)]
pub unsafe fn ld_shared_b32(address: u32) -> u32 {
    let value;
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("ld.shared.b32 {}, [{}];", out(reg32) value, in(reg32) address,
            options(readonly, nostack, preserves_flags));
    }
    value
}

/// `ld.shared.u16 d, [a];` ISA 9.7.9.8. All targets. Any thread.
///
/// # Safety
/// `address` is 2-byte aligned and names 2 initialised bytes of the CTA's
/// shared memory.
#[inline(always)]
pub unsafe fn ld_shared_u16(address: u32) -> u16 {
    let value;
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("ld.shared.u16 {}, [{}];", out(reg16) value, in(reg32) address,
            options(readonly, nostack, preserves_flags));
    }
    value
}

/// `st.shared.v4.b32 [a], {v0,v1,v2,v3};` ISA 9.7.9.11. All targets. Any thread.
///
/// # Safety
/// `address` is 16-byte aligned and names 16 bytes of the CTA's shared memory.
#[inline(always)]
pub unsafe fn st_shared_v4_b32(address: u32, [a, b, c, d]: [u32; 4]) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("st.shared.v4.b32 [{}], {{{}, {}, {}, {}}};",
            in(reg32) address, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
            options(nostack, preserves_flags));
    }
}

/// `st.shared.b32 [a], v;` ISA 9.7.9.11. All targets. Any thread.
///
/// # Safety
/// `address` is 4-byte aligned and names 4 bytes of the CTA's shared memory.
#[inline(always)]
pub unsafe fn st_shared_b32(address: u32, value: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("st.shared.b32 [{}], {};", in(reg32) address, in(reg32) value,
            options(nostack, preserves_flags));
    }
}

/// `@p ld.shared.b32 d, [a];` ISA 9.7.9.8. All targets. Any thread; 0 for those that do not `load`. Not a
/// branch, so that the warp's threads stay together.
///
/// # Safety
/// If it is to `load`: `address` is 4-byte aligned and names 4 readable bytes of the CTA's shared memory.
#[inline(always)]
pub unsafe fn ld_shared_b32_if(load: bool, address: u32) -> u32 {
    let value;
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "{{ .reg .pred loads;",
            "setp.ne.u32 loads, {}, 0;",
            "mov.b32 {}, 0;",
            "@loads ld.shared.b32 {1}, [{}]; }}",
            in(reg32) u32::from(load), out(reg32) value, in(reg32) address,
            options(readonly, nostack, preserves_flags),
        );
    }
    value
}

/// `@p st.shared.b32 [a], v;` ISA 9.7.9.11. All targets. Any thread; those that do not `store` only
/// execute it. Not a branch, so that the warp's threads stay together.
///
/// # Safety
/// If it is to `store`: `address` is 4-byte aligned and names 4 bytes of the CTA's shared memory.
#[inline(always)]
pub unsafe fn st_shared_b32_if(store: bool, address: u32, value: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "{{ .reg .pred stores;",
            "setp.ne.u32 stores, {}, 0;",
            "@stores st.shared.b32 [{}], {}; }}",
            in(reg32) u32::from(store), in(reg32) address, in(reg32) value,
            options(nostack, preserves_flags),
        );
    }
}

/// `st.shared.b16 [a], v;` ISA 9.7.9.11. All targets. Any thread.
///
/// # Safety
/// `address` is 2-byte aligned and names 2 bytes of the CTA's shared memory.
#[inline(always)]
pub unsafe fn st_shared_b16(address: u32, value: u16) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("st.shared.b16 [{}], {};", in(reg32) address, in(reg16) value,
            options(nostack, preserves_flags));
    }
}

/// `ld.global.nc.b32 d, [a];` ISA 9.7.9.9. sm_32+. Any thread.
///
/// # Safety
/// `address` is 4-byte aligned and names 4 readable bytes of global memory that
/// nothing writes while the kernel runs.
#[inline(always)]
pub unsafe fn ld_global_nc_b32(address: u64) -> u32 {
    let value;
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "ld.global.nc.b32 {}, [{}];",
            out(reg32) value, in(reg64) address,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    value
}

/// `st.global.b8 [a], v;` ISA 9.7.9.11. All targets. Any thread. Stores the low
/// byte.
///
/// # Safety
/// `address` names a writable byte of global memory.
#[inline(always)]
pub unsafe fn st_global_b8(address: u64, value: u16) {
    // SAFETY: the caller guarantees the address; an 8-bit store may come from a
    // wider register.
    unsafe {
        asm!("st.global.b8 [{}], {};", in(reg64) address, in(reg16) value,
            options(nostack, preserves_flags));
    }
}

/// `st.global.v2.b32 [a], {v0,v1};` ISA 9.7.9.11. All targets. Any thread.
///
/// # Safety
/// `address` is 8-byte aligned and names 8 writable bytes of global memory.
#[inline(always)]
pub unsafe fn st_global_v2_b32(address: u64, [a, b]: [u32; 2]) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("st.global.v2.b32 [{}], {{{}, {}}};",
            in(reg64) address, in(reg32) a, in(reg32) b,
            options(nostack, preserves_flags));
    }
}

/// `st.global.v4.b32 [a], {v0,v1,v2,v3};` ISA 9.7.9.11. All targets. Any thread.
///
/// # Safety
/// `address` is 16-byte aligned and names 16 writable bytes of global memory.
#[inline(always)]
pub unsafe fn st_global_v4_b32(address: u64, [a, b, c, d]: [u32; 4]) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("st.global.v4.b32 [{}], {{{}, {}, {}, {}}};",
            in(reg64) address, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
            options(nostack, preserves_flags));
    }
}

/// `ld.shared.v2.b64 {d0,d1}, [a];` ISA 9.7.9.8. All targets. Any thread.
///
/// # Safety
/// The same as [`ld_shared_v4_b32`].
#[inline(always)]
pub unsafe fn ld_shared_v2_b64(address: u32) -> [u64; 2] {
    let (a, b);
    // SAFETY: the caller guarantees the address. Not `pure`, because other threads write there.
    unsafe {
        asm!(
            "ld.shared.v2.b64 {{{}, {}}}, [{}];",
            out(reg64) a, out(reg64) b, in(reg32) address,
            options(nostack, preserves_flags),
        );
    }
    [a, b]
}

/// `st.shared::cluster.v4.b32 [a], {v0,v1,v2,v3};` ISA 9.7.9.11. sm_90+. Any thread.
/// Shared memory of any CTA of the cluster.
///
/// # Safety
/// `address` is 16-byte aligned and names 16 bytes of shared memory of a CTA of the
/// cluster that has not ended.
#[inline(always)]
pub unsafe fn st_shared_cluster_v4_b32(address: u32, [a, b, c, d]: [u32; 4]) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("st.shared::cluster.v4.b32 [{}], {{{}, {}, {}, {}}};",
            in(reg32) address, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
            options(nostack, preserves_flags));
    }
}

/// `ld.global.b32 d, [a];` ISA 9.7.9.8. All targets. Any thread.
///
/// # Safety
/// `address` is 4-byte aligned and names 4 readable bytes of global memory.
#[inline(always)]
pub unsafe fn ld_global_b32(address: u64) -> u32 {
    let value;
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("ld.global.b32 {}, [{}];", out(reg32) value, in(reg64) address,
            options(readonly, nostack, preserves_flags));
    }
    value
}

/// `ld.global.u8 d, [a];` ISA 9.7.9.8. All targets. Any thread. The value is in the lower half.
///
/// # Safety
/// `address` names a readable byte of global memory that no other thread writes at the time.
#[inline(always)]
pub unsafe fn ld_global_u8(address: u64) -> u16 {
    let value;
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("ld.global.u8 {}, [{}];", out(reg16) value, in(reg64) address,
            options(readonly, nostack, preserves_flags));
    }
    value
}

/// `ld.global.u16 d, [a];` ISA 9.7.9.8. All targets. Any thread.
///
/// # Safety
/// `address` is 2-byte aligned and names 2 readable bytes of global memory that no other thread
/// writes at the time.
#[inline(always)]
pub unsafe fn ld_global_u16(address: u64) -> u16 {
    let value;
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("ld.global.u16 {}, [{}];", out(reg16) value, in(reg64) address,
            options(readonly, nostack, preserves_flags));
    }
    value
}

/// `ld.global.v2.b32 {a, b}, [c];` ISA 9.7.9.8. All targets. Any thread.
///
/// # Safety
/// `address` is 8-byte aligned and names 8 readable bytes of global memory.
#[inline(always)]
pub unsafe fn ld_global_v2_b32(address: u64) -> [u32; 2] {
    let (a, b);
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("ld.global.v2.b32 {{{}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, in(reg64) address,
            options(readonly, nostack, preserves_flags));
    }
    [a, b]
}

/// `ld.global.L1::no_allocate.v2.b32 {a, b}, [c];` ISA 9.7.9.8. sm_70+. Any thread.
///
/// # Safety
/// `address` is 8-byte aligned and names 8 readable bytes of global memory.
#[inline(always)]
pub unsafe fn ld_global_no_allocate_v2_b32(address: u64) -> [u32; 2] {
    let (a, b);
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("ld.global.L1::no_allocate.v2.b32 {{{}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, in(reg64) address,
            options(readonly, nostack, preserves_flags));
    }
    [a, b]
}

/// `ld.global.L1::no_allocate.v4.b32 {a, b, c, d}, [e];` ISA 9.7.9.8. sm_70+. Any thread.
///
/// # Safety
/// `address` is 16-byte aligned and names 16 readable bytes of global memory.
#[inline(always)]
pub unsafe fn ld_global_no_allocate_v4_b32(address: u64) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "ld.global.L1::no_allocate.v4.b32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address,
            options(readonly, nostack, preserves_flags),
        );
    }
    [a, b, c, d]
}

/// `@p ld.global.v4.b32 {d0,d1,d2,d3}, [a];` ISA 9.7.9.8. All targets. Any thread; 0 for those that do not
/// `load`. Not a branch, so that loads which follow one another are on their way together.
///
/// # Safety
/// If it is to `load`: as [`ld_global_v4_b32`].
#[inline(always)]
pub unsafe fn ld_global_v4_b32_if(load: bool, address: u64) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "{{ .reg .pred loads;",
            "setp.ne.u32 loads, {}, 0;",
            "mov.b32 {}, 0;",
            "mov.b32 {}, 0;",
            "mov.b32 {}, 0;",
            "mov.b32 {}, 0;",
            "@loads ld.global.v4.b32 {{{1}, {2}, {3}, {4}}}, [{}]; }}",
            in(reg32) u32::from(load),
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address,
            options(readonly, nostack, preserves_flags),
        );
    }
    [a, b, c, d]
}

/// `ld.global.v4.b32 {a, b, c, d}, [e];` ISA 9.7.9.8. All targets. Any thread.
///
/// # Safety
/// `address` is 16-byte aligned and names 16 readable bytes of global memory.
#[inline(always)]
pub unsafe fn ld_global_v4_b32(address: u64) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "ld.global.v4.b32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address,
            options(readonly, nostack, preserves_flags),
        );
    }
    [a, b, c, d]
}
