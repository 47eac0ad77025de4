//! Schedules: the order in which warps run and asynchronous operations complete.

use std::fmt;
use std::str::FromStr;

/// The interleaving of warps and, if the memory model leaves it open, the time when things
/// complete. A schedule and its seed replay a run exactly.
///
/// `lazy` and `random` also look for data races in shared memory, whether or
/// not they show in this run's values; `eager`, which is for speed, does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Schedule {
    /// Clusters and warps in order, each until it must wait, has waited for an mbarrier's phase,
    /// or has had a turn.
    #[default]
    Eager,
    /// Clusters and warps in reverse order, each until it must wait.
    Lazy,
    /// Seeded choice with short turns; lanes of a warp part where PTX lets them
    /// (not in modules with `activemask`, which would tell), by `Model::Hardware` only behind a branch.
    Random(u64),
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eager => f.write_str("eager"),
            Self::Lazy => f.write_str("lazy"),
            Self::Random(seed) => write!(f, "random:{seed}"),
        }
    }
}

/// A schedule that is none of `eager`, `lazy`, `random:SEED`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("schedule: required eager, lazy or random:SEED (an unsigned 64-bit number), actual `{0}`")]
pub struct ParseScheduleError(String);

impl FromStr for Schedule {
    type Err = ParseScheduleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "eager" => Ok(Self::Eager),
            "lazy" => Ok(Self::Lazy),
            _ => text
                .strip_prefix("random:")
                .and_then(|seed| seed.parse().ok())
                .map(Self::Random)
                .ok_or_else(|| ParseScheduleError(text.to_owned())),
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seedable, the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    /// A stream of its own for `(seed, stream)`, so that a cluster's choices do
    /// not depend on the host thread that runs it.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = Self(seed ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03));
        mixer.next();
        mixer
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; `bound` is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
