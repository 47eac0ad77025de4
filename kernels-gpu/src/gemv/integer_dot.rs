//! Exact integer dot products for sm_90a, which has no e2m1 conversion.
//!
//! Twice an e2m1 value is an integer in -12..=12. `prmt` looks up eight bytes by the magnitude bits
//! of a code. If the code's sign bit is set, `prmt` replicates the sign bit of the looked-up byte
//! instead; all table entries are positive, so the result is 0. Looking up the codes, and then the
//! codes with all signs flipped, therefore splits a block into its positive and its negative part.
//! Two chains of `dp4a` sum them.

use super::BlockDot;
use cuda_std::ptx::{integer, special};

/// Twice the values of codes 0..=3 and 4..=7, one per byte.
const TABLE: [u32; 2] = [0x0302_0100, 0x0C08_0604];

/// The sign bits of eight codes.
const SIGNS: u32 = 0x8888_8888;

/// Decodes with `prmt` and multiplies with `dp4a`.
#[derive(Clone, Copy)]
pub struct IntegerDot {
    /// `TABLE[0]`. `prmt` takes at most one immediate, so the other half of the table is in a
    /// register. If ptxas knew its value, it would load the register again before each use.
    low: u32,
}

impl IntegerDot {
    /// One byte for each of the four low codes: its doubled magnitude, or 0 if it is negative.
    #[inline(always)]
    fn positive(self, codes: u32) -> u32 {
        integer::prmt_b32(self.low, TABLE[1], codes)
    }
}

/// Four signed bytes from their positive and negative parts; in each byte one of the two is 0.
#[inline(always)]
fn signed(positive: u32, negative: u32) -> u32 {
    // All bytes are below 0x80, so with the top bits set no borrow crosses a byte.
    ((positive | 0x8080_8080) - negative) ^ 0x8080_8080
}

impl BlockDot for IntegerDot {
    /// Both operands are doubled.
    const UNIT: f32 = 0.25;
    /// Twice the values as i8, four in a word.
    type Block = [u32; 4];

    #[inline(always)]
    fn new() -> Self {
        // `laneid >> 5` is 0. ptxas does not know that, so it does not treat the sum as a constant.
        Self { low: TABLE[0] + (special::laneid() >> 5) }
    }

    #[inline(always)]
    fn decode(self, codes: [u32; 2]) -> Self::Block {
        let mut block = [0; 4];
        for (i, word) in codes.into_iter().enumerate() {
            let flipped = word ^ SIGNS;
            block[2 * i] = signed(self.positive(word), self.positive(flipped));
            block[2 * i + 1] = signed(self.positive(word >> 16), self.positive(flipped >> 16));
        }
        block
    }

    #[inline(always)]
    fn dot(self, codes: [u32; 2], activations: &Self::Block) -> f32 {
        let (mut plus, mut minus) = (0, 0);
        for (i, word) in codes.into_iter().enumerate() {
            let flipped = word ^ SIGNS;
            plus = integer::dp4a_s32_s32(self.positive(word), activations[2 * i], plus);
            plus = integer::dp4a_s32_s32(self.positive(word >> 16), activations[2 * i + 1], plus);
            minus = integer::dp4a_s32_s32(self.positive(flipped), activations[2 * i], minus);
            minus =
                integer::dp4a_s32_s32(self.positive(flipped >> 16), activations[2 * i + 1], minus);
        }
        // The magnitude is at most 16 * 144, which f32 represents exactly.
        (plus - minus) as f32
    }
}
