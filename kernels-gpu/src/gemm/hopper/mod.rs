//! sm_90a GEMM: weights decoded into `wgmma`'s register operand.
//!
//! # Contract
//! Parameters: [`HopperParams`]. Any M, N, L of at least 1, K a multiple of the block. Grid
//! `(tiles * S, L)` in clusters of `(S, 1)`, S from 1 to 8 and at most the steps of K: the
//! CTAs of a cluster make one tile of C^T, each over its part of K. Tiles of one row tile follow one another, so that its
//! weights come from L2 for all but the first.
//!
//! # Roles
//! | warps | role |
//! |---|---|
//! | 0..4, 4..8 | consumers ([`consumer`], for few tokens [`warps`]): decode weights, multiply |
//! | 8..12 | producer ([`producer`]): a thread copies weights and activations; the rest lend registers |
//!
//! At the end the consumers put their sums into shared memory, and each CTA of the cluster
//! adds and stores a part of the tile ([`reduce`]).
//!
//! # Shared memory
//! | at | what |
//! |---|---|
//! | 0 | activations of each stage: two boxes of 64 columns, 128-byte swizzle |
//! | `weights_offset` | weights of each stage: one or two chunks |
//! | 0, after the last stage is read | f32 sums, a token after the other |
//! | `barriers_offset` | the ring's barriers |
//!
//! # Barriers
//! | barrier | arrives | waits | guards |
//! |---|---|---|---|
//! | `full[stage]` | producer, with the stage's bytes | consumers | the stage has arrived |
//! | `empty[stage]` | a lane of each consumer warp | producer | the stage is read |
//! | 0, initialised | all threads | all threads | the ring |
//! | 1, finished | consumers | consumers | all stages are read |
//! | cluster (or 1), summed | all threads (consumers) | consumers | the sums are in shared memory |
//! | cluster, read | all threads | consumers | no CTA ends while another reads its sums |
//!
//! The producer's warpgroup ends when its copies are under way, and a thread that has ended
//! counts as having arrived: copies end before the consumers, who wait for each of them.
//!
//! # Dependent launches
//! The next kernel of the stream may start as soon as all CTAs have. Weights are what no
//! kernel that may still run writes: they are copied at once. Activations are copied, and
//! results written, when the kernels before have ended.
//!
//! # Arithmetic
//! Operands are exact (see [`decode`]); `wgmma` adds in f32; the parts of K are added in the
//! order of their ranks, so that results do not depend on timing.

mod consumer;
mod decode;
mod producer;
mod reduce;
mod warps;

use consumer::Consumer;
use cuda_std::ptx::{barrier, cluster, fence, grid, marker, registers, special, tensor_copy};
use cuda_std::{kernel, shared, thread, warp};
use decode::{Mxfp4Bf16, Nvfp4Bf16, Nvfp4F16, Product};
use fp4_formats::gemm::hopper::config::{
    CONFIGS, CONSUMERS, HopperConfig, PRODUCER_REGISTERS, THREADS, k_range,
};
use fp4_formats::gemm::hopper::params::HopperParams;
use fp4_formats::gemm::hopper::repack::WARPGROUP;
use producer::produce;

use crate::pipeline::Ring;

/// Warps of all consumers.
const CONSUMER_WARPS: u32 = CONSUMERS * WARPGROUP / warp::LANES;

/// What a CTA works on.
#[derive(Clone, Copy)]
struct Work {
    /// First token.
    token: u32,
    /// Tile along the weight rows.
    row_tile: u32,
    batch: u32,
    /// Steps of K: first, and after the last.
    steps: (u32, u32),
    /// Part of K, and how many there are.
    rank: u32,
    splits: u32,
}

impl Work {
    #[inline(always)]
    fn of_this_cta(config: &HopperConfig, p: &HopperParams) -> Self {
        // At least 1, which the compiler does not know: it would guard each division.
        let (rank, splits) = (special::cluster_ctarank(), special::cluster_nctarank().max(1));
        let tile = thread::block_idx_x() / splits;
        let token_tiles = config.token_tiles(p.problem.m).max(1);
        Self {
            token: tile % token_tiles * config.tokens,
            row_tile: tile / token_tiles,
            batch: thread::block_idx_y(),
            steps: k_range(p.problem.k, rank, splits),
            rank,
            splits,
        }
    }
}

/// Shared addresses of the CTA.
#[derive(Clone, Copy)]
struct Memory {
    base: u32,
}

impl Memory {
    /// Activations of a stage.
    #[inline(always)]
    fn activations(self, config: &HopperConfig, stage: u32) -> u32 {
        self.base + stage * config.activation_bytes()
    }

    /// Weights of a stage.
    #[inline(always)]
    fn weights(self, config: &HopperConfig, stage: u32) -> u32 {
        self.base + config.weights_offset() + stage * config.weight_bytes()
    }
}

/// The kernel body for configuration `INDEX`.
///
/// # Safety
/// As the module's contract; launched with the configuration's threads and shared memory.
#[inline(always)]
unsafe fn gemm<
    const INDEX: usize,
    W: Product<SUMS>,
    const SUMS: usize,
    const BLOCKS: usize,
    const STAGES: u32,
    const REGISTERS: u32,
>(
    p: &HopperParams,
) {
    const {
        let config = &CONFIGS[INDEX];
        assert!(config.tokens as usize == 2 * SUMS);
        assert!(config.row_blocks() as usize == BLOCKS);
        assert!(config.stages() == STAGES);
        assert!(config.consumer_registers() == REGISTERS);
        assert!(config.scheme.format as u32 == W::SCHEME.format as u32);
        assert!(config.scheme.operand as u32 == W::SCHEME.operand as u32);
    };
    let config: &HopperConfig = const { &CONFIGS[INDEX] };
    let memory = Memory { base: shared::dynamic::<1024>() };
    let ring = Ring::<STAGES>::at(memory.base + config.barriers_offset());
    let map = marker::kernel_parameter::<0, 64>();
    let work = Work::of_this_cta(config, p);
    let thread = thread::thread_idx_x();
    grid::griddepcontrol_launch_dependents();

    if thread == 0 {
        // SAFETY: the barriers' memory is the CTA's; the map is the parameter's first member.
        unsafe {
            tensor_copy::prefetch_tensormap(map);
            ring.init(1, CONSUMER_WARPS);
        }
        fence::fence_mbarrier_init_release_cluster();
    }
    // SAFETY: all threads of the CTA are here.
    unsafe { thread::sync_threads() };

    if thread >= CONSUMERS * WARPGROUP {
        // SAFETY: the whole warpgroup, as is the other branch of two.
        unsafe { registers::setmaxnreg_dec::<PRODUCER_REGISTERS>() };
        if thread == CONSUMERS * WARPGROUP {
            // SAFETY: one thread; the ring is initialised.
            unsafe { produce(config, p, map, &work, memory, ring) };
        }
        return;
    }
    // SAFETY: two whole warpgroups; the producer's gives up what they take.
    unsafe { registers::setmaxnreg_inc::<REGISTERS>() };
    let mut consumer = Consumer::<W, SUMS, BLOCKS>::new();
    // SAFETY: the two warpgroups of consumers, each converged; after the first barrier no
    // stage is read any more, and no copy is under way.
    unsafe {
        if const { CONFIGS[INDEX].by_warp() } {
            consumer.multiply_by_warp(config, &work, memory, ring);
        } else {
            consumer.multiply(config, &work, memory, ring);
        }
        sync_consumers();
        consumer.put_sums(config, memory);
        if work.splits > 1 {
            meet();
            reduce::reduce::<W>(config, p, &work, memory);
            part(p);
        } else {
            sync_consumers();
            reduce::reduce::<W>(config, p, &work, memory);
        }
    }
}

/// Waits for all consumers of the CTA.
///
/// # Safety
/// All of them reach such a call, warp by warp converged.
#[inline(always)]
unsafe fn sync_consumers() {
    // SAFETY: the caller's; barrier 0 is of all threads.
    unsafe { barrier::bar_sync_threads::<1, { CONSUMERS * WARPGROUP }>() };
}

/// Waits for the consumers of all CTAs of the cluster; producers have ended or will.
///
/// # Safety
/// All of them reach such a call, warp by warp converged.
#[inline(always)]
unsafe fn meet() {
    // SAFETY: the caller's.
    unsafe {
        cluster::barrier_cluster_arrive_release_aligned();
        cluster::barrier_cluster_wait_acquire_aligned();
    }
}

/// Waits for all threads of the cluster to have read others' memory. What they wrote, their
/// results, need not be in memory: a thread that used all that it read has read it. Where the
/// last columns are no whole piece, it may not have used all.
///
/// # Safety
/// As [`meet`].
#[inline(always)]
unsafe fn part(p: &HopperParams) {
    // SAFETY: the caller's.
    unsafe {
        if p.problem.n.is_multiple_of(crate::gemm::epilogue::COLUMNS as u32) {
            cluster::barrier_cluster_arrive_relaxed_aligned();
        } else {
            cluster::barrier_cluster_arrive_release_aligned();
        }
        cluster::barrier_cluster_wait_acquire_aligned();
    }
}

/// Entry points: name, index in [`CONFIGS`], weights, sums a thread, blocks of rows a
/// warpgroup, stages.
macro_rules! entries {
    ($($name:ident = $index:literal, $weights:ty, $sums:literal, $blocks:literal;)*) => {
        $(
            #[doc = concat!("[`CONFIGS`]`[", stringify!($index), "]`.")]
            ///
            /// # Safety
            /// As the module's contract.
            #[kernel(threads = THREADS, max_registers = CONFIGS[$index].registers())]
            pub unsafe fn $name(params: HopperParams) {
                // SAFETY: the caller's.
                unsafe {
                    gemm::<
                        $index,
                        $weights,
                        $sums,
                        $blocks,
                        { CONFIGS[$index].stages() },
                        { CONFIGS[$index].consumer_registers() },
                    >(&params)
                }
            }
        )*
        crate::assert_names!([$($name),*], CONFIGS);
    };
}

entries! {
    gemm_sm90_nvfp4_f16_128x8 = 0, Nvfp4F16, 4, 1;
    gemm_sm90_nvfp4_f16_128x16 = 1, Nvfp4F16, 8, 1;
    gemm_sm90_nvfp4_f16_128x32 = 2, Nvfp4F16, 16, 1;
    gemm_sm90_nvfp4_f16_128x64 = 3, Nvfp4F16, 32, 1;
    gemm_sm90_nvfp4_f16_128x128 = 4, Nvfp4F16, 64, 1;
    gemm_sm90_nvfp4_f16_256x64 = 5, Nvfp4F16, 32, 2;
    gemm_sm90_nvfp4_f16_256x128 = 6, Nvfp4F16, 64, 2;
    gemm_sm90_nvfp4_bf16_128x8 = 7, Nvfp4Bf16, 4, 1;
    gemm_sm90_nvfp4_bf16_128x16 = 8, Nvfp4Bf16, 8, 1;
    gemm_sm90_nvfp4_bf16_128x32 = 9, Nvfp4Bf16, 16, 1;
    gemm_sm90_nvfp4_bf16_128x64 = 10, Nvfp4Bf16, 32, 1;
    gemm_sm90_nvfp4_bf16_128x128 = 11, Nvfp4Bf16, 64, 1;
    gemm_sm90_nvfp4_bf16_256x64 = 12, Nvfp4Bf16, 32, 2;
    gemm_sm90_nvfp4_bf16_256x128 = 13, Nvfp4Bf16, 64, 2;
    gemm_sm90_mxfp4_bf16_128x8 = 14, Mxfp4Bf16, 4, 1;
    gemm_sm90_mxfp4_bf16_128x16 = 15, Mxfp4Bf16, 8, 1;
    gemm_sm90_mxfp4_bf16_128x32 = 16, Mxfp4Bf16, 16, 1;
    gemm_sm90_mxfp4_bf16_128x64 = 17, Mxfp4Bf16, 32, 1;
    gemm_sm90_mxfp4_bf16_128x128 = 18, Mxfp4Bf16, 64, 1;
    gemm_sm90_mxfp4_bf16_256x64 = 19, Mxfp4Bf16, 32, 2;
    gemm_sm90_mxfp4_bf16_256x128 = 20, Mxfp4Bf16, 64, 2;
}
