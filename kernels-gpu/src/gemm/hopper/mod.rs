//! sm_90a GEMM: weights decoded into `wgmma`'s register operand.
//!
//! # Contract
//! Parameters: [`HopperParams`]. Any M, N, L of at least 1, K a multiple of the block. Grid:
//! as many CTAs as [`Division`] divides the steps among, all of them resident at a time, so
//! that a CTA may wait for one with a lower number; or a cluster a tile; or a cluster for what
//! [`Division`] calls a CTA, whose CTAs share activations ([`sharing`]). CTAs make tiles of
//! C^T, or parts of tiles along K whose sums another CTA adds to its own ([`schedule`]).
//!
//! # Roles
//! | warps | role |
//! |---|---|
//! | 0..4, 4..8 | consumers ([`consumer`], for few tokens [`warps`]): decode weights, multiply; give and take sums ([`exchange`], in clusters [`cluster`]), store ([`store`]) |
//! | 8..12 | producer ([`producer`]): a thread makes the barriers, copies weights and activations; the rest lend registers |
//!
//! # Shared memory
//! | at | what |
//! |---|---|
//! | 0 | activations of each stage: two boxes of 64 columns, 128-byte swizzle |
//! | `weights_offset` | weights of each stage: a chunk for each 128 rows |
//! | 0, after a tile's last stage is read | f32 sums, a token after the other |
//! | `slot_offset`, likewise | sums that other CTAs of the cluster send |
//! | `barriers_offset` | the ring's barriers |
//! | `free_offset` | the barrier `free` |
//! | `received_offset` | the barrier `received` |
//!
//! # Barriers
//! | barrier | arrives | waits | guards |
//! |---|---|---|---|
//! | `full[stage]` | producer, with the stage's bytes, those that the sharer copies included | consumers | the stage has arrived |
//! | `empty[stage]` | consumers, the sharer's too | producer | the stage is read, in both CTAs |
//! | `free` | consumers, the sharer's too | producer, after a tile of this CTA | the sums are stored: stages may be copied |
//! | 0, initialised | all threads | all threads | the ring |
//! | cluster, initialised, where activations are shared | all threads of the cluster | the same | the rings of all its CTAs |
//! | 1, read | consumers | consumers | all stages are read |
//! | 1, summed | consumers | consumers | the sums are in shared memory |
//! | 1, given, taken | consumers | consumers | the sums are in global memory; the flags are up |
//! | cluster, offered | consumers of the cluster (other threads have ended) | the same | all stages of all its CTAs are read |
//! | `received` | a thread, with the bytes that others send | consumers | the others' sums are there |
//! | cluster, parted | consumers of the cluster | the same | what this CTA sent is read: it may end |
//! | cluster, done, where activations are shared | consumers of the cluster, their last stage read | the same | what this CTA sent has arrived: it may end |
//! | flag (global) | a thread of the giver | a lane of the owner | the giver's sums are there |
//!
//! The producer's warpgroup ends when its copies are under way: they end before the
//! consumers, who wait for each of them.
//!
//! # Dependent launches
//! The next kernel of the stream may start as soon as all CTAs have. Weights are what no
//! kernel that may still run writes: they are copied at once. Activations are copied, and
//! results and given sums written, when the kernels before have ended.
//!
//! # Arithmetic
//! Operands are exact (see [`decode`]); `wgmma` adds in f32; the parts of a tile are added in
//! the order of their CTAs, so that results do not depend on timing.
//!
//! [`Division`]: fp4_formats::gemm::hopper::Division
//! [`schedule`]: fp4_formats::gemm::hopper::schedule

mod cluster;
mod consumer;
mod decode;
mod exchange;
mod producer;
mod sharing;
mod store;
mod tile;
mod warps;

use cluster::Share;
use consumer::Consumer;
use cuda_std::ptx::{
    barrier, cluster as clusters, fence, grid, marker, mbarrier, registers, tensor_copy,
};
use cuda_std::{kernel, shared, thread, warp};
use decode::{Mxfp4Bf16, Nvfp4Bf16, Nvfp4F16, Product};
use fp4_formats::gemm::hopper::config::{
    CONFIGS, CONSUMER_THREADS, HopperConfig, PRODUCER_REGISTERS, THREADS,
};
use fp4_formats::gemm::hopper::params::HopperParams;
use tile::{Memory, Tile};

use crate::gemm::epilogue::COLUMNS;
use crate::pipeline::{Cursor, Ring};

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
        assert!(config.sharers <= 2);
        assert!(config.stages() == STAGES);
        assert!(config.consumer_registers() == REGISTERS);
        assert!(config.scheme.format as u32 == W::SCHEME.format as u32);
        assert!(config.scheme.operand as u32 == W::SCHEME.operand as u32);
    };
    let config: &HopperConfig = const { &CONFIGS[INDEX] };
    let memory = Memory { base: shared::dynamic::<1024>() };
    let ring = Ring::<STAGES>::at(memory.base + config.barriers_offset());
    let free = memory.base + config.free_offset();
    let map = marker::kernel_parameter::<0, 64>();
    let thread = thread::thread_idx_x();
    grid::griddepcontrol_launch_dependents();

    let mut begun = None;
    if thread == CONSUMER_THREADS {
        // SAFETY: the barriers' memory is the CTA's; the map is the parameter's first member.
        unsafe {
            ring.init(1, config.free_arrivals());
            mbarrier::mbarrier_init_shared_cta_b64(free, config.free_arrivals());
            mbarrier::mbarrier_init_shared_cta_b64(memory.base + config.received_offset(), 1);
        }
        fence::fence_mbarrier_init_release_cluster();
        // SAFETY: one thread; the barriers are initialised, and the fence tells copies.
        unsafe {
            // With more to do than copy its own tokens, the thread runs out of registers.
            if config.sharers == 1 {
                begun = Some(producer::begin(config, p, map, memory, ring));
            }
            tensor_copy::prefetch_tensormap(map);
        }
    }
    // SAFETY: all threads of the CTA are here, or of the cluster.
    unsafe {
        if config.sharers > 1 {
            warp::sync();
            clusters::barrier_cluster_arrive_release_aligned();
            clusters::barrier_cluster_wait_acquire_aligned();
        } else {
            thread::sync_threads();
        }
    }

    if thread >= CONSUMER_THREADS {
        // SAFETY: the whole warpgroup, as is the other branch of two.
        unsafe { registers::setmaxnreg_dec::<PRODUCER_REGISTERS>() };
        if config.sharers > 1 && thread == CONSUMER_THREADS {
            // SAFETY: as above.
            begun = Some(unsafe { producer::begin(config, p, map, memory, ring) });
        }
        if let Some(begun) = begun {
            // SAFETY: the thread that began.
            unsafe { producer::produce(config, p, map, memory, ring, free, begun) };
        }
        return;
    }
    // SAFETY: two whole warpgroups; the producer's gives up what they take.
    unsafe { registers::setmaxnreg_inc::<REGISTERS>() };
    // SAFETY: the consumers, converged; the barriers are initialised.
    unsafe { consume::<INDEX, W, SUMS, BLOCKS, STAGES>(p, memory, ring, free) };
}

/// The consumers' work: tile by tile, or parts of tiles.
///
/// # Safety
/// All consumers, converged; the barriers are initialised and known to them.
#[inline(always)]
unsafe fn consume<
    const INDEX: usize,
    W: Product<SUMS>,
    const SUMS: usize,
    const BLOCKS: usize,
    const STAGES: u32,
>(
    p: &HopperParams,
    memory: Memory,
    ring: Ring<STAGES>,
    free: u32,
) {
    let config: &HopperConfig = const { &CONFIGS[INDEX] };
    let mut cursor = Cursor::consumer();
    // Of the run, no more than its end stays in registers while products run.
    let this_run = || sharing::run_of(config, marker::pin(thread::block_idx_x()));
    let mut end = p.division.run(this_run()).end;
    loop {
        let mut consumer = Consumer::<W, SUMS, BLOCKS>::new();
        let count = p.division.rest(this_run(), end).take(&p.division).count();
        // SAFETY: the caller's.
        unsafe {
            if const { CONFIGS[INDEX].by_warp() } {
                consumer.multiply_by_warp(config, count, memory, ring, &mut cursor);
            } else {
                consumer.multiply(config, count, memory, ring, &mut cursor);
            }
        }
        let mut run = p.division.rest(this_run(), marker::pin(end));
        let item = run.take(&p.division);
        let tile = Tile::of(config, p, item.tile);
        let tokens = (p.problem.m - tile.token).min(config.tokens);
        let shared = const { CONFIGS[INDEX].sharers > 1 };
        if !shared && p.division.cluster > 1 {
            let share = Share::of_cluster(p.division.cluster, tokens);
            let received = memory.base + config.received_offset();
            // SAFETY: the caller's, of all CTAs of the cluster: each has one item.
            unsafe {
                sync_consumers();
                cluster::offer(config, &share, received);
                consumer.put_sums(config, memory);
                cluster::exchange(config, &share, memory, received);
                store::store_tile::<W>(config, p, &tile, &share, memory);
                cluster::part(config, p.problem.n.is_multiple_of(COLUMNS as u32));
            }
            return;
        }
        if shared && run.is_empty() {
            // What the other CTA sent is here, and all that it is told is told.
            // SAFETY: the caller's; converged after the last stage.
            unsafe {
                warp::sync();
                clusters::barrier_cluster_arrive_release_aligned();
            }
        }
        let owned = item.owned(&p.division);
        // SAFETY: the caller's. When a tile is summed, no copy is under way: the producer
        // waits for `free` before it begins another.
        unsafe {
            if owned {
                if item.first > 0 {
                    let first = item.first_cta(&p.division);
                    exchange::take(config, p, first, consumer.sums_mut());
                }
                sync_consumers();
                consumer.put_sums(config, memory);
                sync_consumers();
                store::store_tile::<W>(config, p, &tile, &Share::whole(tokens), memory);
            } else {
                exchange::give(config, p, consumer.sums());
            }
        }
        if run.is_empty() {
            if shared {
                // SAFETY: all consumers of both CTAs have arrived above, or will; the other
                // threads have arrived by ending.
                unsafe {
                    warp::sync();
                    clusters::barrier_cluster_wait_acquire_aligned();
                }
            }
            return;
        }
        if owned {
            // SAFETY: the barrier is initialised; the other CTA waits for this one in the end.
            unsafe { sharing::free_sums(config, free) };
        }
        end = run.end;
    }
}

/// Waits for all consumers of the CTA.
///
/// # Safety
/// All of them reach such a call, warp by warp converged.
#[inline(always)]
unsafe fn sync_consumers() {
    // SAFETY: the caller's; barrier 0 is of all threads.
    unsafe { barrier::bar_sync_threads::<1, CONSUMER_THREADS>() };
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
    gemm_sm90_nvfp4_bf16_128x8 = 5, Nvfp4Bf16, 4, 1;
    gemm_sm90_nvfp4_bf16_128x16 = 6, Nvfp4Bf16, 8, 1;
    gemm_sm90_nvfp4_bf16_128x32 = 7, Nvfp4Bf16, 16, 1;
    gemm_sm90_nvfp4_bf16_128x64 = 8, Nvfp4Bf16, 32, 1;
    gemm_sm90_nvfp4_bf16_128x128 = 9, Nvfp4Bf16, 64, 1;
    gemm_sm90_mxfp4_bf16_128x8 = 10, Mxfp4Bf16, 4, 1;
    gemm_sm90_mxfp4_bf16_128x16 = 11, Mxfp4Bf16, 8, 1;
    gemm_sm90_mxfp4_bf16_128x32 = 12, Mxfp4Bf16, 16, 1;
    gemm_sm90_mxfp4_bf16_128x64 = 13, Mxfp4Bf16, 32, 1;
    gemm_sm90_mxfp4_bf16_128x128 = 14, Mxfp4Bf16, 64, 1;
    gemm_sm90_nvfp4_f16_128x64_pair = 15, Nvfp4F16, 32, 1;
    gemm_sm90_nvfp4_f16_128x128_pair = 16, Nvfp4F16, 64, 1;
    gemm_sm90_nvfp4_bf16_128x64_pair = 17, Nvfp4Bf16, 32, 1;
    gemm_sm90_nvfp4_bf16_128x128_pair = 18, Nvfp4Bf16, 64, 1;
    gemm_sm90_mxfp4_bf16_128x64_pair = 19, Mxfp4Bf16, 32, 1;
    gemm_sm90_mxfp4_bf16_128x128_pair = 20, Mxfp4Bf16, 64, 1;
    gemm_sm90_nvfp4_f16_256x128 = 21, Nvfp4F16, 64, 2;
    gemm_sm90_nvfp4_bf16_256x128 = 22, Nvfp4Bf16, 64, 2;
    gemm_sm90_mxfp4_bf16_256x128 = 23, Mxfp4Bf16, 64, 2;
}
