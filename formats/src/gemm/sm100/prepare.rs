//! Operands that the copy engine cannot take as they are, and the kernels that lay them
//! out anew before the GEMM. Activations of few tokens are not laid out: the GEMM
//! [loads them](super::tokens).
//!
//! | operand | obstacle | laid out as |
//! |---|---|---|
//! | codes, K an odd multiple of 16 | rows are not multiples of 16 bytes | rows 8 bytes longer, with zeros |
//! | linear scales | the tensor core wants the 128x4 layout | the same scales in it, zeros in the padding |
//! | 128x4 scales, ragged | the padding may hold anything | a copy with zeros in the padding |
//! | scales of grouped activations | a problem's first token may lie inside a tile of 128 rows | the same scales, each problem's first ones at a tile's beginning |

use super::config::{BYTE_STEP, FOLDED_TABLE_TILES};
use crate::divisor::Divisor;
use crate::gemm::Groups;
use crate::layout::{ScaleLayout, SizeOverflow, TILE_BLOCKS, TILE_BYTES, TILE_ROWS};
use crate::params::blocks;
use crate::quantize::Format;

/// Threads of a CTA of these kernels.
pub const THREADS: u32 = 256;
/// Entry name of the kernel that lays out scales.
pub const SCALES_NAME: &str = "gemm_sm100_prepare_scales";
/// Entry name of the kernel that pads rows of codes.
pub const CODES_NAME: &str = "gemm_sm100_prepare_codes";
/// Entry name of the kernel that lays out scales of grouped activations.
pub const GROUPED_SCALES_NAME: &str = "gemm_sm100_prepare_grouped_scales";
/// Entry names of all kernels that lay something out.
pub const NAMES: [&str; 3] = [SCALES_NAME, CODES_NAME, GROUPED_SCALES_NAME];

/// Parameter block of [`SCALES_NAME`].
///
/// `from`: `batch` matrices of `rows` x `blocks` scales in either layout, at distances of
/// `from_stride` bytes. `to`: the same in the 128x4 layout, at distances of `to_stride` bytes,
/// 16-byte aligned, with zeros in the padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct PrepareScales {
    /// Scales as they are.
    pub from: u64,
    /// The target.
    pub to: u64,
    /// Bytes from one batch entry to the next.
    pub from_stride: u64,
    /// Bytes from one batch entry to the next; a multiple of 512.
    pub to_stride: u64,
    /// Rows of a matrix.
    pub rows: u32,
    /// Scales of a row.
    pub blocks: u32,
    /// Batch entries.
    pub batch: u32,
    /// 1 if `from` is in the 128x4 layout, 0 if linear.
    pub blocked: u32,
    /// Tiles along the rows of a matrix, [`row_tiles`](Self::row_tiles).
    pub row_tiles: Divisor,
    /// 0; keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Parameter block of [`GROUPED_SCALES_NAME`].
///
/// `to`: [`Groups::scale_tiles`] row tiles of the 128x4 layout. Tiles that hold scales of a token
/// are written, with zeros for the rows behind a problem's last token; [`Groups::scale_tile`] has
/// the tiles of a problem.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct PrepareGroupedScales {
    /// The scales. The target `to` has one matrix, so that `to_stride` and `row_tiles` are any.
    pub scales: PrepareScales,
    /// The problems; their factors, row tiles and runs are arbitrary.
    pub groups: Groups,
}

/// Parameter block of [`CODES_NAME`].
///
/// `from`: `rows` rows of `row_bytes` bytes, one after the other, 8-byte aligned. `to`:
/// the same rows, each padded with zeros to a multiple of 16 bytes, 16-byte aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct PrepareCodes {
    /// Codes as they are.
    pub from: u64,
    /// The target.
    pub to: u64,
    /// Rows, of all batch entries.
    pub rows: u64,
    /// Bytes of a row, a multiple of 8.
    pub row_bytes: u32,
    /// 0; keeps the size a multiple of 8.
    pub reserved: u32,
}

impl PrepareScales {
    /// 128x4 tiles along `rows` rows.
    #[must_use]
    pub const fn row_tiles(rows: u32) -> Divisor {
        Divisor::nearest(rows.div_ceil(TILE_ROWS as u32))
    }

    /// Words of 16 bytes that the kernel writes, one a thread.
    #[must_use]
    pub const fn words(&self) -> u64 {
        let tiles = self.rows.div_ceil(TILE_ROWS as u32) as u64
            * self.blocks.div_ceil(TILE_BLOCKS as u32) as u64;
        tiles * 32 * self.batch as u64
    }

    /// CTAs of a launch.
    #[must_use]
    pub const fn grid(&self) -> u32 {
        grid(self.words())
    }
}

impl PrepareGroupedScales {
    /// Bytes that are laid out, for rows of `blocks` scales.
    #[must_use]
    pub const fn bytes(groups: &Groups, blocks: u32) -> u64 {
        groups.scale_tiles() * blocks.div_ceil(TILE_BLOCKS as u32) as u64 * TILE_BYTES as u64
    }

    /// Words of 16 bytes that threads look at, one a thread.
    #[must_use]
    #[inline(always)]
    pub const fn words(&self) -> u64 {
        let tiles = self.scales.blocks.div_ceil(TILE_BLOCKS as u32) as u64;
        self.groups.scale_tiles() * tiles * 32
    }

    /// CTAs of a launch.
    #[must_use]
    pub const fn grid(&self) -> u32 {
        grid(self.words())
    }
}

impl PrepareCodes {
    /// Bytes of a padded row.
    #[must_use]
    pub const fn padded(row_bytes: u32) -> u32 {
        row_bytes.next_multiple_of(16)
    }

    /// Words of 16 bytes that the kernel writes, one a thread.
    #[must_use]
    pub const fn words(&self) -> u64 {
        self.rows * (Self::padded(self.row_bytes) / 16) as u64
    }

    /// CTAs of a launch.
    #[must_use]
    pub const fn grid(&self) -> u32 {
        grid(self.words())
    }
}

/// A thread for each word, up to a grid that any device holds in few waves; threads
/// stride over the rest.
const fn grid(words: u64) -> u32 {
    let needed = words.div_ceil(THREADS as u64);
    if needed < 4096 { needed as u32 } else { 4096 }
}

/// Whether scales of `rows` x `k` elements in `layout` must be laid out anew.
#[must_use]
pub const fn scales_need_it(format: Format, layout: ScaleLayout, rows: u32, k: u32) -> bool {
    match layout {
        ScaleLayout::Linear => true,
        ScaleLayout::Blocked128x4 => {
            let blocks = k / format.block();
            !rows.is_multiple_of(TILE_ROWS as u32) || !blocks.is_multiple_of(TILE_BLOCKS as u32)
        }
    }
}

/// Whether rows of `k` elements' codes must be padded.
#[must_use]
pub const fn codes_need_it(k: u32) -> bool {
    !k.is_multiple_of(32)
}

/// Bytes of one batch entry's scales as the GEMM kernel takes them.
///
/// # Errors
/// [`SizeOverflow`] if the count does not fit.
pub const fn scale_bytes(format: Format, rows: u32, k: u32) -> Result<usize, SizeOverflow> {
    ScaleLayout::Blocked128x4.bytes(rows as usize, (k / format.block()) as usize)
}

/// Matrices as the GEMM kernel takes them, one after the other in a buffer: of each, rows of codes,
/// each padded to a multiple of 16 bytes, then 128x4 scales with zeros in the padding. Weights for products
/// in e4m3 are different ([`folded`](super::folded)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreparedBlocks {
    /// Format of codes and scales.
    pub format: Format,
    /// Weights that are multiplied with activations in e4m3.
    pub beside_bytes: bool,
    /// Rows of a matrix.
    pub rows: u32,
    /// Elements of a row.
    pub columns: u32,
    /// Matrices.
    pub batch: u32,
}

impl PreparedBlocks {
    /// Bytes from one row of codes to the next.
    #[must_use]
    pub const fn row_stride(&self) -> u64 {
        if self.beside_bytes {
            return self.columns.next_multiple_of(BYTE_STEP) as u64 / 2;
        }
        PrepareCodes::padded(self.columns / 2) as u64
    }

    /// Bytes of a matrix' codes.
    #[must_use]
    pub const fn code_bytes(&self) -> u64 {
        self.rows as u64 * self.row_stride()
    }

    /// Bytes of a matrix' scales.
    #[must_use]
    pub const fn scale_bytes(&self) -> u64 {
        let along_k = match (self.beside_bytes, self.format) {
            (true, Format::Nvfp4) => self.columns.div_ceil(BYTE_STEP) * (FOLDED_TABLE_TILES + 1),
            (false, _) | (true, Format::Mxfp4) => {
                (self.columns / self.format.block()).div_ceil(TILE_BLOCKS as u32)
            }
        };
        self.rows.div_ceil(TILE_ROWS as u32) as u64 * along_k as u64 * TILE_BYTES as u64
    }

    /// Offset of the scales behind `code_bytes` bytes of codes: a multiple of 512.
    #[must_use]
    pub const fn scales_at(code_bytes: u64) -> u64 {
        code_bytes.next_multiple_of(TILE_BYTES as u64)
    }

    /// Bytes from one matrix to the next, a multiple of 512.
    #[must_use]
    pub const fn matrix_bytes(&self) -> u64 {
        Self::scales_at(self.code_bytes()) + self.scale_bytes()
    }

    /// Bytes of the whole buffer; none beyond 2^63.
    #[must_use]
    pub const fn bytes(&self) -> Option<u64> {
        let total = self.matrix_bytes() as u128 * self.batch as u128;
        if total >> 63 == 0 { Some(total as u64) } else { None }
    }
}

blocks! {
    PrepareScales { from, to, from_stride, to_stride, rows, blocks, batch, blocked, row_tiles, reserved }
    PrepareGroupedScales { scales, groups }
    PrepareCodes { from, to, rows, row_bytes, reserved }
}
