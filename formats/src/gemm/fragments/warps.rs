//! Sizes of configurations whose tiles are multiplied by `mma.sync`, by eight warps that all do the same: their
//! registers, and which part of a tile a warp has.

use crate::WARP;

/// Bytes of a copy.
pub const PIECE_BYTES: u32 = 16;
/// Warps of a CTA, and threads.
pub const WARPS: u32 = 8;
/// Threads of a CTA.
pub const THREADS: u32 = WARPS * WARP;
/// Rows of weights, tokens, and columns of K of one `mma.sync`.
pub const MMA_ROWS: u32 = 16;
/// Tokens of one `mma.sync`.
pub const MMA_TOKENS: u32 = 8;
/// f32 sums of a thread in one `mma.sync`.
pub const MMA_SUMS: usize = (MMA_ROWS * MMA_TOKENS / WARP) as usize;
/// Registers of an SM, and the most that a thread can have.
pub(in crate::gemm) const SM_REGISTERS: u32 = 65536;
pub(in crate::gemm) const MAX_REGISTERS: u32 = 255;
/// CTAs that a configuration may want on an SM.
pub const MAX_BLOCKS: u32 = 2;
/// Partial sums that show by themselves that they are there: none.
pub const MARKED_BYTES: u32 = 0;
/// Shared memory that a CTA has without a request.
pub const SHARED_BYTES: u32 = 48 * 1024;
/// The most shared memory of a CTA on compute capabilities 8.6, 8.9, 12.0 and 12.1, which have least.
pub const MAX_SHARED_BYTES: u32 = 99 * 1024;

/// More stages than this are no faster.
pub(in crate::gemm) const MAX_STAGES: u32 = 8;

/// Defines the methods that follow from a configuration's `rows`, `tokens`, `min_blocks` and `row_warps`, and
/// from its `k_step`, `stages`, `step_bytes` and `table_offset`, the end of the stages, over which sums are put.
macro_rules! warp_config {
    ($Config:ident) => {
        impl $Config {
            /// Registers of a thread, with which [`min_blocks`](Self::min_blocks) CTAs fit.
            pub const fn registers(&self) -> u32 {
                let share = SM_REGISTERS / (self.min_blocks * THREADS);
                if share < MAX_REGISTERS { share } else { MAX_REGISTERS }
            }

            /// Warps side by side along the tokens.
            #[inline(always)]
            pub const fn token_warps(&self) -> u32 {
                WARPS / self.row_warps
            }

            /// Rows of weights of a warp, over those of one product.
            #[inline(always)]
            pub const fn warp_rows(&self) -> u32 {
                self.rows / self.row_warps / MMA_ROWS
            }

            /// Tokens of a warp, over those of one product.
            #[inline(always)]
            pub const fn warp_tokens(&self) -> u32 {
                self.tokens / self.token_warps() / MMA_TOKENS
            }

            /// Chunks of 128 rows of a tile.
            #[inline(always)]
            pub const fn chunks(&self) -> u32 {
                self.rows / CHUNK_ROWS
            }

            /// Bytes of shared memory that stages may have: what a CTA has without a request if two CTAs have an SM,
            /// otherwise the most, without the table of groups or products.
            const fn stage_room(&self) -> u32 {
                let budget = if self.min_blocks > 1 { SHARED_BYTES } else { MAX_SHARED_BYTES };
                budget - self.table_bytes()
            }

            /// Dynamic shared memory of a CTA, bytes.
            #[inline(always)]
            pub const fn shared_bytes(&self) -> u32 {
                self.table_offset() + self.table_bytes()
            }

            /// Returns [`shared_bytes`](Self::shared_bytes), however many CTAs an SM has.
            pub const fn launch_shared_bytes(&self, _resident: u32) -> u32 {
                self.shared_bytes()
            }

            /// Tokens whose sums are in shared memory at a time, over the stages: all, or the largest even part of
            /// them that has room.
            #[inline(always)]
            pub const fn strip_tokens(&self) -> u32 {
                let pitch = self.sum_pitch() * size_of::<f32>() as u32;
                let mut tokens = self.tokens;
                while tokens * pitch > self.table_offset() {
                    assert!(tokens.is_multiple_of(2 * MMA_TOKENS));
                    tokens /= 2;
                }
                tokens
            }

            /// Rows of `B` and tokens that a CTA computes at a time.
            pub const fn work_shape(&self) -> TileShape {
                TileShape { rows: self.rows, tokens: self.tokens }
            }

            /// Returns the division of a grouped product's tokens into tiles.
            pub const fn tiling(&self) -> Tiling {
                Tiling::of(self.tokens)
            }

            /// The largest cluster that splits K: none does. CTAs that share a tile's K meet in global memory.
            pub const fn max_split(&self) -> u32 {
                1
            }

            /// The sizes that a launch depends on.
            pub const fn tile(&self) -> Tile {
                Tile {
                    rows: self.rows,
                    tokens: self.tokens,
                    multicast: 1,
                    k_step: self.k_step(),
                    step_bytes: self.step_bytes(),
                    partial_bytes: self.partial_bytes(),
                    marks_partials: false,
                    min_blocks: self.min_blocks,
                    threads: THREADS,
                    stages: self.stages(),
                    tiling: self.tiling(),
                }
            }
        }
    };
}
pub(in crate::gemm) use warp_config;

/// Tests of the sizes of all configurations, which have `$least` stages or more.
#[cfg(test)]
macro_rules! warp_tests {
    ($least:literal) => {
        /// Checks shared memory, of which the system reserves a part for each CTA, and registers of compute capabilities
        /// 8.6, 8.9, 12.0 and 12.1, whose SMs have least.
        #[test]
        fn tiles_fit_the_smallest_sm() {
            const SM_SHARED_BYTES: u32 = 100 * 1024;
            const SYSTEM_SHARED_BYTES: u32 = 1024;
            for config in all() {
                let (name, bytes) = (config.name, config.shared_bytes());
                assert!(bytes <= MAX_SHARED_BYTES, "{name}: {bytes}");
                let all = config.min_blocks * (bytes + SYSTEM_SHARED_BYTES);
                assert!(all <= SM_SHARED_BYTES, "{name}: {all}");
                assert!(config.min_blocks == 1 || bytes <= SHARED_BYTES, "{name}: {bytes}");
                assert!(config.min_blocks <= MAX_BLOCKS, "{name}");
                assert!(config.stages() >= $least, "{name}: {} stages", config.stages());
                let strip = config.strip_tokens() * config.sum_pitch() * 4;
                assert!(strip <= config.table_offset(), "{name}: {strip}");
                assert!(config.tokens.is_multiple_of(config.strip_tokens()), "{name}");
                assert!(config.weights_offset().is_multiple_of(128), "{name}");
                assert!(config.table_offset().is_multiple_of(16), "{name}");
                let registers = config.registers() * THREADS * config.min_blocks;
                assert!(registers <= SM_REGISTERS, "{name}: {registers}");
            }
        }

        #[test]
        fn sums_meet_no_bank_twice() {
            all().for_each(|config| no_bank_twice(config.name, config.sum_pitch()));
        }
    };
}
#[cfg(test)]
pub(in crate::gemm) use warp_tests;
