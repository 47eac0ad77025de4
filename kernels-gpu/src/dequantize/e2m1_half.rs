//! e2m1 to f32 for targets without this conversion (sm_90a).
//!
//! If the three magnitude bits of a code are placed in the two lowest exponent bits and the highest
//! mantissa bit of an f16, its value is that of the code times 2^-14; the subnormal of e2m1 becomes
//! a subnormal of f16. One multiplication converts two codes, one in each half of a register.

use cuda_std::ptx::{convert, half};

/// 2^14 in both halves.
const SCALE: u32 = 0x7400_7400;

/// The values of code `i` of the low half and code `i` of the high half of `codes`, as f16x2.
#[inline(always)]
fn pair(codes: u32, i: u32) -> u32 {
    // Nibble `i` to bits 9 to 11 of its half, and its sign to bit 15.
    let codes = if i < 3 { codes << (12 - 4 * i) } else { codes };
    half::mul_rn_f16x2(((codes >> 3) & 0x0E00_0E00) | (codes & 0x8000_8000), SCALE)
}

/// The values of eight codes.
#[inline(always)]
pub fn decode8(codes: u32) -> [f32; 8] {
    let mut values = [0.0; 8];
    for i in 0..4 {
        let both = pair(codes, i as u32);
        values[i] = convert::cvt_f32_f16(both as u16);
        values[i + 4] = convert::cvt_f32_f16((both >> 16) as u16);
    }
    values
}

/// The values of the four codes in the low half.
#[inline(always)]
pub fn decode4(codes: u32) -> [f32; 4] {
    // Two codes in each half.
    let codes = (codes | codes << 8) & 0x00FF_00FF;
    let mut values = [0.0; 4];
    for i in 0..2 {
        let both = pair(codes, i as u32);
        values[i] = convert::cvt_f32_f16(both as u16);
        values[i + 2] = convert::cvt_f32_f16((both >> 16) as u16);
    }
    values
}
