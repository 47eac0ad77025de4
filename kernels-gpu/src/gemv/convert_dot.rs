//! Exact f16 dot products for sm_100a, which converts e2m1 pairs in hardware.
//!
//! The product of two e2m1 values is a multiple of 1/4 with a magnitude of at most 36. Each half of
//! the f16x2 accumulator sums eight products: at most 288, which is 1152 quarters, and f16
//! represents every integer up to 2048. Nothing is rounded.

use super::BlockDot;
use cuda_std::ptx::{convert, half};

/// Decodes with `cvt.rn.f16x2.e2m1x2` and multiplies with `fma.rn.f16x2`.
#[derive(Clone, Copy)]
pub struct ConvertDot;

/// Eight codes as four pairs of f16.
#[inline(always)]
fn decode(codes: u32) -> [u32; 4] {
    [
        convert::cvt_rn_f16x2_e2m1x2::<0>(codes),
        convert::cvt_rn_f16x2_e2m1x2::<1>(codes),
        convert::cvt_rn_f16x2_e2m1x2::<2>(codes),
        convert::cvt_rn_f16x2_e2m1x2::<3>(codes),
    ]
}

impl BlockDot for ConvertDot {
    const UNIT: f32 = 1.0;
    /// The values as f16, two in a word.
    type Block = [[u32; 4]; 2];

    #[inline(always)]
    fn new() -> Self {
        Self
    }

    #[inline(always)]
    fn decode(self, codes: [u32; 2]) -> Self::Block {
        codes.map(decode)
    }

    #[inline(always)]
    fn dot(self, codes: [u32; 2], activations: &Self::Block) -> f32 {
        let mut sum = 0;
        // Loops over indices are fully unrolled, which keeps the arrays in registers.
        for i in 0..2 {
            let pairs = decode(codes[i]);
            for j in 0..4 {
                sum = half::fma_rn_f16x2(pairs[j], activations[i][j], sum);
            }
        }
        convert::cvt_f32_f16(sum as u16) + convert::cvt_f32_f16((sum >> 16) as u16)
    }
}
