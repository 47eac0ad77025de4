//! `cvt` between formats. The lower half of a pair holds the element with the lower index.

use core::arch::asm;

/// `cvt.rn.f16x2.e4m3x2 d, a;` ISA 9.7.9.21. sm_89+. Any thread. Exact; the
/// NaN code is converted to NaN.
#[cfg(gpu_e4m3 = "hardware")]
#[inline(always)]
pub fn cvt_rn_f16x2_e4m3x2(pair: u16) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.rn.f16x2.e4m3x2 {}, {};",
            out(reg32) result, in(reg16) pair,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `cvt.rn.f16x2.e2m1x2 d, a;` with `a` = byte `BYTE` of `codes`. ISA 9.7.9.21.
/// sm_100a, sm_120a. Any thread. Exact.
///
/// The source is a `.b8` register, a class that inline assembly cannot name, so the
/// wrapper includes the `mov` that unpacks it.
#[cfg(gpu_e2m1 = "hardware")]
#[inline(always)]
pub fn cvt_rn_f16x2_e2m1x2<const BYTE: u32>(codes: u32) -> u32 {
    const { assert!(BYTE < 4) };
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "{{ .reg .b8 b0, b1, b2, b3;",
            "mov.b32 {{b0, b1, b2, b3}}, {1};",
            "cvt.rn.f16x2.e2m1x2 {0}, b{2}; }}",
            out(reg32) result, in(reg32) codes, const BYTE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `cvt.f32.f16 d, a;` ISA 9.7.9.21. All targets. Any thread. Exact.
#[inline(always)]
pub fn cvt_f32_f16(half: u16) -> f32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.f32.f16 {}, {};",
            out(reg32) result, in(reg16) half,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `cvt.rn.f16.f32 d, a;` ISA 9.7.9.21. All targets. Any thread. Rounds to nearest even;
/// overflow gives infinity.
#[inline(always)]
pub fn cvt_rn_f16_f32(value: f32) -> u16 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.rn.f16.f32 {}, {};",
            out(reg16) result, in(reg32) value,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `cvt.rn.bf16.f32 d, a;` ISA 9.7.9.21. sm_80+. Any thread. Rounds to nearest even;
/// overflow gives infinity.
#[inline(always)]
pub fn cvt_rn_bf16_f32(value: f32) -> u16 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.rn.bf16.f32 {}, {};",
            out(reg16) result, in(reg32) value,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `cvt.rn.satfinite.e4m3x2.f32 d, a, b;` with `a` = `high`, `b` = `low`. ISA
/// 9.7.9.21. sm_89+. Any thread. Rounds to nearest even; magnitudes above 448 give 448; the
/// low byte of the result holds `low`.
#[cfg(gpu_e4m3 = "hardware")]
#[inline(always)]
pub fn cvt_rn_satfinite_e4m3x2_f32(high: f32, low: f32) -> u16 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.rn.satfinite.e4m3x2.f32 {}, {}, {};",
            out(reg16) result, in(reg32) high, in(reg32) low,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `cvt.rn.satfinite.e2m1x2.f32 d, a, b;` with `a` = `high`, `b` = `low`. ISA
/// 9.7.9.21. sm_100a, sm_120a. Any thread. Rounds to nearest even; magnitudes above 6 give
/// 6; the low nibble of the result holds `low`, bits from 8 are zero.
///
/// The destination is a `.b8` register, a class that inline assembly cannot name, so the
/// wrapper includes the `cvt` that widens it.
#[cfg(gpu_e2m1 = "hardware")]
#[inline(always)]
pub fn cvt_rn_satfinite_e2m1x2_f32(high: f32, low: f32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "{{ .reg .b8 pair;",
            "cvt.rn.satfinite.e2m1x2.f32 pair, {1}, {2};",
            "cvt.u32.u8 {0}, pair; }}",
            out(reg32) result, in(reg32) high, in(reg32) low,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `cvt.rp.satfinite.ue8m0x2.f32 d, a, b;` with `a` = `high`, `b` = `low`. ISA
/// 9.7.9.21. sm_100a, sm_120a. Any thread. Rounds up to a power of two. Zero and
/// magnitudes up to 2^-127 become code 0, magnitudes above 2^127 become 254, and NaN becomes
/// 255. The low byte of the result holds `low`.
#[cfg(gpu_ue8m0 = "hardware")]
#[inline(always)]
pub fn cvt_rp_satfinite_ue8m0x2_f32(high: f32, low: f32) -> u16 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.rp.satfinite.ue8m0x2.f32 {}, {}, {};",
            out(reg16) result, in(reg32) high, in(reg32) low,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `cvt.rn.f16x2.f32 d, a, b;` with `a` = `high`, `b` = `low`. ISA 9.7.9.21. sm_80+.
/// Any thread. Rounds to nearest even; overflow gives infinity.
#[inline(always)]
pub fn cvt_rn_f16x2_f32(high: f32, low: f32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.rn.f16x2.f32 {}, {}, {};",
            out(reg32) result, in(reg32) high, in(reg32) low,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// `cvt.rn.bf16x2.f32 d, a, b;` with `a` = `high`, `b` = `low`. ISA 9.7.9.21.
/// sm_80+. Any thread. Rounds to nearest even; overflow gives infinity.
#[inline(always)]
pub fn cvt_rn_bf16x2_f32(high: f32, low: f32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.rn.bf16x2.f32 {}, {}, {};",
            out(reg32) result, in(reg32) high, in(reg32) low,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}
