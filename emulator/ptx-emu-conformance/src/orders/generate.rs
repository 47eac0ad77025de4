//! Programs from bytes, which a fuzzer or a generator of numbers gives.

use super::{Access, LANES, MBARRIERS, Place, Program, SHARED_WORDS, Step};

/// Most steps of a sequence.
const STEPS: usize = 8;

/// Bytes that choose; zeros once they are used up.
struct Choices<'a> {
    bytes: &'a [u8],
    mbarriers: usize,
}

/// The place of a sequence of steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    /// All threads.
    Cta,
    /// All lanes of one warp.
    Warp,
    /// Some lanes.
    Branch,
}

impl Choices<'_> {
    fn below(&mut self, bound: usize) -> usize {
        let Some((&byte, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        usize::from(byte) % bound
    }

    fn place(&mut self) -> Place {
        match self.below(8) {
            0..3 => Place::Common(self.below(SHARED_WORDS) as u8),
            3..5 => Place::Own,
            5..7 => Place::Neighbour(1 << self.below(5)),
            _ => Place::NextWarp,
        }
    }

    fn access(&mut self) -> Step {
        let access = match self.below(8) {
            0..3 => Access::Load,
            3..6 => Access::Store,
            6 => Access::StoreHalf,
            _ => Access::Add,
        };
        let place = self.place();
        let only = (self.below(3) == 0).then(|| self.below(LANES) as u8);
        Step::Access { access, place, only }
    }

    fn steps(&mut self, within: Within, warps: usize) -> Vec<Step> {
        let count = 1 + self.below(STEPS);
        (0..count).map(|_| self.step(within, warps)).collect()
    }

    fn step(&mut self, within: Within, warps: usize) -> Step {
        match (self.below(16), within) {
            (8, _) => Step::Shuffle(self.below(LANES) as u8),
            (9 | 10, _) => Step::WarpBarrier,
            (11 | 12, Within::Cta) => Step::Barrier,
            (13, Within::Cta) if self.mbarriers < MBARRIERS => {
                self.mbarriers += 1;
                Step::Phase { warp: self.below(warps) as u8, lane: self.below(LANES) as u8 }
            }
            (14, Within::Cta) => {
                let warp = self.below(warps) as u8;
                Step::Warp(warp, self.steps(Within::Warp, warps))
            }
            (15, Within::Cta | Within::Warp) => {
                let bound = 1 + self.below(LANES - 1) as u8;
                let lower = self.steps(Within::Branch, warps);
                Step::Branch(bound, lower, self.steps(Within::Branch, warps))
            }
            _ => self.access(),
        }
    }
}

impl Program {
    /// The program that bytes stand for. All bytes stand for one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut choices = Choices { bytes, mbarriers: 0 };
        let warps = 1 + choices.below(3);
        let steps = choices.steps(Within::Cta, warps);
        Self { warps, steps }
    }

    /// The program of a number.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        // SplitMix64.
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = state;
            mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        };
        let bytes: Vec<u8> = (0..32).flat_map(|_| next().to_le_bytes()).collect();
        Self::from_bytes(&bytes)
    }
}
