//! The stream-K fix-up: see [`fix_up`] for its protocol. A contributor sends its partial sums of a tile before
//! it computes anything else, as a rule long before the owner needs them.

use cuda_std::{thread, warp};

use crate::gemm::cta::Cta;
use crate::gemm::fix_up::{self, Contributors};
use crate::gemm::flags;
use crate::gemm::warps::{Sums, Warps};
use crate::gemm::work::WorkList;

/// Vectors that a thread has in flight.
const BATCH: usize = 8;

/// Sends this CTA's partial sums of a tile: those of the threads that `takes_part` is true for.
///
/// # Safety
/// All threads of the CTA call this, converged.
#[inline(always)]
pub unsafe fn send<T: Warps, L: WorkList, const ROWS: usize, const TOKENS: usize>(
    own: &Cta<'_, T, L>,
    sums: &Sums<ROWS, TOKENS>,
    takes_part: bool,
) {
    let cta = thread::block_idx_x();
    let to = fix_up::vectors(own, cta);
    if takes_part {
        for m in 0..ROWS {
            for n in 0..TOKENS {
                // SAFETY: inside the CTA's partial sums.
                unsafe { fix_up::send::<T>(to, (m * TOKENS + n) as u32, sums[m][n]) };
            }
        }
    }
    // SAFETY: all threads are here; the flag is this CTA's.
    unsafe {
        warp::sync();
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            flags::raise(fix_up::flag(own, cta));
        }
    }
}

/// Adds the partial sums of the contributors, the CTAs of the runs from `first` up to this one's, in this
/// order: those of the threads that `takes_part` is true for, as there.
///
/// # Safety
/// As [`send`]; each of those CTAs sends its partial sums.
#[inline(always)]
pub unsafe fn add_partials<T: Warps, L: WorkList, const ROWS: usize, const TOKENS: usize>(
    own: &Cta<'_, T, L>,
    first: u32,
    sums: &mut Sums<ROWS, TOKENS>,
    takes_part: bool,
) {
    let contributors = Contributors::from(own, first);
    // SAFETY: the first warp waits, and converges again; all threads are here.
    unsafe {
        if thread::thread_idx_x() < warp::LANES {
            contributors.wait(thread::thread_idx_x(), |run| fix_up::flag(own, run));
        }
        warp::sync();
        thread::sync_threads();
    }
    if !takes_part {
        return;
    }
    let vectors = const { ROWS * TOKENS };
    let batch = if vectors < BATCH { vectors } else { BATCH };
    for first in (0..vectors).step_by(batch) {
        // SAFETY: the contributors have sent all their vectors.
        unsafe {
            contributors.add::<_, _, BATCH>(own, [first, batch], |i, vector| {
                let (m, n) = ((first + i) / TOKENS, (first + i) % TOKENS);
                for j in 0..vector.len() {
                    sums[m][n][j] += f32::from_bits(vector[j]);
                }
            });
        }
    }
}
