//! The races of a program, by vector clocks of single threads.
//!
//! Steps are followed in the order of the text, all threads together. Whatever comes before a step is
//! followed before it, since there are no loops, and the sides of a branch wait for nothing but their
//! own lanes.

use super::{Access, LANES, Place, Program, SHARED_WORDS, Step};

/// Threads that know of accesses of others, and all accesses so far.
struct Follower<'a> {
    program: &'a Program,
    /// Only the promises of PTX hold.
    strict: bool,
    /// Steps of every other thread that come before, for each thread.
    known: Vec<Vec<usize>>,
    /// Steps so far.
    now: usize,
    accesses: Vec<Done>,
    /// Warps whose lanes a branch has parted, which matters on hardware.
    parted: Vec<bool>,
    race: bool,
}

/// An access that was made.
struct Done {
    thread: usize,
    step: usize,
    word: usize,
    access: Access,
}

/// Whether two accesses to a word must be ordered.
fn conflict(one: Access, other: Access) -> bool {
    match (one, other) {
        (Access::Load, Access::Load) | (Access::Add, Access::Add) => false,
        (Access::Load | Access::Store | Access::StoreHalf | Access::Add, _) => true,
    }
}

/// Whether a program has a race; `strict`: by the promises of PTX, else on hardware.
pub(super) fn has_race(program: &Program, strict: bool) -> bool {
    let threads = program.threads();
    let mut follower = Follower {
        program,
        strict,
        known: vec![vec![0; threads]; threads],
        now: 0,
        accesses: Vec::new(),
        parted: vec![false; program.warps],
        race: false,
    };
    let warps: Vec<usize> = (0..program.warps).collect();
    follower.steps(&program.steps, &warps, u32::MAX);
    follower.race
}

/// Lanes of a mask.
fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

impl Follower<'_> {
    fn steps(&mut self, steps: &[Step], warps: &[usize], mask: u32) {
        steps.iter().for_each(|step| self.step(step, warps, mask));
    }

    /// All of these threads know what each of them knows, and did.
    fn meet(&mut self, threads: &[usize]) {
        let mut all = vec![0; self.program.threads()];
        for &thread in threads {
            self.known[thread][thread] = self.now;
            for (all, known) in all.iter_mut().zip(&self.known[thread]) {
                *all = (*all).max(*known);
            }
        }
        threads.iter().for_each(|&thread| self.known[thread].clone_from(&all));
    }

    fn meet_lanes(&mut self, warp: usize, mask: u32) {
        self.meet(&lanes(mask).map(|lane| warp * LANES + lane).collect::<Vec<_>>());
        self.parted[warp] &= mask != u32::MAX;
    }

    fn word(&self, place: Place, thread: usize) -> usize {
        let threads = self.program.threads();
        match place {
            Place::Common(word) => threads + usize::from(word) % SHARED_WORDS,
            Place::Own => thread,
            Place::Neighbour(bits) => thread ^ usize::from(bits),
            Place::NextWarp => (thread + LANES) % threads,
        }
    }

    fn access(&mut self, access: Access, place: Place, thread: usize) {
        let word = self.word(place, thread);
        let known = &self.known[thread];
        self.race |= self.accesses.iter().any(|old| {
            old.word == word
                && old.thread != thread
                && conflict(old.access, access)
                && known[old.thread] < old.step
        });
        self.accesses.push(Done { thread, step: self.now, word, access });
    }

    fn step(&mut self, step: &Step, warps: &[usize], mask: u32) {
        self.now += 1;
        match step {
            Step::Access { access, place, only } => {
                let here = only.map_or(u32::MAX, |lane| 1 << lane) & mask;
                for &warp in warps {
                    for lane in lanes(here) {
                        self.access(*access, *place, warp * LANES + lane);
                    }
                    if !self.strict && !self.parted[warp] {
                        self.meet_lanes(warp, u32::MAX);
                    }
                }
            }
            Step::Shuffle(_) if self.strict => {}
            Step::Shuffle(_) | Step::WarpBarrier => {
                warps.iter().for_each(|&warp| self.meet_lanes(warp, mask));
            }
            Step::Barrier => self.all_meet(),
            Step::Phase { warp, lane } => {
                let thread = usize::from(*warp) * LANES + usize::from(*lane);
                self.known[thread][thread] = self.now;
                let told = self.known[thread].clone();
                for known in &mut self.known {
                    for (known, told) in known.iter_mut().zip(&told) {
                        *known = (*known).max(*told);
                    }
                }
                // `bar.warp.sync` is on both sides of the wait.
                warps.iter().for_each(|&warp| self.meet_lanes(warp, mask));
            }
            Step::Warp(warp, steps) => self.steps(steps, &[usize::from(*warp)], mask),
            Step::Branch(bound, lower, upper) => {
                let below = (1u32 << bound) - 1;
                warps.iter().for_each(|&warp| self.parted[warp] = true);
                self.steps(lower, warps, below);
                self.steps(upper, warps, !below);
            }
        }
    }

    fn all_meet(&mut self) {
        self.meet(&(0..self.program.threads()).collect::<Vec<_>>());
        self.parted.fill(false);
    }
}
