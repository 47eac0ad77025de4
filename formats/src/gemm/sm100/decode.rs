//! Weights as 16-bit floats, exactly.
//!
//! An e2m1 code times an e4m3 scale has at most 6 significant bits: f16 holds it, from
//! 2^-10 to 2688, and so does bf16. Times a ue8m0 scale it is bf16 if it is first
//! multiplied with [`MXFP4_UNIT`]: the largest, 6 * 2^127, would overflow.
//!
//! The hardware converts codes to f16. The same bits moved three to the right, sign
//! aside, are a bf16 of 2^-112 times the value: the exponents' biases differ by that.

/// log2 of a code's value over that of its f16 read as a bf16 three bits to the right.
pub const BF16_SHIFTED_LOG2: u32 = 127 - 15;

/// Sign bits of two packed 16-bit floats.
pub const SIGNS: u32 = 0x8000_8000;

/// The bits of two f16 without signs after a shift by three.
pub const SHIFTED: u32 = 0x0fff_0fff;

/// Two f16 as two bf16 of 2^-[`BF16_SHIFTED_LOG2`] times their values. Exact for e2m1
/// values: they are normal in f16 or 0, and have one bit of mantissa.
#[inline(always)]
#[must_use]
pub const fn shifted(pair: u32) -> u32 {
    pair & SIGNS | pair >> 3 & SHIFTED
}

/// The factor of decoded MXFP4 weights; undone in alpha.
pub const MXFP4_UNIT: f32 = 0.125;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{e2m1, e4m3, ue8m0};

    fn bf16(bits: u32) -> f32 {
        f32::from_bits(bits << 16)
    }

    /// f16 bits of an e2m1 value.
    fn half(code: u8) -> u32 {
        let bits = e2m1::decode(code).to_bits();
        if bits << 1 == 0 {
            return bits >> 16;
        }
        let (sign, exponent, mantissa) =
            (bits >> 31, (bits >> 23 & 0xff) - 112, bits >> 13 & 0x3ff);
        sign << 15 | exponent << 10 | mantissa
    }

    #[test]
    fn codes_shifted() {
        for low in 0..16 {
            for high in 0..16 {
                let pair = shifted(half(low) | half(high) << 16);
                let unit = 2f32.powi(BF16_SHIFTED_LOG2 as i32);
                assert_eq!(bf16(pair & 0xffff) * unit, e2m1::decode(low));
                assert_eq!(bf16(pair >> 16) * unit, e2m1::decode(high));
            }
        }
    }

    /// Every product has a bf16 (upper 16 bits of an f32) that is it exactly.
    #[test]
    fn every_product_is_representable() {
        for code in 0..16 {
            let value = f64::from(e2m1::decode(code));
            for scale in 0..0x7f {
                let product = value * f64::from(e4m3::decode(scale));
                let bits = (product as f32).to_bits();
                assert_eq!(f64::from(f32::from_bits(bits)), product);
                assert_eq!(bits & 0xffff, 0, "{code} {scale}");
            }
            for scale in 0..=254 {
                let product = value * f64::from(ue8m0::decode(scale)) * f64::from(MXFP4_UNIT);
                let bits = (product as f32).to_bits();
                assert_eq!(f64::from(f32::from_bits(bits)), product, "{code} {scale}");
                assert_eq!(bits & 0xffff, 0, "{code} {scale}");
            }
        }
    }
}
