//! e4m3: sign, four exponent bits (bias 7), three mantissa bits; and its unsigned form ue4m3.
//!
//! No infinity; the NaN codes are 0x7f and 0xff. ue4m3, the scale of NVFP4, is the same byte with
//! bit 7 zero. PTX ISA, "Alternate Floating-Point Data Formats" (`.e4m3`, `.ue4m3`) and `cvt`.

/// Largest finite magnitude.
pub const MAX: f32 = 448.0;

/// Code of [`MAX`].
pub const MAX_CODE: u8 = 0x7e;

/// Smallest normal magnitude, 2^-6.
pub const MIN_NORMAL: f32 = 0.015_625;

/// Smallest magnitude above zero, 2^-9.
pub const MIN_SUBNORMAL: f32 = 0.001_953_125;

/// The canonical NaN.
pub const NAN: u8 = 0x7f;

/// The value of a code. 0x7f and 0xff are NaN.
#[inline]
#[must_use]
pub const fn decode(code: u8) -> f32 {
    let sign = (code as u32 & 0x80) << 24;
    let magnitude = code as u32 & 0x7f;
    if magnitude == 0x7f {
        return f32::NAN;
    }
    if magnitude < 8 {
        let value = magnitude as f32 * MIN_SUBNORMAL;
        return f32::from_bits(value.to_bits() | sign);
    }
    f32::from_bits(sign | ((magnitude << 20) + ((127 - 7) << 23)))
}

/// Rounds to the nearest code, ties to even, as `cvt.rn.satfinite.e4m3x2.f32` does.
///
/// Magnitudes above 448 and infinities become ±448. The sign is kept, even if the magnitude rounds
/// to zero. A NaN of either sign becomes 0x7f.
#[inline]
#[must_use]
pub const fn encode(x: f32) -> u8 {
    if x.is_nan() {
        return NAN;
    }
    let bits = x.to_bits() & 0x7fff_ffff;
    let sign = ((x.to_bits() >> 24) & 0x80) as u8;
    let a = f32::from_bits(bits);
    let magnitude = if a >= MAX {
        MAX_CODE
    } else if a < MIN_NORMAL {
        // One ulp of 2^14 is 2^-9, the distance of subnormals, so the addition rounds to nearest
        // even and leaves the subnormal's code in the low mantissa bits. A carry to eight is
        // correct too, because eight is the code of the smallest normal value.
        ((a + 16_384.0).to_bits() & 0xff) as u8
    } else {
        let rounded = bits + 0x7_ffff + ((bits >> 20) & 1);
        // Magnitudes up to 448 cannot round to more than 448, because the tie is at 464.
        ((rounded >> 20) - ((127 - 7) << 3)) as u8
    };
    sign | magnitude
}

/// Whether the code is one of the two NaNs.
#[inline]
#[must_use]
pub const fn is_nan(code: u8) -> bool {
    code & 0x7f == 0x7f
}

/// Whether the byte is a finite ue4m3: no sign bit, not NaN.
#[inline]
#[must_use]
pub const fn is_unsigned_finite(code: u8) -> bool {
    code < 0x7f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_code_survives_a_round_trip() {
        for code in 0..=255u8 {
            if is_nan(code) {
                assert!(decode(code).is_nan(), "code {code:#x}");
                assert_eq!(encode(decode(code)), NAN, "code {code:#x}");
            } else {
                assert_eq!(encode(decode(code)), code, "code {code:#x}");
            }
        }
    }

    #[test]
    fn midpoints_of_neighbours_go_to_the_even_code() {
        for code in 0..MAX_CODE {
            let (lo, hi) = (decode(code), decode(code + 1));
            let middle = (lo + hi) / 2.0;
            let even = if code % 2 == 0 { code } else { code + 1 };
            assert_eq!(encode(middle), even, "between {code:#x} and its successor");
            assert_eq!(encode(-middle), 0x80 | even, "between -{code:#x} and its successor");
            assert_eq!(encode(middle.next_down()), code, "below the midpoint at {code:#x}");
            assert_eq!(encode(middle.next_up()), code + 1, "above the midpoint at {code:#x}");
        }
    }

    #[test]
    fn unsigned_finite_is_exactly_the_non_negative_numbers() {
        for code in 0..=255u8 {
            let value = decode(code);
            let expected = !value.is_nan() && value.is_sign_positive();
            assert_eq!(is_unsigned_finite(code), expected, "code {code:#x}");
        }
    }
}
