//! Fences. The compiler does not move, merge or drop them, because to it each of them reads and
//! writes all memory.

use core::arch::asm;

macro_rules! fences {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            pub fn $name() {
                // SAFETY: orders accesses and performs none.
                unsafe { asm!(concat!($text, ";"), options(nostack, preserves_flags)) }
            }
        )*
    };
}

fences! {
    /// `fence.mbarrier_init.release.cluster;` ISA 9.7.13.4. sm_90+. The thread that
    /// initialised mbarriers, before the barrier that publishes them to other threads.
    fence_mbarrier_init_release_cluster = "fence.mbarrier_init.release.cluster";
    /// `fence.proxy.async.shared::cta;` ISA 9.7.13.4. sm_90+. Threads that wrote
    /// shared memory which the copy engine or the tensor core reads next.
    fence_proxy_async_shared_cta = "fence.proxy.async.shared::cta";
    /// `fence.proxy.async.global;` ISA 9.7.13.4. sm_90+. Between accesses of global
    /// memory by threads and by the copy engine.
    fence_proxy_async_global = "fence.proxy.async.global";
    /// `fence.proxy.async;` ISA 9.7.13.4. sm_90+. Both of the forms above.
    fence_proxy_async = "fence.proxy.async";
    /// `fence.acq_rel.gpu;` ISA 9.7.13.4. sm_70+. Any thread. Orders its accesses
    /// for all threads of the device.
    fence_acq_rel_gpu = "fence.acq_rel.gpu";
    /// `fence.acq_rel.cluster;` ISA 9.7.13.4. sm_90+. Any thread. Orders its
    /// accesses for all threads of the cluster.
    fence_acq_rel_cluster = "fence.acq_rel.cluster";
}

macro_rules! map_fences {
    ($($(#[$doc:meta])* $name:ident = $scope:literal;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// `map` is the generic address of a tensor map in global memory.
            #[inline(always)]
            pub unsafe fn $name(map: u64) {
                // SAFETY: the caller guarantees the address.
                unsafe {
                    asm!(concat!("fence.proxy.tensormap::generic.acquire.", $scope, " [{}], 128;"),
                        in(reg64) map, options(nostack, preserves_flags));
                }
            }
        )*
    };
}

map_fences! {
    /// `fence.proxy.tensormap::generic.acquire.gpu [map], 128;` ISA 9.7.13.4. sm_90+.
    /// One thread. Before a copy with a map that a kernel wrote in global memory.
    fence_proxy_tensormap_generic_acquire_gpu = "gpu";
    /// `fence.proxy.tensormap::generic.acquire.sys [map], 128;` ISA 9.7.13.4. sm_90+.
    /// One thread. Before a copy with a map that the host copied to global memory.
    fence_proxy_tensormap_generic_acquire_sys = "sys";
}
