//! Dot products and arithmetic of bytes and 16-bit halves packed in 32 bits: PTX ISA
//! sections 9.7.1.1, 9.7.1.12, 9.7.1.13, 9.7.1.23 and 9.7.1.24.

use super::map_halves;

#[inline(always)]
fn byte(x: u32, i: u32, signed: bool) -> i32 {
    let byte = (x >> (8 * i)) as u8;
    if signed { i32::from(byte as i8) } else { i32::from(byte) }
}

/// `dp4a`: `c` plus the four products of corresponding bytes, wrapping. Section
/// 9.7.1.23.
#[inline]
pub fn dp4a(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    let product = |i| byte(a, i, a_signed) * byte(b, i, b_signed);
    let sum = product(0) + product(1) + product(2) + product(3);
    c.wrapping_add(sum as u32)
}

/// `dp2a`: `c` plus the products of the halves of `a` and two bytes of `b`: 0 and 1
/// (`.lo`), or 2 and 3 (`.hi`), wrapping. Section 9.7.1.24.
#[inline]
pub fn dp2a(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool, hi: bool) -> u32 {
    let half = |i: u32| {
        let half = (a >> (16 * i)) as u16;
        if a_signed { i32::from(half as i16) } else { i32::from(half) }
    };
    let b = if hi { b >> 16 } else { b };
    let product = |i| half(i) * byte(b, i, b_signed);
    c.wrapping_add((product(0) + product(1)) as u32)
}

/// `add.u16x2`, `add.s16x2`: wrapping. Section 9.7.1.1.
#[inline]
pub fn add_16x2(a: u32, b: u32) -> u32 {
    map_halves([a, b], |[a, b]| a.wrapping_add(b))
}

/// `min.u16x2`.
#[inline]
pub fn min_u16x2(a: u32, b: u32) -> u32 {
    map_halves([a, b], |[a, b]| a.min(b))
}

/// `max.u16x2`.
#[inline]
pub fn max_u16x2(a: u32, b: u32) -> u32 {
    map_halves([a, b], |[a, b]| a.max(b))
}

/// `min{.relu}.s16x2`: with `relu` at least 0.
#[inline]
pub fn min_s16x2(a: u32, b: u32, relu: bool) -> u32 {
    let floor = if relu { 0 } else { i16::MIN };
    map_halves([a, b], |[a, b]| (a as i16).min(b as i16).max(floor) as u16)
}

/// `max{.relu}.s16x2`: with `relu` at least 0.
#[inline]
pub fn max_s16x2(a: u32, b: u32, relu: bool) -> u32 {
    let floor = if relu { 0 } else { i16::MIN };
    map_halves([a, b], |[a, b]| (a as i16).max(b as i16).max(floor) as u16)
}
