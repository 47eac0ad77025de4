//! The split of tiles' K dimension among CTAs.

use core::fmt;
use core::str::FromStr;

/// The division of tiles' K steps among CTAs; [`schedule`](super::schedule) has the details.
///
/// The spelling on the command line, in tuning tables and in JSON is `none`, `cluster:N` or
/// `stream-k`.
///
/// ```
/// use fp4_formats::gemm::Split;
///
/// assert_eq!("cluster:4".parse(), Ok(Split::Cluster(4)));
/// assert!("cluster:1".parse::<Split>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Split {
    /// All SMs take even parts of all tiles' steps; partial sums meet in global memory.
    StreamK,
    /// One CTA computes a whole tile. If tiles exceed the CTAs that run at a time, those are
    /// persistent and take even parts of all steps, as under [`Split::StreamK`].
    None,
    /// Split-K: the CTAs of a cluster, at least two, compute a part of a tile's steps each;
    /// partial sums meet in their shared memory.
    Cluster(u32),
}

impl Split {
    /// Every split in clusters of up to `most` CTAs.
    pub fn up_to(most: u32) -> impl Iterator<Item = Self> {
        [Self::StreamK, Self::None].into_iter().chain((2..=most).map(Self::Cluster))
    }

    /// The same in clusters of at most `most` CTAs; one CTA is no cluster.
    pub const fn at_most(self, most: u32) -> Self {
        match self {
            Self::Cluster(ctas) if ctas > most && most < 2 => Self::None,
            Self::Cluster(ctas) if ctas > most => Self::Cluster(most),
            split => split,
        }
    }

    /// CTAs of a cluster that split the K of one tile.
    pub const fn cluster(self) -> u32 {
        match self {
            Self::StreamK | Self::None => 1,
            Self::Cluster(ctas) => ctas,
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StreamK => f.pad("stream-k"),
            Self::None => f.pad("none"),
            Self::Cluster(ctas) => write!(f, "cluster:{ctas}"),
        }
    }
}

/// The error for a text that spells no [`Split`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownSplit;

impl fmt::Display for UnknownSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a split of K is `none`, `stream-k`, or `cluster:N` with N of at least 2")
    }
}

impl core::error::Error for UnknownSplit {}

impl FromStr for Split {
    type Err = UnknownSplit;

    fn from_str(text: &str) -> Result<Self, UnknownSplit> {
        match text {
            "stream-k" => Ok(Self::StreamK),
            "none" => Ok(Self::None),
            _ => {
                let ctas = text.strip_prefix("cluster:").and_then(|ctas| ctas.parse().ok());
                ctas.filter(|&ctas| ctas >= 2).map(Self::Cluster).ok_or(UnknownSplit)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn spelling_goes_both_ways() {
        for split in Split::up_to(8) {
            assert_eq!(split.to_string().parse(), Ok(split));
        }
        for text in ["", "0", "1", "cluster", "cluster:", "cluster:0", "cluster:1", "stream_k"] {
            assert_eq!(text.parse::<Split>(), Err(UnknownSplit), "{text}");
        }
    }
}
