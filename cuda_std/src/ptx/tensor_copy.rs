//! Copies of boxes of tensors, described by 128-byte tensor maps.
//!
//! Coordinates are in elements, the innermost dimension first. Elements of a box that are
//! outside the tensor are read as zero, and the mbarrier counts the whole box in any case.
//! Shared addresses are 128-byte aligned, and 1024-byte aligned for boxes with 128-byte
//! swizzle. Maps are named by their generic address; see `marker::kernel_parameter`.

use core::arch::asm;

/// `prefetch.tensormap [map];` ISA 9.7.9.15. sm_90+. One thread. Loads the map
/// into the copy engine's cache.
///
/// # Safety
/// `map` is the generic address of a tensor map.
#[inline(always)]
pub unsafe fn prefetch_tensormap(map: u64) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("prefetch.tensormap [{}];", in(reg64) map, options(nostack, preserves_flags));
    }
}

macro_rules! tensor_copies {
    ($($rank:literal, $dims:literal, $coordinates:literal, [$($c:ident),+],
       $load:ident, $multicast:ident, $pair:ident, $pair_multicast:ident, $store:ident;)*) => {
        $(
            #[doc = concat!("`cp.async.bulk.tensor.", $dims, ".shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [dst], [map, {c}], [mbar], policy;`")]
            /// ISA 9.7.9.27.1.2. sm_90+, PTX 8.6. One thread. Copies a box to
            /// the CTA's shared memory.
            ///
            /// # Safety
            /// `map` is the generic address of a map of this rank. `destination` has
            /// room for its box, and nothing accesses it until the phase of `barrier`
            /// is complete.
            #[inline(always)]
            pub unsafe fn $load(
                destination: u32,
                map: u64,
                [$($c),+]: [i32; $rank],
                barrier: u32,
                policy: u64,
            ) {
                // SAFETY: the caller guarantees the map and the addresses.
                unsafe {
                    asm!(
                        concat!(
                            "cp.async.bulk.tensor.", $dims,
                            ".shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint",
                            " [{dst}], [{map}, ", $coordinates, "], [{bar}], {policy};"
                        ),
                        dst = in(reg32) destination, map = in(reg64) map,
                        $($c = in(reg32) $c,)+
                        bar = in(reg32) barrier, policy = in(reg64) policy,
                        options(nostack, preserves_flags),
                    );
                }
            }

            #[doc = concat!("`cp.async.bulk.tensor.", $dims, ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [dst], [map, {c}], [mbar], ctas, policy;`")]
            /// ISA 9.7.9.27.1.2. sm_90+. One thread. Copies a box to the same
            /// offset in each CTA of `ctas`, and completes its bytes on the mbarrier at the
            /// offset of `barrier` in each.
            ///
            /// # Safety
            /// The obligations of the copy to one CTA hold in every CTA of `ctas`, and none
            /// of these has ended.
            #[inline(always)]
            pub unsafe fn $multicast(
                destination: u32,
                map: u64,
                [$($c),+]: [i32; $rank],
                barrier: u32,
                ctas: u16,
                policy: u64,
            ) {
                // SAFETY: the caller guarantees the map and the addresses.
                unsafe {
                    asm!(
                        concat!(
                            "cp.async.bulk.tensor.", $dims,
                            ".shared::cluster.global.tile.mbarrier::complete_tx::bytes",
                            ".multicast::cluster.L2::cache_hint",
                            " [{dst}], [{map}, ", $coordinates, "], [{bar}], {ctas}, {policy};"
                        ),
                        dst = in(reg32) destination, map = in(reg64) map,
                        $($c = in(reg32) $c,)+
                        bar = in(reg32) barrier, ctas = in(reg16) ctas, policy = in(reg64) policy,
                        options(nostack, preserves_flags),
                    );
                }
            }

            #[doc = concat!("`cp.async.bulk.tensor.", $dims, ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2.L2::cache_hint [dst], [map, {c}], [mbar], policy;`")]
            /// ISA 9.7.9.27.1.2. sm_100a. One thread. Copies a box to the CTA's own
            /// shared memory, and completes its bytes on an mbarrier of either CTA of the pair.
            ///
            /// # Safety
            /// The obligations of the copy to one CTA hold, and the CTA that `barrier` is in
            /// has not ended.
            #[cfg(gpu_tensor = "tcgen05")]
            #[inline(always)]
            pub unsafe fn $pair(
                destination: u32,
                map: u64,
                [$($c),+]: [i32; $rank],
                barrier: u32,
                policy: u64,
            ) {
                // SAFETY: the caller guarantees the map and the addresses.
                unsafe {
                    asm!(
                        concat!(
                            "cp.async.bulk.tensor.", $dims,
                            ".shared::cluster.global.tile.mbarrier::complete_tx::bytes",
                            ".cta_group::2.L2::cache_hint",
                            " [{dst}], [{map}, ", $coordinates, "], [{bar}], {policy};"
                        ),
                        dst = in(reg32) destination, map = in(reg64) map,
                        $($c = in(reg32) $c,)+
                        bar = in(reg32) barrier, policy = in(reg64) policy,
                        options(nostack, preserves_flags),
                    );
                }
            }

            #[doc = concat!("`cp.async.bulk.tensor.", $dims, ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.cta_group::2.L2::cache_hint [dst], [map, {c}], [mbar], ctas, policy;`")]
            /// ISA 9.7.9.27.1.2. sm_100a. One thread. Copies a box to the same
            /// offset in each CTA of `ctas`. The bytes of each are completed on the mbarrier
            /// at the offset of `barrier` in that CTA of its pair whose rank has the same
            /// parity as the rank of `barrier`'s CTA.
            ///
            /// # Safety
            /// The obligations of the copy to one CTA hold in every CTA of `ctas`. Neither
            /// these nor the CTAs of the mbarriers have ended.
            #[cfg(gpu_tensor = "tcgen05")]
            #[inline(always)]
            pub unsafe fn $pair_multicast(
                destination: u32,
                map: u64,
                [$($c),+]: [i32; $rank],
                barrier: u32,
                ctas: u16,
                policy: u64,
            ) {
                // SAFETY: the caller guarantees the map and the addresses.
                unsafe {
                    asm!(
                        concat!(
                            "cp.async.bulk.tensor.", $dims,
                            ".shared::cluster.global.tile.mbarrier::complete_tx::bytes",
                            ".multicast::cluster.cta_group::2.L2::cache_hint",
                            " [{dst}], [{map}, ", $coordinates, "], [{bar}], {ctas}, {policy};"
                        ),
                        dst = in(reg32) destination, map = in(reg64) map,
                        $($c = in(reg32) $c,)+
                        bar = in(reg32) barrier, ctas = in(reg16) ctas, policy = in(reg64) policy,
                        options(nostack, preserves_flags),
                    );
                }
            }

            #[doc = concat!("`cp.async.bulk.tensor.", $dims, ".global.shared::cta.tile.bulk_group [map, {c}], [src];`")]
            /// ISA 9.7.9.27.1.2. sm_90+. One thread. Copies a box to global memory, as
            /// part of the thread's next bulk group. Elements outside the tensor are not
            /// written.
            ///
            /// # Safety
            /// `map` is the generic address of a map of this rank. `source` is the address of
            /// its box, which was written before a proxy fence and is not written again
            /// before the group's reads are complete. Coordinates are not negative.
            #[inline(always)]
            pub unsafe fn $store(map: u64, [$($c),+]: [i32; $rank], source: u32) {
                // SAFETY: the caller guarantees the map and the addresses.
                unsafe {
                    asm!(
                        concat!(
                            "cp.async.bulk.tensor.", $dims,
                            ".global.shared::cta.tile.bulk_group",
                            " [{map}, ", $coordinates, "], [{src}];"
                        ),
                        map = in(reg64) map, $($c = in(reg32) $c,)+ src = in(reg32) source,
                        options(nostack, preserves_flags),
                    );
                }
            }
        )*
    };
}

tensor_copies! {
    2, "2d", "{{{c0}, {c1}}}", [c0, c1],
        cp_async_bulk_tensor_2d_shared_cta_global,
        cp_async_bulk_tensor_2d_shared_cluster_global_multicast,
        cp_async_bulk_tensor_2d_shared_cluster_global_cta_group_2,
        cp_async_bulk_tensor_2d_shared_cluster_global_multicast_cta_group_2,
        cp_async_bulk_tensor_2d_global_shared_cta;
    3, "3d", "{{{c0}, {c1}, {c2}}}", [c0, c1, c2],
        cp_async_bulk_tensor_3d_shared_cta_global,
        cp_async_bulk_tensor_3d_shared_cluster_global_multicast,
        cp_async_bulk_tensor_3d_shared_cluster_global_cta_group_2,
        cp_async_bulk_tensor_3d_shared_cluster_global_multicast_cta_group_2,
        cp_async_bulk_tensor_3d_global_shared_cta;
    4, "4d", "{{{c0}, {c1}, {c2}, {c3}}}", [c0, c1, c2, c3],
        cp_async_bulk_tensor_4d_shared_cta_global,
        cp_async_bulk_tensor_4d_shared_cluster_global_multicast,
        cp_async_bulk_tensor_4d_shared_cluster_global_cta_group_2,
        cp_async_bulk_tensor_4d_shared_cluster_global_multicast_cta_group_2,
        cp_async_bulk_tensor_4d_global_shared_cta;
    5, "5d", "{{{c0}, {c1}, {c2}, {c3}, {c4}}}", [c0, c1, c2, c3, c4],
        cp_async_bulk_tensor_5d_shared_cta_global,
        cp_async_bulk_tensor_5d_shared_cluster_global_multicast,
        cp_async_bulk_tensor_5d_shared_cluster_global_cta_group_2,
        cp_async_bulk_tensor_5d_shared_cluster_global_multicast_cta_group_2,
        cp_async_bulk_tensor_5d_global_shared_cta;
}
