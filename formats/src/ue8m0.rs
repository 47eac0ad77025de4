//! ue8m0: an exponent byte; code `x` is 2^(x-127), and 0xff is NaN. There is no zero.
//!
//! PTX ISA, "Alternate Floating-Point Data Formats" (`.ue8m0`) and `cvt`.

/// Code of the largest value, 2^127.
pub const MAX_CODE: u8 = 0xfe;

/// Code of 1.
pub const ONE: u8 = 0x7f;

/// The only NaN.
pub const NAN: u8 = 0xff;

/// The value of a code; 0xff is NaN. Code 0 is 2^-127, a subnormal f32.
#[inline]
#[must_use]
pub const fn decode(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        NAN => f32::NAN,
        _ => f32::from_bits((code as u32) << 23),
    }
}

/// Rounds up to a power of two, as `cvt.rp.satfinite.ue8m0x2.f32` does.
///
/// It uses the magnitude, because the format has no sign. Magnitudes up to 2^-127, zero included,
/// become code 0; magnitudes above 2^127 and infinities saturate to 2^127; NaN becomes 0xff.
#[inline]
#[must_use]
pub const fn encode_up(x: f32) -> u8 {
    let bits = x.to_bits() & 0x7fff_ffff;
    if bits > 0x7f80_0000 {
        return NAN;
    }
    let exponent = (bits >> 23) as u8;
    // Among the subnormals, code 0 is 2^-127, whose f32 mantissa field is 2^22.
    let floor_mantissa = if exponent == 0 { 0x0040_0000 } else { 0 };
    if exponent >= MAX_CODE {
        MAX_CODE
    } else if bits & 0x007f_ffff > floor_mantissa {
        exponent + 1
    } else {
        exponent
    }
}

/// Rounds down to a power of two, as `cvt.rz.satfinite.ue8m0x2.f32` does.
///
/// It uses the magnitude, because the format has no sign. Magnitudes below 2^-126, zero included,
/// become code 0; infinities saturate to 2^127; NaN becomes 0xff.
#[inline]
#[must_use]
pub const fn encode_down(x: f32) -> u8 {
    let bits = x.to_bits() & 0x7fff_ffff;
    if bits > 0x7f80_0000 {
        return NAN;
    }
    let exponent = (bits >> 23) as u8;
    if exponent > MAX_CODE { MAX_CODE } else { exponent }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in 0..=255u8 {
            assert_eq!(encode_up(decode(code)), code, "up, code {code:#x}");
            assert_eq!(encode_down(decode(code)), code, "down, code {code:#x}");
        }
    }

    #[test]
    fn neighbours_round_towards_their_mode() {
        for code in 1..MAX_CODE {
            let value = decode(code);
            assert_eq!(encode_up(value.next_up()), code + 1, "code {code:#x}");
            assert_eq!(encode_up(value.next_down()), code, "code {code:#x}");
            assert_eq!(encode_down(value.next_up()), code, "code {code:#x}");
            assert_eq!(encode_down(value.next_down()), code - 1, "code {code:#x}");
        }
    }
}
