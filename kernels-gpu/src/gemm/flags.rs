//! Flags in global memory by which the CTAs of a launch signal that partial sums are there. They are
//! zero before a launch and after it: the only reader of a flag resets it after its wait.

use cuda_std::ptx::{control, marker, memory, scoped};

/// Bytes of a flag.
pub const FLAG_BYTES: u64 = size_of::<u32>() as u64;

/// Polls of a flag after which the launch ends with an error. On an H200 these take 33 seconds, and
/// no product takes as long.
const MOST_POLLS: u32 = 1 << 26;

/// A count of polls, which ends the launch with an error if there are too many.
pub struct Polls(u32);

impl Polls {
    /// Counts none.
    pub const NONE: Self = Self(0);

    /// Counts one.
    #[inline(always)]
    pub fn count(&mut self) {
        // Pinned, so that the loop around it is not unrolled.
        self.0 = marker::pin(self.0 + 1);
        if self.0 == MOST_POLLS {
            control::trap();
        }
    }
}

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
    let mut polls = Polls::NONE;
    // SAFETY: the caller's promise.
    while unsafe { scoped::ld_acquire_gpu_global_b32(flag) } == 0 {
        polls.count();
    }
    // SAFETY: as above; it is not raised again in this launch.
    unsafe { memory::st_global_b32(flag, 0) };
}
