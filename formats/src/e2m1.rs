//! e2m1: sign, two exponent bits (bias 1), one mantissa bit. No infinity, no NaN.
//!
//! PTX ISA, "Alternate Floating-Point Data Formats" (`.e2m1`) and `cvt`.

use crate::pack;

/// Largest finite magnitude.
pub const MAX: f32 = 6.0;

/// Number of distinct codes.
pub const CODES: usize = 16;

/// Value of each code; bit 3 is the sign, and code 8 is negative zero.
pub const VALUES: [f32; CODES] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Twice the value of each code, which is an integer.
///
/// A dot product of two e2m1 vectors is therefore a quarter of an integer dot product, so integer
/// kernels are exact.
pub const TWICE: [i8; CODES] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The value of a code. Bits above the low four are ignored.
#[inline]
#[must_use]
pub const fn decode(code: u8) -> f32 {
    VALUES[(code & 0xf) as usize]
}

/// The same by arithmetic on the code's bits, for kernels, which have no fast tables. Bits above the
/// low four are ignored.
#[inline(always)]
#[must_use]
pub const fn decode_arithmetically(code: u32) -> f32 {
    /// 2^126. A magnitude's bits, as the topmost of a float below its sign, are those of the
    /// magnitude divided by it.
    const UNIT: f32 = f32::from_bits((127 + 126) << 23);
    let magnitude = f32::from_bits((code & 7) << 22) * UNIT;
    f32::from_bits(magnitude.to_bits() | (code & 8) << 28)
}

/// The values of the two codes of each byte, the low nibble's first.
pub const PAIRS: [[f32; 2]; 256] = {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < pairs.len() {
        let (low, high) = pack::unpair(byte as u8);
        pairs[byte] = [decode(low), decode(high)];
        byte += 1;
    }
    pairs
};

/// Rounds to the nearest code, ties to the even code, as `cvt.rn.satfinite.e2m1x2.f32` does.
///
/// Magnitudes above 6 and infinities become ±6. The sign is kept, even if the magnitude rounds to
/// zero. The format has no NaN: a NaN of either sign becomes +6 (code 7), as it does with the
/// instruction, so a caller that must report a NaN checks for it first.
#[inline]
#[must_use]
pub const fn encode(x: f32) -> u8 {
    /// Bits of infinity: those of a NaN are above, of everything else at most these.
    const INFINITY: i32 = f32::INFINITY.to_bits() as i32;
    // Without their signs, floats are ordered like their bits. There are no branches, so that loops
    // over many elements become vector instructions.
    let a = (x.to_bits() & 0x7fff_ffff) as i32;
    let sign = (x.to_bits() >> 28) as i32 & 0x8 & ((a > INFINITY) as i32 - 1);
    // Each boundary is the midpoint of two adjacent values and rounds to the even code of the two.
    let magnitude = (a > bits(0.25)) as i32
        + (a >= bits(0.75)) as i32
        + (a > bits(1.25)) as i32
        + (a >= bits(1.75)) as i32
        + (a > bits(2.5)) as i32
        + (a >= bits(3.5)) as i32
        + (a > bits(5.0)) as i32;
    (sign | magnitude) as u8
}

/// A positive number's bits.
#[inline(always)]
const fn bits(x: f32) -> i32 {
    x.to_bits() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_decoders_agree() {
        for code in 0..256u32 {
            let (by_table, by_bits) = (decode(code as u8), decode_arithmetically(code));
            assert_eq!(by_table.to_bits(), by_bits.to_bits(), "code {code:#x}");
        }
    }

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in 0..16 {
            assert_eq!(encode(decode(code)), code, "code {code}");
        }
    }

    #[test]
    fn twice_is_two_times_the_value() {
        for code in 0..CODES {
            assert_eq!(f32::from(TWICE[code]), 2.0 * VALUES[code], "code {code}");
        }
    }

    #[test]
    fn pairs_are_two_codes() {
        for (byte, pair) in PAIRS.iter().enumerate() {
            let codes = [byte as u8, byte as u8 >> 4].map(|code| decode(code).to_bits());
            assert_eq!(pair.map(f32::to_bits), codes, "byte {byte:#x}");
        }
    }

    /// The nearest code, found among all of them, for each boundary and the numbers beside it.
    #[test]
    fn rounds_to_the_nearest_and_ties_to_even() {
        for code in 0..7u8 {
            let middle = (decode(code) + decode(code + 1)) / 2.0;
            let even = code + code % 2;
            for (x, expected) in
                [(middle.next_down(), code), (middle, even), (middle.next_up(), code + 1)]
            {
                assert_eq!(encode(x), expected, "{x:e}");
                assert_eq!(encode(-x), 8 | expected, "{:e}", -x);
            }
        }
    }

    #[test]
    fn saturates_and_maps_nan_to_six() {
        assert_eq!(encode(f32::INFINITY), 0x7);
        assert_eq!(encode(f32::NEG_INFINITY), 0xf);
        assert_eq!(encode(-1e30), 0xf);
        assert_eq!(encode(f32::NAN), 0x7);
        assert_eq!(encode(-f32::NAN), 0x7);
        assert_eq!(encode(-0.0), 0x8);
    }
}
