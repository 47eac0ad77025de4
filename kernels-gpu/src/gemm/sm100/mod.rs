//! GEMM on sm_100a: `C[l] = factors * A[l] B[l]^T + bias`, both operands NVFP4 or MXFP4,
//! multiplied with their scales by `tcgen05.mma`; or 16-bit activations and weights that
//! are decoded to their type on the way to tensor memory; or activations in e4m3, with MXFP4 weights as
//! they are or NVFP4 weights [folded](fp4_formats::gemm::sm100::folded) to e4m3.
//!
//! # Contract
//! The parameters are [`Sm100Params`], of grouped products [`Sm100GroupedParams`]. Any M, N, L >= 1; K is a multiple
//! of the block and has at least as many K steps as the configuration has parts of K. Rows of codes are multiples of
//! 16 bytes; scales are in the 128x4 layout, with numbers in the padding along K. If a warp [loads
//! tokens](Sm100Config::loads_tokens), activations are as they are in memory ([`fp4_formats::gemm::sm100::tokens`]).
//! The grid has one cluster per tile if `dynamic` is set; otherwise, of configurations that [take
//! stream-K](Sm100Config::takes_stream_k), one for each run of the schedule, and of others no more than tiles. The
//! flags are zeros before and after a launch. The kernel reads nothing outside the operands and writes each element
//! of the result once. For grouped products the grid has as many clusters as are resident, the scales of 4-bit
//! activations are laid out ([`fp4_formats::gemm::sm100::prepare`]), and elements of no problem are left alone; the
//! tokens of each problem, whose counts the kernel reads, are their own tiles ([`work`](super::work)). Mixed products, whose
//! parameter is [`Mixed`], have a [`Sm100Params`] in memory each ([`mixed`](crate::gemm::mixed)); they have `swapped`
//! in common.
//!
//! [`Mixed`]: fp4_formats::gemm::Mixed
//! [`Sm100GroupedParams`]: fp4_formats::gemm::sm100::Sm100GroupedParams
//!
//! # Tile
//! `X` and `Y` are `A` and `B`, or swapped. A tile has 128 rows of `X` for each CTA of a CTA pair,
//! or for one CTA, and [`Sm100Config::columns`] rows of `Y`. Under split-K the parts of a
//! cluster compute the same tile: each sums a part of the K steps, then stores a part of the
//! columns. Under stream-K a cluster computes a run of all tiles' K steps, and the one that computes a tile's last
//! step stores it. Under multicast they compute neighbouring tiles along `Y`: each copies a part of their
//! rows of `X` to all of them. Which tile has which number, and which part of K is whose, is the
//! work list's ([`fp4_formats::gemm::work`]).
//!
//! # Roles
//! | warp | role | file |
//! |---|---|---|
//! | 0-3 | store: sums from tensor memory, factors, conversion, stores | [`store`], [`exchange`], [`fix_up`], [`results`], [`boxes`], [`store_blocks`] |
//! | 4 | copy: operands and scales of a K step into a stage; one lane | [`copy`] |
//! | 5 | product: scales to tensor memory, products; one lane, of a pair the first CTA's; allocation | [`product`], [`half_product`], [`byte_product`] |
//! | 8-11 | decode: `X` of a K step to tensor memory, if it is [decoded](Sm100Config::decodes) | [`decode`], [`decode_folded`] |
//! | 7 | tokens: scales of few tokens, and some codes, from memory into a stage | [`tokens`] |
//! | 6 | schedule: asks for tiles while there are any, if `dynamic`; one lane of a cluster. For a grouped product: makes the table of groups, of mixed ones that of products | [`schedule`], [`work`](super::work) |
//!
//! # Shared memory
//! From the first multiple of 1024; the same in each CTA of a cluster.
//!
//! | contents | bytes |
//! |---|---|
//! | stages: `X` codes, `Y` codes (128-byte swizzle), `Y` scales, `X` scales (512-byte tiles) | `stages * stage_bytes` |
//! | sums from the other CTAs of a split | `exchange_bytes` |
//! | boxes of results of the storing warps | `boxes_bytes` |
//! | barriers, scheduler's responses, address of tensor memory | `CONTROL_BYTES` |
//! | scales of 1, if `Y` is e4m3 | `ones_bytes` |
//! | of a grouped product, the table of groups | `table_bytes` |
//!
//! # Tensor memory
//! Two accumulators ([`Sm100Config::accumulator_step`] columns from one to the other), then scales
//! of 1 if `Y` is e4m3, then [`Sm100Config::buffers`] sets of columns of scales, or of decoded `X`
//! (and its factors).
//!
//! # Barriers
//! | barrier | arrives | waits | says |
//! |---|---|---|---|
//! | full[stage] | copy (expects bytes), copies; a lane of tokens | product; decode | a K step is in shared memory |
//! | empty[stage] | products' commits, of all sharers | copy; tokens; product (scale columns) | the K step was multiplied |
//! | acc_full[i] | products' commit | store | a tile's sums are complete |
//! | acc_empty[i] | a lane of each store warp | product | the sums were read |
//! | response_full[i], response_empty[i] | the hardware scheduler's response; its readers | all roles; schedule | which tile is next |
//! | begun | copy, of the first CTA | schedule | a tile is begun: ask for the next one |
//! | decoded full, empty [i] | decode warps; products' commit | product; decode | a K step of `X` is decoded; was multiplied |
//! | exchange full, empty | store warps of the other CTAs of a split | store | sums have come; were read |
//! | flag (global), of each store warp of a CTA | a lane of that warp | a lane of the same warp of the tile's owner | its partial sums are in memory |
//!
//! Full expects one arrival, or two if a warp loads tokens, and the copies' bytes. In a CTA pair,
//! the first CTA has full, acc_empty and decoded full, and commits reach both. If warps decode, the
//! second CTA's full signals that its `X` is there. A stage that is empty is so in every CTA that
//! its copies reach.
//!
//! All threads of the cluster meet behind the initialisation of barriers and the table of groups, before anything of
//! another CTA is used, tensor memory of a pair included; the warps of a CTA that use tensor
//! memory meet behind its allocation; and all threads of the cluster before it is freed.
//!
//! A box of results is one warp's: it is full behind a proxy fence and the warp's barrier,
//! and empty when the lane that had it copied has waited for the copy's reads.
//!
//! # The kernel before
//! May still run, if the launch says so. Weights are copied at once. Everything else that an earlier kernel may have
//! written is read, and the result is written, behind `griddepcontrol.wait`, which the copying lane, the warp that
//! loads tokens and the storing warps execute. In grouped products one warp executes it before it reads the token
//! counts, unless they are settled, and then lets the next kernel begin; in other products the copying lane lets it
//! begin. In mixed products the warp executes it before it reads the table. In both cases everything else is behind
//! that wait.

/// Calls a wrapper whose instruction names the CTA group: a pair, or one CTA.
macro_rules! for_group {
    ($config:expr, $($name:ident)::+ $(<$more:ident>)? ($($argument:expr),* $(,)?)) => {
        if $config.cta_group == 1 {
            $($name)::+::<1 $(, $more)?>($($argument),*)
        } else {
            $($name)::+::<2 $(, $more)?>($($argument),*)
        }
    };
}

mod boxes;
mod byte_product;
mod copy;
mod decode;
mod decode_folded;
mod entries;
mod exchange;
mod fix_up;
mod half_product;
mod memory;
mod prepare;
mod product;
mod results;
mod role;
mod schedule;
mod store;
mod store_blocks;
mod tokens;

use cuda_std::ptx::{barrier, cluster, marker, memory as words, tcgen05, tensor_copy};
use cuda_std::{shared, thread, warp};
use fp4_formats::gemm::sm100::config::{
    COPY_WARP, DECODE_WARP, PRODUCT_WARP, Products, SCHEDULE_WARP, STORE_WARPS, TENSOR_COLUMNS,
    TOKEN_WARP,
};
use fp4_formats::gemm::sm100::{Sm100Config, Sm100Params};
use memory::{MAX_BUFFERS, Memory, QUARTERS};
use role::{Cta, Sm100};

use super::work::WorkList;

/// Index of the result's map in the parameter block, behind the operands'.
const RESULT: u32 = 4;

/// A kernel: its configuration.
trait Kernel {
    const CONFIG: Sm100Config;
}

/// The kernel body of `K`.
///
/// # Safety
/// As the module's contract.
#[inline(always)]
unsafe fn gemm<K: Kernel, L: WorkList>(params: &Sm100Params, list: L) {
    let config: &'static Sm100Config = const {
        let config = &K::CONFIG;
        assert!(config.is_grouped() == L::GROUPED);
        assert!(!config.decodes() || config.buffers() <= MAX_BUFFERS);
        config
    };
    let rank = if config.cluster() > 1 { cuda_std::ptx::special::cluster_ctarank() } else { 0 };
    let memory = Memory::new(config, shared::dynamic::<1024>());
    let cta = &Cta::new(config, params, list, memory, rank);
    let role = thread::thread_idx_x() / warp::LANES;

    // SAFETY: each warp takes its branch as a whole and all meet at the barriers; the
    // roles keep the protocol that the module head states.
    unsafe {
        if role == COPY_WARP && warp::elect() {
            cta.memory.init(config);
            if !L::MIXED {
                copy::prefetch_maps(cta);
                if params.copied != 0 {
                    tensor_copy::prefetch_tensormap(cta.map(RESULT));
                }
            }
        }
        if L::GROUPED && role == SCHEDULE_WARP {
            L::begin(cta);
        }
        if config.takes_bytes() && role == SCHEDULE_WARP {
            cta.memory.fill_ones();
        }
        begin(config);
        // Pinned as if it changed: otherwise the compiler may give the copying warp separate copies
        // of the instructions above, which all threads must execute together.
        let role = marker::pin(role);
        let tensor = tensor_memory(config, role, cta.memory.tensor_slot());

        if role < STORE_WARPS {
            store::run(cta, tensor);
        } else if role == COPY_WARP {
            if warp::elect() {
                copy::run(cta);
            }
        } else if role == PRODUCT_WARP {
            if cta.pair_rank() == 0 && warp::elect() {
                match config.products() {
                    Products::Blocks => product::run(cta, tensor),
                    Products::Halves(half) => half_product::run(cta, tensor, half),
                    Products::Bytes | Products::Folded => {
                        byte_product::run(cta, tensor);
                    }
                }
            }
        } else if config.decodes() && role >= DECODE_WARP {
            decode::run(cta, tensor);
        } else if config.loads_tokens() && role == TOKEN_WARP {
            tokens::run(cta);
        } else if !L::GROUPED
            && role == SCHEDULE_WARP
            && params.dynamic != 0
            && rank == 0
            && warp::elect()
        {
            schedule::run(cta);
        }

        end(config);
        if role == PRODUCT_WARP {
            for_group!(config, tcgen05::tcgen05_dealloc<TENSOR_COLUMNS>(tensor));
        }
    }
}

/// All threads of the cluster wait until its CTAs run and their barriers are initialised.
/// Before that, nothing of another CTA may be used, and no tensor memory allocated with it.
///
/// # Safety
/// All threads of the cluster call it, once; the one that initialised the barriers of its CTA
/// has executed `fence.mbarrier_init` since.
#[inline(always)]
unsafe fn begin(config: &Sm100Config) {
    // SAFETY: the caller's; lanes that a role left behind come together first.
    unsafe {
        warp::sync();
        if config.cluster() > 1 && (config.is_grouped() || config.takes_bytes()) {
            // One warp publishes the table of groups, or scales of 1.
            cluster::barrier_cluster_arrive_release_aligned();
            cluster::barrier_cluster_wait_acquire_aligned();
        } else if config.cluster() > 1 {
            // The fence released the barriers; there is nothing else to publish.
            cluster::barrier_cluster_arrive_relaxed_aligned();
            cluster::barrier_cluster_wait_acquire_aligned();
        } else {
            thread::sync_threads();
        }
    }
}

/// Allocates tensor memory, of a pair in both CTAs. Its address, for the warps that use it;
/// other roles need not wait for it.
///
/// # Safety
/// Whole warps of all roles, behind [`begin`]; `slot` is the CTA's, for one address.
#[inline(always)]
unsafe fn tensor_memory(config: &Sm100Config, role: u32, slot: u32) -> u32 {
    const USERS: u32 = (STORE_WARPS + 1) * warp::LANES;
    const USERS_WITH_DECODING: u32 = USERS + QUARTERS * warp::LANES;
    if role != PRODUCT_WARP && (STORE_WARPS..DECODE_WARP).contains(&role) {
        return 0;
    }
    // SAFETY: the caller's; these are the warps that the barrier, of no other use, is for.
    unsafe {
        if role == PRODUCT_WARP {
            for_group!(config, tcgen05::tcgen05_alloc<TENSOR_COLUMNS>(slot));
            for_group!(config, tcgen05::tcgen05_relinquish_alloc_permit());
        }
        if !config.decodes() {
            barrier::bar_sync_threads::<1, USERS>();
        } else {
            barrier::bar_sync_threads::<1, USERS_WITH_DECODING>();
        }
        words::ld_shared_b32(slot)
    }
}

/// All threads of the cluster wait for each other, and each one's accesses to shared memory before
/// are known to all after. The end of tensor memory is the only use behind this, and it is
/// synchronous: every role has waited for its reads there.
///
/// # Safety
/// All threads of the cluster call it.
#[inline(always)]
unsafe fn end(config: &Sm100Config) {
    // SAFETY: the caller's; lanes that a role left behind come together first.
    unsafe {
        warp::sync();
        if config.cluster() > 1 {
            cluster::barrier_cluster_arrive_release_aligned();
            cluster::barrier_cluster_wait_acquire_aligned();
        } else {
            thread::sync_threads();
        }
    }
}
