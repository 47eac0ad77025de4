//! Tile configurations of the sm_90a kernels, and what follows from them.
//!
//! A CTA makes tiles of `rows` weight rows by `tokens` tokens, or parts of them along K: one
//! producer warpgroup copies, two warpgroups decode and multiply. Which CTA does which part
//! is the [schedule](super::schedule)'s.

use super::Division;
use super::estimate::{Machine, clusters};
use super::repack::{BLOCK_COLUMNS, BLOCK_ROWS, CHUNK_COLUMNS, CHUNK_ROWS, Scheme, WARPGROUP};
use crate::WARP;
use crate::gemm::Problem;

/// Columns of K that a stage of the pipeline holds.
pub const K_STEP: u32 = CHUNK_COLUMNS;
/// Bytes of an operand.
pub const OPERAND_BYTES: u32 = 2;
/// Columns of the activations that one copy brings: a row of the 128-byte swizzle.
pub const BOX_COLUMNS: u32 = 128 / OPERAND_BYTES;
/// Warpgroups that decode and multiply.
pub const CONSUMERS: u32 = 2;
/// Their threads.
pub const CONSUMER_THREADS: u32 = CONSUMERS * WARPGROUP;
/// Threads of a CTA: the consumers, then the producer's warpgroup, of which one thread copies.
/// It is a whole one so that it can give its registers to the consumers.
pub const THREADS: u32 = (CONSUMERS + 1) * WARPGROUP;
/// CTAs that may share a tile: the largest cluster that every launch may ask for.
pub const MAX_SPLITS: u32 = 8;
/// CTAs that a configuration may want on an SM.
pub const MAX_BLOCKS: u32 = 2;
/// Bytes of a barrier object.
pub const BARRIER_BYTES: u32 = 8;
/// Shared memory of an SM that CTAs can have, bytes, and what the system keeps of it a CTA.
pub const SM_SHARED_BYTES: u32 = 228 * 1024;
const SYSTEM_SHARED_BYTES: u32 = 1024;
/// An SM's partitions, registers of each, and in how many a thread gets them. A warp's
/// registers are all in one partition, and a CTA's warps take turns.
pub(super) const PARTITIONS: u32 = 4;
const PARTITION_REGISTERS: u32 = 16384;
const REGISTER_UNIT: u32 = 8;
/// The most registers that a thread can have, and that `setmaxnreg` is asked for.
const MAX_REGISTERS: u32 = 240;
/// Registers that a producer's thread keeps.
pub const PRODUCER_REGISTERS: u32 = 40;
/// More stages than this bring nothing: the copies of eight cover the latency of memory.
const MAX_STAGES: u32 = 8;
/// f32 between the end of a token's row of sums and the next one's start: brings the lanes
/// of a warp, four tokens times eight rows, to different banks.
const SUM_PADDING: u32 = 4;

const _: () = assert!(BOX_COLUMNS == BLOCK_COLUMNS);

/// How one kernel was compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HopperConfig {
    /// Entry name in the PTX module.
    pub name: &'static str,
    /// Format of the weights and operand type.
    pub scheme: Scheme,
    /// Weight rows of a tile, a multiple of [`CHUNK_ROWS`].
    pub rows: u32,
    /// Tokens of a tile, `wgmma`'s N.
    pub tokens: u32,
    /// CTAs that must fit an SM together.
    pub min_blocks: u32,
    /// CTAs of a cluster that share activations, 1 or 2. They make tiles of neighbouring rows
    /// and the same tokens at the same time, and each copies its part of the tokens for all.
    pub sharers: u32,
}

impl HopperConfig {
    /// Registers of a thread at launch: what lets [`min_blocks`](Self::min_blocks) CTAs fit.
    pub const fn registers(&self) -> u32 {
        let warps = self.min_blocks * (THREADS / WARP).div_ceil(PARTITIONS);
        PARTITION_REGISTERS / (warps * WARP) / REGISTER_UNIT * REGISTER_UNIT
    }

    /// Registers of a consumer's thread, once the producer has given up all but
    /// [`PRODUCER_REGISTERS`].
    pub const fn consumer_registers(&self) -> u32 {
        let pool = (CONSUMERS + 1) * self.registers() - PRODUCER_REGISTERS;
        let share = pool / CONSUMERS / REGISTER_UNIT * REGISTER_UNIT;
        if share < MAX_REGISTERS { share } else { MAX_REGISTERS }
    }

    /// Whether warps multiply on their own, with `mma`: `wgmma` takes as long for a few tokens
    /// as for many, and a fixed time from one product to the next.
    pub const fn by_warp(&self) -> bool {
        self.tokens <= 16
    }

    /// Blocks of 64 rows that a consumer warpgroup carries.
    pub const fn row_blocks(&self) -> u32 {
        self.rows / BLOCK_ROWS / CONSUMERS
    }

    /// Bytes of a stage's activations.
    pub const fn activation_bytes(&self) -> u32 {
        K_STEP * OPERAND_BYTES * self.tokens
    }

    /// Tokens that one copy brings, to all that share them.
    pub const fn box_tokens(&self) -> u32 {
        self.tokens / self.sharers
    }

    /// Bytes of a stage's codes and scales.
    pub const fn weight_bytes(&self) -> u32 {
        self.rows / CHUNK_ROWS * self.scheme.chunk_bytes()
    }

    /// Arrivals that say that what a stage, or a tile's sums, took is free: of all consumers, and
    /// of a lane of each warp of the CTA that shares activations, into whose stages copies go too.
    pub const fn free_arrivals(&self) -> u32 {
        CONSUMER_THREADS + (self.sharers - 1) * (CONSUMER_THREADS / WARP)
    }

    /// Bytes that a stage's copies bring. Boxes count in full where they reach out of bounds.
    pub const fn stage_bytes(&self) -> u32 {
        self.activation_bytes() + self.weight_bytes()
    }

    /// Stages of the pipeline: as many as fit, up to what memory latency needs.
    pub const fn stages(&self) -> u32 {
        let budget = SM_SHARED_BYTES / self.min_blocks - SYSTEM_SHARED_BYTES;
        let fit = (budget - 2 * BARRIER_BYTES) / (self.stage_bytes() + 2 * BARRIER_BYTES);
        if fit < MAX_STAGES { fit } else { MAX_STAGES }
    }

    /// f32 from one token's sums to the next's in shared memory.
    pub const fn sum_pitch(&self) -> u32 {
        self.rows + SUM_PADDING
    }

    /// Bytes of a tile's sums on their way from one CTA to another: a vector of four sums of
    /// each consumer's thread after the other, then their next.
    pub const fn partial_bytes(&self) -> u32 {
        self.tokens * self.rows * size_of::<f32>() as u32
    }

    /// Bytes of a CTA's sums in shared memory; they overlay the stages.
    pub const fn sum_bytes(&self) -> u32 {
        self.tokens * self.sum_pitch() * size_of::<f32>() as u32
    }

    /// Offset of the stages' weights in shared memory; their activations start at 0, because a
    /// swizzled tile starts at a multiple of 1024.
    pub const fn weights_offset(&self) -> u32 {
        self.stages() * self.activation_bytes()
    }

    /// Offset of the barriers in shared memory.
    pub const fn barriers_offset(&self) -> u32 {
        let stages = self.stages() * self.stage_bytes();
        let sums = self.sum_bytes().next_multiple_of(BARRIER_BYTES);
        if stages > sums { stages } else { sums }
    }

    /// Dynamic shared memory of a CTA, bytes, aligned to 1024.
    pub const fn shared_bytes(&self) -> u32 {
        self.received_offset() + BARRIER_BYTES
    }

    /// [`shared_bytes`](Self::shared_bytes), or as much as keeps all but `resident` CTAs from an
    /// SM: where CTAs are fewer than SMs, two on one of them take longer than one on each.
    pub const fn launch_shared_bytes(&self, resident: u32) -> u32 {
        let least = SM_SHARED_BYTES / (resident + 1);
        let needed = self.shared_bytes();
        if resident < self.min_blocks && least > needed { least } else { needed }
    }

    /// Offset in shared memory of the barrier that says that the other CTAs' sums are there.
    pub const fn received_offset(&self) -> u32 {
        self.free_offset() + BARRIER_BYTES
    }

    /// Whether the CTAs of a cluster load one another's sums where they are, instead of sending
    /// them: of few tokens there is little to load, and sending takes a round more.
    pub const fn loads_remote(&self) -> bool {
        self.tokens <= 32
    }

    /// Tokens, of the tile's `tokens`, that CTA `rank` of a cluster of `splits` stores: the first
    /// and the one after the last.
    pub const fn part(tokens: u32, rank: u32, splits: u32) -> (u32, u32) {
        (tokens * rank / splits, tokens * (rank + 1) / splits)
    }

    /// Offset in shared memory, over the stages, of the place for sums that the `index`th other
    /// CTA of a cluster of `splits` sends.
    pub const fn slot_offset(&self, index: u32, splits: u32) -> u32 {
        let bytes = self.tokens.div_ceil(splits) * self.sum_pitch() * size_of::<f32>() as u32;
        self.sum_bytes() + index * bytes
    }

    /// Offset in shared memory of the barrier that says that the stages are free of sums.
    pub const fn free_offset(&self) -> u32 {
        self.barriers_offset() + 2 * self.stages() * BARRIER_BYTES
    }

    /// Tiles along the weight rows.
    pub const fn row_tiles(&self, n: u32) -> u32 {
        n.div_ceil(self.rows)
    }

    /// Groups of row tiles whose CTAs share activations; of the last some may not exist.
    pub const fn row_groups(&self, n: u32) -> u32 {
        n.div_ceil(self.rows * self.sharers)
    }

    /// Tiles along the tokens.
    pub const fn token_tiles(&self, m: u32) -> u32 {
        m.div_ceil(self.tokens)
    }

    /// Tiles of a batch entry. Those whose CTAs share activations count as one, here and in the
    /// division: all of them do the same steps.
    pub const fn tiles(&self, problem: &Problem) -> u64 {
        self.row_groups(problem.n) as u64 * self.token_tiles(problem.m) as u64
    }

    /// The most parts of K that CTAs of a cluster may do: those whose sums find room over the
    /// stages.
    pub const fn max_splits(&self) -> u32 {
        let most = if self.sharers > 1 { 1 } else { MAX_SPLITS };
        let mut splits = 1;
        while splits < most && self.slot_offset(splits, splits + 1) <= self.barriers_offset() {
            splits += 1;
        }
        splits
    }

    /// Who does what. `splits`: CTAs of a cluster that share a tile; or 1, at most a CTA a
    /// tile; or 0, a CTA an SM. What it calls a CTA is a cluster where CTAs share activations.
    /// `None` where there are fewer steps than CTAs, too many for a launch, or more splits than
    /// [`max_splits`](Self::max_splits).
    pub const fn division(
        &self,
        splits: u32,
        problem: &Problem,
        machine: &Machine,
    ) -> Option<Division> {
        let tiles = self.tiles(problem) * problem.l as u64;
        let steps = problem.k.div_ceil(K_STEP);
        if splits > self.max_splits() {
            return None;
        }
        if splits > 1 {
            return Division::by_clusters(tiles, steps, splits);
        }
        let Some(total) = tiles.checked_mul(steps as u64) else { return None };
        // Sharing tiles among more CTAs than SMs costs more than it brings.
        let (most, blocks) = if splits == 1 { (tiles, self.min_blocks) } else { (total, 1) };
        let places = clusters(machine, self.sharers, blocks);
        let ctas = if most < places { most } else { places };
        Division::new(tiles, steps, ctas as u32)
    }
}

/// f32 additions, one after the other, that lead to a result. A `wgmma` adds 16 products and
/// the old sum at once, truncating instead of rounding, which counts twice.
pub const fn additions(division: &Division) -> u32 {
    2 * division.longest() * (K_STEP / super::repack::WGMMA_K) + division.parts()
}

const fn tile(
    name: &'static str,
    scheme: usize,
    rows: u32,
    tokens: u32,
    min_blocks: u32,
) -> HopperConfig {
    HopperConfig { name, scheme: Scheme::ALL[scheme], rows, tokens, min_blocks, sharers: 1 }
}

/// [`tile`] for CTAs that share activations, two at a time. Stages enough to hide that each waits
/// for the other take the memory of a whole SM.
const fn pair(name: &'static str, scheme: usize, rows: u32, tokens: u32) -> HopperConfig {
    HopperConfig { sharers: 2, ..tile(name, scheme, rows, tokens, 1) }
}

/// All configurations; a kernel for each is in the PTX of sm_90a.
pub const CONFIGS: [HopperConfig; 24] = [
    tile("gemm_sm90_nvfp4_f16_128x8", 0, 128, 8, 2),
    tile("gemm_sm90_nvfp4_f16_128x16", 0, 128, 16, 2),
    tile("gemm_sm90_nvfp4_f16_128x32", 0, 128, 32, 2),
    tile("gemm_sm90_nvfp4_f16_128x64", 0, 128, 64, 2),
    tile("gemm_sm90_nvfp4_f16_128x128", 0, 128, 128, 1),
    tile("gemm_sm90_nvfp4_bf16_128x8", 1, 128, 8, 2),
    tile("gemm_sm90_nvfp4_bf16_128x16", 1, 128, 16, 2),
    tile("gemm_sm90_nvfp4_bf16_128x32", 1, 128, 32, 2),
    tile("gemm_sm90_nvfp4_bf16_128x64", 1, 128, 64, 2),
    tile("gemm_sm90_nvfp4_bf16_128x128", 1, 128, 128, 1),
    tile("gemm_sm90_mxfp4_bf16_128x8", 2, 128, 8, 2),
    tile("gemm_sm90_mxfp4_bf16_128x16", 2, 128, 16, 2),
    tile("gemm_sm90_mxfp4_bf16_128x32", 2, 128, 32, 2),
    tile("gemm_sm90_mxfp4_bf16_128x64", 2, 128, 64, 2),
    tile("gemm_sm90_mxfp4_bf16_128x128", 2, 128, 128, 1),
    pair("gemm_sm90_nvfp4_f16_128x64_pair", 0, 128, 64),
    pair("gemm_sm90_nvfp4_f16_128x128_pair", 0, 128, 128),
    pair("gemm_sm90_nvfp4_bf16_128x64_pair", 1, 128, 64),
    pair("gemm_sm90_nvfp4_bf16_128x128_pair", 1, 128, 128),
    pair("gemm_sm90_mxfp4_bf16_128x64_pair", 2, 128, 64),
    pair("gemm_sm90_mxfp4_bf16_128x128_pair", 2, 128, 128),
    tile("gemm_sm90_nvfp4_f16_256x128", 0, 256, 128, 1),
    tile("gemm_sm90_nvfp4_bf16_256x128", 1, 256, 128, 1),
    tile("gemm_sm90_mxfp4_bf16_256x128", 2, 256, 128, 1),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit_an_sm() {
        for config in &CONFIGS {
            let cta = config.shared_bytes() + SYSTEM_SHARED_BYTES;
            assert!(cta * config.min_blocks <= SM_SHARED_BYTES, "{}: {cta}", config.name);
            assert!(config.min_blocks <= MAX_BLOCKS, "{}", config.name);
            for resident in 1..=config.min_blocks {
                let cta = config.launch_shared_bytes(resident) + SYSTEM_SHARED_BYTES;
                assert!(cta * resident <= SM_SHARED_BYTES, "{}: {resident}", config.name);
                let more = cta * (resident + 1) > SM_SHARED_BYTES;
                assert!(more || resident == config.min_blocks, "{}: {resident}", config.name);
            }
            for splits in 2..=config.max_splits() {
                let end = config.slot_offset(splits - 1, splits);
                assert!(end <= config.barriers_offset(), "{}: {splits} parts", config.name);
            }
            assert!(config.stages() >= 3, "{}: {} stages", config.name, config.stages());
            assert!(config.activation_bytes().is_multiple_of(1024), "{}", config.name);
            assert!(config.weights_offset().is_multiple_of(1024), "{}", config.name);
            assert!(config.barriers_offset().is_multiple_of(BARRIER_BYTES), "{}", config.name);
            assert!(config.rows.is_multiple_of(CHUNK_ROWS), "{}", config.name);
            // The swizzle moves pieces among eight rows.
            assert!(config.box_tokens().is_multiple_of(8), "{}", config.name);
            assert_eq!(config.box_tokens() * config.sharers, config.tokens, "{}", config.name);
            // Registers are a partition's: of 288 threads, say, one gets three warps of nine.
            let warps = (THREADS / WARP).div_ceil(PARTITIONS);
            let registers = warps * config.min_blocks * WARP * config.registers();
            assert!(registers <= PARTITION_REGISTERS, "{}: {registers}", config.name);
            let roles = CONSUMERS * config.consumer_registers() + PRODUCER_REGISTERS;
            assert!(roles <= (CONSUMERS + 1) * config.registers(), "{}: {roles}", config.name);
        }
    }

    /// Sums of a warp's lanes, tokens 2t and rows g, are in different banks.
    #[test]
    fn sums_meet_no_bank_twice() {
        for config in &CONFIGS {
            let mut banks = [false; 32];
            for (t, g) in (0..4).flat_map(|t| (0..8).map(move |g| (t, g))) {
                let bank = (2 * t * config.sum_pitch() + g) % 32;
                assert!(!core::mem::replace(&mut banks[bank as usize], true), "{}", config.name);
            }
        }
    }
}
