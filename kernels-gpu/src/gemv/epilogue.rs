//! The end of a row: sum over the warp, scale, convert, store.

use super::rows::Rows;
use cuda_std::{ptx::convert, ptx::memory, warp};
use fp4_formats::FloatType;
use fp4_formats::gemv::GemvParams;

/// Sums each row over the warp and stores `factor` times the sum.
///
/// # Safety
/// All lanes call it together; the rows belong to this warp alone.
#[inline(always)]
pub unsafe fn store<const ROWS: usize>(
    p: &GemvParams,
    batch: u32,
    rows: &Rows<ROWS>,
    sums: [f32; ROWS],
    factor: f32,
) {
    // SAFETY: the caller vouches for convergence. Lane `i` gets row `i`'s sum.
    let sum = unsafe { warp::transpose_sum(sums) } * factor;
    let lane = warp::lane_id();
    if lane >= ROWS as u32 || !rows.exists(lane) {
        return;
    }
    let index = u64::from(batch) * u64::from(p.m) + u64::from(rows.index(lane));
    // SAFETY: `index` is an element of the result.
    unsafe {
        if p.out_type == FloatType::F16 as u32 {
            memory::st_global_b16(p.out + index * 2, convert::cvt_rn_f16_f32(sum));
        } else if p.out_type == FloatType::Bf16 as u32 {
            memory::st_global_b16(p.out + index * 2, convert::cvt_rn_bf16_f32(sum));
        } else {
            memory::st_global_b32(p.out + index * 4, sum.to_bits());
        }
    }
}
