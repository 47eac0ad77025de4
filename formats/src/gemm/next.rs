//! The part of the next product's weights that a launch brings to L2.
//!
//! Between two launches memory is idle: from the last copy of one, while its sums are stored and the next
//! one starts, to the first copy of the next. In the meantime CTAs that have nothing more to copy bring the
//! beginnings of the next one's weights to L2, which its CTAs copy first.

use crate::Divisor;
use crate::params::blocks;

/// Weights of the next product, whose groups and token counts are the launch's. Only the time depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct NextWeights {
    /// Address of the first problem's weights, 16-byte aligned; 0 without weights.
    pub weights: u64,
    /// Bytes from one problem's weights to the next one's.
    pub problem_stride: u64,
    /// Bytes from one row tile's weights, which are contiguous, to the next one's.
    pub row_stride: u64,
    /// Bytes of a row tile that are brought, a multiple of 16 and at most `row_stride`.
    pub bytes: u32,
    /// Row tiles.
    pub row_tiles: Divisor,
}

impl NextWeights {
    /// The parameters without weights.
    pub const NONE: Self =
        Self { weights: 0, problem_stride: 0, row_stride: 0, bytes: 0, row_tiles: Divisor::ONE };

    /// Returns the address of the weights of row tile `row_tile` of problem `problem`.
    #[inline(always)]
    pub const fn address(&self, problem: u32, row_tile: u32) -> u64 {
        self.weights + problem as u64 * self.problem_stride + row_tile as u64 * self.row_stride
    }
}

blocks! {
    NextWeights { weights, problem_stride, row_stride, bytes, row_tiles }
}
