//! f32 to e2m1 for sm_90a, which has no such conversion: exact rounding by
//! floating-point additions, because a Hopper SM adds floats twice as fast as it
//! does anything with integers.
//!
//! e2m1 magnitudes are 0, 1/2 .. 2 in steps of 1/2, to 4 in steps of 1, to 6 in
//! steps of 2. With `h = |y| / 2` the three ranges are unit intervals, so a
//! saturating addition cuts `y` into its part in each, and
//! `code = round(4 sat(h)) + round(2 sat(h - 1)) + round(sat(h - 2))`. Adding to
//! 2^23 rounds to an integer, ties to even, and leaves the integer in the low bits
//! of the sum. Earlier parts are at full range, 4 and 2, where a later one is above
//! zero: what is added to is even just as the code below the tie is, so ties of the
//! sum are ties of e2m1. Differences with 1 and 2 are exact (`h` is within a factor
//! of two of them, or the difference saturates).

use cuda_std::ptx::{float, integer, marker};
use fp4_formats::recipe::Reciprocal;

/// The number from which all f32 are integers.
const INTEGERS: f32 = 8_388_608.0;

/// Sum over the eight elements `i` of the bits of [`INTEGERS`], shifted by `4 i`.
const EXPONENTS: u32 = INTEGERS.to_bits().wrapping_add(INTEGERS.to_bits() << 4);
const _: () = assert!(INTEGERS.to_bits() << 8 == 0);

/// Halves: what [`round`] takes for numbers.
#[inline(always)]
pub fn prepare(mut v: [f32; 8]) -> [f32; 8] {
    for value in &mut v {
        *value *= 0.5;
    }
    v
}

/// Halves of `v * factor`. Half of `factor` does not underflow.
#[inline(always)]
pub fn products(mut v: [f32; 8], factor: f32, unsigned_zero: bool) -> [f32; 8] {
    let half = factor * 0.5;
    for value in &mut v {
        *value = if unsigned_zero {
            // Adding zero makes -0 +0, which must see whether the product itself is zero.
            (*value * factor + 0.0) * 0.5
        } else {
            *value * half
        };
    }
    v
}

/// Halves of `v * factor`, a zero as +0, where no product of a number with half of `factor` is so
/// small that it becomes zero.
#[inline(always)]
pub fn unsigned_products(mut v: [f32; 8], factor: f32) -> [f32; 8] {
    let half = factor * 0.5;
    for value in &mut v {
        *value = float::fma_rn_f32(*value, half, 0.0);
    }
    v
}

/// The codes of `v * factor`, a power of two: products are exact, so that the additions
/// round them for the first time. Half of `factor` does not underflow.
#[inline(always)]
pub fn scaled(v: [f32; 8], factor: f32) -> u32 {
    let half = factor * 0.5;
    pack_parts(v, |magnitude, from| float::fma_rn_sat_f32(magnitude, half, from))
}

/// Halves of `v / divisor`, given the nearest number to the divisor's reciprocal; a zero as +0.
#[inline(always)]
pub fn quotients(mut v: [f32; 8], divisor: f32, nearest: f32) -> [f32; 8] {
    let half = Reciprocal::new(divisor * 2.0, nearest * 0.5, float::fma_rn_f32);
    for value in &mut v {
        *value = half.times(*value, float::fma_rn_f32);
    }
    v
}

/// The codes of eight values from their halves, element `i` in bits `4 i ..`; nearest even,
/// saturating, signs kept.
#[inline(always)]
pub fn round(halves: [f32; 8]) -> u32 {
    pack_parts(halves, float::add_sat_f32)
}

/// The codes of eight values, of whose halves' magnitudes `part(|v|, -x)` is what lies
/// between `x` and `x + 1`.
#[inline(always)]
fn pack_parts(v: [f32; 8], part: impl Fn(f32, f32) -> f32) -> u32 {
    let signs = signs(v);
    let mut codes = 0u32.wrapping_sub(EXPONENTS);
    for i in 0..8 {
        let magnitude = float::abs_f32(v[i]);
        let code = float::fma_rn_f32(part(magnitude, 0.0), 4.0, INTEGERS);
        let code = float::fma_rn_f32(part(magnitude, -1.0), 2.0, code);
        let code = code + part(magnitude, -2.0);
        codes = codes.wrapping_add(code.to_bits() << (4 * i));
    }
    // Pinned, or the compiler joins the signs' halves to the codes one after the other, which
    // takes ptxas to a slower order of everything.
    codes | marker::pin(signs)
}

/// The sign of element `i` in bit `4 i + 3`.
#[inline(always)]
fn signs(v: [f32; 8]) -> u32 {
    /// `prmt`: the sign bit of `a`'s and `b`'s top byte, eight times each, in the
    /// low two bytes.
    const TO_LOW: u32 = 0x00FB;
    /// The same in the high two bytes.
    const TO_HIGH: u32 = 0xFB00;
    /// The low half of `a` and the high half of `b`.
    const HALVES: u32 = 0x7610;
    let top = |i: usize| v[i].to_bits();
    let even = integer::prmt_b32(
        integer::prmt_b32(top(0), top(2), TO_LOW),
        integer::prmt_b32(top(4), top(6), TO_HIGH),
        HALVES,
    );
    let odd = integer::prmt_b32(
        integer::prmt_b32(top(1), top(3), TO_LOW),
        integer::prmt_b32(top(5), top(7), TO_HIGH),
        HALVES,
    );
    ((even & 0x0F0F_0F0F) | (odd & 0xF0F0_F0F0)) & 0x8888_8888
}
