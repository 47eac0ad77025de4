//! Sums on their way from the CTAs that did parts of a tile to the one that owns it, through
//! global memory and, as a rule, L2. Clusters do it through shared memory, see [`cluster`].
//!
//! [`cluster`]: super::cluster
//!
//! A thread of the owner has the same sums as the giver's thread of the same number: what a
//! thread gives, four sums at a time, 256 threads side by side, needs no rearrangement.

use cuda_std::ptx::{marker, memory, scoped};
use cuda_std::{thread, warp};
use fp4_formats::gemm::hopper::config::{CONSUMER_THREADS, HopperConfig};
use fp4_formats::gemm::hopper::params::HopperParams;

use super::{sharing, sync_consumers};

/// Sums of a vector, and its bytes.
const VECTOR: usize = 4;
const VECTOR_BYTES: u32 = VECTOR as u32 * size_of::<f32>() as u32;
/// Vectors that a thread loads at a time.
const BATCH: usize = 8;
/// Bytes of a flag.
const FLAG_BYTES: u64 = size_of::<u32>() as u64;

/// The sums that `cta` gives, as this thread has them.
#[inline(always)]
fn place(config: &HopperConfig, p: &HopperParams, cta: u32) -> u64 {
    // Not kept while products run.
    let own = marker::pin(thread::thread_idx_x() * VECTOR_BYTES);
    p.partials + u64::from(cta) * u64::from(config.partial_bytes()) + u64::from(own)
}

/// Gives this CTA's sums.
///
/// # Safety
/// All consumers; the kernels before in the stream have ended.
#[inline(always)]
pub unsafe fn give<const SUMS: usize, const BLOCKS: usize>(
    config: &HopperConfig,
    p: &HopperParams,
    sums: &[[f32; SUMS]; BLOCKS],
) {
    let cta = thread::block_idx_x();
    let to = place(config, p, cta);
    for block in 0..BLOCKS {
        for i in 0..SUMS / VECTOR {
            let vector = core::array::from_fn(|j| sums[block][i * VECTOR + j].to_bits());
            let index = (block * (SUMS / VECTOR) + i) as u32;
            // SAFETY: inside the CTA's place.
            unsafe {
                memory::st_global_v4_b32(
                    to + u64::from(index * CONSUMER_THREADS * VECTOR_BYTES),
                    vector,
                );
            }
        }
    }
    // SAFETY: the caller's; a flag a CTA.
    unsafe {
        sync_consumers();
        if thread::thread_idx_x() == 0 {
            scoped::st_release_gpu_global_b32(p.flags + u64::from(cta) * FLAG_BYTES, 1);
        }
    }
}

/// Adds what the CTAs of the runs from `first` up to this one's, each in turn, give to this one.
///
/// # Safety
/// As [`give`]; each of those CTAs gives to this one.
#[inline(always)]
pub unsafe fn take<const SUMS: usize, const BLOCKS: usize>(
    config: &HopperConfig,
    p: &HopperParams,
    first: u32,
    sums: &mut [[f32; SUMS]; BLOCKS],
) {
    let end = sharing::run_of(config, thread::block_idx_x());
    // A lane a giver: nobody else waits for it, so the lane also lowers its flag.
    let mut giver = first + thread::thread_idx_x();
    if thread::thread_idx_x() < warp::LANES {
        while giver < end {
            let flag = p.flags + u64::from(sharing::cta_of(config, giver)) * FLAG_BYTES;
            // SAFETY: a flag a CTA.
            unsafe {
                while scoped::ld_acquire_gpu_global_b32(flag) == 0 {}
                memory::st_global_b32(flag, 0);
            }
            giver += warp::LANES;
        }
    }
    // SAFETY: the warp is whole again; the caller's.
    unsafe {
        warp::sync();
        sync_consumers();
    }
    let vectors = const { BLOCKS * SUMS / VECTOR };
    if const { BLOCKS * SUMS / VECTOR >= BATCH } {
        let mut giver = first;
        while giver < end {
            let from = place(config, p, sharing::cta_of(config, giver));
            for batch in 0..vectors / BATCH {
                let mut parts = [[0; VECTOR]; BATCH];
                for i in 0..BATCH {
                    let index = (batch * BATCH + i) as u32;
                    // SAFETY: inside the giver's place, which is written.
                    parts[i] = unsafe { load(from, index) };
                }
                for i in 0..BATCH {
                    add(sums, batch * BATCH + i, parts[i]);
                }
            }
            giver += 1;
        }
    } else {
        // Several givers' sums are under way at a time.
        let together = const { BATCH / (BLOCKS * SUMS / VECTOR) };
        let mut giver = first;
        while giver < end {
            let mut parts = [[0; VECTOR]; BATCH];
            for g in 0..together {
                if giver + (g as u32) < end {
                    let from = place(config, p, sharing::cta_of(config, giver + g as u32));
                    for i in 0..vectors {
                        // SAFETY: as above.
                        parts[g * vectors + i] = unsafe { load(from, i as u32) };
                    }
                }
            }
            for g in 0..together {
                if giver + (g as u32) < end {
                    for i in 0..vectors {
                        add(sums, i, parts[g * vectors + i]);
                    }
                }
            }
            giver += together as u32;
        }
    }
}

/// Vector `index` of the thread's.
///
/// # Safety
/// It is written, and that is known to this thread.
#[inline(always)]
unsafe fn load(from: u64, index: u32) -> [u32; VECTOR] {
    let address = from + u64::from(index * CONSUMER_THREADS * VECTOR_BYTES);
    // SAFETY: the caller's; vectors are aligned to their size.
    unsafe { scoped::ld_relaxed_gpu_global_v4_b32(address) }
}

/// Adds vector `index`.
#[inline(always)]
fn add<const SUMS: usize, const BLOCKS: usize>(
    sums: &mut [[f32; SUMS]; BLOCKS],
    index: usize,
    vector: [u32; VECTOR],
) {
    let (block, first) = (index / (SUMS / VECTOR), index % (SUMS / VECTOR) * VECTOR);
    for j in 0..VECTOR {
        sums[block][first + j] += f32::from_bits(vector[j]);
    }
}
