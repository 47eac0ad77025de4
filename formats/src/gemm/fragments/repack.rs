//! The order of weights in memory, from a load-time rearrangement.
//!
//! A *chunk* is 128 rows by 128 columns. The chunks of the same rows follow one another along K.
//! A chunk has first its codes, then its scales, so that one bulk copy loads both:
//!
//! | at | contents |
//! |---|---|
//! | `((rb * 2 + kb) * 128 + thread) * 16 + j * 4` | the [word](super::word) that this thread of a warpgroup decodes for rows `64 rb ..` and columns `64 kb + 16 j ..` |
//! | `8192 + ((rb * 2 + kb) * 32 + quad) * 2 B + 2 b + h` | the scale of row `64 rb + 16 (quad / 8) + quad % 8 + 8 h`, block `b` of the `B` that 64 columns have; of NVFP4 in e4m3 the two bytes of a [table](crate::gemm::fold) in its place |
//! | behind the scales, of weights in e4m3, `(rb * 32 + quad) * 2 + h` | the [factor](crate::gemm::fold) of that row of the chunk |
//!
//! `quad` is a thread's index over four: four threads share their rows. Rows and columns
//! past the matrix have code 0 and scale byte 0, whose product is 0.

use super::word::PAIRS;
use super::{Scheme, blocks};
use crate::gemm::Operands;
use crate::gemm::fold::{self, Folded, Lost, Range};
use crate::{HalfType, Operand};

/// Rows of a chunk.
pub const CHUNK_ROWS: u32 = 128;
/// Columns of a chunk.
pub const CHUNK_COLUMNS: u32 = fold::COLUMNS;
/// Rows whose codes a warpgroup loads at once: those of one `wgmma`.
pub const BLOCK_ROWS: u32 = 64;
/// Columns whose codes a thread loads at once: four products deep.
pub const BLOCK_COLUMNS: u32 = 64;
/// Columns of K of one product of 16-bit operands.
pub const PRODUCT_K: u32 = 16;
/// Threads that hold a block of 64 rows, 16 rows in each of four warps: a warpgroup.
pub const WARPGROUP: u32 = 128;
/// Bytes that a thread loads at once.
pub const THREAD_BYTES: u32 = 16;
/// Bytes of the codes of 64 rows by 64 columns.
pub const BLOCK_CODE_BYTES: u32 = WARPGROUP * THREAD_BYTES;
/// Bytes of a chunk's codes.
pub const CHUNK_CODE_BYTES: u32 = CHUNK_ROWS * CHUNK_COLUMNS / 2;
/// Blocks of 64 by 64 in a chunk along either dimension.
pub const CHUNK_BLOCKS: u32 = CHUNK_ROWS / BLOCK_ROWS;

/// Repacked weights of one matrix, decoded by a kernel or multiplied as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightLayout {
    /// Formats of the weights and of the activations that they are for.
    pub operands: Operands,
    /// Rows of the matrix.
    pub rows: u32,
    /// Its columns, a multiple of the block.
    pub columns: u32,
}

impl WeightLayout {
    /// Chunks along the rows.
    pub const fn row_chunks(&self) -> u32 {
        self.rows.div_ceil(CHUNK_ROWS)
    }

    /// Chunks along K.
    pub const fn column_chunks(&self) -> u32 {
        self.columns.div_ceil(CHUNK_COLUMNS)
    }

    /// Bytes of a chunk.
    pub const fn chunk_bytes(&self) -> u32 {
        match Scheme::of(self.operands) {
            Some(scheme) => scheme.chunk_bytes(),
            None => blocks::chunk_bytes(self.operands.weights),
        }
    }

    /// Makes a zeroed chunk, as [`Scheme::fill_chunk`] does. Returns the loss by folding.
    pub fn fill_chunk(
        &self,
        chunk: &mut [u8],
        code: impl Fn(u32, u32) -> u8,
        scale: impl Fn(u32, u32) -> u8,
        range: impl Fn(u32) -> Range,
    ) -> Lost {
        match Scheme::of(self.operands) {
            Some(scheme) => scheme.fill_chunk(chunk, code, scale, range),
            None => {
                blocks::fill_chunk(self.operands.weights, chunk, code, scale);
                Lost::default()
            }
        }
    }

    /// Bytes of the chunks of 128 rows, which are contiguous.
    pub const fn row_bytes(&self) -> u64 {
        self.column_chunks() as u64 * self.chunk_bytes() as u64
    }

    /// Returns the bytes of the matrix; `None` if they do not fit 64 bits.
    pub const fn bytes(&self) -> Option<u64> {
        let chunks = self.row_chunks() as u64 * self.column_chunks() as u64;
        chunks.checked_mul(self.chunk_bytes() as u64)
    }
}

/// Row in its 64 and column in its 16 of the lower code of pair `pair` of a thread.
pub const fn fragment(thread: u32, pair: u32) -> (u32, u32) {
    let lane = thread % 32;
    (thread / 32 * 16 + lane / 4 + pair % 2 * 8, lane % 4 * 2 + pair / 2 * 8)
}

/// Offset in a chunk of the word of `thread` for block row `rb`, block column `kb` and
/// product `j` of that block.
pub const fn word_offset(rb: u32, kb: u32, thread: u32, j: u32) -> u32 {
    (rb * CHUNK_BLOCKS + kb) * BLOCK_CODE_BYTES + thread * THREAD_BYTES + j * 4
}

/// Index over four of the threads whose rows `row` is one of.
const fn quad(row: u32) -> u32 {
    row % BLOCK_ROWS / 16 * 8 + row % 8
}

impl Scheme {
    /// Returns the offset in a chunk of the scale's table entry of `row` and of `block` along K, both
    /// within the chunk.
    pub const fn scale_offset(self, row: u32, block: u32) -> u32 {
        let (rb, kb) = (row / BLOCK_ROWS, block / self.block_scales());
        let of_block = block % self.block_scales() * 2 + row % 16 / 8;
        CHUNK_CODE_BYTES
            + (rb * CHUNK_BLOCKS + kb) * self.block_scale_bytes()
            + (quad(row) * 2 * self.block_scales() + of_block) * self.scale_bytes()
    }

    /// Offset in a chunk of the factor of `row` of the chunk, of weights in e4m3.
    pub const fn factor_offset(self, row: u32) -> u32 {
        self.factors_offset() + (row / BLOCK_ROWS * 32 + quad(row)) * 2 + row % 16 / 8
    }

    /// Makes one chunk. `code` and `scale` return the code at a row and column and the scale byte
    /// of a row and block, all within the chunk; 0 past the matrix. `range` returns the range of a whole row of
    /// the matrix, which folding asks for. Returns the loss by folding.
    pub fn fill_chunk(
        self,
        chunk: &mut [u8],
        code: impl Fn(u32, u32) -> u8,
        scale: impl Fn(u32, u32) -> u8,
        range: impl Fn(u32) -> Range,
    ) -> Lost {
        match self.operand {
            Operand::Half(half) => {
                self.fill_exact(half, chunk, code, scale);
                Lost::default()
            }
            Operand::E4m3 => self.fill_folded(chunk, code, scale, range),
        }
    }

    /// A chunk of codes and scales as they are.
    fn fill_exact(
        self,
        half: HalfType,
        chunk: &mut [u8],
        code: impl Fn(u32, u32) -> u8,
        scale: impl Fn(u32, u32) -> u8,
    ) {
        for rb in 0..CHUNK_BLOCKS {
            for kb in 0..CHUNK_BLOCKS {
                for thread in 0..WARPGROUP {
                    for j in 0..BLOCK_COLUMNS / PRODUCT_K {
                        let mut codes = [[0; 2]; PAIRS];
                        for (pair, codes) in codes.iter_mut().enumerate() {
                            let (row, column) = fragment(thread, pair as u32);
                            let row = rb * BLOCK_ROWS + row;
                            let column = kb * BLOCK_COLUMNS + j * PRODUCT_K + column;
                            *codes = [code(row, column), code(row, column + 1)];
                        }
                        let at = word_offset(rb, kb, thread, j) as usize;
                        let word = half.encode(codes);
                        chunk[at..at + 4].copy_from_slice(&word.to_le_bytes());
                    }
                }
            }
        }
        for row in 0..CHUNK_ROWS {
            for block in 0..CHUNK_COLUMNS / self.format.block() {
                chunk[self.scale_offset(row, block) as usize] = scale(row, block);
            }
        }
    }

    /// A chunk of folded weights.
    fn fill_folded(
        self,
        chunk: &mut [u8],
        code: impl Fn(u32, u32) -> u8,
        scale: impl Fn(u32, u32) -> u8,
        range: impl Fn(u32) -> Range,
    ) -> Lost {
        let blocks = CHUNK_COLUMNS / self.format.block();
        let mut lost = Lost::default();
        for row in 0..CHUNK_ROWS {
            let folded = Folded::new(
                self.format,
                &core::array::from_fn(|column| code(row, column as u32)),
                |block| scale(row, block),
                range(row),
            );
            for (column, index) in (0..).zip(folded.indices) {
                let (at, low, sign) = folded_code(row, column);
                let at = at as usize;
                let old =
                    u32::from_le_bytes([chunk[at], chunk[at + 1], chunk[at + 2], chunk[at + 3]]);
                let cleared = old & !(7 << low | 1 << sign);
                let word = cleared | u32::from(index & 7) << low | u32::from(index >> 3) << sign;
                chunk[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            for block in 0..blocks {
                let at = self.scale_offset(row, block) as usize;
                let bytes = folded.tables[block as usize].to_le_bytes();
                let count = self.scale_bytes() as usize;
                chunk[at..at + count].copy_from_slice(&bytes[..count]);
            }
            chunk[self.factor_offset(row) as usize] = folded.factor;
            lost = lost.and(folded.lost);
        }
        lost
    }
}

/// Returns the place of a folded weight's index in a chunk: the offset of its word, the lowest bit
/// of its magnitude there, and its sign's bit.
///
/// Register `2 h + r` of `wgmma`'s A fragment holds columns `16 h + 4 t ..` of row `g + 8 r`, one byte
/// each. The word `2 i + h` of a thread has the bytes of both rows for the `i`th `wgmma` of 64 columns,
/// row `g` first ([`fold::word_bits`]).
pub const fn folded_code(row: u32, column: u32) -> (u32, u32, u32) {
    let (rb, kb) = (row / BLOCK_ROWS, column / BLOCK_COLUMNS);
    let (word, column) = (column % BLOCK_COLUMNS / 16, column % 16);
    let thread = row % BLOCK_ROWS / 16 * 32 + row % 8 * 4 + column / 4;
    let (low, sign) = fold::word_bits(row % 16 / 8, column % 4);
    (word_offset(rb, kb, thread, word), low, sign)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    /// Every code and every scale of a chunk has its own place, and they fill it.
    #[test]
    fn a_chunk_is_a_permutation() {
        for scheme in crate::gemm::sm90::operands().filter_map(Scheme::of) {
            let mut bits = vec![0u32; 8 * scheme.chunk_bytes() as usize];
            let mut rows = vec![0u32; (CHUNK_ROWS * CHUNK_COLUMNS) as usize];
            match scheme.operand {
                Operand::Half(_) => {
                    for (rb, kb, thread, j) in words() {
                        let word = 8 * word_offset(rb, kb, thread, j) as usize;
                        bits[word..word + 32].iter_mut().for_each(|bit| *bit += 1);
                        for pair in 0..PAIRS as u32 {
                            let (row, column) = fragment(thread, pair);
                            let (row, column) = (rb * 64 + row, kb * 64 + j * 16 + column);
                            rows[(row * CHUNK_COLUMNS + column) as usize] += 1;
                            rows[(row * CHUNK_COLUMNS + column + 1) as usize] += 1;
                        }
                    }
                }
                Operand::E4m3 => {
                    for row in 0..CHUNK_ROWS {
                        bits[8 * scheme.factor_offset(row) as usize..][..8].fill(1);
                        for column in 0..CHUNK_COLUMNS {
                            let (word, low, sign) = folded_code(row, column);
                            for bit in [low, low + 1, low + 2, sign] {
                                bits[(8 * word + bit) as usize] += 1;
                            }
                            rows[(row * CHUNK_COLUMNS + column) as usize] += 1;
                        }
                    }
                }
            }
            assert!(rows.iter().all(|&n| n == 1));
            for row in 0..CHUNK_ROWS {
                for block in 0..CHUNK_COLUMNS / scheme.format.block() {
                    let at = 8 * scheme.scale_offset(row, block) as usize;
                    let of_scale = at..at + 8 * scheme.scale_bytes() as usize;
                    bits[of_scale].iter_mut().for_each(|bit| *bit += 1);
                }
            }
            assert!(bits.iter().all(|&n| n == 1), "{scheme:?}");
        }
    }

    /// Block row, block column, thread and number of every word.
    fn words() -> impl Iterator<Item = (u32, u32, u32, u32)> {
        let blocks = (0..CHUNK_BLOCKS).flat_map(|rb| (0..CHUNK_BLOCKS).map(move |kb| (rb, kb)));
        blocks.flat_map(|(rb, kb)| {
            (0..WARPGROUP).flat_map(move |thread| (0..4).map(move |j| (rb, kb, thread, j)))
        })
    }

    /// A thread's words and tables give the bytes of `wgmma`'s A fragment: register `2 h + r` has
    /// columns `16 h + 4 t ..` of row `g + 8 r`.
    #[test]
    fn folded_words_hold_the_fragments_operands() {
        for scheme in [Scheme::NVFP4_E4M3, Scheme::MXFP4_E4M3] {
            let code = |row: u32, column: u32| ((row * 7 + column * 3 + row / 16) % 16) as u8;
            let scale = |row: u32, block: u32| (0x38 + (row * 5 + block * 3) % 11) as u8;
            let mut chunk = vec![0xff; scheme.chunk_bytes() as usize];
            let range = |row: u32| {
                (0..CHUNK_COLUMNS / scheme.format.block()).fold(Range::default(), |range, block| {
                    range.with(scheme.format, scale(row, block), false)
                })
            };
            scheme.fill_chunk(&mut chunk, code, scale, range);
            let load = |at: u32| {
                let at = at as usize;
                u32::from_le_bytes(chunk[at..at + 4].try_into().unwrap())
            };
            for (rb, kb, thread, j) in words() {
                let word = load(word_offset(rb, kb, thread, j));
                for r in 0..2 {
                    let row = rb * 64 + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
                    let folded = Folded::new(
                        scheme.format,
                        &core::array::from_fn(|column| code(row, column as u32)),
                        |block| scale(row, block),
                        range(row),
                    );
                    assert_eq!(chunk[scheme.factor_offset(row) as usize], folded.factor);
                    for byte in 0..4 {
                        let column = kb * 64 + 16 * j + thread % 4 * 4 + byte;
                        let index = word >> (16 * r + 4 * byte) & 7;
                        let sign = word << (4 * r) >> (8 * byte + 7) & 1;
                        let expected = folded.indices[column as usize];
                        assert_eq!((index | sign << 3) as u8, expected, "{row} {column}");
                        let block = column / scheme.format.block();
                        let at = scheme.scale_offset(row, block) as usize;
                        let table = folded.tables[block as usize].to_le_bytes();
                        let count = scheme.scale_bytes() as usize;
                        assert_eq!(chunk[at..at + count], table[..count]);
                    }
                }
            }
        }
    }

    /// A thread's word holds the codes of its fragment.
    #[test]
    fn words_hold_the_fragments_codes() {
        let scheme = Scheme::NVFP4_F16;
        let code = |row: u32, column: u32| ((row * 7 + column * 3 + row / 16) % 16) as u8;
        let mut chunk = vec![0xff; scheme.chunk_bytes() as usize];
        scheme.fill_chunk(&mut chunk, code, |row, block| (row + block) as u8, |_| Range::default());
        for (rb, kb, thread, j) in [(0, 0, 0, 0), (1, 0, 77, 3), (0, 1, 127, 2), (1, 1, 33, 1)] {
            let at = word_offset(rb, kb, thread, j) as usize;
            let word = u32::from_le_bytes(chunk[at..at + 4].try_into().unwrap());
            for (pair, operands) in
                HalfType::F16.decode(word, HalfType::F16.multipliers(1)).into_iter().enumerate()
            {
                let (row, column) = fragment(thread, pair as u32);
                let (row, column) = (rb * 64 + row, kb * 64 + j * 16 + column);
                let low = HalfType::F16.place(code(row, column));
                let high = HalfType::F16.place(code(row, column + 1));
                assert_eq!(operands, low | high << 16, "thread {thread} pair {pair}");
            }
        }
        assert_eq!(chunk[scheme.scale_offset(70, 5) as usize], 75);
    }

    #[test]
    fn sizes() {
        assert_eq!(Scheme::NVFP4_F16.chunk_bytes(), 9216);
        assert_eq!(Scheme::MXFP4_BF16.chunk_bytes(), 8704);
        let layout = WeightLayout { operands: Operands::NVFP4_F16, rows: 7168, columns: 16384 };
        assert_eq!(layout.bytes(), Some(56 * 128 * 9216));
        let layout = WeightLayout { operands: Operands::NVFP4_F16, rows: 1, columns: 16 };
        assert_eq!(layout.bytes(), Some(9216));
    }
}
