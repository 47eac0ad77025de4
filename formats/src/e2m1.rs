//! e2m1: sign, two exponent bits (bias 1), one mantissa bit. No infinity, no NaN.
//!
//! PTX ISA, "Alternate Floating-Point Data Formats" (`.e2m1`) and `cvt`.

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

/// Rounds to the nearest code, ties to the even code, as `cvt.rn.satfinite.e2m1x2.f32` does.
///
/// Magnitudes above 6 and infinities become ±6. The sign is kept, even if the magnitude rounds to
/// zero. The format has no NaN: a NaN of either sign becomes +6 (code 7), as it does with the
/// instruction, so a caller that must report a NaN checks for it first.
#[inline]
#[must_use]
pub const fn encode(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7;
    }
    let sign = ((x.to_bits() >> 28) & 0x8) as u8;
    let a = f32::from_bits(x.to_bits() & 0x7fff_ffff);
    // Each boundary is the midpoint of two adjacent values and rounds to the even code of the two.
    let magnitude = (a > 0.25) as u8
        + (a >= 0.75) as u8
        + (a > 1.25) as u8
        + (a >= 1.75) as u8
        + (a > 2.5) as u8
        + (a >= 3.5) as u8
        + (a > 5.0) as u8;
    sign | magnitude
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
    fn saturates_and_maps_nan_to_six() {
        assert_eq!(encode(f32::INFINITY), 0x7);
        assert_eq!(encode(f32::NEG_INFINITY), 0xf);
        assert_eq!(encode(-1e30), 0xf);
        assert_eq!(encode(f32::NAN), 0x7);
        assert_eq!(encode(-f32::NAN), 0x7);
        assert_eq!(encode(-0.0), 0x8);
    }
}
