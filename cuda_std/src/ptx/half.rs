//! Arithmetic on pairs of f16.

use core::arch::asm;

/// `fma.rn.f16x2 d, a, b, c;` ISA 9.7.4.5. sm_53+. Any thread.
#[inline(always)]
pub fn fma_rn_f16x2(a: u32, b: u32, c: u32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "fma.rn.f16x2 {}, {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `mul.rn.f16x2 d, a, b;` ISA 9.7.4.3. sm_53+. Any thread.
#[inline(always)]
pub fn mul_rn_f16x2(a: u32, b: u32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "mul.rn.f16x2 {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `mov.b32 {l, h}, a;` ISA 9.7.9.1. All targets. Any thread. The low and the high half.
#[inline(always)]
pub fn mov_b32_unpack(pair: u32) -> [u16; 2] {
    let (low, high);
    // SAFETY: moves between registers.
    unsafe {
        asm!("mov.b32 {{{}, {}}}, {};", out(reg16) low, out(reg16) high, in(reg32) pair,
            options(pure, nomem, nostack, preserves_flags));
    }
    [low, high]
}

/// `mov.b32 d, {l, h};` ISA 9.7.9.1. All targets. Any thread. A pair of equal
/// halves costs nothing as an operand of `mul` or `fma`, whose encodings select halves.
#[inline(always)]
pub fn mov_b32_pack([low, high]: [u16; 2]) -> u32 {
    let pair;
    // SAFETY: moves between registers.
    unsafe {
        asm!("mov.b32 {}, {{{}, {}}};", out(reg32) pair, in(reg16) low, in(reg16) high,
            options(pure, nomem, nostack, preserves_flags));
    }
    pair
}

/// `abs.f16x2 d, a;` ISA 9.7.4.7. sm_53+. Any thread.
#[inline(always)]
pub fn abs_f16x2(a: u32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "abs.f16x2 {}, {};",
            out(reg32) result, in(reg32) a,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `max.NaN.f16x2 d, a, b;` ISA 9.7.4.9. sm_80+. Any thread. A half is NaN if that
/// half of either operand is.
#[inline(always)]
pub fn max_nan_f16x2(a: u32, b: u32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "max.NaN.f16x2 {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `abs.bf16x2 d, a;` ISA 9.7.4.7. sm_80+. Any thread.
#[inline(always)]
pub fn abs_bf16x2(a: u32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "abs.bf16x2 {}, {};",
            out(reg32) result, in(reg32) a,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `max.NaN.bf16x2 d, a, b;` ISA 9.7.4.9. sm_80+. Any thread. A half is NaN if that
/// half of either operand is.
#[inline(always)]
pub fn max_nan_bf16x2(a: u32, b: u32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "max.NaN.bf16x2 {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `mul.rn.bf16x2 d, a, b;` ISA 9.7.4.3. sm_90+. Any thread. Subnormals are numbers.
#[cfg(gpu_bf16_mul = "yes")]
#[inline(always)]
pub fn mul_rn_bf16x2(a: u32, b: u32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "mul.rn.bf16x2 {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `fma.rn.bf16x2 d, a, b, c;` ISA 9.7.4.4. sm_80+. Any thread. Subnormals are numbers.
#[cfg(gpu_bf16_mul = "no")]
#[inline(always)]
pub fn fma_rn_bf16x2(a: u32, b: u32, c: u32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "fma.rn.bf16x2 {}, {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}
