//! Accesses to the shared memory of other CTAs of the cluster, by addresses from
//! `cluster::mapa_shared_cluster_u32`.

use core::arch::asm;

/// `ld.shared::cluster.v4.b32 {d0,d1,d2,d3}, [a];` ISA 9.7.9.8. sm_90+. Any thread.
///
/// # Safety
/// `address` is 16-byte aligned and names 16 initialised bytes of the shared memory
/// of a CTA of the cluster that has not ended.
#[inline(always)]
pub unsafe fn ld_shared_cluster_v4_b32(address: u32) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "ld.shared::cluster.v4.b32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(readonly, nostack, preserves_flags),
        );
    }
    [a, b, c, d]
}

/// `ld.shared::cluster.b32 d, [a];` ISA 9.7.9.8. sm_90+. Any thread.
///
/// # Safety
/// `address` is 4-byte aligned and names 4 initialised bytes of the shared memory of a CTA of the
/// cluster that has not ended.
#[inline(always)]
pub unsafe fn ld_shared_cluster_b32(address: u32) -> u32 {
    let value;
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "ld.shared::cluster.b32 {}, [{}];",
            out(reg32) value, in(reg32) address,
            options(readonly, nostack, preserves_flags),
        );
    }
    value
}
