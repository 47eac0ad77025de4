//! NVFP4 weights to e4m3 in tensor memory: a thread looks up the operands of one row of a K step in the
//! magnitudes of their blocks ([`fold`]).

use cuda_std::ptx::{integer, memory, tcgen05};
use cuda_std::warp;
use fp4_formats::gemm::fold;
use fp4_formats::gemm::sm100::config::{
    BYTE_STEP, FOLDED_COLUMNS, FOLDED_TABLE_BYTES, Sm100Config,
};
use fp4_formats::gemm::sm100::folded;
use fp4_formats::quantize::Format;
use fp4_formats::swizzle::{CHUNK_BYTES, Swizzle};

/// Columns that are stored at a time, of four operands each.
const STORED: u32 = 16;
/// 16-byte chunks of codes that they are made of, and the columns of one.
const CHUNK_COLUMNS: u32 = 2 * CHUNK_BYTES as u32 / 4;
const CHUNKS: u32 = STORED / CHUNK_COLUMNS;
/// Columns of a block's operands.
const BLOCK_COLUMNS: u32 = Format::Nvfp4.block() / 4;

const _: () = assert!(FOLDED_TABLE_BYTES == 16 && FOLDED_COLUMNS.is_multiple_of(STORED));

/// Decodes the thread's row of the K step in `stage` to `columns`.
///
/// # Safety
/// Whole warps; the stage is full, the columns are free.
#[inline(always)]
pub unsafe fn decode(config: &Sm100Config, stage: u32, quarter: u32, columns: u32) {
    let row = quarter * warp::LANES + warp::lane_id();
    let tiles = stage + config.x_scales_at();
    // SAFETY: inside the stage; tensor memory as the caller says.
    unsafe {
        let tables = memory::ld_shared_v4_b32(tiles + folded::tables_offset(row));
        for part in 0..FOLDED_COLUMNS / STORED {
            let mut operands = [0; STORED as usize];
            for chunk in 0..CHUNKS {
                let at = row * (BYTE_STEP / 2) + (part * CHUNKS + chunk) * CHUNK_BYTES as u32;
                let words =
                    memory::ld_shared_v4_b32(stage + Swizzle::B64.apply(at as usize) as u32);
                for column in 0..CHUNK_COLUMNS {
                    let place = chunk * CHUNK_COLUMNS + column;
                    let block = (part * STORED + place) / BLOCK_COLUMNS;
                    let table = tables[block as usize / 2] >> (16 * (block % 2)) & 0xffff;
                    let [low, high] = fold::nvfp4_magnitudes(table);
                    let (word, half) = (words[column as usize / 2], column % 2);
                    let selected = integer::prmt_b32(low, high, fold::selector(word, half));
                    operands[place as usize] = selected | fold::signs(word, half);
                }
            }
            tcgen05::tcgen05_st_32x32b_x16(columns + part * STORED, operands);
        }
    }
}
