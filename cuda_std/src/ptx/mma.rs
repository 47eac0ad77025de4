//! Products of a warp: `mma`, whose operands are all in registers, and `ldmatrix`, which loads them
//! from shared memory.

use core::arch::asm;

macro_rules! products {
    ($($name:ident, $type:literal;)*) => {
        $(
            #[doc = concat!("`mma.sync.aligned.m16n8k16.row.col.f32.", $type, ".", $type, ".f32 {d}, {a}, {b}, {d};`")]
            /// ISA 9.7.14.5.15. sm_80+. The warp. Adds the product of 16 rows of `a` and 8
            /// columns of `b` to the sums.
            ///
            /// # Safety
            /// All threads of the warp reach this same call.
            #[inline(always)]
            pub unsafe fn $name(sums: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
                // SAFETY: the caller guarantees convergence; no nomem/readonly/pure.
                unsafe {
                    asm!(
                        concat!(
                            "mma.sync.aligned.m16n8k16.row.col.f32.", $type, ".", $type,
                            ".f32 {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, ",
                            "{{{0}, {1}, {2}, {3}}};"
                        ),
                        inout(reg32) sums[0], inout(reg32) sums[1],
                        inout(reg32) sums[2], inout(reg32) sums[3],
                        in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3],
                        in(reg32) b[0], in(reg32) b[1],
                        options(nostack, preserves_flags),
                    );
                }
            }
        )*
    };
}

products! {
    mma_m16n8k16_f32_f16_f16, "f16";
    mma_m16n8k16_f32_bf16_bf16, "bf16";
}

/// The word of scales that each lane has, and which part of whose word a block-scaled product takes.
#[cfg(gpu_tensor = "mma_sync_scaled")]
#[derive(Clone, Copy)]
pub struct Scales {
    /// The lane's word.
    pub word: u32,
    /// The first byte: 0 where a product takes all four, 0 or 2 where it takes two, any where it takes one.
    pub byte: u16,
    /// Lanes whose words are taken. A: 0 for lanes 0 and 1 of four, which have those of rows `g` and `g + 8`, 1 for
    /// lanes 2 and 3. B: the lane of four that has those of column `g`.
    pub thread: u16,
}

#[cfg(gpu_tensor = "mma_sync_scaled")]
macro_rules! scaled_products {
    ($($(#[$codes:meta])* $name:ident, $shape:literal, $kind:literal;)*) => {
        $(
            #[doc = concat!("`mma.sync.aligned.", $shape, ".row.col.", $kind, " {d}, {a}, {b}, {d}, {sa}, {byte, thread}, {sb}, {byte, thread};`")]
            /// ISA 9.7.14.5.14. sm_120a, sm_120f. The warp. Adds the product of 16 rows of `a` and 8
            /// columns of `b`, each element times its block's scale, to the sums.
            ///
            $(#[$codes])*
            ///
            /// # Safety
            /// All threads of the warp reach this same call.
            #[inline(always)]
            pub unsafe fn $name(
                sums: &mut [f32; 4],
                (a, scales_a): ([u32; 4], Scales),
                (b, scales_b): ([u32; 2], Scales),
            ) {
                // SAFETY: the caller guarantees convergence; no nomem/readonly/pure.
                unsafe {
                    asm!(
                        concat!(
                            "mma.sync.aligned.", $shape, ".row.col.", $kind,
                            " {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, ",
                            "{{{0}, {1}, {2}, {3}}}, {10}, {{{11}, {12}}}, {13}, {{{14}, {15}}};"
                        ),
                        inout(reg32) sums[0], inout(reg32) sums[1],
                        inout(reg32) sums[2], inout(reg32) sums[3],
                        in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3],
                        in(reg32) b[0], in(reg32) b[1],
                        in(reg32) scales_a.word, in(reg16) scales_a.byte, in(reg16) scales_a.thread,
                        in(reg32) scales_b.word, in(reg16) scales_b.byte, in(reg16) scales_b.thread,
                        options(nostack, preserves_flags),
                    );
                }
            }
        )*
    };
}

#[cfg(gpu_tensor = "mma_sync_scaled")]
scaled_products! {
    /// Elements of both are e2m1, eight to a register.
    mma_m16n8k64_nvfp4, "m16n8k64", "kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3";
    /// Elements of both are e2m1, eight to a register.
    mma_m16n8k64_mxfp4, "m16n8k64", "kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0";
    /// Elements are bytes: those of `a` have e2m1 in bits 2 to 5, those of `b` are e4m3.
    mma_m16n8k32_e2m1_e4m3, "m16n8k32", "kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e2m1.e4m3.f32.ue8m0";
}

/// `ldmatrix.sync.aligned.m8n8.x4.shared.b16 {d}, [address];` ISA 9.7.14.5.16. sm_75+. The
/// warp. Loads four matrices of eight rows of 16 bytes. Thread `8 i + r` supplies the address of
/// row `r` of matrix `i`; thread `4 r + c` receives columns `2c, 2c + 1` of row `r` of each.
///
/// # Safety
/// * All threads of the warp reach this same call.
/// * Each address is that of 16 aligned, initialised bytes of the CTA's shared memory, which no
///   thread writes at the same time.
#[inline(always)]
pub unsafe fn ldmatrix_m8n8_x4_shared_b16(address: u32) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller guarantees convergence and the address; no nomem/readonly/pure.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(nostack, preserves_flags));
    }
    [a, b, c, d]
}

/// `stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [a], {r0,r1,r2,r3};` ISA 9.7.14.5.16. sm_90+. One
/// converged warp. Stores four matrices of 8 x 8 elements of 16 bits, transposed: thread `t` holds elements
/// `2 (t % 4)` and the next one of row `t / 4` of matrix `i` in `matrices[i]`, and lane `8 i + c` names the
/// place of column `c` of matrix `i`.
///
/// # Safety
/// * All lanes of the warp execute it together.
/// * `address` is 16-byte aligned and names 16 bytes of the CTA's shared memory.
#[inline(always)]
pub unsafe fn stmatrix_m8n8_x4_trans_shared_b16(address: u32, matrices: [u32; 4]) {
    let [a, b, c, d] = matrices;
    // SAFETY: the caller guarantees convergence and the address.
    unsafe {
        asm!("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{}], {{{}, {}, {}, {}}};",
            in(reg32) address, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
            options(nostack, preserves_flags));
    }
}
