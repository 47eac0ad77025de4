//! Eight e2m1 codes in 32 bits, arranged so that decoding them is cheap.
//!
//! A pair of operands is two 16-bit floats. An e2m1 code `s eem` decodes by place:
//! with its sign at the float's sign and `eem` at the exponent's low bits and the
//! mantissa's top bit, all else zero, the float is the code's value times
//! a power of two, subnormals included. So a pair is decoded by bringing eight
//! bits to their places and masking the rest: one shift, one AND.
//!
//! The places of four codes do not tile 16 bits, whatever the shifts: the word itself and
//! three shifted or rotated copies do not bring each bit of it to a place, while the word
//! and four copies do. A pair that one copy does not fill is the exclusive or of two,
//! `(word << a ^ word << b) & mask`: still one three-input logic operation. In f16 two
//! pairs share a copy. The shifts were found by a search.
//!
//! Pair `j` of a word is register `j` of `wgmma`'s A fragment: rows `g`, `g + 8`,
//! `g`, `g + 8` of columns `2t, 2t + 1` (pairs 0, 1) and `2t + 8, 2t + 9` (2, 3).
//! The lower column stands in the low half.

use crate::HalfType;

/// Pairs of codes in a word.
pub const PAIRS: usize = 4;

/// The multipliers that stand for a word's left shifts; bf16 does not use the last.
pub type Multipliers = [u32; 3];

impl HalfType {
    /// Returns the mask of the sign and `eem` of a decoded pair.
    pub const fn mask(self) -> u32 {
        match self {
            Self::F16 => 0x8e00_8e00,
            Self::Bf16 => 0x81c0_81c0,
        }
    }

    /// log2 of a code's value over its decoded float's.
    pub const fn unit_log2(self) -> u32 {
        match self {
            Self::F16 => 14,
            Self::Bf16 => 126,
        }
    }

    /// Returns the powers of two that [`decode`](Self::decode) multiplies by; `one` is 1. Kernels take
    /// it from their parameters: the compiler, which does not know it, leaves the products to the pipe
    /// of multiply-adds. It would divide shifts between that pipe and the one of logic operations by
    /// the instructions of the whole kernel, outside the main loop, too; then logic operations take
    /// longest.
    pub const fn multipliers(self, one: u32) -> Multipliers {
        match self {
            Self::F16 => [one << 3, one << 7, one << 10],
            Self::Bf16 => [one << 4, one << 6, 0],
        }
    }

    /// The four pairs of a word, each a code's value over `2^`[`unit_log2`](Self::unit_log2); `by` are
    /// [`multipliers`](Self::multipliers).
    #[inline(always)]
    pub const fn decode(self, word: u32, by: Multipliers) -> [u32; PAIRS] {
        let mask = self.mask();
        match self {
            Self::F16 => {
                let shared = word.wrapping_mul(by[1]);
                [
                    word & mask,
                    word.wrapping_mul(by[0]) & mask,
                    (word.wrapping_mul(by[2]) ^ shared) & mask,
                    (word.rotate_left(12) ^ shared) & mask,
                ]
            }
            Self::Bf16 => [
                word & mask,
                word.wrapping_mul(by[0]) & mask,
                (word.wrapping_mul(by[1]) ^ word >> 2) & mask,
                word.rotate_left(10) & mask,
            ],
        }
    }

    /// The word whose pair `j` is `codes[j]`: the codes of the low and of the high half.
    pub const fn encode(self, codes: [[u8; 2]; PAIRS]) -> u32 {
        let words = match self {
            Self::F16 => &F16_WORDS,
            Self::Bf16 => &BF16_WORDS,
        };
        let (mut word, mut pair) = (0, 0);
        while pair < PAIRS {
            word ^= words[pair][0][codes[pair][0] as usize & 15];
            word ^= words[pair][1][codes[pair][1] as usize & 15];
            pair += 1;
        }
        word
    }

    /// Bit `bit` of the code of half `half` of a decoded pair.
    const fn code_bit(self, decoded: u32, half: usize, bit: usize) -> u32 {
        let at = if bit == 3 { 15 } else { self.magnitude_shift() + bit as u32 };
        decoded >> (16 * half as u32 + at) & 1
    }

    /// A code as the decoded float's 16 bits.
    pub const fn place(self, code: u8) -> u32 {
        let (sign, magnitude) = ((code >> 3 & 1) as u32, (code & 7) as u32);
        sign << 15 | magnitude << self.magnitude_shift()
    }

    /// Returns the position of the lowest bit of `eem` in a decoded half.
    const fn magnitude_shift(self) -> u32 {
        match self {
            Self::F16 => 9,
            Self::Bf16 => 6,
        }
    }
}

/// The words of single codes, by pair, half and code, all others zero. Decoding is linear over bits, so that
/// the word of several codes is the exclusive or of theirs.
type Words = [[[u32; 16]; 2]; PAIRS];

static F16_WORDS: Words = words(HalfType::F16);
static BF16_WORDS: Words = words(HalfType::Bf16);

/// Inverts [`HalfType::decode`], by elimination.
const fn words(half_type: HalfType) -> Words {
    // A row for each bit of a code: the word's bits whose exclusive or it is, and the codes' bits.
    let (mut of_word, mut of_codes) = ([0u32; 32], [0u32; 32]);
    let mut row = 0;
    while row < 32 {
        of_codes[row] = 1 << row;
        let mut bit = 0;
        while bit < 32 {
            let decoded = half_type.decode(1 << bit, half_type.multipliers(1))[row / 8];
            of_word[row] |= half_type.code_bit(decoded, row / 4 % 2, row % 4) << bit;
            bit += 1;
        }
        row += 1;
    }
    let mut bit = 0;
    while bit < 32 {
        let mut pivot = bit;
        while of_word[pivot] >> bit & 1 == 0 {
            pivot += 1;
        }
        (of_word[bit], of_word[pivot]) = (of_word[pivot], of_word[bit]);
        (of_codes[bit], of_codes[pivot]) = (of_codes[pivot], of_codes[bit]);
        let mut row = 0;
        while row < 32 {
            if row != bit && of_word[row] >> bit & 1 == 1 {
                of_word[row] ^= of_word[bit];
                of_codes[row] ^= of_codes[bit];
            }
            row += 1;
        }
        bit += 1;
    }
    // Now row `bit` is that bit of the word.
    let mut words = [[[0; 16]; 2]; PAIRS];
    let mut code = 0;
    while code < 16 {
        let mut place = 0;
        while place < 2 * PAIRS {
            let mut bit = 0;
            while bit < 32 {
                let set = of_codes[bit] >> (4 * place) & code as u32;
                words[place / 2][place % 2][code] |= (set.count_ones() % 2) << bit;
                bit += 1;
            }
            place += 1;
        }
        code += 1;
    }
    words
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::e2m1;

    const OPERANDS: [HalfType; 2] = [HalfType::F16, HalfType::Bf16];

    /// Every word decodes to the codes that encode to it. Both directions are linear over bits, so
    /// that one code at a time, and sums of several, show it for all.
    #[test]
    fn encoding_inverts_decoding() {
        for operand in OPERANDS {
            let decoded = |codes: [[u8; 2]; PAIRS]| {
                codes.map(|[low, high]| operand.place(low) | operand.place(high) << 16)
            };
            for pair in 0..PAIRS {
                for half in 0..2 {
                    for code in 0..16 {
                        let mut codes = [[0; 2]; PAIRS];
                        codes[pair][half] = code;
                        let word = operand.encode(codes);
                        assert_eq!(
                            operand.decode(word, operand.multipliers(1)),
                            decoded(codes),
                            "{operand:?} {codes:?}"
                        );
                    }
                }
            }
            let mut state = 1u32;
            for _ in 0..100_000 {
                let mut next = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 28) as u8
                };
                let codes = [(); PAIRS].map(|()| [next(), next()]);
                let word = operand.encode(codes);
                assert_eq!(
                    operand.decode(word, operand.multipliers(1)),
                    decoded(codes),
                    "{operand:?} {codes:?}"
                );
            }
        }
    }

    /// The decoded float is the code's value over 2^unit, for all 16 codes of both operands.
    #[test]
    fn a_decoded_code_has_its_value() {
        for operand in OPERANDS {
            for code in 0..16u8 {
                let bits = operand.place(code) as u16;
                let unit = 2f64.powi(operand.unit_log2() as i32);
                assert_eq!(
                    float(operand, bits) * unit,
                    f64::from(e2m1::decode(code)),
                    "{operand:?} code {code}"
                );
            }
        }
    }

    /// Every code times every NVFP4 scale, decoded as the f16 kernel does: one product, rounded to
    /// f16, is the exact value over 2^14. Nothing overflows, and nothing is flushed: the value is a
    /// multiple of 2^-10, hence the product one of 2^-24, f16's smallest subnormal.
    #[test]
    fn f16_products_with_every_e4m3_scale_are_exact() {
        for code in 0..16u8 {
            for scale in 0..=crate::e4m3::MAX_CODE {
                let exact =
                    f64::from(e2m1::decode(code)) * f64::from(crate::e4m3::decode(scale)) / 16384.0;
                assert!(fits(exact, 11, -24, 65504.0), "code {code} scale {scale}: {exact}");
            }
        }
    }

    /// The same for bf16 operands and NVFP4 scales times 2^119: over 2^7.
    #[test]
    fn bf16_products_with_every_e4m3_scale_are_exact() {
        let max = 255.0 * 2f64.powi(120);
        for code in 0..16u8 {
            for scale in 0..=crate::e4m3::MAX_CODE {
                let scale = f64::from(crate::e4m3::decode(scale));
                let factor = scale * 2f64.powi(119);
                assert!(fits(factor, 8, -133, max), "scale {scale} as a factor");
                let exact = f64::from(e2m1::decode(code)) * scale / 128.0;
                assert!(fits(exact, 8, -133, max), "code {code} scale {scale}: {exact}");
            }
        }
    }

    /// bf16 operands and MXFP4's scales: code * 2^(s - 127) over 2^3, for all 255 scales.
    #[test]
    fn bf16_products_with_every_ue8m0_scale_are_exact() {
        let max = 255.0 * 2f64.powi(120);
        for code in 0..16u8 {
            for scale in 0..=crate::ue8m0::MAX_CODE {
                let factor = 2f64.powi(i32::from(scale) - 127);
                assert!(fits(factor / 8.0, 8, -133, max), "scale {scale}");
                let exact = f64::from(e2m1::decode(code)) * factor / 8.0;
                assert!(fits(exact, 8, -133, max), "code {code} scale {scale}: {exact}");
            }
        }
    }

    /// The value of 16 bits as a float of this type.
    fn float(operand: HalfType, bits: u16) -> f64 {
        let (exponent_bits, mantissa_bits) = match operand {
            HalfType::F16 => (5, 10),
            HalfType::Bf16 => (8, 7),
        };
        let exponent = u32::from(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
        let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1));
        let bias = (1 << (exponent_bits - 1)) - 1;
        let hidden = if exponent == 0 { 0.0 } else { f64::from(1 << mantissa_bits) };
        let value = (hidden + mantissa) * 2f64.powi(exponent.max(1) as i32 - bias - mantissa_bits);
        if bits >> 15 == 1 { -value } else { value }
    }

    /// Whether a float with `precision` bits, multiples of `2^smallest` and magnitudes up to `max`
    /// has this value.
    fn fits(value: f64, precision: i32, smallest: i32, max: f64) -> bool {
        let units = value.abs() * 2f64.powi(-smallest);
        if units.fract() != 0.0 || value.abs() > max {
            return false;
        }
        let mut units = units;
        while units >= 2f64.powi(precision) {
            units /= 2.0;
        }
        units.fract() == 0.0
    }
}
