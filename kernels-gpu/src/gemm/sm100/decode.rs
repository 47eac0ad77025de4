//! The decoding warps. They decode `X` of one K step after the other from its stage to 16-bit floats
//! in tensor memory, from which products take it, or to e4m3 ([`decode_folded`]). A thread decodes one
//! row.

use super::memory::arrive_at;
use super::schedule::Scheduled;
use super::{Cta, WorkList, decode_folded};
use crate::floats;
use crate::gemm::walk::Walk;
use cuda_std::ptx::{convert, half, integer, memory, tcgen05};
use cuda_std::{thread, warp};
use fp4_formats::HalfType;
use fp4_formats::gemm::sm100::Sm100Config;
use fp4_formats::gemm::sm100::config::{HALF_STEP, Products};
use fp4_formats::gemm::sm100::decode::{BF16_SHIFTED_LOG2, MXFP4_UNIT, shifted};
use fp4_formats::layout::TILE_BYTES;
use fp4_formats::quantize::Format;
use fp4_formats::swizzle::{CHUNK_BYTES, Swizzle};

/// Elements of a 16-byte chunk of codes, and columns that they take decoded.
const CHUNK: u32 = 2 * CHUNK_BYTES as u32;
const CHUNK_COLUMNS: u32 = CHUNK / 2;
/// Chunks of a row in one K step.
const CHUNKS: u32 = HALF_STEP / CHUNK;
/// 32-bit words of a chunk, of eight codes each.
const WORDS: u32 = 4;
/// 2^[`BF16_SHIFTED_LOG2`], twice, as bf16.
const UNSHIFT: u32 = {
    let bf16 = (127 + BF16_SHIFTED_LOG2) << 7;
    bf16 | bf16 << 16
};

/// Returns the unit of sums: decoded weights may be times a power of two.
#[inline(always)]
pub fn unit(config: &Sm100Config) -> f32 {
    match (config.products(), config.format) {
        (Products::Halves(_), Format::Mxfp4) => 1.0 / MXFP4_UNIT,
        (Products::Halves(_), Format::Nvfp4) => 1.0,
        (Products::Blocks | Products::Bytes | Products::Folded, _) => 1.0,
    }
}

/// # Safety
/// The four decoding warps of each CTA; `tensor` is the allocation.
#[inline(always)]
pub unsafe fn run<L: WorkList>(cta: &Cta<'_, L>, tensor: u32) {
    let config = cta.config;
    let (ring, decoded) = (cta.memory.ring(), cta.memory.decoded());
    let mut cursor = ring.consumer();
    let mut buffer = decoded.producer();
    let mut walk = Walk::<Scheduled<true>>::start(cta);
    let quarter = thread::thread_idx_x() / warp::LANES % 4;
    let lanes = tensor + config.buffer_base() + ((quarter * warp::LANES) << 16);
    // SAFETY: the table of the work list, if it has one, is made.
    while let Some(item) = unsafe { walk.current(cta) } {
        // SAFETY: the item's problem exists.
        let cta = unsafe { cta.of(&item) };
        let (first, end) = cta.steps_of(&item);
        for _ in first..end {
            // SAFETY: the stage is full and the columns are free; all lanes of the warp
            // stay together.
            unsafe {
                ring.wait_full(&cursor);
                decoded.wait_empty(&buffer);
                warp::sync();
                tcgen05::tcgen05_fence_after_thread_sync();
                let columns = lanes + buffer.stage * config.buffer_columns();
                let stage = cta.memory.stage(cursor.stage);
                match config.products() {
                    Products::Halves(half) => decode(config, half, stage, quarter, columns),
                    Products::Folded => decode_folded::decode(config, stage, quarter, columns),
                    // No warps decode.
                    Products::Blocks | Products::Bytes => {}
                }
                tcgen05::tcgen05_wait_st();
                tcgen05::tcgen05_fence_before_thread_sync();
                warp::sync();
                if warp::lane_id() == 0 {
                    if config.cta_group == 1 {
                        decoded.arrive_full(&buffer);
                    } else {
                        arrive_at(decoded.full(buffer.stage), cta.leader());
                    }
                }
            }
            cursor.advance();
            buffer.advance();
        }
        // SAFETY: called once per tile, by whole warps.
        unsafe { walk.advance(&cta, &item) };
    }
    // Commits may still be on their way to these barriers.
    // SAFETY: as above.
    unsafe { decoded.wait_all_empty(&mut buffer) };
}

/// Decodes the thread's row of the K step in `stage` to `columns`.
///
/// # Safety
/// Whole warps; the stage is full, the columns are free.
#[inline(always)]
unsafe fn decode(config: &Sm100Config, half: HalfType, stage: u32, quarter: u32, columns: u32) {
    let row = quarter * warp::LANES + warp::lane_id();
    let scales = stage + config.x_scales_at() + warp::lane_id() * 16 + quarter * 4;
    let block = config.format.block();
    let tile_elements = 4 * block;
    let row_bytes = HALF_STEP / 2;
    let (mut scale_word, mut scale) = (0, Scale::F16(0));
    for chunk in 0..CHUNKS {
        let element = chunk * CHUNK;
        // SAFETY: inside the stage; tensor memory as the caller says.
        unsafe {
            if element.is_multiple_of(tile_elements) {
                let tile = element / tile_elements;
                scale_word = memory::ld_shared_b32(scales + tile * TILE_BYTES as u32);
            }
            let at = row * row_bytes + chunk * CHUNK_BYTES as u32;
            let words = memory::ld_shared_v4_b32(stage + Swizzle::B64.apply(at as usize) as u32);
            let mut pairs = [0; CHUNK_COLUMNS as usize];
            for word in 0..WORDS {
                let at = element + 8 * word;
                if at.is_multiple_of(block) {
                    scale = Scale::new(
                        config.format,
                        half,
                        scale_word >> (8 * (at / block % 4)) & 0xff,
                    );
                }
                let four = halves(words[word as usize]);
                for i in 0..4 {
                    pairs[4 * word as usize + i] = scale.times(four[i]);
                }
            }
            tcgen05::tcgen05_st_32x32b_x16(columns + chunk * CHUNK_COLUMNS, pairs);
        }
    }
}

/// The values of eight codes as pairs of f16.
#[inline(always)]
fn halves(codes: u32) -> [u32; 4] {
    [
        convert::cvt_rn_f16x2_e2m1x2::<0>(codes),
        convert::cvt_rn_f16x2_e2m1x2::<1>(codes),
        convert::cvt_rn_f16x2_e2m1x2::<2>(codes),
        convert::cvt_rn_f16x2_e2m1x2::<3>(codes),
    ]
}

/// A block's scale as a pair of factors.
#[derive(Clone, Copy)]
enum Scale {
    /// The factor of f16.
    F16(u32),
    /// The factor of shifted bf16, the shift's factor included.
    Bf16(u32),
    /// The factor of bf16; with the shift's factor it would overflow.
    Wide(u32),
}

impl Scale {
    #[inline(always)]
    fn new(format: Format, half: HalfType, code: u32) -> Self {
        match (format, half) {
            (Format::Nvfp4, HalfType::Bf16) => {
                let half = floats::halves_of_e4m3(code as u16) as u16;
                let unshift = f32::from_bits((127 + BF16_SHIFTED_LOG2) << 23);
                let scale = convert::cvt_f32_f16(half) * unshift;
                Self::Bf16(convert::cvt_rn_bf16x2_f32(scale, scale))
            }
            (Format::Nvfp4, HalfType::F16) => {
                let pair = floats::halves_of_e4m3(code as u16);
                Self::F16(integer::prmt_b32(pair, pair, 0x1010))
            }
            (Format::Mxfp4, _) => {
                // 2^-127 is subnormal in f32; 255 is NaN.
                let bits = match code {
                    0 => 0x0040_0000,
                    0xff => 0x7fc0_0000,
                    _ => code << 23,
                };
                let scale = f32::from_bits(bits) * MXFP4_UNIT;
                Self::Wide(convert::cvt_rn_bf16x2_f32(scale, scale))
            }
        }
    }

    /// The product with two values, exact.
    #[inline(always)]
    fn times(self, pair: u32) -> u32 {
        match self {
            Self::F16(scale) => half::mul_rn_f16x2(pair, scale),
            Self::Bf16(scale) => floats::mul_bf16x2(shifted(pair), scale),
            Self::Wide(scale) => {
                floats::mul_bf16x2(floats::mul_bf16x2(shifted(pair), UNSHIFT), scale)
            }
        }
    }
}
