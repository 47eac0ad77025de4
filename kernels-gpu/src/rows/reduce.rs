//! Sums and maxima over a row, which the threads of a CTA find together.

use cuda_std::ptx::{marker, memory};
use cuda_std::{shared, thread, warp};
use fp4_formats::rows::RowsConfig;
use fp4_formats::rows::arithmetic::MAX_GROUPS;

/// Bytes of the sums of a row's groups.
const SUM_BYTES: u32 = MAX_GROUPS as u32 * 4;
/// Bytes of the warps' maxima.
const MAXIMA_BYTES: u32 = RowsConfig::MAX_THREADS / warp::LANES * 4;

/// The buffers through which the threads of a CTA reduce, and which of each is next.
pub struct Meeting {
    sums: u32,
    maxima: u32,
}

impl Meeting {
    /// Before the first reduction.
    #[inline(always)]
    pub fn new() -> Self {
        Self { sums: 0, maxima: 0 }
    }

    #[inline(always)]
    fn sums(&self) -> u32 {
        shared::fixed::<0, { 2 * SUM_BYTES }, 16>() + self.sums
    }

    /// Adds the lanes' numbers: the sum is that of a group, for the next [`sum`](Self::sum).
    ///
    /// # Safety
    /// All lanes of the warp are here; no other warp has the group.
    #[inline(always)]
    pub unsafe fn add(&self, group: u32, of_lane: f32) {
        // SAFETY: the same as the caller's; the group has its own place.
        unsafe {
            let sum = in_pairs(of_lane);
            if warp::lane_id() == 0 {
                memory::st_shared_b32(self.sums() + group * 4, sum.to_bits());
            }
        }
    }

    /// [`add`](Self::add) of the lanes' numbers of two groups, of which the second may not exist.
    ///
    /// # Safety
    /// The same, for each group that exists.
    #[inline(always)]
    pub unsafe fn add_both(&self, groups: [u32; 2], second_exists: bool, of_lane: [f32; 2]) {
        let lane = warp::lane_id();
        // Each half of the warp adds one group: the first step gives it the other half's numbers.
        let is_first = lane < warp::LANES / 2;
        let (own, other) =
            if is_first { (of_lane[0], of_lane[1]) } else { (of_lane[1], of_lane[0]) };
        // SAFETY: the same as the caller's; the group has its own place.
        unsafe {
            let mut sum = own + warp::shuffle_xor_f32(other, warp::LANES / 2);
            let mut distance = warp::LANES / 4;
            while distance > 0 {
                sum += warp::shuffle_xor_f32(sum, distance);
                distance /= 2;
            }
            if lane.is_multiple_of(warp::LANES / 2) && (is_first || second_exists) {
                let group = if is_first { groups[0] } else { groups[1] };
                memory::st_shared_b32(self.sums() + group * 4, sum.to_bits());
            }
        }
    }

    /// The sum of all groups.
    ///
    /// # Safety
    /// All threads of the CTA are here, and each of the `groups` groups has been added since the last sum.
    #[inline(always)]
    pub unsafe fn sum(&mut self, groups: u32) -> f32 {
        // SAFETY: the same as the caller's.
        unsafe {
            thread::sync_threads();
            let mut sum = 0.0;
            let mut group = warp::lane_id();
            while group < groups {
                sum += f32::from_bits(memory::ld_shared_b32(self.sums() + group * 4));
                // The pin keeps the compiler from unrolling the loop, which goes round once for most rows.
                group = marker::pin(group + warp::LANES);
            }
            self.sums ^= SUM_BYTES;
            in_pairs(sum)
        }
    }

    /// [`sum`](Self::sum) of no more groups than a warp has lanes, by shorter code.
    ///
    /// # Safety
    /// The same, and `groups` is at most [`warp::LANES`].
    #[inline(always)]
    pub unsafe fn sum_of_few(&mut self, groups: u32) -> f32 {
        let lane = warp::lane_id();
        // SAFETY: the same as the caller's.
        unsafe {
            thread::sync_threads();
            let exists = lane < groups;
            let own = if exists { memory::ld_shared_b32(self.sums() + lane * 4) } else { 0 };
            self.sums ^= SUM_BYTES;
            in_pairs(f32::from_bits(own))
        }
    }

    /// The largest of all threads' magnitudes; NaN if one is.
    ///
    /// # Safety
    /// All threads of the CTA, `warps` warps, are here.
    #[inline(always)]
    pub unsafe fn largest(&mut self, amax: f32, warps: u32) -> f32 {
        let maxima = shared::fixed::<1, { 2 * MAXIMA_BYTES }, 16>() + self.maxima;
        // SAFETY: all threads are here, and every warp has its own element of the buffer.
        unsafe {
            // Bits of magnitudes are ordered as they are, and those of NaN are the largest.
            let found = warp::max_u32(amax.to_bits());
            let lane = warp::lane_id();
            if lane == 0 {
                memory::st_shared_b32(maxima + thread::thread_idx_x() / warp::LANES * 4, found);
            }
            thread::sync_threads();
            let of_lane = if lane < warps { memory::ld_shared_b32(maxima + lane * 4) } else { 0 };
            self.maxima ^= MAXIMA_BYTES;
            f32::from_bits(warp::max_u32(of_lane))
        }
    }
}

/// The sum of the lanes' numbers, in pairs of distance 16, 8, 4, 2 and 1: the same in all lanes.
///
/// # Safety
/// All lanes of the warp are here.
#[inline(always)]
unsafe fn in_pairs(mut sum: f32) -> f32 {
    let mut distance = warp::LANES / 2;
    while distance > 0 {
        // SAFETY: the same as the caller's.
        sum += unsafe { warp::shuffle_xor_f32(sum, distance) };
        distance /= 2;
    }
    sum
}
