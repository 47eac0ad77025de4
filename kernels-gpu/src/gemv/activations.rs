//! Staging: each CTA decodes a panel of the activations into shared memory.

use super::{BlockDot, Panel, Segment};
use cuda_std::{ptx::convert, ptx::memory, thread};
use fp4_formats::{BlockFormat, Nvfp4, ScaleLayout, gemv::GemvParams};

const BLOCK: u32 = Nvfp4::BLOCK as u32;

/// Decodes the elements of the activations of batch entry `batch` that `segment` needs, and their
/// scales, into `panel`. Begins and ends with a barrier.
///
/// # Safety
/// * All `threads` threads of the CTA call it together.
/// * `p` is the kernel's parameter block, which satisfies the module's contract, and `panel` is the
///   CTA's.
#[inline(always)]
pub unsafe fn stage<D: BlockDot, const ROWS: usize, const CHUNK: usize>(
    dot: D,
    p: &GemvParams,
    batch: u32,
    segment: &Segment<ROWS>,
    panel: Panel,
    threads: u32,
) {
    let Segment { first, count, .. } = *segment;
    let codes = p.a_codes + (u64::from(batch) * u64::from(p.k) + u64::from(first)) / 2;
    let scales = p.a_scales + u64::from(batch) * p.a_scale_stride;
    // SAFETY: the caller guarantees that all threads are here.
    unsafe { thread::sync_threads() };
    let mut chunk = thread::thread_idx_x();
    while chunk < count / (BLOCK * CHUNK as u32) {
        let block = chunk * CHUNK as u32;
        let column = (first / BLOCK + block) as usize;
        let layout = if p.a_blocked != 0 { ScaleLayout::Blocked128x4 } else { ScaleLayout::Linear };
        let offset = layout.offset(0, column, (p.k / BLOCK) as usize) as u64;
        // SAFETY: the chunk and its scales are inside the activations and aligned as the contract
        // says; the scales of a chunk's two blocks are adjacent in either layout.
        let (codes, bytes) =
            unsafe { load::<CHUNK>(codes + u64::from(block * (BLOCK / 2)), scales + offset) };
        let pair = convert::cvt_rn_f16x2_e4m3x2(bytes);
        let values = [pair as u16, (pair >> 16) as u16];
        for i in 0..CHUNK {
            let here = block + i as u32;
            let value = convert::cvt_f32_f16(values[i]);
            // SAFETY: the panel has room for `count` elements and their scales, and after the
            // barrier no thread reads the previous panel.
            unsafe {
                dot.stage(panel.block::<D, CHUNK>(here), panel.plane, codes[i]);
                memory::st_shared_b32(
                    panel.scales + here * size_of::<f32>() as u32,
                    value.to_bits(),
                );
            }
        }
        chunk += threads;
    }
    // SAFETY: the caller guarantees that all threads are here.
    unsafe { thread::sync_threads() };
}

/// The codes of a chunk and the scales of its blocks, the first block's in the lowest byte.
///
/// # Safety
/// `codes` and `scales` are the global addresses of a chunk's codes and of its scales, each aligned
/// to its size.
#[inline(always)]
unsafe fn load<const CHUNK: usize>(codes: u64, scales: u64) -> ([[u32; 2]; CHUNK], u16) {
    let mut blocks = [[0; 2]; CHUNK];
    // SAFETY: the caller guarantees addresses, sizes and alignment.
    unsafe {
        if CHUNK == 2 {
            let [a, b, c, d] = memory::ld_global_nc_v4_b32(codes);
            blocks[0] = [a, b];
            blocks[CHUNK - 1] = [c, d];
            (blocks, memory::ld_global_nc_u16(scales))
        } else {
            blocks[0] = memory::ld_global_nc_v2_b32(codes);
            (blocks, memory::ld_global_nc_u8(scales))
        }
    }
}
