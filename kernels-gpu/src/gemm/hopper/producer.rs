//! The producer: fills the stages of the ring, one step of K each.

use cuda_std::ptx::{bulk, grid, marker, mbarrier, tensor_copy};
use cuda_std::thread;
use fp4_formats::gemm::hopper::config::{BOX_COLUMNS, HopperConfig, K_STEP, OPERAND_BYTES};
use fp4_formats::gemm::hopper::params::HopperParams;
use fp4_formats::gemm::hopper::repack::CHUNK_ROWS;

use super::tile::{Memory, Tile, Walk};
use crate::pipeline::{Cursor, Ring};

/// What the copies of all steps have in common.
struct Copies<'a> {
    config: &'a HopperConfig,
    p: &'a HopperParams,
    memory: Memory,
    /// Bytes from a row of chunks to the next, and the last of those rows.
    row_bytes: u64,
    last_row: u32,
    /// Address of the activations' tensor map.
    map: u64,
    /// How long L2 keeps each.
    weights_policy: u64,
    activations_policy: u64,
}

impl Copies<'_> {
    /// # Safety
    /// The stage belongs to the copies until its barrier `full` says otherwise; `step` exists.
    #[inline(always)]
    unsafe fn weights(&self, tile: &Tile, step: u32, stage: u32, full: u32) {
        let chunk_bytes = self.config.scheme.chunk_bytes();
        let chunks = self.config.rows / CHUNK_ROWS;
        let matrix = self.p.weights + u64::from(tile.batch) * self.p.weight_stride;
        for chunk in 0..chunks {
            // A row tile may end past the last chunk; what is copied instead is not stored.
            let row_chunk = (tile.row_tile * chunks + chunk).min(self.last_row);
            let source = matrix
                + u64::from(row_chunk) * self.row_bytes
                + u64::from(step) * u64::from(chunk_bytes);
            let to = self.memory.weights(self.config, stage) + chunk * chunk_bytes;
            // SAFETY: chunks are inside the weights; the rest is the caller's.
            unsafe {
                bulk::cp_async_bulk_shared_cta_global(
                    to,
                    source,
                    chunk_bytes,
                    full,
                    self.weights_policy,
                );
            }
        }
    }

    /// # Safety
    /// As [`weights`](Self::weights), and whatever wrote the activations has ended.
    #[inline(always)]
    unsafe fn activations(&self, tile: &Tile, step: u32, stage: u32, full: u32) {
        let box_bytes = BOX_COLUMNS * OPERAND_BYTES * self.config.tokens;
        for half in 0..K_STEP / BOX_COLUMNS {
            let column = step * K_STEP + half * BOX_COLUMNS;
            let to = self.memory.activations(self.config, stage) + half * box_bytes;
            // SAFETY: boxes may reach out of the tensor; the rest is the caller's.
            unsafe {
                tensor_copy::cp_async_bulk_tensor_3d_shared_cta_global(
                    to,
                    self.map,
                    [column as i32, tile.token as i32, tile.batch as i32],
                    full,
                    self.activations_policy,
                );
            }
        }
    }
}

/// Copies the steps of the CTA's run as stages become empty. Fills the first stages with
/// weights before it waits for the kernels before in the stream, one of which may make the
/// activations.
///
/// # Safety
/// One thread of the CTA; `map` is the address of the tensor map in `p`; the barriers are
/// initialised and known to this thread.
#[inline(always)]
pub unsafe fn produce<const STAGES: u32>(
    config: &HopperConfig,
    p: &HopperParams,
    map: u64,
    memory: Memory,
    ring: Ring<STAGES>,
    free: u32,
) {
    let mut walk = Walk::start(config, p, marker::pin(thread::block_idx_x()));
    let copies = Copies {
        config,
        p,
        memory,
        row_bytes: u64::from(p.problem.k.div_ceil(K_STEP)) * u64::from(config.scheme.chunk_bytes()),
        last_row: p.problem.n.div_ceil(CHUNK_ROWS) - 1,
        map,
        // Other CTAs read the weights only where there are more token tiles, the activations
        // always.
        weights_policy: if p.problem.m > config.tokens {
            bulk::createpolicy_fractional_l2_evict_normal_b64()
        } else {
            bulk::createpolicy_fractional_l2_evict_first_b64()
        },
        activations_policy: bulk::createpolicy_fractional_l2_evict_last_b64(),
    };
    let mut cursor = Cursor::producer();
    let mut ahead = 0;
    // SAFETY: all stages are empty at first; a later one is when its wait returns.
    unsafe {
        // A copy of the walk, as far as there are stages and nothing to wait for.
        let mut early = walk;
        while ahead < STAGES {
            if early.at_end() {
                if early.is_last() || early.item.owned(&p.division) {
                    break;
                }
                early.turn(config, p);
            }
            let full = ring.full(ahead);
            ring.expect_bytes(&Cursor { stage: ahead, parity: 0 }, config.stage_bytes());
            copies.weights(&early.tile, early.step, ahead, full);
            early.step += 1;
            ahead += 1;
        }
        grid::griddepcontrol_wait();
        let mut parity = 0;
        loop {
            if walk.at_end() {
                if walk.is_last() {
                    return;
                }
                if walk.item.owned(&p.division) {
                    mbarrier::wait_parity(free, parity);
                    parity ^= 1;
                }
                walk.turn(config, p);
            }
            let full = ring.full(cursor.stage);
            if ahead > 0 {
                ahead -= 1;
            } else {
                ring.wait_empty(&cursor);
                ring.expect_bytes(&cursor, config.stage_bytes());
                copies.weights(&walk.tile, walk.step, cursor.stage, full);
            }
            copies.activations(&walk.tile, walk.step, cursor.stage, full);
            walk.step += 1;
            cursor.advance();
        }
    }
}
