//! Sizes and methods that configurations of all kernels with weights in the order of fragments have alike.

use core::fmt::Debug;

use crate::gemm::groups::Tiling;
use crate::gemm::{Adding, Operands, Problem, Tiles};

/// The sizes of a configuration, as far as a launch and its plan depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Rows of the weights in a CTA's tile.
    pub rows: u32,
    /// Tokens of the tile.
    pub tokens: u32,
    /// CTAs of a cluster that compute tiles of neighbouring rows and share the tokens' copies; 1 for none.
    pub multicast: u32,
    /// Columns of K of a step.
    pub k_step: u32,
    /// Bytes that the copies of a step bring, to all CTAs of a multicast.
    pub step_bytes: u32,
    /// Bytes of the partial sums of a tile that a contributor sends.
    pub partial_bytes: u32,
    /// Whether those show by themselves that they are there, in memory that is zero before.
    pub marks_partials: bool,
    /// CTAs that must fit an SM together.
    pub min_blocks: u32,
    /// Threads of a CTA.
    pub threads: u32,
    /// Stages of the pipeline.
    pub stages: u32,
    /// The division of a grouped product's tokens into tiles.
    pub tiling: Tiling,
}

impl Tile {
    /// The K steps of a tile.
    pub const fn steps(&self, problem: &Problem) -> u32 {
        problem.k.div_ceil(self.k_step)
    }
}

/// The configuration of a kernel that takes weights in the order of fragments, as the host sees it.
pub trait FragmentConfig: Copy + Debug + Eq + Send + Sync + 'static {
    /// The configurations of dense and batched products.
    const CONFIGS: &'static [Self];
    /// The configurations of grouped products.
    const GROUPED: &'static [Self];
    /// The configurations of mixed products.
    const MIXED: &'static [Self];
    /// The most CTAs that a configuration may want on an SM.
    const MAX_BLOCKS: u32;
    /// Most bytes of partial sums that show by themselves that they are there; 0 if none do.
    const MARKED_BYTES: u32;

    /// The kernel's name.
    fn name(&self) -> &'static str;

    /// The formats of weights and activations.
    fn operands(&self) -> Operands;

    /// Its sizes.
    fn tile(&self) -> Tile;

    /// The tiles of a dense or batched problem; those that CTAs compute together count as one.
    fn tiles(&self, problem: &Problem) -> Tiles;

    /// The most CTAs of a cluster that split the K of a tile; 1 for none.
    fn max_split(&self) -> u32;

    /// Bytes of dynamic shared memory of a launch of which an SM has at most `resident` CTAs at a time.
    fn launch_shared_bytes(&self, resident: u32) -> u32;

    /// The way in which products of e4m3 are added.
    fn adding(&self) -> Adding;

    /// f32 additions, one after the other, within `steps` K steps.
    fn additions_in(&self, steps: u32) -> u32;
}

/// Padding, in f32, after a token's row of sums: with it the lanes of a warp, four tokens times
/// eight rows, access different banks.
pub(in crate::gemm) const SUM_PADDING: u32 = 4;

/// Implements [`FragmentConfig`] by a configuration's own methods, and defines those that follow from its scheme, its
/// tile and `work_shape`, and `max_split`.
macro_rules! fragment_config {
    ($Config:ident) => {
        impl $crate::gemm::fragments::FragmentConfig for $Config {
            const CONFIGS: &'static [Self] = &CONFIGS;
            const GROUPED: &'static [Self] = &GROUPED;
            const MIXED: &'static [Self] = &MIXED;
            const MAX_BLOCKS: u32 = MAX_BLOCKS;
            const MARKED_BYTES: u32 = MARKED_BYTES;

            fn name(&self) -> &'static str {
                self.name
            }

            fn operands(&self) -> $crate::gemm::Operands {
                self.operands()
            }

            fn tile(&self) -> $crate::gemm::fragments::Tile {
                self.tile()
            }

            fn tiles(&self, problem: &$crate::gemm::Problem) -> $crate::gemm::Tiles {
                self.tiles(problem)
            }

            fn max_split(&self) -> u32 {
                self.max_split()
            }

            fn launch_shared_bytes(&self, resident: u32) -> u32 {
                self.launch_shared_bytes(resident)
            }

            fn adding(&self) -> $crate::gemm::Adding {
                self.adding()
            }

            fn additions_in(&self, steps: u32) -> u32 {
                self.additions_in(steps)
            }
        }

        impl $Config {
            /// Order of a problem's tiles.
            pub const ORDER: $crate::gemm::TileOrder = $crate::gemm::TileOrder::TOKENS_INNERMOST;

            /// Rows of the weights and tokens of a CTA's tile.
            pub const fn extents(&self) -> [u32; 2] {
                [self.rows, self.tokens]
            }

            /// The tiles of a dense or batched problem; those that CTAs compute together count as one.
            pub const fn tiles(&self, problem: &$crate::gemm::Problem) -> $crate::gemm::Tiles {
                $crate::gemm::Tiles::uniform(problem, self.work_shape(), Self::ORDER)
            }

            /// Whether the kernel can split K so.
            pub const fn takes(&self, split: $crate::gemm::Split) -> bool {
                split.cluster() <= self.max_split()
            }

            /// Bytes of the partial sums of a tile that a contributor sends: a vector of four sums of
            /// each thread that multiplies, one after the other, then the next vector of each.
            pub const fn partial_bytes(&self) -> u32 {
                self.tokens * self.rows * size_of::<f32>() as u32
            }

            /// f32 from one token's sums to the next's in shared memory.
            #[inline(always)]
            pub const fn sum_pitch(&self) -> u32 {
                self.rows + $crate::gemm::fragments::config::SUM_PADDING
            }
        }
    };
}
pub(in crate::gemm) use fragment_config;

/// Checks that sums of a warp's lanes, tokens 2t and rows g, are in different banks.
#[cfg(test)]
pub(in crate::gemm) fn no_bank_twice(name: &str, pitch: u32) {
    let mut banks = [false; 32];
    for (t, g) in (0..4).flat_map(|t| (0..8).map(move |g| (t, g))) {
        let bank = (2 * t * pitch + g) % 32;
        assert!(!core::mem::replace(&mut banks[bank as usize], true), "{name}");
    }
}
