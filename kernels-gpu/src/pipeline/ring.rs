//! A ring of buffers between a producer and its consumers, guarded by two
//! mbarriers a stage.
//!
//! | barrier | arrives | waits | says |
//! |---|---|---|---|
//! | `full[stage]` | producer (or its copies' bytes) | consumers | the stage holds data |
//! | `empty[stage]` | consumers | producer | the stage may be overwritten |
//!
//! Each role walks the stages with a [`Cursor`] of its own. A barrier's phase
//! flips each time round the ring, so what a role waits for is the stage's
//! barrier and the parity of the round: consumers begin with parity 0 (nothing is
//! full yet), the producer with parity 1, which a fresh barrier passes at once
//! (everything is empty).

use cuda_std::ptx::{marker, mbarrier};

/// Bytes of an mbarrier.
pub const MBARRIER_BYTES: u32 = 8;

/// The barriers of a ring of `STAGES` buffers: `STAGES` full ones, then as many
/// empty ones.
#[derive(Clone, Copy)]
pub struct Ring<const STAGES: u32> {
    /// Shared address of the first barrier.
    base: u32,
}

impl<const STAGES: u32> Ring<STAGES> {
    /// Shared memory that the barriers take.
    pub const BYTES: u32 = 2 * STAGES * MBARRIER_BYTES;

    /// The ring whose barriers are at the shared address `base`.
    #[inline(always)]
    pub fn at(base: u32) -> Self {
        Self { base }
    }

    /// The barrier that says that `stage` holds data.
    #[inline(always)]
    pub fn full(&self, stage: u32) -> u32 {
        self.base + stage * MBARRIER_BYTES
    }

    /// The barrier that says that `stage` may be overwritten.
    #[inline(always)]
    pub fn empty(&self, stage: u32) -> u32 {
        self.base + (STAGES + stage) * MBARRIER_BYTES
    }

    /// Initialises the barriers. One thread; a fence and a barrier of all users
    /// follow (`fence_mbarrier_init_release_cluster`, then the CTA's or the
    /// cluster's barrier).
    ///
    /// # Safety
    /// `Self::BYTES` bytes at `base` are the CTA's and hold no live mbarriers.
    #[inline(always)]
    pub unsafe fn init(&self, full_arrivals: u32, empty_arrivals: u32) {
        let mut stage = 0;
        while stage < STAGES {
            // SAFETY: the caller's.
            unsafe {
                mbarrier::mbarrier_init_shared_cta_b64(self.full(stage), full_arrivals);
                mbarrier::mbarrier_init_shared_cta_b64(self.empty(stage), empty_arrivals);
            }
            stage += 1;
        }
    }

    /// Consumer: waits until the stage at `cursor` holds data.
    ///
    /// # Safety
    /// The barriers are initialised and known to the caller.
    #[inline(always)]
    pub unsafe fn wait_full(&self, cursor: &Cursor<STAGES>) {
        // SAFETY: the caller's.
        unsafe { mbarrier::wait_parity(self.full(cursor.stage), cursor.parity) }
    }

    /// Producer: waits until the stage at `cursor` may be overwritten.
    ///
    /// # Safety
    /// The barriers are initialised and known to the caller.
    #[inline(always)]
    pub unsafe fn wait_empty(&self, cursor: &Cursor<STAGES>) {
        // SAFETY: the caller's.
        unsafe { mbarrier::wait_parity(self.empty(cursor.stage), cursor.parity) }
    }

    /// [`wait_full`](Self::wait_full) where threads of other CTAs of the cluster arrive.
    /// The L1 cache is emptied each time, so this is not for every K step: completed copies
    /// and commits, also those of other CTAs, are waited for as the CTA's own.
    ///
    /// # Safety
    /// As [`wait_full`](Self::wait_full).
    #[inline(always)]
    pub unsafe fn wait_full_cluster(&self, cursor: &Cursor<STAGES>) {
        // SAFETY: the caller's.
        unsafe { mbarrier::wait_parity_cluster(self.full(cursor.stage), cursor.parity) }
    }

    /// [`wait_empty`](Self::wait_empty) where threads of other CTAs of the cluster arrive.
    ///
    /// # Safety
    /// As [`wait_empty`](Self::wait_empty).
    #[inline(always)]
    pub unsafe fn wait_empty_cluster(&self, cursor: &Cursor<STAGES>) {
        // SAFETY: the caller's.
        unsafe { mbarrier::wait_parity_cluster(self.empty(cursor.stage), cursor.parity) }
    }

    /// Producer: waits until all stages may be overwritten, from `cursor`, its next, on.
    ///
    /// # Safety
    /// The barriers are initialised and known to the caller.
    #[inline(always)]
    pub unsafe fn wait_all_empty(&self, cursor: &mut Cursor<STAGES>) {
        let mut waited = 0;
        while waited < STAGES {
            // SAFETY: the caller's.
            unsafe { self.wait_empty(cursor) };
            cursor.advance();
            // Not unrolled: code that runs once should be small.
            waited = marker::pin(waited + 1);
        }
    }

    /// Producer: one arrival at the stage's full barrier, which then also waits
    /// for `bytes` bytes of copies.
    ///
    /// # Safety
    /// The caller waited for the stage to be empty.
    #[inline(always)]
    pub unsafe fn expect_bytes(&self, cursor: &Cursor<STAGES>, bytes: u32) {
        // SAFETY: the caller's.
        unsafe {
            mbarrier::mbarrier_arrive_expect_tx_shared_cta_b64(self.full(cursor.stage), bytes);
        }
    }

    /// Producer that writes with ordinary stores: one arrival at the full barrier.
    ///
    /// # Safety
    /// The caller waited for the stage to be empty.
    #[inline(always)]
    pub unsafe fn arrive_full(&self, cursor: &Cursor<STAGES>) {
        // SAFETY: the caller's.
        unsafe { mbarrier::mbarrier_arrive_shared_cta_b64(self.full(cursor.stage)) }
    }

    /// Consumer: one arrival at the stage's empty barrier.
    ///
    /// # Safety
    /// The caller waited for the stage to be full and reads it no more.
    #[inline(always)]
    pub unsafe fn arrive_empty(&self, cursor: &Cursor<STAGES>) {
        // SAFETY: the caller's.
        unsafe { mbarrier::mbarrier_arrive_shared_cta_b64(self.empty(cursor.stage)) }
    }
}

/// A role's place in a ring: the stage, and the parity that it waits for there.
#[derive(Clone, Copy)]
pub struct Cursor<const STAGES: u32> {
    /// Index of the stage.
    pub stage: u32,
    /// Parity of the phase that ends the next wait there.
    pub parity: u32,
}

impl<const STAGES: u32> Cursor<STAGES> {
    /// Where a producer begins: all stages are empty.
    #[inline(always)]
    pub fn producer() -> Self {
        Self { stage: 0, parity: 1 }
    }

    /// Where a consumer begins: no stage is full.
    #[inline(always)]
    pub fn consumer() -> Self {
        Self { stage: 0, parity: 0 }
    }

    /// The next stage; past the last one the first, with the other parity.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.stage += 1;
        if self.stage == STAGES {
            self.stage = 0;
            self.parity ^= 1;
        }
    }
}
