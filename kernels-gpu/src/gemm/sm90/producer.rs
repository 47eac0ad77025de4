//! The producer: fills the stages of the ring, one step of K each.

use cuda_std::ptx::{bulk, grid, tensor_copy};
use fp4_formats::gemm::Item;
use fp4_formats::gemm::fragments::repack::CHUNK_ROWS;
use fp4_formats::gemm::sm90::config::{BOX_BYTES, K_STEP, Sm90Config};
use fp4_formats::gemm::sm90::params::Sm90Params;

use super::memory::Memory;
use super::tile::{self, Tile};
use super::{Cta, fix_up, message, multicast, store_registers};
use crate::gemm::walk::{OwnRun, Walk};
use crate::gemm::work::WorkList;

/// Chunks of 128 rows of weights, along K.
#[inline(always)]
fn row_chunks(p: &Sm90Params) -> u32 {
    p.problem.k.div_ceil(K_STEP)
}

/// The values that the copies of all steps have in common.
struct Copies<'a> {
    config: &'static Sm90Config,
    p: &'a Sm90Params,
    memory: Memory,
    /// Rank of the CTA in its multicast.
    rank: u32,
    /// Address of the activations' tensor map.
    map: u64,
    /// The time for which L2 keeps each.
    weights_policy: u64,
    activations_policy: u64,
}

impl<'a> Copies<'a> {
    /// The copies of a tile of the launch.
    ///
    /// # Safety
    /// The tile's problem exists.
    #[inline(always)]
    unsafe fn of<L: WorkList>(cta: &Cta<'a, L>, tile: &Tile) -> Self {
        // SAFETY: the caller's.
        let Cta { config, params: p, maps: map, memory, rank, .. } =
            unsafe { cta.at(tile.problem) };
        Self {
            config,
            p,
            memory,
            rank,
            map,
            // Other CTAs read the same weights only if there are more token tiles; the
            // activations they always read.
            weights_policy: if p.problem.m > config.tokens {
                bulk::createpolicy_fractional_l2_evict_normal_b64()
            } else {
                bulk::createpolicy_fractional_l2_evict_first_b64()
            },
            activations_policy: bulk::createpolicy_fractional_l2_evict_last_b64(),
        }
    }

    /// Address of the first chunk of step `step` of a tile. A tile past the last row, which is not
    /// stored, takes the last row tile's.
    #[inline(always)]
    fn chunk(&self, tile: &Tile, step: u32) -> u64 {
        let mut row_tile = tile.row_tile;
        if self.config.multicast > 1 {
            row_tile = row_tile.min(self.p.problem.n.div_ceil(self.config.rows) - 1);
        }
        let row = row_tile * (self.config.rows / CHUNK_ROWS);
        let index = u64::from(row) * u64::from(row_chunks(self.p)) + u64::from(step);
        self.p.weights
            + u64::from(tile.problem) * self.p.weight_stride
            + index * u64::from(self.config.chunk_bytes)
    }

    /// Copies a step's chunks. For rows past the last one, which are not stored, it copies the
    /// chunk before once more.
    ///
    /// # Safety
    /// The stage belongs to the copies until its barrier `full` says otherwise; `chunk` is the
    /// address of the tile's first one of the step.
    #[inline(always)]
    unsafe fn weights(&self, tile: &Tile, chunk: u64, stage: u32, full: u32) {
        let bytes = self.config.chunk_bytes;
        let to = self.memory.weights(stage);
        let mut from = chunk;
        for i in 0..self.config.rows / CHUNK_ROWS {
            if i > 0 && tile.row_tile * self.config.rows + i * CHUNK_ROWS < self.p.problem.n {
                from += u64::from(row_chunks(self.p)) * u64::from(bytes);
            }
            // SAFETY: the stage is the copies', and chunks are inside the weights.
            unsafe {
                bulk::cp_async_bulk_shared_cta_global(
                    to + i * bytes,
                    from,
                    bytes,
                    full,
                    self.weights_policy,
                );
            }
        }
    }

    /// Copies this CTA's part of the tokens to all CTAs of the multicast: all columns of a step, or, of a
    /// step in two stages, the columns of stage `part` of it.
    ///
    /// # Safety
    /// As [`weights`](Self::weights), in all CTAs of the multicast; the kernels that write the
    /// activations have ended.
    #[inline(always)]
    unsafe fn activations(&self, tile: &Tile, [step, part]: [u32; 2], stage: u32, full: u32) {
        let mut own = self.rank * self.config.box_tokens();
        let end = self.config.copied_tokens(tile.width);
        let halves = self.config.step_stages(tile.width) > 1;
        let column = step * K_STEP + part * self.config.box_columns();
        let to = self.memory.activations(stage);
        // Their number is known if all tiles are equally wide.
        while own < end {
            let to = to + own * BOX_BYTES;
            let at = [column as i32, (tile.token + own) as i32, tile.matrix as i32];
            // SAFETY: the caller's.
            unsafe {
                self.activation_box(to, at, full);
                if !halves {
                    for part in 1..self.config.boxes() {
                        let column = column + part * self.config.box_columns();
                        let to = to + part * self.config.stage_tokens() * BOX_BYTES;
                        self.activation_box(to, [column as i32, at[1], at[2]], full);
                    }
                }
            }
            own += self.config.box_tokens() * self.config.multicast;
        }
    }

    /// Copies one box of activations to shared address `to`.
    ///
    /// # Safety
    /// As [`activations`](Self::activations).
    #[inline(always)]
    unsafe fn activation_box(&self, to: u32, at: [i32; 3], full: u32) {
        let (map, policy) = (self.map, self.activations_policy);
        // SAFETY: the stages are the copies', and the activations are written; boxes may leave the
        // tensor.
        unsafe {
            if self.config.multicast > 1 {
                let all = multicast::all(self.config);
                tensor_copy::cp_async_bulk_tensor_3d_shared_cluster_global_multicast(
                    to, map, at, full, all, policy,
                );
            } else {
                tensor_copy::cp_async_bulk_tensor_3d_shared_cta_global(to, map, at, full, policy);
            }
        }
    }
}

/// The producer's position in the CTA's run after [`begin`]: the weights of the first steps are in
/// flight.
pub struct Begun {
    item: Item,
    tile: Tile,
    /// Address of the next step's weights.
    chunk: u64,
}

/// Returns the number of stages of an item's first steps that are whole in the ring.
#[inline(always)]
fn early(config: &Sm90Config, item: &Item, tile: &Tile) -> u32 {
    let parts = config.step_stages(tile.width);
    item.count().min(config.stages() / parts) * parts
}

/// Fills the first stages with weights: before the CTA's other threads know the barriers, and
/// before the preceding kernels of the stream, which may write the activations, have ended; unless
/// the work list is theirs.
///
/// # Safety
/// One thread of the CTA, whose run is not empty; the barriers are
/// initialised and known to this thread and to copies.
#[inline(always)]
pub unsafe fn begin<L: WorkList>(cta: &Cta<'_, L>) -> Begun {
    let (config, ring) = (cta.config, cta.memory.ring());
    // SAFETY: there is an item.
    let item = unsafe { Walk::<OwnRun>::start(cta).item(cta) };
    let tile = tile::find(cta, item.tile);
    // SAFETY: the tile is one of the launch's.
    let copies = unsafe {
        let copies = Copies::of(cta, &tile);
        cta.list.acquire(copies.map, [0, 1]);
        copies
    };
    let mut chunk = copies.chunk(&tile, item.first);
    let parts = config.step_stages(tile.width);
    let early = early(config, &item, &tile);
    for stage in 0..early {
        let part = stage % parts;
        // SAFETY: all stages are empty at first.
        unsafe {
            ring.expect_bytes(stage, config.copied_bytes(tile.width, part));
            if part == 0 {
                copies.weights(&tile, chunk, stage, ring.full(stage));
                chunk += u64::from(config.chunk_bytes);
            }
        }
    }
    Begun { item, tile, chunk }
}

/// Copies the steps of the CTA's run as stages become empty; under multicast, empty in both CTAs.
///
/// # Safety
/// Called by the thread that called [`begin`].
#[inline(always)]
pub unsafe fn run<L: WorkList>(cta: &Cta<'_, L>, begun: Begun) {
    let (config, memory, ring) = (cta.config, cta.memory, cta.memory.ring());
    let Begun { mut item, mut tile, mut chunk } = begun;
    // SAFETY: the tile is one of the launch's.
    let mut copies = unsafe { Copies::of(cta, &tile) };
    // Stages whose bytes are expected, and whose weights are in flight.
    let mut early = early(config, &item, &tile);
    let chunk_bytes = u64::from(config.chunk_bytes);
    let mut step = item.first;
    let mut cursor = ring.producer();
    // SAFETY: all stages are empty at first, and later when the wait for `empty` returns, in all
    // CTAs of the multicast. Their sums are stored when the wait for `sums_stored` returns.
    unsafe {
        grid::griddepcontrol_wait();
        let (mut parity, mut at) = (0, 0);
        loop {
            let parts = config.step_stages(tile.width);
            let mut part = 0;
            while step < item.end {
                let full = ring.full(cursor.stage);
                if early > 0 {
                    early -= 1;
                } else {
                    ring.wait_empty(&cursor);
                    ring.expect_bytes(cursor.stage, config.copied_bytes(tile.width, part));
                    if part == 0 {
                        copies.weights(&tile, chunk, cursor.stage, full);
                        chunk += chunk_bytes;
                    }
                }
                copies.activations(&tile, [step, part], cursor.stage, full);
                part += 1;
                if part == parts {
                    (part, step) = (0, step + 1);
                }
                cursor.advance();
            }
            if config.copies_partials()
                && !L::WHOLE_TILES
                && item.first > 0
                && L::owned(cta, &item)
                && !cta.params.schedule.is_split()
            {
                fix_up::copy(cta, &mut cursor, L::first_cta(cta, &item));
            }
            let walk = Walk::behind(cta, &item);
            if walk.is_done(cta) {
                let prefetches = L::prefetches_next(cta);
                if prefetches || (L::GROUPED && config.multicast > 1) {
                    // Nothing is prefetched while copies are in flight, which would take longer. Multicast
                    // kernels, which do not prefetch, take 1 % less time with the wait.
                    ring.wait_full(&ring.filled(&cursor));
                }
                if prefetches {
                    L::prefetch_next(cta);
                }
                return;
            }
            let overlaid =
                L::owned(cta, &item) && !config.sums_apart() && !store_registers::applies(cta);
            if overlaid && !L::GROUPED {
                multicast::wait_sums_stored(memory, parity);
                parity ^= 1;
            }
            item = walk.item(cta);
            let last = tile.problem;
            tile = tile::find(cta, item.tile);
            if L::GROUPED {
                at = message::next(config, at);
                message::hand_over(cta, at, (&item, &tile));
            }
            if L::MIXED && tile.problem != last {
                copies = Copies::of(cta, &tile);
                cta.list.acquire(copies.map, [0, 1]);
            }
            chunk = copies.chunk(&tile, item.first);
            step = item.first;
            // To find a tile in a table takes time, which passes while the sums are stored. So does the
            // time to copy weights, which nothing overlays; where tiles narrow, or problems have
            // their own parameters, the thread has no registers for that.
            if overlaid && L::GROUPED {
                if !config.narrows() && !L::MIXED {
                    early = item.count().min(config.stages());
                    let mut ahead = cursor;
                    for _ in 0..early {
                        ring.wait_empty(&ahead);
                        ring.expect_bytes(ahead.stage, config.copied_bytes(tile.width, 0));
                        copies.weights(&tile, chunk, ahead.stage, ring.full(ahead.stage));
                        chunk += chunk_bytes;
                        ahead.advance();
                    }
                }
                multicast::wait_sums_stored(memory, parity);
                parity ^= 1;
            }
        }
    }
}
