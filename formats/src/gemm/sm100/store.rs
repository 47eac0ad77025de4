//! Boxes of results: each storing warp gathers one in shared memory, and the copy engine
//! stores it.
//!
//! A thread holds a row of `X`. If that is a row of the result, the 32 threads of a warp store to
//! 32 rows at a time, 16 bytes each: half a sector of memory. The copy engine writes whole rows of
//! a box, does so while threads work on, and leaves out everything outside the result.
//!
//! A box has the warp's 32 rows of `X` by [`box_columns`] rows of `Y`, in shared memory as
//! the rows of the result that it holds:
//!
//! - Plain, a thread writes its row, 64 or 32 bytes, in 16-byte chunks. Eight threads write at a
//!   time, at distances of 64 or 32 bytes; the swizzle of that row length exchanges chunks so that
//!   they meet in no bank.
//! - Swapped, a thread writes a column. The threads of a warp write neighbours, which are
//!   in different banks, or halves of one word; nothing is swizzled.

use super::Sm100Config;
use crate::FloatType;
use crate::gemm::Problem;
use crate::swizzle::{CHUNK_BYTES, Swizzle};
use crate::tensor_map::{MapElement, TensorMapShape};

/// Rows of `X` of a box: the lanes of a warp.
pub const BOX_LANES: u32 = crate::WARP;
/// Most bytes of a thread's row of a box: two sectors of memory.
const ROW_BYTES: u32 = 64;
/// Bytes from one box to the next, a multiple of every swizzle's period.
pub const BOX_BYTES: u32 = BOX_LANES * ROW_BYTES;
/// Alignment of the address of a result that the copy engine stores, and of the bytes of its rows
/// and of its batch entries.
pub const RESULT_ALIGN: u64 = CHUNK_BYTES as u64;
/// Strides of a map are below this many bytes.
const STRIDE_LIMIT: u64 = 1 << 40;

/// Rows of `Y` of a box of results of `bytes` bytes: no more than a CTA stores.
#[inline(always)]
#[must_use]
pub const fn box_columns(config: &Sm100Config, bytes: u32) -> u32 {
    let (most, own) = (ROW_BYTES / bytes, config.stored_columns());
    if own < most { own } else { most }
}

/// Swizzle of a box of results of `bytes` bytes.
#[inline(always)]
#[must_use]
pub const fn box_swizzle(config: &Sm100Config, swapped: bool, bytes: u32) -> Swizzle {
    if swapped {
        return Swizzle::None;
    }
    let row = (box_columns(config, bytes) * bytes) as usize;
    if row == Swizzle::B64.row_bytes() { Swizzle::B64 } else { Swizzle::B32 }
}

/// Makes the map of the result, `[L, M, N]` with batch entries at distances of `out_stride`
/// elements. `None` if the copy engine cannot store it: rows that are not multiples of
/// [`RESULT_ALIGN`] bytes, or batch entries too far apart. The result's address is a multiple too.
#[must_use]
pub const fn result_map(
    config: &Sm100Config,
    swapped: bool,
    output: FloatType,
    problem: &Problem,
    out_stride: u64,
) -> Option<TensorMapShape> {
    let bytes = output.bytes();
    let row = problem.n as u64 * bytes as u64;
    let Some(matrix) = out_stride.checked_mul(bytes as u64) else { return None };
    let too_far = row >= STRIDE_LIMIT || matrix >= STRIDE_LIMIT;
    if too_far || !(row | matrix).is_multiple_of(RESULT_ALIGN) {
        return None;
    }
    let columns = box_columns(config, bytes);
    let [across, down] = if swapped { [BOX_LANES, columns] } else { [columns, BOX_LANES] };
    Some(TensorMapShape {
        element: match output {
            FloatType::F16 | FloatType::Bf16 => MapElement::U16,
            FloatType::F32 => MapElement::U32,
        },
        rank: 3,
        dims: [problem.n as u64, problem.m as u64, problem.l as u64, 1, 1],
        strides: [row, matrix, 0, 0],
        box_dims: [across, down, 1, 1, 1],
        swizzle: box_swizzle(config, swapped, bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::super::CONFIGS;
    use super::*;

    const OUTPUTS: [FloatType; 3] = [FloatType::F16, FloatType::Bf16, FloatType::F32];

    #[test]
    fn boxes_fit_and_divide_what_a_cta_stores() {
        for config in &CONFIGS {
            for bytes in OUTPUTS.map(FloatType::bytes) {
                let columns = box_columns(config, bytes);
                assert_eq!(config.stored_columns() % columns, 0, "{}", config.name);
                assert!(columns * BOX_LANES * bytes <= BOX_BYTES, "{}", config.name);
                let swizzle = box_swizzle(config, false, bytes);
                let is_row = swizzle.row_bytes() as u32 == columns * bytes;
                assert!(is_row || config.only_swapped(), "{}", config.name);
                assert_eq!(BOX_BYTES as usize % swizzle.atom_bytes(), 0, "{}", config.name);
            }
        }
    }

    /// Banks of shared memory: 32 of 4 bytes, so eight 16-byte chunks are all of them.
    #[test]
    fn eight_threads_meet_in_no_bank() {
        for config in &CONFIGS {
            for bytes in OUTPUTS.map(FloatType::bytes) {
                let swizzle = box_swizzle(config, false, bytes);
                let row = swizzle.row_bytes();
                for first in (0..BOX_LANES as usize).step_by(8) {
                    for chunk in 0..row / CHUNK_BYTES {
                        let mut banks = 0u8;
                        for lane in first..first + 8 {
                            let at = swizzle.apply(lane * row + chunk * CHUNK_BYTES);
                            banks |= 1 << (at / CHUNK_BYTES % 8);
                        }
                        assert_eq!(banks, 0xff, "{} {bytes} {first} {chunk}", config.name);
                    }
                }
            }
        }
    }

    #[test]
    fn what_the_copy_engine_cannot_store() {
        let map = |n, l, stride, output| {
            let problem = Problem { m: 3, n, k: 16, l };
            result_map(&CONFIGS[0], false, output, &problem, stride).is_some()
        };
        assert!(map(8, 1, 24, FloatType::F16) && map(4, 1, 12, FloatType::F32));
        assert!(!map(4, 1, 12, FloatType::F16) && !map(7, 2, 21, FloatType::Bf16));
        assert!(!map(8, 2, 28, FloatType::F16) && map(8, 2, 28, FloatType::F32));
        assert!(!map(8, 2, 1 << 40, FloatType::F16) && !map(8, 2, u64::MAX, FloatType::F32));
    }
}
