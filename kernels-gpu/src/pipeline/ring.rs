//! A ring of buffers between a producer and its consumers, with two mbarriers per stage.
//!
//! | barrier | arrive | wait | meaning of a completed phase |
//! |---|---|---|---|
//! | `full[stage]` | producer (or its copies' bytes) | consumers | the stage holds data |
//! | `empty[stage]` | consumers | producer | the stage may be overwritten |
//!
//! ```text
//!            full[0]      full[1]      full[2]
//! producer --> stage 0 --> stage 1 --> stage 2 --> stage 0 ...  --> consumers
//!            empty[0]     empty[1]     empty[2]
//! ```
//!
//! Each role visits the stages in order, with its own [`Cursor`]. Every barrier completes one phase
//! per round, so a role waits for the barrier of its stage with the parity of its round. Consumers
//! start with parity 0, because no stage is full yet. The producer starts with parity 1, for which
//! a new barrier does not block, because all stages are empty.

use cuda_std::ptx::{marker, mbarrier};

/// Bytes of an mbarrier.
pub const MBARRIER_BYTES: u32 = 8;

/// The barriers of a ring of buffers: first the full barriers, then the empty barriers. The number
/// of buffers is a constant of a kernel's configuration; it stays one when all is inlined.
#[derive(Clone, Copy)]
pub struct Ring {
    /// Shared address of the first barrier.
    base: u32,
    /// Buffers.
    stages: u32,
}

impl Ring {
    /// Bytes of shared memory that the barriers of `stages` buffers occupy.
    pub const fn bytes(stages: u32) -> u32 {
        2 * stages * MBARRIER_BYTES
    }

    /// The ring of `stages` buffers whose barriers are at the shared address `base`.
    #[inline(always)]
    pub fn at(base: u32, stages: u32) -> Self {
        Self { base, stages }
    }

    /// The start of a producer: all stages are empty.
    #[inline(always)]
    pub fn producer(&self) -> Cursor {
        Cursor { stage: 0, parity: 1, stages: self.stages }
    }

    /// The start of a consumer: no stage is full.
    #[inline(always)]
    pub fn consumer(&self) -> Cursor {
        Cursor { stage: 0, parity: 0, stages: self.stages }
    }

    /// Returns the position of a consumer that waits for the stage before `producer`'s.
    #[inline(always)]
    pub fn filled(&self, producer: &Cursor) -> Cursor {
        let Cursor { stage, parity, stages } = *producer;
        if stage == 0 {
            Cursor { stage: stages - 1, parity, stages }
        } else {
            Cursor { stage: stage - 1, parity: parity ^ 1, stages }
        }
    }

    /// Address of the barrier whose completed phase means that `stage` holds data.
    #[inline(always)]
    pub fn full(&self, stage: u32) -> u32 {
        self.base + stage * MBARRIER_BYTES
    }

    /// Address of the barrier whose completed phase means that `stage` may be overwritten.
    #[inline(always)]
    pub fn empty(&self, stage: u32) -> u32 {
        self.base + (self.stages + stage) * MBARRIER_BYTES
    }

    /// Initialises the barriers. One thread calls it; then it executes
    /// `fence_mbarrier_init_release_cluster`, and all users a barrier of the CTA or of the cluster.
    ///
    /// # Safety
    /// The bytes ([`Self::bytes`]) at `base` are shared memory of the CTA, 8-byte aligned, and hold no
    /// live mbarriers.
    #[inline(always)]
    pub unsafe fn init(&self, full_arrivals: u32, empty_arrivals: u32) {
        let mut stage = 0;
        while stage < self.stages {
            // SAFETY: the caller guarantees the memory of all barriers of the ring.
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
    /// The barriers are initialised, and the calling thread has passed the barrier after that.
    #[inline(always)]
    pub unsafe fn wait_full(&self, cursor: &Cursor) {
        // SAFETY: the caller guarantees that the barriers are initialised; its cursor is at most one
        // phase ahead.
        unsafe { mbarrier::wait_parity(self.full(cursor.stage), cursor.parity) }
    }

    /// Consumer: whether the stage at `cursor` holds data. It may wait a little for it.
    ///
    /// # Safety
    /// As [`wait_full`](Self::wait_full).
    #[inline(always)]
    pub unsafe fn is_full(&self, cursor: &Cursor) -> bool {
        let full = self.full(cursor.stage);
        // SAFETY: the caller's.
        unsafe { mbarrier::mbarrier_try_wait_parity_shared_cta_b64(full, cursor.parity) }
    }

    /// Producer: waits until the stage at `cursor` may be overwritten.
    ///
    /// # Safety
    /// The barriers are initialised, and the calling thread has passed the barrier after that.
    #[inline(always)]
    pub unsafe fn wait_empty(&self, cursor: &Cursor) {
        // SAFETY: the caller guarantees that the barriers are initialised; its cursor is at most one
        // phase ahead.
        unsafe { mbarrier::wait_parity(self.empty(cursor.stage), cursor.parity) }
    }

    /// Waits as [`wait_full`](Self::wait_full) does, for a stage that threads of other CTAs of the
    /// cluster write. The acquire with cluster scope invalidates the L1 cache, so it is too slow
    /// for every K step. Copies and commits, including those of other CTAs, need only the scope of
    /// the CTA.
    ///
    /// # Safety
    /// The barriers are initialised, and the calling thread has passed the barrier after that.
    #[inline(always)]
    pub unsafe fn wait_full_cluster(&self, cursor: &Cursor) {
        // SAFETY: the caller guarantees that the barriers are initialised; its cursor is at most one
        // phase ahead.
        unsafe { mbarrier::wait_parity_cluster(self.full(cursor.stage), cursor.parity) }
    }

    /// Waits as [`wait_empty`](Self::wait_empty) does, for a stage that threads of other CTAs of
    /// the cluster read.
    ///
    /// # Safety
    /// The barriers are initialised, and the calling thread has passed the barrier after that.
    #[inline(always)]
    pub unsafe fn wait_empty_cluster(&self, cursor: &Cursor) {
        // SAFETY: the caller guarantees that the barriers are initialised; its cursor is at most one
        // phase ahead.
        unsafe { mbarrier::wait_parity_cluster(self.empty(cursor.stage), cursor.parity) }
    }

    /// Producer: waits until all stages may be overwritten, starting at `cursor`, its next stage.
    ///
    /// # Safety
    /// The barriers are initialised, and the calling thread has passed the barrier after that.
    #[inline(always)]
    pub unsafe fn wait_all_empty(&self, cursor: &mut Cursor) {
        let mut waited = 0;
        while waited < self.stages {
            // SAFETY: the caller guarantees that the barriers are initialised.
            unsafe { self.wait_empty(cursor) };
            cursor.advance();
            // `pin` prevents unrolling, because this code runs once and should be small.
            waited = marker::pin(waited + 1);
        }
    }

    /// Producer: adds `bytes` to the bytes that the stage's full barrier expects, and arrives once.
    ///
    /// # Safety
    /// The barriers are initialised, and the calling thread has waited for the stage to be empty.
    #[inline(always)]
    pub unsafe fn expect_bytes(&self, stage: u32, bytes: u32) {
        // SAFETY: the caller guarantees that the barrier is initialised and expects this arrival.
        unsafe {
            mbarrier::mbarrier_arrive_expect_tx_shared_cta_b64(self.full(stage), bytes);
        }
    }

    /// Producer that writes with ordinary stores: arrives once at the full barrier.
    ///
    /// # Safety
    /// The barriers are initialised, and the calling thread has waited for the stage to be empty.
    #[inline(always)]
    pub unsafe fn arrive_full(&self, cursor: &Cursor) {
        // SAFETY: the caller guarantees that the barrier is initialised and expects this arrival.
        unsafe { mbarrier::mbarrier_arrive_shared_cta_b64(self.full(cursor.stage)) }
    }

    /// Consumer: arrives once at the stage's empty barrier.
    ///
    /// # Safety
    /// The barriers are initialised, and the calling thread has waited for the stage to be full and
    /// does not read it again.
    #[inline(always)]
    pub unsafe fn arrive_empty(&self, cursor: &Cursor) {
        // SAFETY: the caller guarantees that the barrier is initialised and expects this arrival.
        unsafe { mbarrier::mbarrier_arrive_shared_cta_b64(self.empty(cursor.stage)) }
    }
}

/// A role's position in a ring: the stage, and the parity for which it waits there.
#[derive(Clone, Copy)]
pub struct Cursor {
    /// Index of the stage.
    pub stage: u32,
    /// Parity of the phase whose completion ends the wait.
    pub parity: u32,
    /// Stages of the ring.
    stages: u32,
}

impl Cursor {
    /// Moves to the next stage; after the last stage, to the first with the other parity.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.stage += 1;
        if self.stage == self.stages {
            self.stage = 0;
            self.parity ^= 1;
        }
    }
}
