//! The start of the CTAs of a cluster. They live together, but one may run before another has begun
//! (PTX ISA 9.7.16.7 asks that a CTA make sure of its peer): all at once under `eager`; under
//! `lazy` from the last to the first, each when those before it can do nothing more; under `random`
//! at seeded points.

use super::TURN;
use crate::Schedule;
use crate::schedule::SplitMix;

/// Warp instructions after which the next CTA starts although others can go on: they may look
/// for what it does in a way that does not count as spinning.
const LONGEST: u64 = 16 * TURN;
/// One in so many choices of the random schedule starts a CTA; a cluster has one of these.
const ODDS: [usize; 4] = [1, 4, 32, 256];

/// The CTAs of a cluster that have started.
#[derive(Debug, Default)]
pub(super) struct Starts {
    started: Vec<bool>,
    /// The number that have not.
    missing: usize,
    /// Clock of the last start.
    last: u64,
    /// Index into [`ODDS`].
    odds: usize,
}

impl Starts {
    /// A cluster of `ctas` CTAs begins.
    pub(super) fn reset(&mut self, ctas: usize, schedule: Schedule, random: &mut SplitMix) {
        self.started.clear();
        self.started.resize(ctas, schedule == Schedule::Eager || ctas == 1);
        self.missing = self.started.iter().filter(|started| !**started).count();
        self.last = 0;
        if self.missing != 0 {
            self.odds = ODDS[random.below(ODDS.len())];
            self.start_one(schedule, random, 0);
        }
    }

    /// Whether the CTA of `rank` has started.
    #[inline(always)]
    pub(super) fn started(&self, rank: u32) -> bool {
        self.missing == 0 || self.started[rank as usize]
    }

    /// Before a warp is chosen: starts a CTA if it is time.
    #[inline(always)]
    pub(super) fn tick(&mut self, schedule: Schedule, random: &mut SplitMix, clock: u64) {
        if self.missing != 0 && self.due(schedule, random, clock) {
            self.start_one(schedule, random, clock);
        }
    }

    fn due(&self, schedule: Schedule, random: &mut SplitMix, clock: u64) -> bool {
        match schedule {
            Schedule::Eager => true,
            Schedule::Lazy => clock - self.last >= LONGEST,
            Schedule::Random(_) => random.below(self.odds) == 0 || clock - self.last >= LONGEST,
        }
    }

    /// Starts a CTA, the others being able to do nothing. False when all have started.
    pub(super) fn start_one(
        &mut self,
        schedule: Schedule,
        random: &mut SplitMix,
        clock: u64,
    ) -> bool {
        let which = match schedule {
            _ if self.missing == 0 => return false,
            Schedule::Eager | Schedule::Lazy => self.missing - 1,
            Schedule::Random(_) => random.below(self.missing),
        };
        if let Some(start) = self.started.iter_mut().filter(|started| !**started).nth(which) {
            *start = true;
        }
        self.missing -= 1;
        self.last = clock;
        true
    }
}
