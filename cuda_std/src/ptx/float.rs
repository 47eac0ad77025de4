//! Single-precision arithmetic.

use core::arch::asm;

/// `fma.rn.f32 d, a, b, c;` ISA 9.7.3.6. All targets. Any thread. One rounding;
/// the compiler does not fuse `a * b + c` by itself.
#[inline(always)]
pub fn fma_rn_f32(a: f32, b: f32, c: f32) -> f32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "fma.rn.f32 {}, {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}
