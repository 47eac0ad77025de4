//! The consumers: two warpgroups, which take one item of the CTA's run after the other, the last one
//! first. The [main loop](super::main_loop) sums an item's products; the CTA that owns the tile then adds
//! the partial sums of others and stores it, and any other CTA sends its own.

use core::marker::PhantomData;

use cuda_std::ptx::{cluster, marker, mbarrier, memory as words};
use cuda_std::warp;
use fp4_formats::gemm::fragments::repack::BLOCK_ROWS;
use fp4_formats::gemm::fragments::word::Multipliers;

use super::main_loop::MainLoop;
use super::memory::Memory;
use super::message::{self, Received};
use super::operands::{Decoded, STEPS, Weights};
use super::split_k;
use super::stage::{first_block, lane};
use super::tile;
use super::{Cta, Kernel, fix_up, multicast, store_few, store_registers, sync_consumers};
use crate::gemm::store::{self, Share};
use crate::gemm::walk::{Visit, Walk};
use crate::gemm::work::WorkList;

/// The consumers' work: one item of the CTA's run after the other, the last one first.
///
/// # Safety
/// All consumers, converged; the barriers are initialised and known to them.
#[inline(always)]
pub unsafe fn run<
    K: Kernel<Weights: MainLoop<SUMS, BLOCKS>>,
    L: WorkList,
    const SUMS: usize,
    const BLOCKS: usize,
>(
    cta: &Cta<'_, L>,
) {
    let (memory, ring) = (cta.memory, cta.memory.ring());
    let unit = const { (1u32 << <K::Weights as Weights>::SCHEME.unit_log2()) as f32 };
    let mut cursor = ring.consumer();
    // Only the position in the run stays live across the main loop; the rest is computed again, or
    // read again from the message, to save registers.
    let mut walk = Walk::<Received>::start(cta);
    if L::GROUPED {
        // SAFETY: all consumers are here.
        unsafe { L::refuse(cta) };
        if walk.is_done(cta) {
            return;
        }
        // SAFETY: the barrier is initialised and known to the consumers.
        unsafe { mbarrier::wait_parity(memory.first_message(), 0) };
    }
    loop {
        let mut consumer = Consumer::<K::Weights, SUMS, BLOCKS>::new(cta.params.one);
        // SAFETY: the consumers are converged, and the ring is known to them; there is an item.
        unsafe {
            let item = walk.item(cta);
            let (width, count) = (message::width(memory, &item), item.count());
            let (consumer, cursor) = (&mut consumer, &mut cursor);
            K::Weights::sum_item::<K>(consumer, memory, width, count, cursor);
        }
        // SAFETY: as before the main loop.
        let Visit { item, owned, last, next } =
            unsafe { message::visit(cta, walk.pinned().position()) };
        let multicast = const { K::CONFIG.multicast > 1 };
        if !multicast && !L::GROUPED && cta.params.schedule.is_split() {
            let tile = tile::find(cta, item.tile);
            let part = split_k::share(cta.params.schedule.cluster(), tile.tokens());
            // SAFETY: all consumers of all CTAs of the cluster do the same: each has one item.
            unsafe {
                sync_consumers();
                split_k::release_stages(memory, &part);
                consumer.put_sums(memory, cta.config.tokens);
                split_k::exchange(memory, &part);
                let alphas = cta.alphas(tile.problem);
                store::store_tile(cta, unit, &tile, &part, alphas);
                split_k::finish(cta.config);
            }
            return;
        }
        let copies = const { K::CONFIG.copies_partials() };
        // A fix-up of copied sums arrives at the peer's barriers, too: this arrival then follows it.
        if multicast && last && !(copies && owned && item.first > 0) {
            // SAFETY: all consumers of both CTAs arrive.
            unsafe { multicast::arrive_last() };
        }
        let from_registers = store_registers::applies(cta);
        // SAFETY: all consumers are here. No copy is in flight when a tile is complete: the
        // producer waits for `sums_stored` before it begins another.
        unsafe {
            if owned {
                if item.first > 0 {
                    let first = message::first_cta(cta, &item);
                    if copies {
                        let sums = consumer.sums_mut();
                        fix_up::add_copied(cta, &mut cursor, first, sums);
                        if multicast && last {
                            multicast::arrive_last();
                        }
                    } else {
                        let width = message::width(memory, &item);
                        fix_up::add_partials(cta, first, width, consumer.sums_mut());
                    }
                }
                if from_registers {
                    let tile = message::tile(cta, &item);
                    let tile = (&tile, message::alphas(cta, &item, &tile));
                    if const { K::CONFIG.stores_few() } {
                        store_few::store_tile::<K::Weights, L, _, _>(cta, tile, consumer.sums());
                    } else {
                        let sums = consumer.sums();
                        store_registers::store_tile::<K::Weights, L, _, _>(cta, tile, sums);
                    }
                } else {
                    sync_consumers();
                    consumer.put_sums(memory, message::width(memory, &item));
                    sync_consumers();
                    // Here, and not above: the fix-up has no register left.
                    let tile = message::tile(cta, &item);
                    let part = Share::whole(tile.tokens());
                    let alphas = message::alphas(cta, &item, &tile);
                    let cta = &cta.at(tile.problem);
                    store::store_tile(cta, unit, &tile, &part, alphas);
                }
            } else {
                let width = message::width(memory, &item);
                fix_up::send(cta, width, consumer.sums());
            }
        }
        if last {
            if multicast {
                // SAFETY: all consumers of both CTAs have arrived above, or will; the other
                // threads have arrived by ending.
                unsafe {
                    warp::sync();
                    cluster::barrier_cluster_wait_acquire_aligned();
                }
            }
            return;
        }
        if owned && !cta.config.sums_apart() && !from_registers {
            // SAFETY: the barrier is initialised; the peer CTA ends after this one's arrivals.
            unsafe { multicast::release_sums(memory) };
        }
        if L::GROUPED {
            // With the stage comes the tile's message.
            // SAFETY: the barriers are initialised and known to this thread.
            unsafe { ring.wait_full(&cursor) };
        }
        // All lanes have the same value. ptxas knows it only from a shuffle: without it, the addresses
        // of the main loop of a multicast kernel are not in uniform registers.
        // SAFETY: the warp is converged.
        walk = walk.at(if multicast { unsafe { warp::broadcast_u32(next, 0) } } else { next });
    }
}

/// A unit's operands: a fragment for each `wgmma`.
pub type Operands = [[u32; 4]; STEPS];

/// A thread's sums: `SUMS` of each of its warpgroup's `BLOCKS` blocks of rows.
pub struct Consumer<W, const SUMS: usize, const BLOCKS: usize> {
    pub(super) sums: [[f32; SUMS]; BLOCKS],
    /// The operands of the last two units.
    pub(super) operands: [Operands; 2],
    /// `Sm90Params::one`.
    one: u32,
    weights: PhantomData<W>,
}

impl<W, const SUMS: usize, const BLOCKS: usize> Consumer<W, SUMS, BLOCKS> {
    /// Starts without sums; `one` is `Sm90Params::one`.
    #[inline(always)]
    pub fn new(one: u32) -> Self {
        Self {
            sums: [[0.0; SUMS]; BLOCKS],
            operands: [[[0; 4]; STEPS]; 2],
            one,
            weights: PhantomData,
        }
    }

    /// The sums. The same thread of every CTA holds the same tokens and rows.
    #[inline(always)]
    pub fn sums(&self) -> &[[f32; SUMS]; BLOCKS] {
        &self.sums
    }

    /// The sums, to add to them.
    #[inline(always)]
    pub fn sums_mut(&mut self) -> &mut [[f32; SUMS]; BLOCKS] {
        &mut self.sums
    }

    /// Sum `i` of the first block.
    #[inline(always)]
    pub(super) fn sum_mut(&mut self, i: usize) -> &mut f32 {
        &mut self.sums[0][i]
    }

    /// Puts the sums of a tile of `width` tokens into shared memory, f32, [tokens, rows] with the
    /// configuration's pitch.
    ///
    /// # Safety
    /// The products are finished, and nobody uses the stages any more.
    #[inline(always)]
    pub unsafe fn put_sums(&self, memory: Memory, width: u32) {
        let config = memory.config;
        let lane = lane();
        let row = lane / warp::LANES * 16 + lane % warp::LANES / 4;
        let token = lane % 4 * 2;
        for block in 0..BLOCKS {
            let row = (first_block::<BLOCKS>() + block as u32) * BLOCK_ROWS + row;
            for i in 0..SUMS as u32 {
                if config.is_wide()
                    && 8 * (i / 4) / config.stage_tokens() * config.stage_tokens() >= width
                {
                    continue;
                }
                let row = row + 8 * (i / 2 % 2);
                let token = token + 8 * (i / 4) + i % 2;
                let at = (token * config.sum_pitch() + row) * size_of::<f32>() as u32;
                let bits = self.sums[block][i as usize].to_bits();
                // SAFETY: inside the sums.
                unsafe { words::st_shared_b32(memory.sums(0) + at, bits) };
            }
        }
    }
}

impl<W: Decoded, const SUMS: usize, const BLOCKS: usize> Consumer<W, SUMS, BLOCKS> {
    /// Returns the multipliers of decoding.
    #[inline(always)]
    pub(super) fn multipliers(&self) -> Multipliers {
        W::HALF.multipliers(self.one).map(marker::pin)
    }
}
