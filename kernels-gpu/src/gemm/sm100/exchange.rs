//! Split K: the CTAs of a cluster hold sums over different K steps of one tile. Each
//! sends the others their columns, adds up its own in order of split, and stores them.
//!
//! A CTA receives one block from each other CTA: groups of four columns, in each a
//! 16-byte word for every row.

use super::memory::{Memory, arrive_at, publish_at};
use super::results::{SEGMENT, Segment, segment_columns};
use super::{Cta, WorkList};
use crate::pipeline::{Cursor, Ring};
use cuda_std::ptx::{cluster, marker, memory, tcgen05};
use cuda_std::{thread, warp};
use fp4_formats::gemm::sm100::Sm100Config;
use fp4_formats::gemm::sm100::config::{CTA_ROWS, EXCHANGE_COLUMNS};

const CHUNK: usize = EXCHANGE_COLUMNS as usize;
/// Columns of a 16-byte word.
const WORD: usize = 4;

/// A storing thread's side of the exchange.
pub struct Exchange {
    ring: Ring,
    sent: Cursor,
    received: Cursor,
    /// The address of the thread's row in the first block.
    base: u32,
}

impl Exchange {
    #[inline(always)]
    pub fn new(memory: &Memory) -> Self {
        Self {
            ring: memory.exchanges(),
            sent: memory.exchanges().producer(),
            received: memory.exchanges().consumer(),
            base: memory.exchange + thread::thread_idx_x() * 16,
        }
    }

    /// Sends the others their columns of the sums at `d`, and waits for the sums of the CTA's own.
    ///
    /// # Safety
    /// Whole storing warps of all CTAs of the cluster, on the same tile; the sums are
    /// complete.
    #[inline(always)]
    pub unsafe fn exchange(&self, cta: &Cta<'_, impl WorkList>, d: u32) {
        let config = cta.config;
        let own = cta.split();
        let columns = config.stored_columns();
        // SAFETY: the others' blocks are free before they are written and full before
        // they are read.
        unsafe {
            self.ring.wait_empty_cluster(&self.sent);
            warp::sync();
            let mut split = 0;
            while split < config.k_parts() {
                if split != own {
                    let block = cluster::mapa_shared_cluster_u32(
                        self.block(config, split, own),
                        cta_of(cta, split),
                    );
                    send(config, block, d + split * columns);
                }
                split = marker::pin(split + 1);
            }
            warp::sync();
            for split in 0..config.k_parts() {
                if split != own && warp::lane_id() == 0 {
                    publish_at(self.ring.full(0), cta_of(cta, split));
                }
            }
            self.ring.wait_full_cluster(&self.received);
            warp::sync();
        }
    }

    /// The sums of all CTAs for columns `column ..` of the tile, of the CTA's own, added in order
    /// of split.
    ///
    /// # Safety
    /// Behind [`Exchange::exchange`].
    #[inline(always)]
    pub unsafe fn add(&self, cta: &Cta<'_, impl WorkList>, column: u32, mine: Segment) -> Segment {
        let (config, own) = (cta.config, cta.split());
        let chunk = (column - own * config.stored_columns()) / EXCHANGE_COLUMNS;
        let mut sums = [0.0; SEGMENT];
        let columns = segment_columns(config) as usize;
        let mut split = 0;
        while split < config.k_parts() {
            if split == own {
                for i in 0..columns {
                    sums[i] += mine[i];
                }
            } else {
                let block = self.block(config, own, split);
                for i in 0..columns / WORD {
                    // SAFETY: the block is full.
                    let word = unsafe { memory::ld_shared_v4_b32(block + place(chunk, i)) };
                    for j in 0..WORD {
                        sums[WORD * i + j] += f32::from_bits(word[j]);
                    }
                }
            }
            // Not unrolled: code that runs once per tile should be small.
            split = marker::pin(split + 1);
        }
        sums
    }

    /// Says that the sums that came have been read.
    ///
    /// # Safety
    /// Whole warps, once for each [`Exchange::exchange`], whose lanes have met behind their reads.
    #[inline(always)]
    pub unsafe fn end(&mut self, cta: &Cta<'_, impl WorkList>) {
        for split in 0..cta.config.k_parts() {
            if split != cta.split() && warp::lane_id() == 0 {
                // SAFETY: the barrier expects it; the CTAs meet before one ends.
                unsafe { arrive_at(self.ring.empty(0), cta_of(cta, split)) };
            }
        }
        self.sent.advance();
        self.received.advance();
    }

    /// The thread's row in the block that split `receiver` has from split `sender`.
    #[inline(always)]
    fn block(&self, config: &Sm100Config, receiver: u32, sender: u32) -> u32 {
        let index = if sender < receiver { sender } else { sender - 1 };
        self.base + index * CTA_ROWS * config.stored_columns() * 4
    }
}

/// The CTA of part `split` with the same rows: the same one of each pair.
#[inline(always)]
fn cta_of(cta: &Cta<'_, impl WorkList>, split: u32) -> u32 {
    split * cta.config.cta_group + cta.pair_rank()
}

/// Sends the thread's row of the columns at `d` to `block` in another CTA.
///
/// # Safety
/// The same as [`Exchange::exchange`]; the block is free.
#[inline(always)]
unsafe fn send(config: &Sm100Config, block: u32, d: u32) {
    let mut chunk = 0;
    while chunk < config.stored_columns() / EXCHANGE_COLUMNS {
        // SAFETY: the caller's.
        unsafe {
            let sums = tcgen05::tcgen05_ld_32x32b_x8(d + chunk * EXCHANGE_COLUMNS);
            for i in 0..CHUNK / WORD {
                let word = core::array::from_fn(|j| sums[WORD * i + j]);
                memory::st_shared_cluster_v4_b32(block + place(chunk, i), word);
            }
        }
        chunk = marker::pin(chunk + 1);
    }
}

/// Offset of word `i` of `chunk` of a row.
#[inline(always)]
fn place(chunk: u32, i: usize) -> u32 {
    (chunk * (EXCHANGE_COLUMNS / WORD as u32) + i as u32) * CTA_ROWS * 16
}
