//! The end of a tile: its sums, in shared memory, become results.
//!
//! Where rows of the result are aligned, a thread stores the same eight columns of every so
//! many tokens, whose factors and bias it loads once; several tokens' sums are under way at a
//! time. Elsewhere each piece of eight columns is looked at by itself.

use cuda_std::ptx::{convert, marker, memory as words};
use cuda_std::thread;
use fp4_formats::gemm::OutputType;
use fp4_formats::gemm::hopper::config::{CONSUMERS, HopperConfig};
use fp4_formats::gemm::hopper::params::HopperParams;
use fp4_formats::gemm::hopper::repack::WARPGROUP;

use super::decode::Weights;
use super::tile::{Memory, Tile};
use crate::gemm::epilogue::{self, COLUMNS};

/// Threads that take part.
const THREADS: u32 = CONSUMERS * WARPGROUP;
/// Tokens of a thread whose sums are under way at a time, without and with factors and bias
/// of the columns, which take registers.
const BATCH: usize = 4;
const SCALED_BATCH: usize = 1;

/// Stores the results of the tile whose sums are in shared memory.
///
/// # Safety
/// All consumer threads; the sums are known to them.
#[inline(always)]
pub unsafe fn store_tile<W: Weights>(
    config: &HopperConfig,
    p: &HopperParams,
    tile: &Tile,
    memory: Memory,
) {
    let pieces = config.rows / COLUMNS as u32;
    let tokens = (p.problem.m - tile.token).min(config.tokens);
    let column = thread::thread_idx_x() % pieces * COLUMNS as u32;
    let first = thread::thread_idx_x() / pieces;
    let n = tile.row_tile * config.rows + column;
    if n >= p.problem.n {
        return;
    }
    let unit = const { (1u32 << W::SCHEME.unit_log2()) as f32 };
    let piece = Piece { config, p, tile, unit, n, first, step: THREADS / pieces, tokens };
    let sums = memory.base + column * size_of::<f32>() as u32;
    // SAFETY: the columns from `n` on exist as far as the matrix reaches.
    unsafe {
        if !(p.problem.n.is_multiple_of(COLUMNS as u32)
            && epilogue::rows_aligned(&p.epilogue, &p.problem))
        {
            piece.store_ragged(sums);
        } else if p.epilogue.column_factors == 0 && p.epilogue.bias == 0 {
            piece.store::<false, BATCH>(sums);
        } else {
            piece.store::<true, SCALED_BATCH>(sums);
        }
    }
}

/// Eight columns of the tokens `first`, `first + step`, ... below `tokens` of a tile.
struct Piece<'a> {
    config: &'a HopperConfig,
    p: &'a HopperParams,
    tile: &'a Tile,
    unit: f32,
    /// First column, in the matrix.
    n: u32,
    first: u32,
    step: u32,
    tokens: u32,
}

impl Piece<'_> {
    /// Shared address of a token's sums; `sums` is that of token 0's.
    #[inline(always)]
    fn address(&self, sums: u32, token: u32) -> u32 {
        sums + token * self.config.sum_pitch() * size_of::<f32>() as u32
    }

    /// The eight sums at a shared address.
    ///
    /// # Safety
    /// They are there, at a multiple of 16 bytes.
    #[inline(always)]
    unsafe fn load(address: u32) -> [f32; COLUMNS] {
        // SAFETY: the caller's.
        let [low, high] =
            unsafe { [words::ld_shared_v4_b32(address), words::ld_shared_v4_b32(address + 16)] };
        core::array::from_fn(|j| f32::from_bits(if j < 4 { low[j] } else { high[j - 4] }))
    }

    /// # Safety
    /// As [`store_tile`].
    #[inline(always)]
    unsafe fn store_ragged(&self, sums: u32) {
        // Unrolled loops run out of registers.
        let step = marker::pin(self.step);
        let mut token = self.first;
        while token < self.tokens {
            let place = [self.tile.token + token, self.n];
            // SAFETY: the token's sums; the caller's.
            unsafe {
                let sums = Self::load(self.address(sums, token));
                let (to, problem) = (&self.p.epilogue, &self.p.problem);
                epilogue::store(to, problem, self.unit, self.tile.batch, place, sums);
            }
            token += step;
        }
    }

    /// All columns exist, and are aligned. `SCALED`: there are column factors or a bias.
    ///
    /// # Safety
    /// As [`store_tile`].
    #[inline(always)]
    unsafe fn store<const SCALED: bool, const BATCH: usize>(&self, sums: u32) {
        let (to, problem) = (&self.p.epilogue, &self.p.problem);
        let mut factors = [1.0; COLUMNS];
        let mut bias = [0.0; COLUMNS];
        if SCALED {
            for j in 0..COLUMNS {
                // SAFETY: the column exists.
                (factors[j], bias[j]) = unsafe { epilogue::column_factors(to, self.n + j as u32) };
            }
        }
        let step = self.step;
        let mut token = self.first;
        while token < self.tokens {
            let mut results = [[0.0; COLUMNS]; BATCH];
            let mut row_factors = [0.0; BATCH];
            for i in 0..BATCH {
                let token = (token + i as u32 * step).min(self.tokens - 1);
                // SAFETY: the token's sums, its factor.
                unsafe {
                    results[i] = Self::load(self.address(sums, token));
                    row_factors[i] = epilogue::row_factor(to, self.tile.token + token);
                }
            }
            for i in 0..BATCH {
                for j in 0..COLUMNS {
                    let mut result = results[i][j] * self.unit * row_factors[i];
                    if SCALED {
                        result = result * factors[j] + bias[j];
                    }
                    results[i][j] = result;
                }
                let at = token + i as u32 * step;
                if at < self.tokens {
                    let place = [self.tile.token + at, self.n];
                    let element = epilogue::element(to, problem, self.tile.batch, place);
                    // SAFETY: all eight exist, aligned.
                    unsafe { store_aligned(to.out, element, to.out_type, &results[i]) };
                }
            }
            token += step * BATCH as u32;
        }
    }
}

/// Stores eight results at element `element` of `out`.
///
/// # Safety
/// They exist, at a multiple of 16 bytes.
#[inline(always)]
unsafe fn store_aligned(out: u64, element: u64, out_type: u32, results: &[f32; COLUMNS]) {
    if out_type == OutputType::F32 as u32 {
        let address = out + element * u64::from(OutputType::F32.bytes());
        let bits = |first: usize| core::array::from_fn(|j| results[first + j].to_bits());
        // SAFETY: the caller's.
        unsafe {
            words::st_global_v4_b32(address, bits(0));
            words::st_global_v4_b32(address + 16, bits(4));
        }
        return;
    }
    let address = out + element * u64::from(OutputType::F16.bytes());
    let pairs = if out_type == OutputType::Bf16 as u32 {
        core::array::from_fn(|j| convert::cvt_rn_bf16x2_f32(results[2 * j + 1], results[2 * j]))
    } else {
        core::array::from_fn(|j| convert::cvt_rn_f16x2_f32(results[2 * j + 1], results[2 * j]))
    };
    // SAFETY: the caller's.
    unsafe { words::st_global_v4_b32(address, pairs) };
}
