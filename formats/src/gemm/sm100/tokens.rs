//! Block-scaled activations as they are in memory. Kernels for few tokens take them like that
//! ([`Sm100Config::loads_tokens`](super::Sm100Config::loads_tokens)): a warp loads the
//! scales of a K step and writes them to its stage, and so it does with codes whose rows the copy
//! engine cannot take.
//!
//! In a stage these scales are one tile of 512 bytes: a row of 16 bytes for each of 32 tokens,
//! which has the token's scales of the K step in order, with zeros behind its last block. Rows
//! without a token have another one's: they meet codes that are 0. The copy to tensor memory makes
//! four columns of the tile. Each has four neighbouring scales of all tokens, as a tile of the
//! 128x4 layout has of 32 of its rows: products take the next column in place of the next tile
//! along K.

use super::config::GROUP_ROWS;
use super::{STEP, prepare};
use crate::layout::{ScaleLayout, TILE_BLOCKS, TILE_BYTES};
use crate::params::blocks;
use crate::quantize::Format;

/// Bytes of a token's row of scales in a stage.
pub const ROW_BYTES: u32 = TILE_BYTES as u32 / GROUP_ROWS;
/// The same in words, of four scales each.
pub const ROW_WORDS: usize = ROW_BYTES as usize / TILE_BLOCKS;

const _: () = assert!(STEP / Format::Nvfp4.block() == ROW_BYTES);

/// Activations as they are in memory, for kernels that load them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct TokenBlocks {
    /// Codes, rows one after the other, 8-byte aligned; 0 if the copy engine takes them.
    pub codes: u64,
    /// Bytes from one batch entry to the next, a multiple of 8.
    pub code_stride: u64,
    /// Scales. In the 128x4 layout the padding may hold anything.
    pub scales: u64,
    /// Bytes from one batch entry to the next.
    pub scale_stride: u64,
    /// 1 if the scales are in the 128x4 layout, 0 if linear.
    pub blocked: u32,
    /// 0; keeps the size a multiple of 8.
    pub reserved: u32,
}

/// The pieces in which scales of a K step are loaded: the largest that divide every row and are
/// aligned in every row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    /// All of a token at a time.
    Rows,
    /// Four at a time.
    Words,
    /// One at a time.
    Bytes,
}

impl TokenBlocks {
    /// The parameters of kernels that do not load them.
    pub const NONE: Self =
        Self { codes: 0, code_stride: 0, scales: 0, scale_stride: 0, blocked: 0, reserved: 0 };

    /// Describes codes and scales of rows of `k` elements, at these addresses, of matrices at these
    /// distances in bytes.
    #[must_use]
    pub const fn new(
        k: u32,
        layout: ScaleLayout,
        [codes, scales]: [u64; 2],
        [code_stride, scale_stride]: [u64; 2],
    ) -> Self {
        let codes = if prepare::codes_need_it(k) { codes } else { 0 };
        let blocked = matches!(layout, ScaleLayout::Blocked128x4) as u32;
        Self { codes, code_stride, scales, scale_stride, blocked, reserved: 0 }
    }

    /// Order of the scales.
    #[must_use]
    #[inline(always)]
    pub const fn layout(&self) -> ScaleLayout {
        if self.blocked != 0 { ScaleLayout::Blocked128x4 } else { ScaleLayout::Linear }
    }

    /// Returns the pieces in which scales of rows of `k` elements are loaded.
    #[must_use]
    #[inline(always)]
    pub const fn pieces(&self, format: Format, k: u32) -> Pieces {
        let (block, step) = (format.block(), STEP / format.block());
        let common = self.scales as u32 | self.scale_stride as u32 | (k / block);
        match self.layout() {
            ScaleLayout::Linear if common.is_multiple_of(step) => Pieces::Rows,
            ScaleLayout::Linear | ScaleLayout::Blocked128x4
                if common.is_multiple_of(TILE_BLOCKS as u32) =>
            {
                Pieces::Words
            }
            ScaleLayout::Linear | ScaleLayout::Blocked128x4 => Pieces::Bytes,
        }
    }
}

blocks! {
    TokenBlocks { codes, code_stride, scales, scale_stride, blocked, reserved }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces divide rows and strides, and are as large as they can be.
    #[test]
    fn pieces_are_aligned() {
        let pieces = |format, layout, k, scales, stride| {
            TokenBlocks::new(k, layout, [256, scales], [0, stride]).pieces(format, k)
        };
        use {Format::*, Pieces::*, ScaleLayout::*};
        for (format, row) in [(Nvfp4, 256), (Mxfp4, 256)] {
            let word = 4 * format.block();
            for layout in ScaleLayout::ALL {
                let whole = if layout == Linear { Rows } else { Words };
                assert_eq!(pieces(format, layout, 3 * row, 1024, 512), whole);
                assert_eq!(pieces(format, layout, row + word, 1024, 512), Words);
                assert_eq!(pieces(format, layout, 3 * row, 1028, 0), Words);
                assert_eq!(pieces(format, layout, 3 * row, 1024, 12), Words);
                assert_eq!(pieces(format, layout, row + format.block(), 1024, 512), Bytes);
                assert_eq!(pieces(format, layout, 3 * row, 1024, 511), Bytes);
                assert_eq!(pieces(format, layout, 3 * row, 1025, 512), Bytes);
            }
        }
        // Rows that the copy engine does not take are loaded byte by byte.
        let odd = TokenBlocks::new(48, Linear, [256, 0], [0; 2]);
        assert_eq!((odd.codes, odd.pieces(Nvfp4, 48)), (256, Bytes));
        assert_eq!(TokenBlocks::new(64, Linear, [256, 0], [0; 2]).codes, 0);
    }
}
