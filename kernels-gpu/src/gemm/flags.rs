//! Flags in global memory by which the CTAs of a launch signal that partial sums are there. They are
//! zero before a launch and after it: the only reader of a flag resets it after its wait.

use cuda_std::ptx::{control, marker, memory, scoped};

/// Bytes of a flag.
pub const FLAG_BYTES: u64 = size_of::<u32>() as u64;

/// Polls of a flag after which the launch ends with an error. On an H200 these take 33 seconds, and
/// no product takes as long.
const MOST_POLLS: u32 = 1 << 26;

/// Raises the flag at this address. Everything that the thread has written, and has observed, is
/// visible to the thread that waits for the flag.
///
/// # Safety
/// It is the address of a flag that no other thread raises.
#[inline(always)]
pub unsafe fn raise(flag: u64) {
    // SAFETY: the caller's promise.
    unsafe { scoped::st_release_gpu_global_b32(flag, 1) };
}

/// Waits until the flag at this address is raised, and resets it. A flag that is never raised (another
/// stream changed the token counts during the launch, so that CTAs disagree about the work) ends the
/// launch with an error in place of a GPU that hangs.
///
/// # Safety
/// It is the address of a flag for which no other thread waits.
#[inline(always)]
pub unsafe fn wait_for(flag: u64) {
    let mut polls = 0;
    // SAFETY: the caller's promise.
    while unsafe { scoped::ld_acquire_gpu_global_b32(flag) } == 0 {
        // Pinned, so that the loop is not unrolled.
        polls = marker::pin(polls + 1);
        if polls == MOST_POLLS {
            control::trap();
        }
    }
    // SAFETY: as above; it is not raised again in this launch.
    unsafe { memory::st_global_b32(flag, 0) };
}
