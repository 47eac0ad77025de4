//! Integer and bit arithmetic.

use core::arch::asm;

/// `prmt.b32 d, a, b, selector;` ISA 9.7.9.7. All targets. Any thread.
///
/// Byte `i` of the result is byte `selector[4i+2:4i]` of `{b, a}` (bytes of `a`
/// are 0..3); where bit `4i+3` of the selector is set, that byte's sign bit
/// fills all eight bits instead. Only the low 16 bits of `selector` matter.
#[inline(always)]
pub fn prmt_b32(a: u32, b: u32, selector: u32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "prmt.b32 {}, {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) selector,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `mov.b64 d, a;` ISA 9.7.9.3. All targets. Any thread. The compiler does not see that the two are equal:
/// it neither derives the result from what `a` was made of, nor keeps values that are made of it.
#[inline(always)]
pub fn mov_b64(a: u64) -> u64 {
    let d;
    // SAFETY: it reads and writes registers only.
    unsafe {
        asm!("mov.b64 {}, {};", out(reg64) d, in(reg64) a,
            options(pure, nomem, nostack, preserves_flags));
    }
    d
}

/// `dp4a.s32.s32 d, a, b, c;` ISA 9.7.1.23. sm_61+. Any thread.
///
/// `c` plus the sum of the four products of signed bytes.
#[inline(always)]
pub fn dp4a_s32_s32(a: u32, b: u32, c: i32) -> i32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "dp4a.s32.s32 {}, {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}
