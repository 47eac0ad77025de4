//! The order of weights in memory, from a load-time rearrangement.
//!
//! A *chunk* is 128 rows by 128 columns. The chunks of the same rows follow one another along K.
//! A chunk has first its codes, then its scales, so that one bulk copy loads both:
//!
//! | at | what |
//! |---|---|
//! | `((rb * 2 + kb) * 128 + thread) * 16 + j * 4` | the [word](super::word) that this thread of a warpgroup decodes for rows `64 rb ..` and columns `64 kb + 16 j ..` |
//! | `8192 + ((rb * 2 + kb) * 32 + quad) * 2 B + 2 b + h` | the scale of row `64 rb + 16 (quad / 8) + quad % 8 + 8 h`, block `b` of the `B` that 64 columns have |
//!
//! `quad` is a thread's index over four: four threads share their rows. Rows and columns
//! past the matrix have code 0 and scale byte 0, whose product is 0.

use super::word::PAIRS;
use crate::HalfType;
use crate::quantize::Format;

/// Rows of a chunk.
pub const CHUNK_ROWS: u32 = 128;
/// Columns of a chunk.
pub const CHUNK_COLUMNS: u32 = 128;
/// Rows of one `wgmma`.
pub const BLOCK_ROWS: u32 = 64;
/// Columns whose codes a thread loads at once: four `wgmma`s deep.
pub const BLOCK_COLUMNS: u32 = 64;
/// Columns of one `wgmma` of 16-bit operands.
pub const WGMMA_K: u32 = 16;
/// Threads of a warpgroup.
pub const WARPGROUP: u32 = 128;
/// Bytes that a thread loads at once.
pub const THREAD_BYTES: u32 = 16;
/// Bytes of the codes of 64 rows by 64 columns.
pub const BLOCK_CODE_BYTES: u32 = WARPGROUP * THREAD_BYTES;
/// Bytes of a chunk's codes.
pub const CHUNK_CODE_BYTES: u32 = CHUNK_ROWS * CHUNK_COLUMNS / 2;
/// Blocks of 64 by 64 in a chunk along either dimension.
pub const CHUNK_BLOCKS: u32 = CHUNK_ROWS / BLOCK_ROWS;

/// What weights are and what they are decoded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// Format of the weights.
    pub format: Format,
    /// What they are decoded to, and the type of the activations.
    pub operand: HalfType,
}

impl Scheme {
    /// NVFP4 weights, f16 activations.
    pub const NVFP4_F16: Self = Self { format: Format::Nvfp4, operand: HalfType::F16 };
    /// NVFP4 weights, bf16 activations.
    pub const NVFP4_BF16: Self = Self { format: Format::Nvfp4, operand: HalfType::Bf16 };
    /// MXFP4 weights, bf16 activations.
    pub const MXFP4_BF16: Self = Self { format: Format::Mxfp4, operand: HalfType::Bf16 };

    /// Every pair that has kernels. MXFP4's scales exceed f16's range.
    pub const ALL: [Self; 3] = [Self::NVFP4_F16, Self::NVFP4_BF16, Self::MXFP4_BF16];

    /// Scales of a row in 64 columns.
    pub const fn block_scales(self) -> u32 {
        BLOCK_COLUMNS / self.format.block()
    }

    /// Bytes of the scales of 64 rows by 64 columns.
    pub const fn block_scale_bytes(self) -> u32 {
        BLOCK_ROWS * self.block_scales()
    }

    /// Bytes of a chunk.
    pub const fn chunk_bytes(self) -> u32 {
        CHUNK_CODE_BYTES + CHUNK_BLOCKS * CHUNK_BLOCKS * self.block_scale_bytes()
    }

    /// log2 of a weight's value over the decoded operand's, scale included.
    ///
    /// NVFP4 in f16: a code's own unit. NVFP4 in bf16: the scale is decoded times 2^119, which
    /// leaves 2^7 of the code's 2^126. MXFP4: 2^3 keep the largest scale inside bf16, and the
    /// smallest product above its smallest subnormal.
    pub const fn unit_log2(self) -> u32 {
        match (self.format, self.operand) {
            (_, HalfType::F16) => HalfType::F16.unit_log2(),
            (Format::Nvfp4, HalfType::Bf16) => 7,
            (Format::Mxfp4, HalfType::Bf16) => 3,
        }
    }
}

/// Repacked weights of one matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightLayout {
    /// Format and operand.
    pub scheme: Scheme,
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

    /// Bytes of the matrix; `None` where they do not fit 64 bits.
    pub const fn bytes(&self) -> Option<u64> {
        let chunks = self.row_chunks() as u64 * self.column_chunks() as u64;
        chunks.checked_mul(self.scheme.chunk_bytes() as u64)
    }
}

/// Row in its 64 and column in its 16 of the lower code of pair `pair` of a thread.
pub const fn fragment(thread: u32, pair: u32) -> (u32, u32) {
    let lane = thread % 32;
    (thread / 32 * 16 + lane / 4 + pair % 2 * 8, lane % 4 * 2 + pair / 2 * 8)
}

/// Offset in a chunk of the word of `thread` for block row `rb`, block column `kb` and
/// `wgmma` `j` of that block.
pub const fn word_offset(rb: u32, kb: u32, thread: u32, j: u32) -> u32 {
    (rb * CHUNK_BLOCKS + kb) * BLOCK_CODE_BYTES + thread * THREAD_BYTES + j * 4
}

impl Scheme {
    /// Offset in a chunk of the scale of `row` and of `block` along K, both within the chunk.
    pub const fn scale_offset(self, row: u32, block: u32) -> u32 {
        let (rb, kb) = (row / BLOCK_ROWS, block / self.block_scales());
        let quad = row % BLOCK_ROWS / 16 * 8 + row % 8;
        CHUNK_CODE_BYTES
            + (rb * CHUNK_BLOCKS + kb) * self.block_scale_bytes()
            + quad * 2 * self.block_scales()
            + block % self.block_scales() * 2
            + row % 16 / 8
    }

    /// Makes one chunk. `code` and `scale` give the code at a row and column and the scale byte
    /// of a row and block, all within the chunk; 0 past the matrix.
    pub fn fill_chunk(
        self,
        chunk: &mut [u8],
        code: impl Fn(u32, u32) -> u8,
        scale: impl Fn(u32, u32) -> u8,
    ) {
        for rb in 0..CHUNK_BLOCKS {
            for kb in 0..CHUNK_BLOCKS {
                for thread in 0..WARPGROUP {
                    for j in 0..BLOCK_COLUMNS / WGMMA_K {
                        let mut codes = [[0; 2]; PAIRS];
                        for (pair, codes) in codes.iter_mut().enumerate() {
                            let (row, column) = fragment(thread, pair as u32);
                            let row = rb * BLOCK_ROWS + row;
                            let column = kb * BLOCK_COLUMNS + j * WGMMA_K + column;
                            *codes = [code(row, column), code(row, column + 1)];
                        }
                        let at = word_offset(rb, kb, thread, j) as usize;
                        let word = self.operand.encode(codes);
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
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    /// Every code and every scale of a chunk has a place of its own, and they fill it.
    #[test]
    fn a_chunk_is_a_permutation() {
        for scheme in Scheme::ALL {
            let mut rows = vec![0u32; (CHUNK_ROWS * CHUNK_COLUMNS) as usize];
            for rb in 0..CHUNK_BLOCKS {
                for kb in 0..CHUNK_BLOCKS {
                    for thread in 0..WARPGROUP {
                        for j in 0..4 {
                            for pair in 0..PAIRS as u32 {
                                let (row, column) = fragment(thread, pair);
                                let (row, column) = (rb * 64 + row, kb * 64 + j * 16 + column);
                                rows[(row * CHUNK_COLUMNS + column) as usize] += 1;
                                rows[(row * CHUNK_COLUMNS + column + 1) as usize] += 1;
                            }
                        }
                    }
                }
            }
            assert!(rows.iter().all(|&n| n == 1));
            let mut bytes = vec![0u32; scheme.chunk_bytes() as usize];
            for offset in (0..CHUNK_CODE_BYTES as usize).step_by(4) {
                bytes[offset..offset + 4].fill(1);
            }
            for row in 0..CHUNK_ROWS {
                for block in 0..CHUNK_COLUMNS / scheme.format.block() {
                    bytes[scheme.scale_offset(row, block) as usize] += 1;
                }
            }
            assert!(bytes.iter().all(|&n| n == 1), "{scheme:?}");
        }
    }

    /// A thread's word holds the codes of its fragment.
    #[test]
    fn words_hold_the_fragments_codes() {
        let scheme = Scheme::ALL[0];
        let code = |row: u32, column: u32| ((row * 7 + column * 3 + row / 16) % 16) as u8;
        let mut chunk = vec![0xff; scheme.chunk_bytes() as usize];
        scheme.fill_chunk(&mut chunk, code, |row, block| (row + block) as u8);
        for (rb, kb, thread, j) in [(0, 0, 0, 0), (1, 0, 77, 3), (0, 1, 127, 2), (1, 1, 33, 1)] {
            let at = word_offset(rb, kb, thread, j) as usize;
            let word = u32::from_le_bytes(chunk[at..at + 4].try_into().unwrap());
            for (pair, operands) in scheme.operand.decode(word).into_iter().enumerate() {
                let (row, column) = fragment(thread, pair as u32);
                let (row, column) = (rb * 64 + row, kb * 64 + j * 16 + column);
                let low = scheme.operand.place(code(row, column));
                let high = scheme.operand.place(code(row, column + 1));
                assert_eq!(operands, low | high << 16, "thread {thread} pair {pair}");
            }
        }
        assert_eq!(chunk[scheme.scale_offset(70, 5) as usize], 75);
    }

    #[test]
    fn sizes() {
        assert_eq!(Scheme::ALL[0].chunk_bytes(), 9216);
        assert_eq!(Scheme::ALL[2].chunk_bytes(), 8704);
        let layout = WeightLayout { scheme: Scheme::ALL[0], rows: 7168, columns: 16384 };
        assert_eq!(layout.bytes(), Some(56 * 128 * 9216));
        let layout = WeightLayout { scheme: Scheme::ALL[0], rows: 1, columns: 16 };
        assert_eq!(layout.bytes(), Some(9216));
    }
}
