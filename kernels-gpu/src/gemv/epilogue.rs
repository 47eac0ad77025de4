//! The epilogue: sums over the warp, scales, converts and stores.

use super::weights::Rows;
use cuda_std::{ptx::convert, ptx::memory, warp};
use fp4_formats::FloatType;
use fp4_formats::gemv::GemvParams;

/// Sums each row over the warp and stores `factor` times the sum.
///
/// # Safety
/// * All lanes of the warp call it together.
/// * No other warp stores these rows.
/// * `p` is the kernel's parameter block, which satisfies the module's contract.
#[inline(always)]
pub unsafe fn store<const ROWS: usize>(
    p: &GemvParams,
    batch: u32,
    rows: &Rows<ROWS>,
    sums: [f32; ROWS],
    factor: f32,
) {
    // Lane `i` receives the sum of row `i`.
    // SAFETY: the caller guarantees that all lanes are here.
    let sum = unsafe { warp::transpose_sum(sums) } * factor;
    let lane = warp::lane_id();
    if lane >= ROWS as u32 || !rows.exists(lane) {
        return;
    }
    let index = u64::from(batch) * u64::from(p.m) + u64::from(rows.index(lane));
    // SAFETY: row and batch entry exist, so `index` is an element of the result, which is aligned to
    // its element and which this thread alone writes.
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
