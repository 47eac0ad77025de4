//! Weights beside activations in e4m3.
//!
//! MXFP4 stays as it is: `tcgen05.mma` multiplies e2m1 with e4m3, and takes MXFP4's scales. Rows of
//! codes are padded to whole K steps.
//!
//! The tensor cores have no such product with scales of e4m3. NVFP4 is therefore folded as on sm_90a
//! ([`fold`]): warps decode four bits of a weight, and the table of its block's scale, to e4m3 in
//! tensor memory. A row's factor, a power of two, is the scale that the product takes.
//!
//! Rows of codes are [words](fold::word_bits) of eight columns. The other data of 128 rows of one K
//! step are five tiles of 512 bytes, which are copied together:
//!
//! | bytes | contents |
//! |---|---|
//! | `16 row + 2 block` | the table of a block of 16 |
//! | behind 2048, as in the 128x4 layout | the row's factor, four times |

use super::config::{BYTE_STEP, FOLDED_TABLE_BYTES, FOLDED_TABLE_TILES};
use crate::gemm::fold::{self, Folded};
use crate::layout::{ScaleLayout, TILE_BLOCKS, TILE_BYTES};

/// Bytes of a row's codes in one K step.
pub const ROW_BYTES: usize = BYTE_STEP as usize / 2;
/// Bytes of the tables and factors of 128 rows in one K step.
pub const TILES_BYTES: usize = (FOLDED_TABLE_TILES as usize + 1) * TILE_BYTES;
/// Offset of the factors among them.
pub const FACTORS_AT: u32 = FOLDED_TABLE_TILES * TILE_BYTES as u32;

const _: () = assert!(BYTE_STEP == crate::gemm::fragments::repack::CHUNK_COLUMNS);

/// Offset of the tables of row `row` of 128.
#[inline(always)]
#[must_use]
pub const fn tables_offset(row: u32) -> u32 {
    row * FOLDED_TABLE_BYTES
}

/// Writes one folded row of a K step: its codes, and its entries in the scale tiles at row `row`
/// (0..128).
pub fn write(
    folded: &Folded,
    row: usize,
    codes: &mut [u8; ROW_BYTES],
    tiles: &mut [u8; TILES_BYTES],
) {
    codes.fill(0);
    let (words, _) = codes.as_chunks_mut::<4>();
    for (column, &index) in folded.indices.iter().enumerate() {
        let word = &mut words[column / 8];
        let (low, sign) = fold::word_bits(column as u32 / 4 % 2, column as u32 % 4);
        let bits = u32::from(index & 7) << low | u32::from(index >> 3) << sign;
        *word = (u32::from_le_bytes(*word) | bits).to_le_bytes();
    }
    let (tables, factors) = tiles.split_at_mut(FACTORS_AT as usize);
    let tables = &mut tables[tables_offset(row as u32) as usize..][..FOLDED_TABLE_BYTES as usize];
    for (bytes, table) in tables.chunks_exact_mut(size_of::<u16>()).zip(folded.tables) {
        bytes.copy_from_slice(&table.to_le_bytes());
    }
    let at = ScaleLayout::Blocked128x4.offset(row, 0, TILE_BLOCKS);
    factors[at..at + TILE_BLOCKS].fill(folded.factor);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e4m3;
    use crate::gemm::fold::Range;
    use crate::layout::TILE_ROWS;
    use crate::quantize::Format;

    /// Rows that are written read back: a decoding thread and the tensor core make the folded weights of
    /// the bytes; each row has bytes of its own.
    #[test]
    fn written_rows_read_back() {
        let mut tiles = [0u8; TILES_BYTES];
        let mut all = [([0u8; ROW_BYTES], None); TILE_ROWS];
        for (row, (codes, folded)) in all.iter_mut().enumerate() {
            let new = Folded::new(
                Format::Nvfp4,
                &core::array::from_fn(|column| ((row * 7 + column * 5 + column / 16) % 16) as u8),
                |block| 0x30 + ((row as u32 * 3 + block * 5) % 24) as u8,
                Range::default().with(Format::Nvfp4, 0x48, false),
            );
            write(&new, row, codes, &mut tiles);
            *folded = Some(new);
        }
        for (row, (codes, folded)) in all.iter().enumerate() {
            let folded = folded.unwrap();
            for column in 0..BYTE_STEP as usize {
                let at = tables_offset(row as u32) as usize + column / 16 * 2;
                let table = u32::from(u16::from_le_bytes([tiles[at], tiles[at + 1]]));
                let word = u32::from_le_bytes(codes[column / 8 * 4..][..4].try_into().unwrap());
                let half = column as u32 / 4 % 2;
                let index = fold::selector(word, half) >> (4 * (column % 4)) & 0xf;
                let magnitudes = fold::nvfp4_magnitudes(table);
                let byte = magnitudes[index as usize / 4] >> (8 * (index % 4)) & 0xff;
                let sign = fold::signs(word, half) >> (8 * (column % 4)) & 0x80;
                let found = e4m3::decode((byte | sign) as u8);
                assert_eq!(found, folded.operand(column), "{row} {column}");
            }
            for block in 0..TILE_BLOCKS {
                let layout = ScaleLayout::Blocked128x4;
                let at = layout.offset(row, block, TILE_BLOCKS);
                assert_eq!(tiles[FACTORS_AT as usize + at], folded.factor, "{row}");
            }
        }
    }
}
