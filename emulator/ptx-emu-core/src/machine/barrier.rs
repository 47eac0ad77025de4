//! The sixteen barriers of a CTA (PTX ISA 9.7.13.1, `bar` and `barrier`).
//!
//! A barrier completes when the expected number of threads has arrived: the
//! number given, or every thread of the CTA that has not exited. Completion
//! starts a new generation, for which waiting fragments check.

use crate::diagnostic::DiagnosticKind;
use std::collections::BTreeMap;

/// Number of barriers of a CTA.
pub(crate) const COUNT: usize = 16;

/// Operator of `bar.red`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// `.popc`
    Count,
    /// `.and`
    And,
    /// `.or`
    Or,
}

#[derive(Debug, Clone, Default)]
struct Barrier {
    /// Threads arrived in this generation.
    arrived: u32,
    /// Threads given by the first arrival; `None` for the whole CTA.
    expected: Option<u32>,
    open: bool,
    generation: u64,
    reduction: Option<Reduction>,
    trues: u32,
    /// Threads whose predicate was counted.
    voters: u32,
}

/// All barriers of a CTA.
#[derive(Debug, Clone, Default)]
pub(crate) struct Barriers {
    barriers: [Barrier; COUNT],
    /// Threads of the CTA that have not exited.
    live: u32,
    /// Results of reductions and how many threads have yet to fetch them.
    results: BTreeMap<(u8, u64), (u32, u32)>,
}

/// One arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) id: u32,
    /// Number of threads the barrier is for; `None` for the whole CTA.
    pub(crate) expected: Option<u32>,
    /// Threads that arrive.
    pub(crate) threads: u32,
    /// Reduction and the number of arriving threads whose predicate is true.
    pub(crate) reduction: Option<(Reduction, u32)>,
}

impl Barriers {
    pub(crate) fn new(threads: u32) -> Self {
        Self { live: threads, ..Self::default() }
    }

    /// Generation a barrier is in.
    pub(crate) fn generation(&self, id: u8) -> u64 {
        self.barriers[usize::from(id)].generation
    }

    /// Generations that ended, over all barriers.
    pub(crate) fn completions(&self) -> u64 {
        self.barriers.iter().map(|barrier| barrier.generation).sum()
    }

    /// Describes the wait of a barrier, for a deadlock report.
    pub(crate) fn describe(&self, id: u8) -> String {
        let barrier = &self.barriers[usize::from(id)];
        let expected = barrier.expected.unwrap_or(self.live);
        format!("barrier {id} ({} of {expected} threads arrived)", barrier.arrived)
    }

    /// Registers an arrival.
    pub(crate) fn arrive(&mut self, arrival: Arrival) -> Result<(), DiagnosticKind> {
        let Arrival { id, expected, .. } = arrival;
        let mismatch = |required: String, actual: String| DiagnosticKind::BarrierMismatch {
            barrier: id,
            required,
            actual,
        };
        let threads = |count: Option<u32>| match count {
            Some(count) => format!("{count} threads"),
            None => "all threads of the CTA".to_owned(),
        };
        if id as usize >= COUNT {
            return Err(mismatch("a number below 16".into(), id.to_string()));
        }
        if let Some(count) = expected
            && (count == 0 || count % 32 != 0)
        {
            return Err(mismatch(
                "a thread count that is a positive multiple of 32".into(),
                count.to_string(),
            ));
        }
        let live = self.live;
        let barrier = &mut self.barriers[id as usize];
        if barrier.open {
            if barrier.expected != expected {
                return Err(mismatch(
                    format!("{} (the first arrival)", threads(barrier.expected)),
                    threads(expected),
                ));
            }
        } else {
            barrier.open = true;
            barrier.expected = expected;
            barrier.reduction = None;
            barrier.trues = 0;
            barrier.voters = 0;
        }
        if let Some((reduction, trues)) = arrival.reduction {
            if barrier.reduction.is_some_and(|other| other != reduction) {
                return Err(mismatch(
                    format!("reduction {:?}", barrier.reduction),
                    format!("reduction {reduction:?}"),
                ));
            }
            barrier.reduction = Some(reduction);
            barrier.trues += trues;
            barrier.voters += arrival.threads;
        }
        barrier.arrived += arrival.threads;
        let required = expected.unwrap_or(live);
        if barrier.arrived > required {
            return Err(mismatch(
                format!("at most {required} threads"),
                format!("{} threads arrived", barrier.arrived),
            ));
        }
        self.complete(id as usize);
        Ok(())
    }

    /// `count` threads leave the CTA.
    pub(crate) fn exit(&mut self, count: u32) {
        self.live -= count;
        for id in 0..COUNT {
            if self.barriers[id].open && self.barriers[id].expected.is_none() {
                self.complete(id);
            }
        }
    }

    fn complete(&mut self, id: usize) {
        let live = self.live;
        let barrier = &mut self.barriers[id];
        if barrier.arrived == 0 || barrier.arrived < barrier.expected.unwrap_or(live) {
            return;
        }
        if let Some(reduction) = barrier.reduction {
            let result = match reduction {
                Reduction::Count => barrier.trues,
                Reduction::And => u32::from(barrier.trues == barrier.voters),
                Reduction::Or => u32::from(barrier.trues != 0),
            };
            self.results.insert((id as u8, barrier.generation), (result, barrier.voters));
        }
        barrier.arrived = 0;
        barrier.open = false;
        barrier.generation += 1;
    }

    /// Result of the reduction of a completed generation, for `threads` of its
    /// threads.
    pub(crate) fn fetch(&mut self, id: u8, generation: u64, threads: u32) -> u32 {
        let Some(entry) = self.results.get_mut(&(id, generation)) else {
            return 0;
        };
        let result = entry.0;
        entry.1 = entry.1.saturating_sub(threads);
        if entry.1 == 0 {
            self.results.remove(&(id, generation));
        }
        result
    }
}
