//! The places of a thread's operands in a stage.

use cuda_std::ptx::marker;
use cuda_std::warp;
use fp4_formats::gemm::fragments::repack::{BLOCK_CODE_BYTES, BLOCK_ROWS, THREAD_BYTES};
use fp4_formats::gemm::sm80::config::{MMA_ROWS, MMA_TOKENS, PIECE_BYTES, TOKEN_BYTES};

use super::Kernel;
use super::memory::Warp;

/// Offsets of a thread's operands in a stage.
#[derive(Clone, Copy)]
pub struct Places {
    /// Bytes to the codes of the warp's first 16 rows, and to their scales.
    pub words: u32,
    pub scales: u32,
    /// Bytes to the lane's row of a matrix of the warp's first tokens, of the first unit: the piece of another
    /// unit is at the exclusive or with its first piece.
    pub tokens: u32,
}

impl Places {
    #[inline(always)]
    pub fn new<K: Kernel>() -> Self {
        let config = &K::CONFIG;
        let Warp { row, token } = Warp::own(config);
        let (lane, block) = (warp::lane_id(), row / BLOCK_ROWS);
        let group = row % BLOCK_ROWS / MMA_ROWS;
        let words =
            block * config.blocks * BLOCK_CODE_BYTES + (group * warp::LANES + lane) * THREAD_BYTES;
        let scales = block * config.blocks * config.scheme.block_scale_bytes()
            + (group * (MMA_ROWS / 2) + lane / 4) * row_scale_bytes::<K>();
        // Matrices are the halves of a unit, of eight tokens and then of the next eight; or, if there are no
        // others, of the next unit.
        let (matrix, row) = (lane / 8, lane % 8);
        let (eight, piece) =
            if config.warp_tokens() == 1 { (0, matrix) } else { (matrix / 2, matrix % 2) };
        let tokens = (token + eight * MMA_TOKENS + row) * TOKEN_BYTES + (piece ^ row) * PIECE_BYTES;
        Self {
            words: marker::pin(words),
            scales: marker::pin(config.code_bytes() + scales),
            tokens: marker::pin(tokens),
        }
    }
}

/// A block of columns of 16 of a warp's rows, in a stage.
#[derive(Clone, Copy)]
pub struct Rows {
    /// The number of these 16 among the warp's rows.
    pub group: u32,
    /// The number of the block of columns in the stage.
    pub block: u32,
}

impl Rows {
    /// Bytes from the codes of the warp's first rows and columns.
    #[inline(always)]
    pub fn words(self) -> u32 {
        let Self { group, block } = self;
        block * BLOCK_CODE_BYTES + group * warp::LANES * THREAD_BYTES
    }

    /// Bytes from their scales.
    #[inline(always)]
    pub fn scales<K: Kernel>(self) -> u32 {
        let Self { group, block } = self;
        block * K::CONFIG.scheme.block_scale_bytes()
            + group * (MMA_ROWS / 2) * row_scale_bytes::<K>()
    }
}

/// Bytes of the scales of a thread's two rows.
#[inline(always)]
const fn row_scale_bytes<K: Kernel>() -> u32 {
    2 * K::CONFIG.scheme.block_scales() * K::CONFIG.scheme.scale_bytes()
}
