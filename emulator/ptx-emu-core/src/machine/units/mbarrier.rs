//! The mbarrier object: PTX ISA 9.7.13.15.
//!
//! A phase completes when no arrival is pending and the tx-count is 0; the next
//! one begins with the expected number of arrivals. The object's 64 bits in
//! shared memory are the emulator's own: bits 0-19 pending arrivals, 20-39
//! expected arrivals, 40-60 tx-count (two's complement), 61 parity of the
//! phase, 62-63 the constant 2. Operations compare them with the state kept
//! here, so a store over an object is noticed at its next use. A state token is
//! the phase (low 32 bits) and the arrivals that were pending (high 32 bits).
//!
//! Limits: arrivals are visible at once, even remote ones; memory ordering by scope and semantics
//! is not modelled.

use crate::diagnostic::{AsyncFault, DiagnosticKind, MbarrierFault};
use crate::machine::RANK_SHIFT;
use crate::memory::Plain;
use std::collections::BTreeMap;

/// Largest count of arrivals, and magnitude of the tx-count.
pub(crate) const MAX_COUNT: u32 = (1 << 20) - 1;
/// Size and alignment of an object, bytes.
pub(crate) const BYTES: usize = 8;

/// A place in shared memory: CTA rank and offset in its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At {
    pub(crate) rank: u32,
    pub(crate) offset: u32,
}

impl At {
    /// The `shared::cluster` address.
    pub(crate) fn address(self) -> u32 {
        self.rank << RANK_SHIFT | self.offset
    }
}

/// Variants of an arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// `arrive_drop`: later phases expect fewer arrivals.
    pub(crate) drop: bool,
    /// `.noComplete`: must not complete the phase.
    pub(crate) no_complete: bool,
}

/// The phase that a test asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// Whether the phase of this parity is over.
    Parity(bool),
    /// Whether the phase of this state token is over.
    Token(u64),
}

#[derive(Debug, Clone, Copy)]
struct Object {
    pending: u32,
    expected: u32,
    tx: i32,
    phase: u64,
}

impl Object {
    fn word(&self) -> u64 {
        u64::from(self.pending)
            | u64::from(self.expected) << 20
            | (self.tx as u64 & 0x1f_ffff) << 40
            | (self.phase & 1) << 61
            | 2 << 62
    }
}

/// All mbarrier objects of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Mbarriers {
    objects: BTreeMap<At, Object>,
    completed: u64,
}

fn store(shared: &mut Plain, at: At, word: u64) {
    shared.store(at.offset as usize, BYTES, &[word, 0, 0, 0]);
}

fn fault(at: At, fault: MbarrierFault) -> DiagnosticKind {
    DiagnosticKind::Async(AsyncFault::Mbarrier { address: at.address(), fault })
}

/// Result of an operation on an object.
pub(crate) type Checked<T = ()> = Result<T, DiagnosticKind>;

impl Mbarriers {
    pub(crate) fn reset(&mut self) {
        self.objects.clear();
        self.completed = 0;
    }

    /// Phases completed so far, over all objects.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// Number of the phase an object is in.
    pub(crate) fn phase(&self, at: At) -> Option<u64> {
        self.objects.get(&at).map(|object| object.phase)
    }

    /// The object, which must be there and untouched.
    fn object(&mut self, shared: &Plain, at: At) -> Checked<&mut Object> {
        let Some(object) = self.objects.get_mut(&at) else {
            return Err(fault(at, MbarrierFault::NotInitialised));
        };
        let actual = shared.load(at.offset as usize, BYTES)[0];
        if actual != object.word() {
            return Err(fault(at, MbarrierFault::Overwritten { actual }));
        }
        Ok(object)
    }

    /// `mbarrier.init`
    /// `again`: although it is in use.
    pub(crate) fn init(&mut self, shared: &mut Plain, at: At, count: u32, again: bool) -> Checked {
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(fault(at, MbarrierFault::Count { count }));
        }
        // Initialising an object that is fresh is harmless: a whole warp may do
        // it. One in use must be invalidated first.
        if !again
            && let Ok(object) = self.object(shared, at)
            && (object.phase != 0 || object.pending != object.expected || object.tx != 0)
        {
            return Err(fault(at, MbarrierFault::InUse));
        }
        let object = Object { pending: count, expected: count, tx: 0, phase: 0 };
        store(shared, at, object.word());
        self.objects.insert(at, object);
        Ok(())
    }

    /// `mbarrier.inval`
    pub(crate) fn inval(&mut self, shared: &mut Plain, at: At) -> Checked {
        self.object(shared, at)?;
        self.objects.remove(&at);
        store(shared, at, 0);
        Ok(())
    }

    /// `mbarrier.expect_tx`
    pub(crate) fn expect_tx(&mut self, shared: &mut Plain, at: At, bytes: u32) -> Checked {
        self.add_tx(shared, at, i64::from(bytes))
    }

    /// `mbarrier.complete_tx`
    pub(crate) fn complete_tx(&mut self, shared: &mut Plain, at: At, bytes: i64) -> Checked {
        self.add_tx(shared, at, -bytes)
    }

    fn add_tx(&mut self, shared: &mut Plain, at: At, change: i64) -> Checked {
        let object = self.object(shared, at)?;
        let tx = i64::from(object.tx) + change;
        if tx.unsigned_abs() > u64::from(MAX_COUNT) {
            return Err(fault(at, MbarrierFault::Transactions { tx }));
        }
        object.tx = tx as i32;
        self.settle(shared, at)
    }

    /// `mbarrier.arrive`: returns the state token.
    pub(crate) fn arrive(
        &mut self,
        shared: &mut Plain,
        at: At,
        count: u32,
        arrival: Arrival,
    ) -> Checked<u64> {
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(fault(at, MbarrierFault::Count { count }));
        }
        let object = self.object(shared, at)?;
        let token = object.phase & 0xffff_ffff | u64::from(object.pending) << 32;
        if count > object.pending {
            let pending = object.pending;
            return Err(fault(at, MbarrierFault::OverArrival { pending, count }));
        }
        if arrival.no_complete && count == object.pending {
            return Err(fault(at, MbarrierFault::Completes { count }));
        }
        object.pending -= count;
        if arrival.drop {
            object.expected -= count;
        }
        self.settle(shared, at)?;
        Ok(token)
    }

    /// More arrivals are pending: `cp.async.mbarrier.arrive` without `.noinc`.
    pub(crate) fn add_pending(&mut self, shared: &mut Plain, at: At, count: u32) -> Checked {
        let object = self.object(shared, at)?;
        if object.pending + count > MAX_COUNT {
            let count = object.pending + count;
            return Err(fault(at, MbarrierFault::Count { count }));
        }
        object.pending += count;
        self.settle(shared, at)
    }

    /// Completes the phase if it is complete, and stores the object.
    fn settle(&mut self, shared: &mut Plain, at: At) -> Checked {
        let Some(object) = self.objects.get_mut(&at) else {
            return Err(fault(at, MbarrierFault::NotInitialised));
        };
        if object.pending == 0 && object.tx == 0 {
            object.phase += 1;
            object.pending = object.expected;
            self.completed += 1;
        }
        store(shared, at, object.word());
        Ok(())
    }

    /// `mbarrier.test_wait`: whether the phase is over, and the number of the
    /// phase that is asked about when it is not.
    pub(crate) fn test(
        &mut self,
        shared: &Plain,
        at: At,
        question: Question,
    ) -> Checked<Result<(), u64>> {
        let object = self.object(shared, at)?;
        let now = object.phase;
        let over = match question {
            Question::Parity(parity) => (now & 1 != 0) != parity,
            Question::Token(token) => {
                let age = (now as u32).wrapping_sub(token as u32);
                if age > 1 {
                    let asked = token as u32;
                    return Err(fault(at, MbarrierFault::StalePhase { asked, now: now as u32 }));
                }
                age == 1
            }
        };
        Ok(if over { Ok(()) } else { Err(now) })
    }

    /// Describes the wait of an object, for a deadlock report.
    pub(crate) fn describe(&self, at: At, phase: u64) -> String {
        let address = at.address();
        match self.objects.get(&at) {
            None => format!("phase {phase} of mbarrier {address:#x}, which is no longer there"),
            Some(object) => {
                let bytes = match object.tx {
                    tx if tx < 0 => format!("{} bytes more than expected", -tx),
                    tx => format!("{tx} bytes missing"),
                };
                format!(
                    "phase {phase} (parity {}) of mbarrier {address:#x} ({} of {} arrivals pending, {bytes})",
                    phase & 1,
                    object.pending,
                    object.expected
                )
            }
        }
    }

    /// A waiter that slept through the phase behind the one it waits for.
    pub(crate) fn check_slept(&self, at: At, phase: u64) -> Checked {
        match self.phase(at) {
            Some(now) if now > phase + 1 => {
                Err(fault(at, MbarrierFault::MissedPhase { waited: phase, now }))
            }
            _ => Ok(()),
        }
    }
}
