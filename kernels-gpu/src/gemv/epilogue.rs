//! The epilogue: sums over the warps, scales, converts and stores.

use super::{ROWS, RowGroups};
use cuda_std::{ptx::convert, ptx::memory, thread, warp};
use fp4_formats::FloatType;
use fp4_formats::gemv::GemvParams;

/// The sums of the CTA's rows in shared memory: an f32 for each row and warp.
#[derive(Clone, Copy)]
pub struct Table {
    /// Shared address.
    address: u32,
    /// Warps of the CTA.
    warps: u32,
}

impl Table {
    #[inline(always)]
    pub fn new(address: u32) -> Self {
        Self { address, warps: thread::block_dim_x() / warp::LANES }
    }

    #[inline(always)]
    fn at(&self, row: u32, warp: u32) -> u32 {
        self.address + (row * self.warps + warp) * size_of::<f32>() as u32
    }

    /// Sums the rows in flight, from the CTA's row group `group` on, over the warp, and puts each
    /// in the table, or adds it to what an earlier panel gave if there is one. Rows past the last
    /// are left out.
    ///
    /// # Safety
    /// All lanes of the warp call it together; the table has the CTA's rows, and no other thread
    /// reads them before the CTA's next barrier.
    #[inline(always)]
    pub unsafe fn add(
        &self,
        part: &RowGroups<'_>,
        group: u32,
        sums: [f32; ROWS as usize],
        earlier: bool,
    ) {
        // Lane `i` receives the sum of row `i`.
        // SAFETY: the caller guarantees that all lanes are here.
        let mut sum = unsafe { warp::transpose_sum(sums) };
        let lane = warp::lane_id();
        let row = group * part.config.group_rows() + lane;
        let stores = lane < ROWS && row < part.count * part.config.group_rows();
        let at = self.at(row, thread::thread_idx_x() / warp::LANES);
        // SAFETY: the row of a lane that stores is the CTA's, so the table has it; this lane alone
        // writes it, in every panel.
        unsafe {
            if earlier {
                sum += f32::from_bits(memory::ld_shared_b32_if(stores, at));
            }
            memory::st_shared_b32_if(stores, at, sum.to_bits());
        }
    }

    /// The sum of a row over the warps.
    ///
    /// # Safety
    /// All warps have put their sums of the row in the table before a barrier.
    #[inline(always)]
    unsafe fn sum(&self, row: u32) -> f32 {
        let mut sum = 0.0;
        for warp in 0..self.warps {
            // SAFETY: the caller guarantees that the element was written.
            sum += f32::from_bits(unsafe { memory::ld_shared_b32(self.at(row, warp)) });
        }
        sum
    }
}

/// Stores `factor` times the sums of the CTA's rows, each thread every `blockDim`-th row.
///
/// # Safety
/// * All warps have put their sums in the table before a barrier.
/// * `part` is the CTA's, of a launch that satisfies the module's contract, and the stream's
///   earlier kernels are complete.
#[inline(always)]
pub unsafe fn store(part: &RowGroups<'_>, table: &Table, factor: f32) {
    let (p, group_rows) = (part.p, part.config.group_rows());
    let mut at = thread::thread_idx_x();
    while at < part.count * group_rows {
        let row = part.row(at / group_rows, at % group_rows);
        if row < p.m {
            let index = u64::from(part.batch) * u64::from(p.m) + u64::from(row);
            // SAFETY: the table has the row; row and batch entry exist, so `index` is an element of
            // the result, which is aligned to its element and which this thread alone writes.
            unsafe { put(p, index, table.sum(at) * factor) };
        }
        at += thread::block_dim_x();
    }
}

/// Stores element `index` of the result.
///
/// # Safety
/// The element exists, is aligned, and no other thread writes it.
#[inline(always)]
unsafe fn put(p: &GemvParams, index: u64, value: f32) {
    // SAFETY: the caller guarantees the element.
    unsafe {
        if p.out_type == FloatType::F16 as u32 {
            memory::st_global_b16(p.out + index * 2, convert::cvt_rn_f16_f32(value));
        } else if p.out_type == FloatType::Bf16 as u32 {
            memory::st_global_b16(p.out + index * 2, convert::cvt_rn_bf16_f32(value));
        } else {
            memory::st_global_b32(p.out + index * 4, value.to_bits());
        }
    }
}
