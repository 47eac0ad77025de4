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

/// `abs.f32 d, a;` ISA 9.7.3.9. All targets. Any thread. Costs nothing if it becomes
/// the modifier of an operand.
#[inline(always)]
pub fn abs_f32(a: f32) -> f32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "abs.f32 {}, {};",
            out(reg32) result, in(reg32) a,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `neg.f32 d, a;` ISA 9.7.3.10. All targets. Any thread. Costs nothing if it becomes
/// the modifier of an operand.
#[inline(always)]
pub fn neg_f32(a: f32) -> f32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "neg.f32 {}, {};",
            out(reg32) result, in(reg32) a,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `add.sat.f32 d, a, b;` ISA 9.7.3.3. All targets. Any thread. Rounded to
/// nearest even, then clamped to [0, 1]; NaN gives 0.
#[inline(always)]
pub fn add_sat_f32(a: f32, b: f32) -> f32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "add.sat.f32 {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `fma.rn.sat.f32 d, a, b, c;` ISA 9.7.3.6. All targets. Any thread. `a * b + c`
/// rounded once to nearest even, then clamped to [0, 1]; NaN gives 0.
#[inline(always)]
pub fn fma_rn_sat_f32(a: f32, b: f32, c: f32) -> f32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "fma.rn.sat.f32 {}, {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `max.NaN.f32 d, a, b;` ISA 9.7.3.12. sm_80+. Any thread. NaN if either operand is.
#[inline(always)]
pub fn max_nan_f32(a: f32, b: f32) -> f32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "max.NaN.f32 {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `min.NaN.f32 d, a, b;` ISA 9.7.3.11. sm_80+. Any thread. NaN if either operand is.
#[inline(always)]
pub fn min_nan_f32(a: f32, b: f32) -> f32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "min.NaN.f32 {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `ex2.approx.ftz.f32 d, a;` ISA 9.7.3.21. All targets. Any thread. 2^a with a
/// relative error of at most 2^-22; subnormal results are 0.
#[inline(always)]
pub fn ex2_approx_ftz_f32(a: f32) -> f32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "ex2.approx.ftz.f32 {}, {};",
            out(reg32) result, in(reg32) a,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `sqrt.rn.f32 d, a;` ISA 9.7.3.15. All targets. Any thread.
#[inline(always)]
pub fn sqrt_rn_f32(a: f32) -> f32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "sqrt.rn.f32 {}, {};",
            out(reg32) result, in(reg32) a,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `rcp.approx.ftz.f32 d, a;` ISA 9.7.3.14. All targets. Any thread. The error is
/// at most one unit in the last place; subnormal results are 0.
#[inline(always)]
pub fn rcp_approx_ftz_f32(a: f32) -> f32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "rcp.approx.ftz.f32 {}, {};",
            out(reg32) result, in(reg32) a,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}
