//! The producer: fills the stages of the ring, one step of K each.

use cuda_std::ptx::{bulk, grid, tensor_copy};
use fp4_formats::gemm::hopper::config::{BOX_COLUMNS, HopperConfig, K_STEP, OPERAND_BYTES};
use fp4_formats::gemm::hopper::params::HopperParams;
use fp4_formats::gemm::hopper::repack::CHUNK_ROWS;

use super::{Memory, Work};
use crate::pipeline::{Cursor, Ring};

/// What the copies of all steps have in common.
struct Copies<'a> {
    config: &'a HopperConfig,
    work: &'a Work,
    memory: Memory,
    /// First chunk of the batch entry's weights, bytes from a row of chunks to the next, and
    /// the last of those rows.
    matrix: u64,
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
    unsafe fn weights(&self, step: u32, stage: u32, full: u32) {
        let chunk_bytes = self.config.scheme.chunk_bytes();
        let chunks = self.config.rows / CHUNK_ROWS;
        for chunk in 0..chunks {
            // A row tile may end past the last chunk; what is copied instead is not stored.
            let row_chunk = (self.work.row_tile * chunks + chunk).min(self.last_row);
            let source = self.matrix
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
    unsafe fn activations(&self, step: u32, stage: u32, full: u32) {
        let box_bytes = BOX_COLUMNS * OPERAND_BYTES * self.config.tokens;
        for half in 0..K_STEP / BOX_COLUMNS {
            let column = step * K_STEP + half * BOX_COLUMNS;
            let to = self.memory.activations(self.config, stage) + half * box_bytes;
            // SAFETY: boxes may reach out of the tensor; the rest is the caller's.
            unsafe {
                tensor_copy::cp_async_bulk_tensor_3d_shared_cta_global(
                    to,
                    self.map,
                    [column as i32, self.work.token as i32, self.work.batch as i32],
                    full,
                    self.activations_policy,
                );
            }
        }
    }
}

/// Copies the CTA's steps of K as stages become empty. Fills the first stages with weights
/// before it waits for the kernel that makes the activations, where there is one.
///
/// # Safety
/// One thread of the CTA; `map` is the address of the tensor map in `p`; the ring is
/// initialised and known to this thread.
#[inline(always)]
pub unsafe fn produce<const STAGES: u32>(
    config: &HopperConfig,
    p: &HopperParams,
    map: u64,
    work: &Work,
    memory: Memory,
    ring: Ring<STAGES>,
) {
    let row_chunks = p.problem.n.div_ceil(CHUNK_ROWS);
    let copies = Copies {
        config,
        work,
        memory,
        matrix: p.weights + u64::from(work.batch) * p.weight_stride,
        row_bytes: u64::from(p.problem.k.div_ceil(K_STEP)) * u64::from(config.scheme.chunk_bytes()),
        last_row: row_chunks - 1,
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
    let (first, end) = work.steps;
    let early = (end - first).min(STAGES);
    let mut cursor = Cursor::producer();
    // SAFETY: all stages are empty at first; a later one is when its wait returns.
    unsafe {
        for stage in 0..early {
            let full = ring.full(stage);
            ring.expect_bytes(&cursor, config.stage_bytes());
            copies.weights(first + stage, stage, full);
            cursor.advance();
        }
        grid::griddepcontrol_wait();
        for stage in 0..early {
            copies.activations(first + stage, stage, ring.full(stage));
        }
        for step in first + early..end {
            ring.wait_empty(&cursor);
            let full = ring.full(cursor.stage);
            ring.expect_bytes(&cursor, config.stage_bytes());
            copies.weights(step, cursor.stage, full);
            copies.activations(step, cursor.stage, full);
            cursor.advance();
        }
    }
}
