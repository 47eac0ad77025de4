//! The activations: each thread decodes its chunk once and keeps it in registers.

use super::weights::load_scales;
use super::{BlockDot, RowGroups};
use crate::floats;
use cuda_std::ptx::{convert, float, memory};
use fp4_formats::ScaleLayout;

/// One decoded chunk.
#[derive(Clone, Copy)]
pub struct Activations<D: BlockDot, const CHUNK: usize> {
    /// The elements of each block.
    pub blocks: [D::Block; CHUNK],
    /// The scale of each block.
    pub scales: [f32; CHUNK],
}

impl<D: BlockDot, const CHUNK: usize> Activations<D, CHUNK> {
    /// Chunk `chunk` of the part's batch entry; zeros if it is not `here`.
    ///
    /// The loads are not of the read-only kind (`.nc`): the kernel before may still have been
    /// writing the activations when this one began.
    ///
    /// # Safety
    /// `part` is the CTA's, of a launch that satisfies the module's contract; the stream's earlier
    /// kernels are complete; if it is `here`, the chunk exists.
    #[inline(always)]
    pub unsafe fn load(dot: D, part: &RowGroups<'_>, chunk: u32, here: bool) -> Self {
        let (p, batch) = (part.p, u64::from(part.batch));
        let (mut codes, mut bytes) = ([[0; 2]; CHUNK], 0);
        if here {
            let layout =
                if p.a_blocked != 0 { ScaleLayout::Blocked128x4 } else { ScaleLayout::Linear };
            let offset = layout.offset(0, chunk as usize * CHUNK, part.blocks()) as u64;
            let at = p.a_codes
                + batch * part.row_codes()
                + u64::from(chunk) * u64::from(part.config.load_bytes);
            let scales = p.a_scales + batch * p.a_scale_stride + offset;
            // SAFETY: the chunk and its scales are inside the activations and aligned as the
            // contract says; the scales of a chunk's two blocks are adjacent in either layout.
            unsafe {
                if CHUNK == 2 {
                    let [a, b, c, d] = memory::ld_global_v4_b32(at);
                    codes[0] = [a, b];
                    codes[CHUNK - 1] = [c, d];
                } else {
                    codes[0] = memory::ld_global_v2_b32(at);
                }
                bytes = load_scales::<CHUNK>(scales);
            }
        }
        let pair = floats::halves_of_e4m3(bytes);
        let values = [pair as u16, (pair >> 16) as u16];
        Self {
            blocks: core::array::from_fn(|j| dot.decode(codes[j])),
            scales: core::array::from_fn(|j| convert::cvt_f32_f16(values[j])),
        }
    }

    /// The product with the chunk of one row: its codes and the e4m3 scales of its blocks, the
    /// first block's in the lowest byte.
    #[inline(always)]
    pub fn multiply(&self, dot: D, codes: [u32; 4], scales: u16) -> f32 {
        let pair = floats::halves_of_e4m3(scales);
        let row_scales = [pair as u16, (pair >> 16) as u16];
        let mut sum = 0.0;
        for j in 0..CHUNK {
            let scale = convert::cvt_f32_f16(row_scales[j]) * self.scales[j];
            sum = float::fma_rn_f32(
                dot.dot([codes[2 * j], codes[2 * j + 1]], &self.blocks[j]),
                scale,
                sum,
            );
        }
        sum
    }
}
