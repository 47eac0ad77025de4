//! The order of weights that are multiplied as they are: codes in the A fragments of block-scaled products of
//! `mma.sync`, and scales in the words from which it takes them.
//!
//! Chunks are as large as those of [decoded](super::repack) weights and follow one another in the same order.
//! In a chunk, codes come before scales, so that one copy brings both:
//!
//! | at | contents |
//! |---|---|
//! | `((g / 4 * 2 + u) * 128 + g % 4 * 32 + lane) * 16 + 4 r` | register `r` of the lane's fragment of rows `16 g ..` and columns `64 u ..`: eight codes of row `lane / 4 + 8 (r % 2)` from column `8 (lane % 4) + 32 (r / 2)` on, the first in the lowest bits |
//! | NVFP4: `8192 + (g * 32 + lane) * 4` | the four scales of row `lane / 4 + 8 (lane % 2)` of columns `64 (lane % 4 / 2) ..`: half of the lanes have those of one product, the others those of the next |
//! | MXFP4: `8192 + (g * 16 + row % 8 * 2 + row / 8) * 4` | the four scales of this row: two for each product |
//!
//! Rows and columns past the matrix have code 0 and scale byte 0, whose product is 0.

use super::repack::{
    BLOCK_COLUMNS, CHUNK_BLOCKS, CHUNK_CODE_BYTES, CHUNK_COLUMNS, CHUNK_ROWS, word_offset,
};
use super::warps::MMA_ROWS;
use crate::WARP;
use crate::quantize::Format;

/// Columns of a block-scaled product.
pub const PRODUCT_COLUMNS: u32 = BLOCK_COLUMNS;
/// Block-scaled products that the columns of a chunk make.
pub const PRODUCTS: u32 = CHUNK_COLUMNS / PRODUCT_COLUMNS;
/// Bytes of a word of scales, from which a product takes those of a row or token.
pub const WORD_BYTES: u32 = 4;

/// Words that have the scales of a row, or a token, in the columns of a chunk.
#[inline(always)]
pub const fn row_words(format: Format) -> u32 {
    CHUNK_COLUMNS / format.block() / WORD_BYTES
}

/// Bytes of the scales of 16 rows in a chunk.
#[inline(always)]
pub const fn scale_bytes(format: Format) -> u32 {
    MMA_ROWS * row_words(format) * WORD_BYTES
}

/// Bytes of a chunk.
#[inline(always)]
pub const fn chunk_bytes(format: Format) -> u32 {
    CHUNK_CODE_BYTES + CHUNK_ROWS / MMA_ROWS * scale_bytes(format)
}

/// Returns the offset in a chunk of the byte that has the codes of `row` in `column`, an even one, and in the next.
pub const fn code_offset(row: u32, column: u32) -> u32 {
    let (group, of_group) = (row / MMA_ROWS, row % MMA_ROWS);
    let (product, of_product) = (column / PRODUCT_COLUMNS, column % PRODUCT_COLUMNS);
    let lane = of_group % 8 * 4 + of_product % 32 / 8;
    let register = of_group / 8 + of_product / 32 * 2;
    let thread = group % 4 * WARP + lane;
    word_offset(group / 4, product, thread, register) + of_product % 8 / 2
}

/// Returns the offset in a chunk of the scale of `row` and of `block` along K, both within the chunk.
pub const fn scale_offset(format: Format, row: u32, block: u32) -> u32 {
    let (group, of_group) = (row / MMA_ROWS, row % MMA_ROWS);
    let (word, byte) = (block / WORD_BYTES, block % WORD_BYTES);
    let quad = of_group % 8 * 2 * row_words(format);
    let place = quad + word * 2 + of_group / 8;
    CHUNK_CODE_BYTES + group * scale_bytes(format) + place * WORD_BYTES + byte
}

/// Makes one chunk. `code` and `scale` return the code at a row and column and the scale byte of a row and block,
/// all within the chunk; 0 past the matrix.
pub fn fill_chunk(
    format: Format,
    chunk: &mut [u8],
    code: impl Fn(u32, u32) -> u8,
    scale: impl Fn(u32, u32) -> u8,
) {
    for row in 0..CHUNK_ROWS {
        for column in (0..CHUNK_COLUMNS).step_by(2) {
            let pair = code(row, column) & 15 | code(row, column + 1) << 4;
            chunk[code_offset(row, column) as usize] = pair;
        }
        for block in 0..CHUNK_COLUMNS / format.block() {
            chunk[scale_offset(format, row, block) as usize] = scale(row, block);
        }
    }
}

const _: () = assert!(PRODUCTS == CHUNK_BLOCKS);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    /// Every pair of codes and every scale has its own place, and they fill the chunk.
    #[test]
    fn a_chunk_is_a_permutation() {
        for format in [Format::Nvfp4, Format::Mxfp4] {
            let mut found = vec![0u32; chunk_bytes(format) as usize];
            for row in 0..CHUNK_ROWS {
                for column in (0..CHUNK_COLUMNS).step_by(2) {
                    found[code_offset(row, column) as usize] += 1;
                }
                for block in 0..CHUNK_COLUMNS / format.block() {
                    found[scale_offset(format, row, block) as usize] += 1;
                }
            }
            assert!(found.iter().all(|&count| count == 1), "{format:?}");
        }
    }

    /// The words of a lane are its registers of the A fragment that the PTX ISA has for m16n8k64 (9.7.14.5.14):
    /// `row = lane / 4 + 8 (r % 2)`, `column = 8 (lane % 4) + i + 32 (r / 2)`.
    #[test]
    fn words_are_the_fragments_registers() {
        let code = |row: u32, column: u32| ((row * 7 + column * 3 + row / 16) % 16) as u8;
        let scale = |row: u32, block: u32| (row * 11 + block) as u8;
        for format in [Format::Nvfp4, Format::Mxfp4] {
            let mut chunk = vec![0xff; chunk_bytes(format) as usize];
            fill_chunk(format, &mut chunk, code, scale);
            let load = |at: u32| {
                let at = at as usize;
                u32::from_le_bytes(chunk[at..at + 4].try_into().unwrap())
            };
            for (group, product, lane) in (0..8)
                .flat_map(|g| (0..PRODUCTS).flat_map(move |u| (0..WARP).map(move |l| (g, u, l))))
            {
                let codes = ((group / 4 * 2 + product) * 128 + group % 4 * 32 + lane) * 16;
                for register in 0..4 {
                    let word = load(codes + 4 * register);
                    for i in 0..8 {
                        let row = 16 * group + lane / 4 + 8 * (register % 2);
                        let column = 64 * product + 8 * (lane % 4) + i + 32 * (register / 2);
                        assert_eq!((word >> (4 * i) & 15) as u8, code(row, column));
                    }
                }
                let row = 16 * group + lane / 4 + 8 * (lane % 2);
                // The lanes of a row that the product's selector names, and its bytes there.
                let (at, first) = match format {
                    Format::Nvfp4 => ((group * 32 + lane) * 4, 4 * (lane % 4 / 2)),
                    Format::Mxfp4 => ((group * 16 + lane / 4 * 2 + lane % 2) * 4, 0),
                };
                let scales: [u8; 4] = core::array::from_fn(|byte| scale(row, first + byte as u32));
                assert_eq!(load(CHUNK_CODE_BYTES + at).to_le_bytes(), scales, "{format:?}");
            }
        }
    }
}
