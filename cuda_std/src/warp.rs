//! Operations that the 32 lanes of a warp execute together.

use crate::ptx;

/// Lanes of a warp.
pub const LANES: u32 = 32;

/// The mask of all lanes.
pub const ALL: u32 = u32::MAX;

/// Index of the thread in its warp.
#[inline(always)]
pub fn lane_id() -> u32 {
    ptx::special::laneid()
}

/// The value that the lane with index `lane ^ xor` holds.
///
/// # Safety
/// All 32 lanes reach this same call.
#[inline(always)]
pub unsafe fn shuffle_xor_f32(value: f32, xor: u32) -> f32 {
    // SAFETY: the caller guarantees that all lanes arrive.
    f32::from_bits(unsafe { ptx::shuffle::shfl_sync_bfly_b32(value.to_bits(), xor, ALL) })
}

/// The value that lane `lane` holds.
///
/// # Safety
/// All 32 lanes reach this same call.
#[inline(always)]
pub unsafe fn broadcast_u32(value: u32, lane: u32) -> u32 {
    // SAFETY: the caller guarantees that all lanes arrive.
    unsafe { ptx::shuffle::shfl_sync_idx_b32(value, lane, ALL) }
}

/// [`broadcast_u32`] of a float.
///
/// # Safety
/// The same as [`broadcast_u32`].
#[inline(always)]
pub unsafe fn broadcast_f32(value: f32, lane: u32) -> f32 {
    // SAFETY: the caller guarantees that all lanes arrive.
    f32::from_bits(unsafe { broadcast_u32(value.to_bits(), lane) })
}

/// Sums of `N` values over the warp, `N` a power of two up to 32: lane `j`
/// returns the sum of `values[j % N]` over all lanes.
///
/// Each shuffle halves the number of live values, which takes `N - 1 + log2(32 / N)` shuffles
/// in all. Reducing each value by itself would take `5 N`.
///
/// # Safety
/// All 32 lanes reach this same call.
#[inline(always)]
pub unsafe fn transpose_sum<const N: usize>(mut values: [f32; N]) -> f32 {
    const { assert!(N.is_power_of_two() && N <= LANES as usize) };
    let lane = lane_id();
    let mut live = N;
    while live > 1 {
        let half = live / 2;
        let upper = lane & half as u32 != 0;
        for i in 0..half {
            let (keep, send) =
                if upper { (values[i + half], values[i]) } else { (values[i], values[i + half]) };
            // SAFETY: the caller guarantees that all lanes arrive; the loop is uniform in the
            // warp.
            values[i] = keep + unsafe { shuffle_xor_f32(send, half as u32) };
        }
        live = half;
    }
    let mut distance = N as u32;
    while distance < LANES {
        // SAFETY: the caller guarantees that all lanes arrive; the loop is uniform in the warp.
        values[0] += unsafe { shuffle_xor_f32(values[0], distance) };
        distance *= 2;
    }
    values[0]
}

/// Transposes `N` values of `N` lanes, `N` a power of two up to 32, in each aligned group
/// of that many lanes: lane `i`'s value `j` becomes lane `j`'s value `i`. Takes
/// `N log2(N) / 2` shuffles.
///
/// # Safety
/// All 32 lanes reach this same call.
#[inline(always)]
pub unsafe fn transpose<const N: usize>(mut values: [f32; N]) -> [f32; N] {
    const { assert!(N.is_power_of_two() && N <= LANES as usize) };
    let lane = lane_id();
    let mut distance = N as u32 / 2;
    while distance > 0 {
        let upper = lane & distance != 0;
        // Every round exchanges the uppermost bit of an index with the lane's bit and makes it the
        // lowest one, so that all rounds are the same instructions, a loop.
        let mut next = values;
        for i in 0..N / 2 {
            let (low, high) = (values[i], values[i + N / 2]);
            let send = if upper { low } else { high };
            // SAFETY: the caller guarantees that all lanes arrive; the loop is uniform in the
            // warp.
            let received = unsafe { shuffle_xor_f32(send, distance) };
            next[2 * i] = if upper { received } else { low };
            next[2 * i + 1] = if upper { high } else { received };
        }
        values = next;
        distance = ptx::marker::pin(distance / 2);
    }
    values
}

/// Waits until all lanes have arrived, and orders their memory accesses.
///
/// # Safety
/// All 32 lanes reach this same call.
#[inline(always)]
pub unsafe fn sync() {
    // SAFETY: the caller guarantees that all lanes arrive.
    unsafe { ptx::barrier::bar_warp_sync(ALL) }
}

/// The largest value of all lanes, returned to each of them.
///
/// # Safety
/// All 32 lanes reach this same call.
#[inline(always)]
pub unsafe fn max_u32(value: u32) -> u32 {
    // SAFETY: the caller guarantees that all lanes arrive.
    unsafe { ptx::shuffle::redux_sync_max_u32(value, ALL) }
}

/// The sum of the values of the lanes up to this one.
///
/// # Safety
/// All 32 lanes reach this same call.
#[inline(always)]
pub unsafe fn prefix_sum_u32(mut value: u32) -> u32 {
    let mut distance = 1;
    while distance < LANES {
        // SAFETY: the caller guarantees that all lanes arrive.
        let below = unsafe { ptx::shuffle::shfl_sync_up_b32(value, distance, ALL) };
        if lane_id() >= distance {
            value += below;
        }
        distance *= 2;
    }
    value
}

/// True in one lane of the warp, which is the same one in each call.
///
/// # Safety
/// All 32 lanes reach this same call.
#[inline(always)]
pub unsafe fn elect() -> bool {
    // SAFETY: the caller guarantees that all lanes arrive.
    unsafe { ptx::shuffle::elect_sync(ALL) }
}
