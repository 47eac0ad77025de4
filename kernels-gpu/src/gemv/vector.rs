//! Staging: a panel of the vector, decoded once a CTA.

use super::{BlockDot, Panel, Segment};
use cuda_std::{ptx::convert, ptx::memory, thread};
use fp4_formats::{BlockFormat, Nvfp4, ScaleLayout, gemv::GemvParams};

const BLOCK: u32 = Nvfp4::BLOCK as u32;

/// Decodes the elements of the vector of `batch` that `segment` needs, and their
/// scales, into `panel`. Begins and ends with a barrier.
///
/// # Safety
/// All `threads` threads of the CTA call it together.
#[inline(always)]
pub unsafe fn stage<D: BlockDot, const ROWS: usize, const CHUNK: usize>(
    p: &GemvParams,
    batch: u32,
    segment: &Segment<ROWS>,
    panel: Panel,
    threads: u32,
) {
    let Segment { first, count, .. } = *segment;
    let codes = p.b_codes + (u64::from(batch) * u64::from(p.k) + u64::from(first)) / 2;
    let scales = p.b_scales + u64::from(batch) * p.b_scale_stride;
    // SAFETY: the caller vouches that all threads are here.
    unsafe { thread::sync_threads() };
    let mut block = thread::thread_idx_x();
    while block < count / BLOCK {
        let column = (first / BLOCK + block) as usize;
        let layout = if p.b_blocked != 0 { ScaleLayout::Blocked128x4 } else { ScaleLayout::Linear };
        let offset = layout.offset(0, column, (p.k / BLOCK) as usize) as u64;
        // SAFETY: a block of the vector, whose codes start at a multiple of the
        // 8 bytes that a block takes, and its scale; the panel has room for
        // `count` elements and their scales.
        unsafe {
            let codes = memory::ld_global_nc_v2_b32(codes + u64::from(block * (BLOCK / 2)));
            let scale = decode_scale(memory::ld_global_nc_u8(scales + offset));
            D::stage(panel.block::<D, CHUNK>(block), panel.plane, codes);
            memory::st_shared_b32(panel.scales + block * size_of::<f32>() as u32, scale.to_bits());
        }
        block += threads;
    }
    // SAFETY: as above.
    unsafe { thread::sync_threads() };
}

/// Value of an e4m3 code in the low byte.
#[inline(always)]
fn decode_scale(code: u16) -> f32 {
    convert::cvt_f32_f16(convert::cvt_rn_f16x2_e4m3x2(code) as u16)
}
