//! sm_90a GEMM: weights are decoded into `wgmma`'s register operand.
//!
//! # Contract
//! Parameters: [`Sm90Params`], of grouped products [`Sm90GroupedParams`], of mixed ones
//! [`Mixed`]. Any M, N, L of at least 1, K a multiple of the block. CTAs compute tiles of C^T, or parts of tiles along K, as the
//! [`Schedule`] says, or of grouped products the work list that each CTA makes of the token counts
//! ([`work`](super::work)). The grid depends on it:
//!
//! | schedule | grid | partial sums meet in |
//! |---|---|---|
//! | whole tiles, stream-K | one CTA per run, all resident at a time, so that a CTA may wait for one with a lower number | global memory ([`fix_up`]) |
//! | split-K | one cluster per tile | the cluster's shared memory ([`split_k`]) |
//! | grouped | as many CTAs as are resident | global memory |
//! | mixed: [`Sm90Params`] for each product, in memory ([`mixed`](crate::gemm::mixed)) | as many CTAs as are resident, or as tiles | - |
//! | either of the first, with multicast | one cluster of two CTAs per run ([`multicast`]) | global memory |
//!
//! # Pipeline
//! ```text
//! producer thread    | weights, activations -> stage 0 | -> stage 1 | ...      (bulk and tensor copies)
//!                                  full[0] v        ^ empty[0]
//! consumer warpgroups              | decode stage 0, wgmma | decode stage 1, wgmma | ...
//!                                                          after the last step of a tile v
//!                                  | fix-up | sums to shared memory | epilogue, store |
//! ```
//!
//! # Roles
//! | warps | role |
//! |---|---|
//! | 0..4, 4..8 | consumers ([`consumer`]): decode weights and multiply ([`main_loop`], for few tokens [`mma_sync`], for e4m3 [`folded`]), exchange partial sums ([`fix_up`], [`split_k`]), store ([`store`](super::store), [`store_registers`], [`store_few`]) |
//! | 8 | producer ([`producer`]): one thread initialises the barriers, copies weights and activations, and hands over a grouped product's later tiles ([`message`]); the warp makes the table of groups |
//! | 9 | hands over a grouped product's first tile ([`message`]) |
//! | 10, 11 | only release registers, as 8 and 9 do |
//!
//! # Shared memory
//! | at | contents |
//! |---|---|
//! | 0 | activations of each stage: two boxes of 64 columns, 128-byte swizzle; of a step that takes two stages, one box of twice the tokens in each |
//! | `weights_offset` | weights of each stage: one chunk for every 128 rows |
//! | 0, after a tile's last stage is read; of grouped products with few tokens `sums_offset`, behind the stages | f32 sums, one token after the other |
//! | `slot_offset`, at the same place | sums that other CTAs of a split-K cluster send |
//! | `barriers_offset` | the ring's barriers |
//! | `sums_stored_offset` | the barrier `sums_stored` |
//! | `sums_received_offset` | the barrier `sums_received`, of a grouped product `first_message` |
//! | `table_offset` | of a grouped product, the table of groups; of mixed ones, that of products |
//! | `messages_offset` | of a grouped product, which tiles the next stages are of ([`message`]) |
//! | `results_offset` | a piece for each warpgroup, if [results are stored from registers](store_registers) |
//!
//! # Barriers
//! | barrier | arrives | waits | guards |
//! |---|---|---|---|
//! | `full[stage]` | producer, with `copied_bytes`, the multicast peer's copies included, or with `partial_batch_bytes` | consumers; of the last stage, a producer that prefetches, and under multicast a grouped product's | the stage holds data, or a batch of partial sums |
//! | `empty[stage]` | consumers, the multicast peer's too | producer | the stage is read, in both CTAs |
//! | `sums_stored` | consumers, the multicast peer's too | producer, after a tile that this CTA owns, if sums overlay the stages | the sums are stored: stages may be overwritten |
//! | 0, after initialisation, but not of dense products under multicast | all threads | all threads | the ring; the table of groups |
//! | cluster, after initialisation, under multicast | all threads of the cluster, before the table is made | all threads of the cluster, behind it | the rings of all its CTAs |
//! | 1, stages read | consumers | consumers | all stages are read |
//! | 1, sums written | consumers | consumers | the sums are in shared memory |
//! | 2 and 3 | a warpgroup each | the same | factors, or a piece of the results, are in shared memory; the piece is read |
//! | 1, partial sums sent, flags read | consumers | consumers | the partial sums are in global memory; the flags are set |
//! | cluster, stages released | consumers of the cluster (other threads have ended) | consumers of the cluster | all stages of all its CTAs are read |
//! | `first_message`, in place of `sums_received` | the thread that hands it over | consumers | which tile a grouped product's CTA begins with |
//! | `sums_received` | one thread, with the bytes that others send | consumers | the others' sums have arrived |
//! | cluster, finished | consumers of the cluster | consumers of the cluster | the other CTAs have read this CTA's sums: it may end |
//! | cluster, last copies, under multicast | consumers of the cluster, their last stage read, copied partial sums too | consumers of the cluster | this CTA's copies have arrived: it may end |
//! | flag (global), unless [partial sums are marked](Sm90Config::marks_partials) | one thread of the contributor | the owner's producer if it copies partial sums, otherwise one lane | the contributor's partial sums are there |
//! | each word of marked partial sums (global) | the thread of the contributor that has the sum | the same thread of the owner | the word is there |
//!
//! The producer's warpgroup ends as soon as all its copies are issued, or, if it waits for the last of them, when it
//! has [brought the next product's weights to L2](fp4_formats::gemm::next). Consumers wait for each copy.
//!
//! # Dependent launches
//! The next kernel of the stream may start as soon as all CTAs of this one have, or in grouped products as soon as
//! they may read the token counts. No kernel that may still run writes weights, so they are copied at once.
//! Activations are copied, and results and partial sums written, after `griddepcontrol.wait`. Unless they are
//! settled, the token counts of groups are read after it as well, and nothing is copied before it. A CTA without work
//! executes it, too, so that the end of this kernel implies the end of the kernels before.
//!
//! # Arithmetic
//! 16-bit operands are exact (see [`operands`]), and `wgmma` adds in f32; of e4m3 see [`folded`]. The
//! parts of a tile are added in the order of their CTAs, so that results do not depend on timing.
//!
//! [`Sm90GroupedParams`]: fp4_formats::gemm::sm90::Sm90GroupedParams
//! [`Schedule`]: fp4_formats::gemm::Schedule
//! [`Mixed`]: fp4_formats::gemm::Mixed

mod consumer;
mod entries;
mod fix_up;
mod folded;
mod folded_rows;
mod main_loop;
mod memory;
mod message;
mod mma_sync;
mod multicast;
mod operands;
mod producer;
mod split_k;
mod stage;
mod store_few;
mod store_registers;
mod strips;
mod tile;
mod widths;

use super::cta::{self, Head, Target};
use super::store::{Share, Staged};
use super::walk::{OwnRun, Walk};
use super::work::WorkList;
use cuda_std::ptx::{barrier, cluster as clusters, fence, grid, marker, mbarrier, tensor_copy};
use cuda_std::{shared, thread, warp};
use fp4_formats::gemm::groups::Tiling;
use fp4_formats::gemm::sm90::config::{CONSUMER_THREADS, Sm90Config};
use fp4_formats::gemm::sm90::params::Sm90Params;
use fp4_formats::gemm::{TileOrder, TileShape};
use main_loop::MainLoop;
use memory::Memory;
use operands::Weights;

/// The warps of the producer's warpgroup that have a role.
const PRODUCER_WARP: u32 = CONSUMER_THREADS / warp::LANES;
const FIRST_MESSAGE_WARP: u32 = PRODUCER_WARP + 1;

/// sm_90a's kernels.
#[derive(Clone, Copy)]
pub enum Sm90 {}

impl Target for Sm90 {
    type Config = Sm90Config;
    type Params = Sm90Params;
    type Memory = Memory;

    const THREADS: u32 = CONSUMER_THREADS;
    const GROUPED_RUNS: bool = true;
    const MIXED_TABLE_WAITS: bool = false;

    #[inline(always)]
    fn head(params: &Sm90Params) -> Head<'_> {
        const { assert!(core::mem::offset_of!(Sm90Params, activations) == 0) };
        let Sm90Params {
            problem,
            schedule,
            walk,
            epilogue,
            partials,
            flags,
            row_factor_stride,
            ..
        } = params;
        Head {
            problem,
            schedule,
            walk,
            epilogue,
            partials: *partials,
            flags: *flags,
            row_factor_stride: *row_factor_stride,
        }
    }

    #[inline(always)]
    fn table(config: &Sm90Config) -> u32 {
        shared::dynamic::<1024>() + config.table_offset()
    }

    #[inline(always)]
    fn sorts(config: &Sm90Config) -> bool {
        config.is_wide()
    }

    #[inline(always)]
    fn tiles(config: &Sm90Config, _: &Sm90Params) -> (TileShape, TileOrder) {
        (config.work_shape(), Sm90Config::ORDER)
    }

    #[inline(always)]
    fn tiling(config: &Sm90Config, _: &Sm90Params) -> Tiling {
        config.tiling()
    }

    #[inline(always)]
    fn run_index(config: &Sm90Config) -> u32 {
        // Pinned: recomputed at each use, to save registers.
        multicast::run_of(config, marker::pin(thread::block_idx_x()))
    }

    #[inline(always)]
    fn cta_of<L>(cta: &Cta<'_, L>, run: u32) -> u32 {
        multicast::cta_of(cta.config, run, cta.rank)
    }

    #[inline(always)]
    fn partial_bytes(config: &Sm90Config) -> u32 {
        config.partial_bytes()
    }

    #[inline(always)]
    fn storing_thread<L>(cta: &Cta<'_, L>) -> (u32, [u32; 2]) {
        let run = multicast::run_of(cta.config, thread::block_idx_x());
        let thread = cta.rank * Self::THREADS + thread::thread_idx_x();
        (run, [thread, cta.config.multicast * Self::THREADS])
    }

    #[inline(always)]
    fn prefetches_next(config: &Sm90Config) -> bool {
        config.prefetches_next()
    }
}

impl Staged for Sm90 {
    #[inline(always)]
    fn rows(config: &Sm90Config) -> u32 {
        config.rows
    }

    #[inline(always)]
    fn floats_together(config: &Sm90Config) -> u32 {
        if config.min_blocks > 1 { 2 } else { 4 }
    }

    #[inline(always)]
    fn loads_remote(config: &Sm90Config) -> bool {
        config.loads_remote()
    }

    /// The fields of the epilogue would take registers during the main loop, which grouped products cannot
    /// spare: for those one word of the parameters has the answer.
    #[inline(always)]
    fn is_plain(config: &Sm90Config, params: &Sm90Params) -> bool {
        if config.is_grouped() { params.plain != 0 } else { params.epilogue.is_plain() }
    }

    #[inline(always)]
    fn sums(config: &Sm90Config, memory: Memory, part: &Share, rank: u32, token: u32) -> u32 {
        split_k::sums(config, memory, part, rank, token)
    }
}

/// Context of every role, on sm_90a.
type Cta<'a, L> = cta::Cta<'a, Sm90, L>;

/// A kernel: its configuration, and how it decodes weights.
trait Kernel {
    const CONFIG: Sm90Config;
    type Weights: Weights;

    /// Takes the consumers' registers, [`Sm90Config::consumer_registers`].
    ///
    /// # Safety
    /// A whole consumer warpgroup; the producer's releases the registers.
    unsafe fn take_registers();

    /// Keeps [`Sm90Config::producer_registers`].
    ///
    /// # Safety
    /// The whole producer warpgroup.
    unsafe fn release_registers();
}

/// The kernel body of `K`. A thread has `BLOCKS` arrays of `SUMS` sums: the configuration knows both,
/// but types cannot ask it.
///
/// # Safety
/// As the module's contract; launched with the configuration's threads and shared memory.
#[inline(always)]
unsafe fn gemm<
    K: Kernel<Weights: MainLoop<SUMS, BLOCKS>>,
    L: WorkList,
    const SUMS: usize,
    const BLOCKS: usize,
>(
    params: &Sm90Params,
    list: L,
) {
    let config: &'static Sm90Config = const {
        let config = &K::CONFIG;
        assert!(config.thread_sums() == SUMS && config.row_blocks() as usize == BLOCKS);
        assert!(config.multicast <= 2 && config.is_grouped() == L::GROUPED);
        assert!(config.scheme.is(K::Weights::SCHEME));
        config
    };
    let memory = Memory::new(shared::dynamic::<1024>(), config);
    let rank = multicast::rank(config);
    let cta = &Cta::new(config, params, list, memory, rank);
    let thread = thread::thread_idx_x();
    L::release();

    let mut begun = None;
    if thread == CONSUMER_THREADS {
        // SAFETY: the barriers' memory is the CTA's; the map is the parameter's first member.
        unsafe {
            memory.init_barriers();
        }
        fence::fence_mbarrier_init_release_cluster();
        // SAFETY: one thread; the barriers are initialised, and the fence makes them visible to
        // copies.
        unsafe {
            // Under multicast the thread would run out of registers here.
            if config.multicast == 1 && !L::GROUPED {
                begun = Some(producer::begin(cta));
            }
            if !L::MIXED {
                tensor_copy::prefetch_tensormap(cta.maps);
            }
        }
    }
    // SAFETY: all threads of the CTA are here, or of the cluster.
    unsafe {
        if config.multicast > 1 {
            warp::sync();
            clusters::barrier_cluster_arrive_release_aligned();
        }
        if L::GROUPED && thread / warp::LANES == CONSUMER_THREADS / warp::LANES {
            warp::sync();
            L::begin(cta);
        }
        if config.multicast > 1 {
            // The threads of the other CTA arrive while the table is made.
            warp::sync();
            clusters::barrier_cluster_wait_acquire_aligned();
        }
        if config.multicast == 1 || L::GROUPED {
            thread::sync_threads();
        }
    }

    if thread >= CONSUMER_THREADS {
        // SAFETY: the whole warpgroup takes this branch, and whole warpgroups the other.
        unsafe { K::release_registers() };
        if L::GROUPED && thread / warp::LANES == FIRST_MESSAGE_WARP {
            let walk = Walk::<OwnRun>::start(cta);
            if !walk.is_done(cta) {
                // SAFETY: one thread; nobody looks for the place before the barrier.
                unsafe {
                    if warp::lane_id() == 0 {
                        let item = walk.item(cta);
                        let tile = tile::find(cta, item.tile);
                        // The kernels before may make a group's factors. The host makes the factors
                        // of mixed products.
                        if !L::MIXED {
                            grid::griddepcontrol_wait();
                        }
                        message::hand_over(cta, 0, (&item, &tile));
                        mbarrier::mbarrier_arrive_shared_cta_b64(memory.first_message());
                    }
                }
            }
            return;
        }
        if (config.multicast > 1 || L::GROUPED) && thread == CONSUMER_THREADS {
            // Asked of the run: with a walk, ptxas makes the main loop of mixed 128x64 tiles 5 instructions longer.
            if L::GROUPED && L::run(cta).is_empty() {
                if L::prefetches_next(cta) {
                    // SAFETY: one thread.
                    unsafe { L::prefetch_next(cta) };
                }
                grid::griddepcontrol_wait();
                return;
            }
            // SAFETY: one thread; the barriers are initialised and known to it and to copies.
            begun = Some(unsafe { producer::begin(cta) });
        }
        if let Some(begun) = begun {
            // SAFETY: the thread that called `begin`.
            unsafe { producer::run(cta, begun) };
        }
        return;
    }
    // SAFETY: two whole warpgroups; the producer's warpgroup releases the registers they take.
    unsafe { K::take_registers() };
    // SAFETY: the consumers, converged; the barriers are initialised.
    unsafe { consumer::run::<K, _, SUMS, BLOCKS>(cta) };
}

/// Waits for all consumers of the CTA.
///
/// # Safety
/// All of them reach such a call, warp by warp converged.
#[inline(always)]
unsafe fn sync_consumers() {
    // SAFETY: all consumers are here, converged; barrier 0 is of all threads.
    unsafe { barrier::bar_sync_threads::<1, CONSUMER_THREADS>() };
}
