//! The way from a thread's sums of a strip of tokens to their results in shared memory, for
//! [`store_registers`](super::store_registers).

use cuda_std::ptx::{memory as words, mma};
use cuda_std::warp;
use fp4_formats::HalfType;
use fp4_formats::gemm::Combine;
use fp4_formats::gemm::fragments::repack::BLOCK_ROWS;
use fp4_formats::gemm::sm90::config::{RESULT_PITCH, RESULT_TOKENS};

use super::store_registers::Store;
use crate::gemm::epilogue::affine::{self, Column};
use crate::gemm::epilogue::combine::by_sigmoid;

/// Tokens of a group of `wgmma`'s sums; a thread has two tokens of two rows.
const GROUP: u32 = 8;
/// Sums of a thread in a group, and of one row of it.
const GROUP_SUMS: usize = 4;
const ROW_SUMS: usize = GROUP_SUMS / 2;
/// Groups of a strip, which has as many tokens as shared memory has rows, and sums of a thread in it.
const GROUPS: usize = (RESULT_TOKENS / GROUP) as usize;
pub(super) const STRIP_SUMS: usize = GROUPS * GROUP_SUMS;
/// Groups of a plain product whose matrices are stored together.
const PAIR: usize = 2;
/// Rows of a warp's sums.
const WARP_ROWS: u32 = 16;
/// Bytes of a result.
pub(super) const BYTES: u32 = HalfType::F16.float().bytes();

/// The way from the sums of a strip to results.
pub(super) trait Strip: Copy {
    /// Sums that make a result.
    const HALVES: u32;
    /// Results of a token in a block of 64 rows.
    const ROWS: u32 = BLOCK_ROWS / Self::HALVES;
    /// Tokens of as many strips as fill the rows of shared memory, and a thread's sums of them.
    const TOKENS: u32 = RESULT_TOKENS * Self::HALVES;
    const SUMS: usize = STRIP_SUMS * Self::HALVES as usize;

    /// Puts the results into shared memory, [tokens, rows]. The strip's first token is number `token` of the
    /// tile; `place` is the thread's index in its warpgroup, and the address of the first result. `pair` rounds
    /// two results, the second to the low half.
    ///
    /// # Safety
    /// The warp is converged; the place is the warpgroup's, and its old contents are read.
    unsafe fn stage(
        self,
        store: &Store<'_>,
        sums: &[f32; STRIP_SUMS],
        token: u32,
        place: [u32; 2],
        pair: impl Fn(f32, f32) -> u32,
    );
}

/// The factors of a token's sums.
pub(super) trait Factors: Copy {
    /// Returns the factors of two tokens, the first of which is number `token` of the tile.
    ///
    /// # Safety
    /// The tile may have the tokens.
    unsafe fn pair(self, store: &Store<'_>, token: u32) -> [f32; 2];

    /// A sum by a token's factor.
    fn value(self, sum: f32, factor: f32) -> f32;
}

/// The same factor for all tokens, with the value of a sum's 1 in it.
#[derive(Clone, Copy)]
pub(super) struct Same(pub f32);

impl Factors for Same {
    #[inline(always)]
    unsafe fn pair(self, _: &Store<'_>, _: u32) -> [f32; 2] {
        [self.0; 2]
    }

    #[inline(always)]
    fn value(self, sum: f32, factor: f32) -> f32 {
        sum * factor
    }
}

/// The factors of the tokens ([`Store::factors`]), and the value of a sum's 1.
#[derive(Clone, Copy)]
pub(super) struct Own(pub f32);

impl Factors for Own {
    #[inline(always)]
    unsafe fn pair(self, store: &Store<'_>, token: u32) -> [f32; 2] {
        // SAFETY: the factors of two tokens are there, at a multiple of eight bytes.
        unsafe { words::ld_shared_v2_b32(store.factor(token)) }.map(f32::from_bits)
    }

    #[inline(always)]
    fn value(self, sum: f32, factor: f32) -> f32 {
        affine::value(sum, self.0, factor, Column::NONE)
    }
}

/// Each sum times its token's factor is a result.
#[derive(Clone, Copy)]
pub(super) struct Plain<F>(pub F);

impl<F: Factors> Strip for Plain<F> {
    const HALVES: u32 = 1;

    #[inline(always)]
    unsafe fn stage(
        self,
        store: &Store<'_>,
        sums: &[f32; STRIP_SUMS],
        token: u32,
        [thread, to]: [u32; 2],
        pair: impl Fn(f32, f32) -> u32,
    ) {
        let lane = thread % warp::LANES;
        let (matrix, column) = (lane / 8, lane % 8);
        let row = thread / warp::LANES * WARP_ROWS + matrix % 2 * 8;
        let place = to + (matrix / 2 * GROUP + column) * RESULT_PITCH + row * BYTES;
        // All are loaded before the first one is used.
        let own: [[f32; 2]; GROUPS] = core::array::from_fn(|group| {
            let token = token + group as u32 * GROUP + lane % 4 * 2;
            // SAFETY: the caller's.
            unsafe { self.0.pair(store, token) }
        });
        for pair_of in 0..GROUPS / PAIR {
            let group = pair_of * PAIR;
            let mut matrices = [0; 2 * PAIR];
            for i in 0..PAIR {
                for half in 0..2 {
                    let values: [f32; 2] = core::array::from_fn(|j| {
                        let sum = sums[(group + i) * GROUP_SUMS + half * ROW_SUMS + j];
                        self.0.value(sum, own[group + i][j])
                    });
                    matrices[i * 2 + half] = pair(values[1], values[0]);
                }
            }
            let to = place + group as u32 * GROUP * RESULT_PITCH;
            // SAFETY: the caller's; these rows of eight results are the warp's.
            unsafe { mma::stmatrix_m8n8_x4_trans_shared_b16(to, matrices) };
        }
    }
}

/// A sum of the gate and one of `up`, times alpha each, make a result, by a sigmoid.
#[derive(Clone, Copy)]
pub(super) struct Gated<'a> {
    /// The value of a sum's 1.
    pub unit: f32,
    /// Factor of each half.
    pub alphas: [f32; 2],
    pub step: &'a Combine,
}

impl Strip for Gated<'_> {
    const HALVES: u32 = 2;

    #[inline(always)]
    unsafe fn stage(
        self,
        _: &Store<'_>,
        sums: &[f32; STRIP_SUMS],
        _: u32,
        [thread, to]: [u32; 2],
        pair: impl Fn(f32, f32) -> u32,
    ) {
        let row = thread / warp::LANES * (WARP_ROWS / Self::HALVES);
        let place = to + thread % warp::LANES * RESULT_PITCH + row * BYTES;
        let [gate, up] = [0, 1].map(|half| {
            core::array::from_fn(|i| {
                let (group, j) = (i / ROW_SUMS, i % ROW_SUMS);
                let sum = sums[group * GROUP_SUMS + half * ROW_SUMS + j];
                affine::value(sum, self.unit, self.alphas[half], Column::NONE)
            })
        });
        let results: [f32; GROUPS * ROW_SUMS] = by_sigmoid(self.step, gate, up);
        let matrices = core::array::from_fn(|group| {
            pair(results[group * ROW_SUMS + 1], results[group * ROW_SUMS])
        });
        // SAFETY: the caller's; each lane has the address of one row of eight results of the warp's.
        unsafe { mma::stmatrix_m8n8_x4_trans_shared_b16(place, matrices) };
    }
}
