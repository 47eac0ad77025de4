//! Fifth-generation tensor cores (sm_100a) and their tensor memory.
//!
//! Tensor memory has 128 lanes of 512 columns of 32 bits; an address is
//! `lane << 16 | column`. `GROUP` is the number of CTAs that take part, 1 or 2 (a CTA
//! pair: cluster ranks that differ in bit 0); a kernel uses one value throughout.

use core::arch::asm;

/// `tcgen05.alloc.cta_group::GROUP.sync.aligned.shared::cta.b32 [slot], COLUMNS;` ISA
/// 9.7.16.7. sm_100a. One converged warp; of a pair, the same warp of both CTAs. Waits
/// until the columns are free, and writes their address to `slot`.
///
/// # Safety
/// * All lanes of the warp execute it together.
/// * `slot` is the address of 4 aligned bytes of the CTA's shared memory.
/// * `COLUMNS` is a power of two from 32 to 512, and every column is deallocated before the
///   CTA ends.
#[inline(always)]
pub unsafe fn tcgen05_alloc<const GROUP: u32, const COLUMNS: u32>(slot: u32) {
    const { assert!(COLUMNS.is_power_of_two() && COLUMNS >= 32 && COLUMNS <= 512) };
    // SAFETY: the caller guarantees convergence and the address.
    unsafe {
        asm!("tcgen05.alloc.cta_group::{}.sync.aligned.shared::cta.b32 [{}], {};",
            const GROUP, in(reg32) slot, const COLUMNS, options(nostack, preserves_flags));
    }
}

/// `tcgen05.relinquish_alloc_permit.cta_group::GROUP.sync.aligned;` ISA 9.7.16.7.
/// sm_100a. One converged warp; of a pair, one of each CTA. The CTA allocates no more.
///
/// # Safety
/// All lanes of the warp execute it together.
#[inline(always)]
pub unsafe fn tcgen05_relinquish_alloc_permit<const GROUP: u32>() {
    // SAFETY: the caller guarantees convergence.
    unsafe {
        asm!("tcgen05.relinquish_alloc_permit.cta_group::{}.sync.aligned;",
            const GROUP, options(nostack, preserves_flags));
    }
}

/// `tcgen05.dealloc.cta_group::GROUP.sync.aligned.b32 taddr, COLUMNS;` ISA 9.7.16.7.
/// sm_100a. One converged warp; of a pair, one of each CTA.
///
/// # Safety
/// * All lanes of the warp execute it together.
/// * `address` and `COLUMNS` are those of an allocation, which is no longer in use.
#[inline(always)]
pub unsafe fn tcgen05_dealloc<const GROUP: u32, const COLUMNS: u32>(address: u32) {
    // SAFETY: the caller guarantees convergence and the address.
    unsafe {
        asm!("tcgen05.dealloc.cta_group::{}.sync.aligned.b32 {}, {};",
            const GROUP, in(reg32) address, const COLUMNS, options(nostack, preserves_flags));
    }
}

/// `tcgen05.fence::before_thread_sync;` ISA 9.7.16.11. sm_100a. Any thread. Orders its
/// earlier asynchronous tcgen05 operations before the tcgen05 operations of other threads
/// that follow the next synchronisation.
#[inline(always)]
pub fn tcgen05_fence_before_thread_sync() {
    // SAFETY: orders operations.
    unsafe { asm!("tcgen05.fence::before_thread_sync;", options(nostack, preserves_flags)) }
}

/// `tcgen05.fence::after_thread_sync;` ISA 9.7.16.11. sm_100a. Any thread. Orders its
/// later tcgen05 operations after those of other threads that precede the last
/// synchronisation.
#[inline(always)]
pub fn tcgen05_fence_after_thread_sync() {
    // SAFETY: orders operations.
    unsafe { asm!("tcgen05.fence::after_thread_sync;", options(nostack, preserves_flags)) }
}

/// `tcgen05.cp.cta_group::GROUP.32x128b.warpx4 [taddr], desc;` ISA 9.7.16.9. sm_100a. One
/// thread. Copies 512 bytes of shared memory, 32 rows of 16 bytes: row `i` to four columns of
/// each of the lanes `i`, `i + 32`, `i + 64` and `i + 96`. In a pair each CTA copies its own.
///
/// # Safety
/// The four columns are allocated, and `descriptor` describes initialised shared memory.
#[inline(always)]
pub unsafe fn tcgen05_cp_32x128b_warpx4<const GROUP: u32>(address: u32, descriptor: u64) {
    // SAFETY: the caller guarantees both addresses.
    unsafe {
        asm!("tcgen05.cp.cta_group::{}.32x128b.warpx4 [{}], {};",
            const GROUP, in(reg32) address, in(reg64) descriptor,
            options(nostack, preserves_flags));
    }
}

/// `tcgen05.commit.cta_group::GROUP.mbarrier::arrive::one.shared::cluster.b64 [mbar];`
/// ISA 9.7.16.12. sm_100a. One thread. Arrives once when the thread's earlier `mma` and
/// `cp` are complete.
///
/// # Safety
/// `barrier` is an mbarrier that expects this arrival.
#[inline(always)]
pub unsafe fn tcgen05_commit<const GROUP: u32>(barrier: u32) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!("tcgen05.commit.cta_group::{}.mbarrier::arrive::one.shared::cluster.b64 [{}];",
            const GROUP, in(reg32) barrier, options(nostack, preserves_flags));
    }
}

/// `tcgen05.commit.cta_group::GROUP.mbarrier::arrive::one.shared::cluster
/// .multicast::cluster.b64 [mbar], ctas;` ISA 9.7.16.12. sm_100a. One thread. The same
/// as [`tcgen05_commit`], at the offset of `barrier` in each CTA of `ctas`.
///
/// # Safety
/// The obligations of [`tcgen05_commit`] hold in each of these CTAs, and none of them has ended.
#[inline(always)]
pub unsafe fn tcgen05_commit_multicast<const GROUP: u32>(barrier: u32, ctas: u16) {
    // SAFETY: the caller guarantees the address.
    unsafe {
        asm!(
            "tcgen05.commit.cta_group::{}.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [{}], {};",
            const GROUP, in(reg32) barrier, in(reg16) ctas,
            options(nostack, preserves_flags),
        );
    }
}

/// Operands of a block-scaled product.
#[derive(Clone, Copy)]
pub struct BlockScaled<A> {
    /// Accumulator in tensor memory.
    pub d: u32,
    /// A: a shared-memory descriptor, or an address in tensor memory.
    pub a: A,
    /// Shared-memory descriptor of B.
    pub b: u64,
    /// Instruction descriptor.
    pub instruction: u32,
    /// Scales of A in tensor memory.
    pub a_scales: u32,
    /// Scales of B in tensor memory.
    pub b_scales: u32,
    /// Whether to add to D; otherwise D is overwritten.
    pub accumulate: bool,
}

/// Products with scales: name, kind, type and register class of A, A as PTX writes it.
macro_rules! block_scaled {
    ($($(#[$doc:meta])* $name:ident, $kind:literal, $A:ty, $class:ident, $a:literal;)*) => {
        $(
            $(#[$doc])*
            ///
            /// The last operand is a predicate, a class that inline assembly cannot name, so the wrapper
            /// includes a `setp`.
            ///
            /// # Safety
            /// The descriptors and addresses are those of initialised operands, and of an allocated
            /// accumulator, with the types and sizes that the instruction descriptor states.
            #[inline(always)]
            pub unsafe fn $name<const GROUP: u32>(operands: BlockScaled<$A>) {
                let BlockScaled { d, a, b, instruction, a_scales, b_scales, accumulate } = operands;
                // SAFETY: the caller guarantees the operands.
                unsafe {
                    asm!(
                        "{{ .reg .pred add;",
                        "setp.ne.b32 add, {accumulate}, 0;",
                        concat!(
                            "tcgen05.mma.cta_group::{group}.kind::", $kind,
                            " [{d}], ", $a, ", {b}, {i}, [{sa}], [{sb}], add; }}",
                        ),
                        group = const GROUP, d = in(reg32) d, a = in($class) a, b = in(reg64) b,
                        i = in(reg32) instruction, sa = in(reg32) a_scales,
                        sb = in(reg32) b_scales, accumulate = in(reg32) u32::from(accumulate),
                        options(nostack, preserves_flags),
                    );
                }
            }
        )*
    };
}

block_scaled! {
    /// `tcgen05.mma.cta_group::GROUP.kind::mxf4nvf4.block_scale.scale_vec::4X [d], a, b, idesc,
    /// [sfa], [sfb], p;` ISA 9.7.16.10.9.1. sm_100a, PTX 8.7. One thread; of a pair, of one
    /// CTA. D = (A * sA)(B * sB) + D in f32, K = 64, e2m1 with one ue4m3 scale per 16 elements.
    tcgen05_mma_mxf4nvf4_block_scale_4x,
        "mxf4nvf4.block_scale.scale_vec::4X", u64, reg64, "{a}";
    /// `tcgen05.mma.cta_group::GROUP.kind::mxf4.block_scale.scale_vec::2X [d], a, b, idesc,
    /// [sfa], [sfb], p;` ISA 9.7.16.10.9.1. sm_100a, PTX 8.7. One thread; of a pair, of one
    /// CTA. D = (A * sA)(B * sB) + D in f32, K = 64, e2m1 with one ue8m0 scale per 32 elements.
    tcgen05_mma_mxf4_block_scale_2x,
        "mxf4.block_scale.scale_vec::2X", u64, reg64, "{a}";
    /// `tcgen05.mma.cta_group::GROUP.kind::mxf8f6f4.block_scale.scale_vec::1X [d], a, b, idesc,
    /// [sfa], [sfb], p;` ISA 9.7.16.10.9.1. sm_100a, PTX 8.6. One thread; of a pair, of one
    /// CTA. D = (A * sA)(B * sB) + D in f32, K = 32, elements of 4, 6 or 8 bits, each type its own,
    /// with one ue8m0 scale per 32 elements. In shared memory sixteen elements take sixteen bytes.
    tcgen05_mma_mxf8f6f4_block_scale_1x,
        "mxf8f6f4.block_scale.scale_vec::1X", u64, reg64, "{a}";
    /// `tcgen05.mma.cta_group::GROUP.kind::mxf8f6f4.block_scale.scale_vec::1X [d], [a], b, idesc,
    /// [sfa], [sfb], p;` ISA 9.7.16.10.9.1. sm_100a, PTX 8.6. One thread; of a pair, of one CTA. The
    /// same as [`tcgen05_mma_mxf8f6f4_block_scale_1x`] with A in tensor memory: one row per lane, four
    /// elements per column.
    tcgen05_mma_mxf8f6f4_block_scale_1x_tensor_a,
        "mxf8f6f4.block_scale.scale_vec::1X", u32, reg32, "[{a}]";
}

/// `tcgen05.ld.sync.aligned.32x32b.x8.b32 {r}, [taddr]; tcgen05.wait::ld.sync.aligned;`
/// ISA 9.7.16.8. sm_100a. The same as [`tcgen05_ld_32x32b_x32`] for 8 columns.
///
/// # Safety
/// The obligations of [`tcgen05_ld_32x32b_x32`] hold.
#[inline(always)]
pub unsafe fn tcgen05_ld_32x32b_x8(address: u32) -> [u32; 8] {
    let (r0, r1, r2, r3, r4, r5, r6, r7);
    // SAFETY: the caller guarantees convergence and the address.
    unsafe {
        asm!(
            "tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}}, [{8}];",
            "tcgen05.wait::ld.sync.aligned;",
            out(reg32) r0,
            out(reg32) r1,
            out(reg32) r2,
            out(reg32) r3,
            out(reg32) r4,
            out(reg32) r5,
            out(reg32) r6,
            out(reg32) r7,
            in(reg32) address,
            options(nostack, preserves_flags),
        );
    }
    [r0, r1, r2, r3, r4, r5, r6, r7]
}

/// `tcgen05.ld.sync.aligned.32x32b.x16.b32 {r}, [taddr]; tcgen05.wait::ld.sync.aligned;`
/// ISA 9.7.16.8. sm_100a. The same as [`tcgen05_ld_32x32b_x32`] for 16 columns.
///
/// # Safety
/// The obligations of [`tcgen05_ld_32x32b_x32`] hold.
#[inline(always)]
pub unsafe fn tcgen05_ld_32x32b_x16(address: u32) -> [u32; 16] {
    let (r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15);
    // SAFETY: the caller guarantees convergence and the address.
    unsafe {
        asm!(
            "tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}}}, [{16}];",
            "tcgen05.wait::ld.sync.aligned;",
            out(reg32) r0,
            out(reg32) r1,
            out(reg32) r2,
            out(reg32) r3,
            out(reg32) r4,
            out(reg32) r5,
            out(reg32) r6,
            out(reg32) r7,
            out(reg32) r8,
            out(reg32) r9,
            out(reg32) r10,
            out(reg32) r11,
            out(reg32) r12,
            out(reg32) r13,
            out(reg32) r14,
            out(reg32) r15,
            in(reg32) address,
            options(nostack, preserves_flags),
        );
    }
    [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15]
}

/// `tcgen05.ld.sync.aligned.32x32b.x32.b32 {r}, [taddr]; tcgen05.wait::ld.sync.aligned;`
/// ISA 9.7.16.8. sm_100a. One converged warp. Thread `t` reads 32 columns of lane `lane + t` of
/// tensor memory.
///
/// The registers are undefined until the wait, which the compiler does not know, so the wrapper
/// includes the wait.
///
/// # Safety
/// * All lanes of the warp execute it together, with the same address, whose lane is 32 times
///   the warp's index modulo 4.
/// * The cells are allocated, and the operations that wrote them are known to be complete.
#[inline(always)]
pub unsafe fn tcgen05_ld_32x32b_x32(address: u32) -> [u32; 32] {
    let (
        r0,
        r1,
        r2,
        r3,
        r4,
        r5,
        r6,
        r7,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        r16,
        r17,
        r18,
        r19,
        r20,
        r21,
        r22,
        r23,
        r24,
        r25,
        r26,
        r27,
        r28,
        r29,
        r30,
        r31,
    );
    // SAFETY: the caller guarantees convergence and the address.
    unsafe {
        asm!(
            concat!(
                "tcgen05.ld.sync.aligned.32x32b.x32.b32 {{",
                "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, ",
                "{8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, ",
                "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, ",
                "{24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}",
                "}}, [{32}];",
            ),
            "tcgen05.wait::ld.sync.aligned;",
            out(reg32) r0,
            out(reg32) r1,
            out(reg32) r2,
            out(reg32) r3,
            out(reg32) r4,
            out(reg32) r5,
            out(reg32) r6,
            out(reg32) r7,
            out(reg32) r8,
            out(reg32) r9,
            out(reg32) r10,
            out(reg32) r11,
            out(reg32) r12,
            out(reg32) r13,
            out(reg32) r14,
            out(reg32) r15,
            out(reg32) r16,
            out(reg32) r17,
            out(reg32) r18,
            out(reg32) r19,
            out(reg32) r20,
            out(reg32) r21,
            out(reg32) r22,
            out(reg32) r23,
            out(reg32) r24,
            out(reg32) r25,
            out(reg32) r26,
            out(reg32) r27,
            out(reg32) r28,
            out(reg32) r29,
            out(reg32) r30,
            out(reg32) r31,
            in(reg32) address,
            options(nostack, preserves_flags),
        );
    }
    [
        r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15, r16, r17, r18, r19,
        r20, r21, r22, r23, r24, r25, r26, r27, r28, r29, r30, r31,
    ]
}

/// `tcgen05.mma.cta_group::GROUP.kind::f16 [d], [a], b, idesc, p;` ISA 9.7.16.10.9.1.
/// sm_100a. One thread. D = A B + D in f32, K = 16, with A in tensor memory: one row per lane,
/// two elements per column.
///
/// The last operand is a predicate, a class that inline assembly cannot name, so the wrapper
/// includes a `setp`.
///
/// # Safety
/// The descriptors and addresses are those of initialised operands, and of an allocated
/// accumulator, with the types and sizes that the instruction descriptor states.
#[inline(always)]
pub unsafe fn tcgen05_mma_f16_tensor_a<const GROUP: u32>(
    d: u32,
    a: u32,
    b: u64,
    instruction: u32,
    accumulate: bool,
) {
    // SAFETY: the caller guarantees the operands.
    unsafe {
        asm!(
            "{{ .reg .pred add;",
            "setp.ne.b32 add, {accumulate}, 0;",
            "tcgen05.mma.cta_group::{group}.kind::f16 [{d}], [{a}], {b}, {i}, add; }}",
            group = const GROUP, d = in(reg32) d, a = in(reg32) a, b = in(reg64) b,
            i = in(reg32) instruction, accumulate = in(reg32) u32::from(accumulate),
            options(nostack, preserves_flags),
        );
    }
}

/// `tcgen05.st.sync.aligned.32x32b.x16.b32 [taddr], {r};` ISA 9.7.16.8. sm_100a. One
/// converged warp. Thread `t` writes 16 columns of lane `lane + t` of tensor memory.
///
/// # Safety
/// * All lanes of the warp execute it together, with the same address, whose lane is 32 times
///   the warp's index modulo 4.
/// * The cells are allocated, and nothing else accesses them until [`tcgen05_wait_st`].
#[inline(always)]
pub unsafe fn tcgen05_st_32x32b_x16(address: u32, values: [u32; 16]) {
    let [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15] = values;
    // SAFETY: the caller guarantees convergence and the address.
    unsafe {
        asm!(
            concat!(
                "tcgen05.st.sync.aligned.32x32b.x16.b32 [{16}], {{",
                "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, ",
                "{8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}",
                "}};",
            ),
            in(reg32) r0,
            in(reg32) r1,
            in(reg32) r2,
            in(reg32) r3,
            in(reg32) r4,
            in(reg32) r5,
            in(reg32) r6,
            in(reg32) r7,
            in(reg32) r8,
            in(reg32) r9,
            in(reg32) r10,
            in(reg32) r11,
            in(reg32) r12,
            in(reg32) r13,
            in(reg32) r14,
            in(reg32) r15,
            in(reg32) address,
            options(nostack, preserves_flags),
        );
    }
}

/// `tcgen05.wait::st.sync.aligned;` ISA 9.7.16.8. sm_100a. One converged warp. Waits until
/// its earlier `tcgen05.st` are complete.
///
/// # Safety
/// All lanes of the warp execute it together.
#[inline(always)]
pub unsafe fn tcgen05_wait_st() {
    // SAFETY: the caller guarantees convergence.
    unsafe { asm!("tcgen05.wait::st.sync.aligned;", options(nostack, preserves_flags)) }
}
