//! The producer: fills the stages of the ring, one step of K each.

use cuda_std::ptx::{bulk, grid, marker, tensor_copy};
use cuda_std::thread;
use fp4_formats::gemm::hopper::config::{BOX_COLUMNS, HopperConfig, K_STEP, OPERAND_BYTES};
use fp4_formats::gemm::hopper::params::HopperParams;
use fp4_formats::gemm::hopper::repack::CHUNK_ROWS;
use fp4_formats::gemm::hopper::schedule::Item;

use super::sharing;
use super::tile::{Memory, Tile};
use crate::pipeline::{Cursor, Ring};

/// Chunks of 128 rows of weights, along K.
#[inline(always)]
fn row_chunks(p: &HopperParams) -> u32 {
    p.problem.k.div_ceil(K_STEP)
}

/// Number of the CTA's run.
#[inline(always)]
fn this_run(config: &HopperConfig) -> u32 {
    sharing::run_of(config, marker::pin(thread::block_idx_x()))
}

/// What the copies of all steps have in common.
struct Copies<'a> {
    config: &'a HopperConfig,
    p: &'a HopperParams,
    memory: Memory,
    /// Address of the activations' tensor map.
    map: u64,
    /// How long L2 keeps each.
    weights_policy: u64,
    activations_policy: u64,
}

impl<'a> Copies<'a> {
    #[inline(always)]
    fn new(config: &'a HopperConfig, p: &'a HopperParams, map: u64, memory: Memory) -> Self {
        Self {
            config,
            p,
            memory,
            map,
            // Other CTAs read the weights only where there are more token tiles, the
            // activations always.
            weights_policy: if p.problem.m > config.tokens {
                bulk::createpolicy_fractional_l2_evict_normal_b64()
            } else {
                bulk::createpolicy_fractional_l2_evict_first_b64()
            },
            activations_policy: bulk::createpolicy_fractional_l2_evict_last_b64(),
        }
    }

    /// Address of the first chunk of step `step` of a tile; of one that is past the last row, and
    /// is not stored, of the last one's.
    #[inline(always)]
    fn chunk(&self, tile: &Tile, step: u32) -> u64 {
        let mut row_tile = tile.row_tile;
        if self.config.sharers > 1 {
            row_tile = row_tile.min(self.config.row_tiles(self.p.problem.n) - 1);
        }
        let row = row_tile * (self.config.rows / CHUNK_ROWS);
        let index = u64::from(row) * u64::from(row_chunks(self.p)) + u64::from(step);
        self.p.weights
            + u64::from(tile.batch) * self.p.weight_stride
            + index * u64::from(self.config.scheme.chunk_bytes())
    }

    /// A step's chunks; past the last row, where nothing is stored, those of the rows before.
    ///
    /// # Safety
    /// The stage belongs to the copies until its barrier `full` says otherwise; `chunk` is the
    /// address of the tile's first one of the step.
    #[inline(always)]
    unsafe fn weights(&self, tile: &Tile, chunk: u64, stage: u32, full: u32) {
        let bytes = self.config.scheme.chunk_bytes();
        let to = self.memory.weights(self.config, stage);
        let mut from = chunk;
        for i in 0..self.config.rows / CHUNK_ROWS {
            if i > 0 && tile.row_tile * self.config.rows + i * CHUNK_ROWS < self.p.problem.n {
                from += u64::from(row_chunks(self.p)) * u64::from(bytes);
            }
            // SAFETY: the caller's.
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

    /// The CTA's part of the tokens, for all that share them.
    ///
    /// # Safety
    /// As [`weights`](Self::weights), in all those CTAs, and whatever wrote the activations has
    /// ended.
    #[inline(always)]
    unsafe fn activations(&self, tile: &Tile, step: u32, stage: u32, full: u32) {
        let row_bytes = BOX_COLUMNS * OPERAND_BYTES;
        let own = sharing::rank(self.config) * self.config.box_tokens();
        for half in 0..K_STEP / BOX_COLUMNS {
            let column = step * K_STEP + half * BOX_COLUMNS;
            let at = [column as i32, (tile.token + own) as i32, tile.batch as i32];
            let to = self.memory.activations(self.config, stage)
                + (half * self.config.tokens + own) * row_bytes;
            let (map, policy) = (self.map, self.activations_policy);
            // SAFETY: boxes may reach out of the tensor; the rest is the caller's.
            unsafe {
                if self.config.sharers > 1 {
                    tensor_copy::cp_async_bulk_tensor_3d_shared_cluster_global_multicast(
                        to,
                        map,
                        at,
                        full,
                        sharing::all(self.config),
                        policy,
                    );
                } else {
                    tensor_copy::cp_async_bulk_tensor_3d_shared_cta_global(
                        to, map, at, full, policy,
                    );
                }
            }
        }
    }
}

/// The producer's place in the CTA's run: the first steps' weights are on their way.
pub struct Begun {
    item: Item,
    tile: Tile,
    /// Address of the next step's weights.
    chunk: u64,
}

/// Fills the first stages with weights: before the CTA's other threads know the barriers, and
/// before the kernels before in the stream have ended, one of which may make the activations.
///
/// # Safety
/// One thread of the CTA; `map` is the address of the tensor map in `p`; the barriers are
/// initialised and known to this thread and to copies.
#[inline(always)]
pub unsafe fn begin<const STAGES: u32>(
    config: &HopperConfig,
    p: &HopperParams,
    map: u64,
    memory: Memory,
    ring: Ring<STAGES>,
) -> Begun {
    let item = p.division.run(this_run(config)).take(&p.division);
    let tile = Tile::of(config, p, item.tile);
    let copies = Copies::new(config, p, map, memory);
    let mut chunk = copies.chunk(&tile, item.first);
    let early = item.count().min(STAGES);
    for stage in 0..early {
        // SAFETY: all stages are empty at first.
        unsafe {
            ring.expect_bytes(&Cursor { stage, parity: 0 }, config.stage_bytes());
            copies.weights(&tile, chunk, stage, ring.full(stage));
        }
        chunk += u64::from(config.scheme.chunk_bytes());
    }
    Begun { item, tile, chunk }
}

/// Copies the steps of the CTA's run as stages become empty, in both CTAs where these share
/// activations.
///
/// # Safety
/// The thread that [`begin`]s.
#[inline(always)]
pub unsafe fn produce<const STAGES: u32>(
    config: &HopperConfig,
    p: &HopperParams,
    map: u64,
    memory: Memory,
    ring: Ring<STAGES>,
    free: u32,
    begun: Begun,
) {
    let Begun { mut item, mut tile, mut chunk } = begun;
    let copies = Copies::new(config, p, map, memory);
    // Steps whose weights are under way.
    let mut early = item.count().min(STAGES);
    let chunk_bytes = u64::from(config.scheme.chunk_bytes());
    let mut step = item.first;
    let mut cursor = Cursor::producer();
    // SAFETY: all stages are empty at first; a later one is when its wait returns, and that of
    // the CTA that shares activations, too. The sums of both are stored when the other wait does.
    unsafe {
        grid::griddepcontrol_wait();
        let mut parity = 0;
        loop {
            while step < item.end {
                let full = ring.full(cursor.stage);
                if early > 0 {
                    early -= 1;
                } else {
                    ring.wait_empty(&cursor);
                    ring.expect_bytes(&cursor, config.stage_bytes());
                    copies.weights(&tile, chunk, cursor.stage, full);
                    chunk += chunk_bytes;
                }
                copies.activations(&tile, step, cursor.stage, full);
                step += 1;
                cursor.advance();
            }
            let end = item.tile * p.division.steps + item.first;
            let mut run = p.division.rest(this_run(config), end);
            if run.is_empty() {
                return;
            }
            if item.owned(&p.division) {
                sharing::wait_free(config, free, parity);
                parity ^= 1;
            }
            item = run.take(&p.division);
            tile = Tile::of(config, p, item.tile);
            chunk = copies.chunk(&tile, item.first);
            step = item.first;
        }
    }
}
