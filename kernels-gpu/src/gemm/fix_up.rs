//! The stream-K fix-up, as far as both architectures share it. The CTAs that compute the first K steps of
//! a tile, its contributors, send their partial sums through global memory, as a rule L2, to the CTA that
//! computes the last step, which owns the tile and adds them in the order of K.
//!
//! Thread i of the owner holds the same sums as thread i of a contributor, so partial sums need no
//! rearrangement: each thread sends vectors of four, those of all [`Target::THREADS`] side by side, as a rule by
//! their numbers. A
//! contributor then raises a [flag](flags), for which one thread of the owner waits; or, if they are few, no word of them
//! is zero and their places were, so that each thread of the owner [waits for its own](Contributors::take). A CTA waits only for
//! CTAs with lower numbers, which the hardware starts first.

use cuda_std::ptx::{marker, memory, scoped};
use cuda_std::warp;

use super::cta::{Cta, Target};
use super::flags::{self, FLAG_BYTES, Polls};
use super::work::WorkList;

/// Sums of a vector.
pub const VECTOR: usize = 4;
/// Bytes of a vector.
pub const VECTOR_BYTES: u32 = VECTOR as u32 * size_of::<f32>() as u32;

/// Address of the partial sums of CTA `sender`.
#[inline(always)]
pub fn partials<T: Target, L: WorkList>(cta: &Cta<'_, T, L>, sender: u32) -> u64 {
    cta.head().partials + u64::from(sender) * u64::from(T::partial_bytes(cta.config))
}

/// Address of this thread's first vector of the partial sums of CTA `sender`.
#[inline(always)]
pub fn vectors<T: Target, L: WorkList>(cta: &Cta<'_, T, L>, sender: u32) -> u64 {
    // Pinned, so that it takes no register during the main loop.
    let offset = marker::pin(T::vector() * VECTOR_BYTES);
    partials(cta, sender) + u64::from(offset)
}

/// Address of flag number `index`.
#[inline(always)]
pub fn flag<T: Target, L: WorkList>(cta: &Cta<'_, T, L>, index: u32) -> u64 {
    cta.head().flags + u64::from(index) * FLAG_BYTES
}

/// Sends vector `index` of the thread's.
///
/// # Safety
/// `to` is the address of the thread's [vectors], which has room for it; the preceding kernels of the
/// stream have ended.
#[inline(always)]
pub unsafe fn send<T: Target>(to: u64, index: u32, vector: [f32; VECTOR]) {
    let to = to + u64::from(index * T::THREADS * VECTOR_BYTES);
    // SAFETY: the caller's.
    unsafe { memory::st_global_v4_b32(to, vector.map(f32::to_bits)) };
}

/// Loads vector `index` of the thread's.
///
/// # Safety
/// `from` is the address of the thread's [vectors] of a contributor, for which the thread has waited.
#[inline(always)]
pub unsafe fn load<T: Target>(from: u64, index: u32) -> [u32; VECTOR] {
    let from = from + u64::from(index * T::THREADS * VECTOR_BYTES);
    // SAFETY: the vector is written, and aligned to its size.
    unsafe { scoped::ld_relaxed_gpu_global_v4_b32(from) }
}

/// Sends vector `index` of the thread's so that it shows by itself that it is there: no word of it is zero. -0 is in the
/// place of +0, which adds the same to every sum but -0; and no sum that begins with +0 is -0.
///
/// # Safety
/// As [`send`]; the owner [takes](Contributors::take) it.
#[inline(always)]
pub unsafe fn send_marked<T: Target>(to: u64, index: u32, vector: [f32; VECTOR]) {
    let to = to + u64::from(index * T::THREADS * VECTOR_BYTES);
    let marked = vector.map(|sum| match sum.to_bits() {
        0 => (-0.0f32).to_bits(),
        bits => bits,
    });
    // SAFETY: the caller's.
    unsafe { scoped::st_relaxed_gpu_global_v4_b32(to, marked) };
}

/// The contributors to a tile that this CTA owns: the CTAs of the runs from `first` up to `end`, its own
/// run.
#[derive(Clone, Copy)]
pub struct Contributors {
    /// The first contributor's run.
    pub first: u32,
    /// The owner's run.
    pub end: u32,
}

impl Contributors {
    /// The contributors from run `first` on.
    #[inline(always)]
    pub fn from<T: Target, L>(cta: &Cta<'_, T, L>, first: u32) -> Self {
        Self { first, end: T::run_index(cta.config) }
    }

    /// Waits for the flags of the contributors. Lane i polls contributor i's flag and, as its only reader,
    /// resets it. `flag` is the address of the flag of a contributor, by its run.
    ///
    /// # Safety
    /// Called once for each tile by each lane of a warp, which meets behind it.
    #[inline(always)]
    pub unsafe fn wait(self, lane: u32, flag: impl Fn(u32) -> u64) {
        let mut contributor = self.first + lane;
        while contributor < self.end {
            // SAFETY: the contributor's flag, for which no other thread waits.
            unsafe { flags::wait_for(flag(contributor)) };
            contributor += warp::LANES;
        }
    }

    /// Adds `count` vectors, from vector `first` on, of each contributor; those of as many contributors as
    /// have `BATCH` vectors are in flight at a time. `add` is called with a vector and its number.
    ///
    /// # Safety
    /// The thread has waited for the contributors, which have sent these vectors.
    #[inline(always)]
    pub unsafe fn add<T: Target, L: WorkList, const BATCH: usize>(
        self,
        cta: &Cta<'_, T, L>,
        [first, count]: [usize; 2],
        mut add: impl FnMut(usize, [u32; VECTOR]),
    ) {
        let together = BATCH / count;
        let mut contributor = self.first;
        while contributor < self.end {
            let mut parts = [[0; VECTOR]; BATCH];
            for g in 0..together {
                let run = contributor + g as u32;
                if run < self.end {
                    let from = vectors(cta, T::cta_of(cta, run));
                    for i in 0..count {
                        // SAFETY: the caller's.
                        parts[g * count + i] = unsafe { load::<T>(from, (first + i) as u32) };
                    }
                }
            }
            for g in 0..together {
                if contributor + (g as u32) < self.end {
                    for i in 0..count {
                        add(i, parts[g * count + i]);
                    }
                }
            }
            // Not unrolled: code that runs once per tile should be small.
            contributor = marker::pin(contributor + together as u32);
        }
    }
    /// Waits for the `count` vectors of each contributor that [`send_marked`] sends, and calls `add` with each and its
    /// number; those of as many contributors as have `BATCH` vectors are in flight at a time. The vectors' places are
    /// zero afterwards.
    ///
    /// # Safety
    /// All lanes of a warp call this, converged, once for each tile; the contributors send these vectors, which no other
    /// thread takes.
    #[inline(always)]
    pub unsafe fn take<T: Target, L: WorkList, const BATCH: usize>(
        self,
        cta: &Cta<'_, T, L>,
        count: usize,
        mut add: impl FnMut(usize, [u32; VECTOR]),
    ) {
        let together = BATCH / count;
        let mut contributor = self.first;
        while contributor < self.end {
            let mut parts = [[!0; VECTOR]; BATCH];
            let mut polls = Polls::NONE;
            loop {
                let mut least = !0;
                for g in 0..together {
                    let run = contributor + g as u32;
                    if run < self.end {
                        let from = vectors(cta, T::cta_of(cta, run));
                        for i in 0..count {
                            // SAFETY: the caller's.
                            parts[g * count + i] = unsafe { load::<T>(from, i as u32) };
                        }
                    }
                }
                for i in 0..together * count {
                    for j in 0..VECTOR {
                        least = parts[i][j].min(least);
                    }
                }
                // All lanes as one, so that the warp stays converged.
                // SAFETY: all lanes are here.
                if unsafe { warp::max_u32(u32::from(least == 0)) } == 0 {
                    break;
                }
                polls.count();
            }
            for g in 0..together {
                let run = contributor + g as u32;
                if run < self.end {
                    let from = vectors(cta, T::cta_of(cta, run));
                    for i in 0..count {
                        let at = from + u64::from(i as u32 * T::THREADS * VECTOR_BYTES);
                        // SAFETY: this thread alone has taken the vector.
                        unsafe { scoped::st_relaxed_gpu_global_v4_b32(at, [0; VECTOR]) };
                        add(i, parts[g * count + i]);
                    }
                }
            }
            // Not unrolled: code that runs once per tile should be small.
            contributor = marker::pin(contributor + together as u32);
        }
    }
}
