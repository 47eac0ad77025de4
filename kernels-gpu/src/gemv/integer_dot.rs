//! Exact integer dot products for sm_90a, which has no e2m1 conversion.
//!
//! Twice an e2m1 value is an integer in -12..=12. `prmt` is a table of eight
//! bytes indexed by a code's magnitude bits; where a code is negative its
//! sign-replicate mode returns the table entry's sign bit eight times, and all
//! entries are positive, so it returns 0. Looking up the codes and the codes
//! with all signs flipped therefore splits the block into its positive and its
//! negative part, which two `dp4a` chains sum.

use super::BlockDot;
use cuda_std::ptx::{integer, memory, special};
use fp4_formats::gemv::VectorElement;

/// Twice the values of codes 0..=3 and 4..=7, one a byte.
const TABLE: [u32; 2] = [0x0302_0100, 0x0C08_0604];

/// The sign bits of eight codes.
const SIGNS: u32 = 0x8888_8888;

/// prmt + dp4a.
#[derive(Clone, Copy)]
pub struct IntegerDot {
    /// `TABLE[0]`. `prmt` takes one immediate at most; the other half must be in
    /// a register, which ptxas would fill anew before each use if it knew the
    /// value.
    low: u32,
}

impl IntegerDot {
    /// Magnitudes of the four low codes of `codes` that are not negative, else 0.
    #[inline(always)]
    fn positive(self, codes: u32) -> u32 {
        integer::prmt_b32(self.low, TABLE[1], codes)
    }
}

/// Four signed bytes from their positive and negative parts, of which one is 0.
#[inline(always)]
fn signed(positive: u32, negative: u32) -> u32 {
    // Bytes are below 0x80: with the top bits set no borrow crosses a byte.
    ((positive | 0x8080_8080) - negative) ^ 0x8080_8080
}

impl BlockDot for IntegerDot {
    const ELEMENT: VectorElement = VectorElement::I8;
    /// Both factors are doubled.
    const UNIT: f32 = 0.25;
    const WORDS: u32 = 1;
    type Block = [u32; 4];

    #[inline(always)]
    fn new() -> Self {
        // Lane numbers are below 32, which the assembler does not assume.
        Self { low: TABLE[0] + (special::laneid() >> 5) }
    }

    #[inline(always)]
    unsafe fn stage(self, address: u32, _plane: u32, codes: [u32; 2]) {
        let mut block = [0; 4];
        for (i, word) in codes.into_iter().enumerate() {
            let flipped = word ^ SIGNS;
            block[2 * i] = signed(self.positive(word), self.positive(flipped));
            block[2 * i + 1] = signed(self.positive(word >> 16), self.positive(flipped >> 16));
        }
        // SAFETY: the caller vouches for the address.
        unsafe { memory::st_shared_v4_b32(address, block) };
    }

    #[inline(always)]
    unsafe fn load(address: u32, _plane: u32) -> Self::Block {
        // SAFETY: the caller vouches for the address.
        unsafe { memory::ld_shared_v4_b32(address) }
    }

    #[inline(always)]
    fn dot(self, codes: [u32; 2], vector: &Self::Block) -> f32 {
        let (mut plus, mut minus) = (0, 0);
        for (i, word) in codes.into_iter().enumerate() {
            let flipped = word ^ SIGNS;
            plus = integer::dp4a_s32_s32(self.positive(word), vector[2 * i], plus);
            plus = integer::dp4a_s32_s32(self.positive(word >> 16), vector[2 * i + 1], plus);
            minus = integer::dp4a_s32_s32(self.positive(flipped), vector[2 * i], minus);
            minus = integer::dp4a_s32_s32(self.positive(flipped >> 16), vector[2 * i + 1], minus);
        }
        // At most 16 * 144 in magnitude: exact in f32.
        (plus - minus) as f32
    }
}
