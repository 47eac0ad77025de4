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
