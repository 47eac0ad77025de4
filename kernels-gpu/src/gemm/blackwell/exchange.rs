//! Split K: the CTAs of a cluster hold sums over different K steps of one tile. Each
//! sends the others their columns, adds up its own in order of split, and stores them.
//!
//! A CTA receives one block from each other CTA: groups of four columns, in each a
//! 16-byte word for every row.

use super::Work;
use super::boxes::Boxes;
use super::control::{Control, arrive_at, publish_at};
use super::store::{self, Place};
use super::store_blocks;
use crate::gemm::epilogue::{self, blocks};
use crate::pipeline::{Cursor, Ring};
use cuda_std::ptx::{cluster, marker, memory, tcgen05};
use cuda_std::{thread, warp};
use fp4_formats::gemm::blackwell::BlackwellConfig;
use fp4_formats::gemm::blackwell::config::{CTA_ROWS, EXCHANGE_COLUMNS};

const CHUNK: usize = EXCHANGE_COLUMNS as usize;
const _: () = assert!(blocks::BLOCK == 2 * CHUNK);
/// Columns of a 16-byte word.
const WORD: usize = 4;

/// A storing thread's side of the exchange.
pub struct Exchange {
    ring: Ring<1>,
    sent: Cursor<1>,
    received: Cursor<1>,
    /// Where the thread's row begins in the first block.
    base: u32,
}

impl Exchange {
    #[inline(always)]
    pub fn new<const STAGES: u32, const ACCUMULATORS: u32>(
        control: &Control<STAGES, ACCUMULATORS>,
    ) -> Self {
        Self {
            ring: control.exchanges(),
            sent: Cursor::producer(),
            received: Cursor::consumer(),
            base: control.exchange + thread::thread_idx_x() * 16,
        }
    }

    /// Exchanges the sums at `d` and stores the CTA's columns.
    ///
    /// # Safety
    /// Whole storing warps of all CTAs of the cluster, on the same tile; the sums are
    /// complete.
    #[inline(always)]
    pub unsafe fn run(
        &mut self,
        work: &Work<'_>,
        d: u32,
        place: &Place,
        boxes: &mut Boxes,
        give_back: impl Fn(),
    ) {
        let config = work.config;
        let own = work.split();
        // CTAs of the same rows: the same one of each pair.
        let cta = |split: u32| split * config.cta_group + work.pair_rank();
        let columns = config.columns / config.k_parts();
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
                        cta(split),
                    );
                    send(config, block, d + split * columns);
                }
                split = marker::pin(split + 1);
            }
            warp::sync();
            for split in 0..config.k_parts() {
                if split != own && warp::lane_id() == 0 {
                    publish_at(self.ring.full(0), cta(split));
                }
            }
            self.ring.wait_full_cluster(&self.received);
            warp::sync();
            let chunks = columns / EXCHANGE_COLUMNS;
            let first = own * columns;
            let mut chunk = 0;
            if epilogue::is_nvfp4(&work.params.epilogue.sink) {
                while chunk < chunks {
                    let column = first + chunk * EXCHANGE_COLUMNS;
                    let mut sums = tcgen05::tcgen05_ld_32x32b_x16(d + column).map(f32::from_bits);
                    if chunk + 2 == chunks {
                        give_back();
                    }
                    for (i, half) in sums.as_chunks_mut().0.iter_mut().enumerate() {
                        *half = self.add(config, own, chunk + i as u32, *half);
                    }
                    store_blocks::store(work, place, column, sums);
                    warp::sync();
                    chunk = marker::pin(chunk + 2);
                }
            } else {
                while chunk < chunks {
                    let column = first + chunk * EXCHANGE_COLUMNS;
                    let mine = tcgen05::tcgen05_ld_32x32b_x8(d + column).map(f32::from_bits);
                    if chunk + 1 == chunks {
                        give_back();
                    }
                    let sums = self.add(config, own, chunk, mine);
                    if work.params.copied != 0 {
                        boxes.put(work, place, column, sums);
                    } else {
                        store::store(work, place, column, sums);
                    }
                    // Lanes without a row come first.
                    warp::sync();
                    // Not unrolled: code that runs once per tile should be small.
                    chunk = marker::pin(chunk + 1);
                }
            }
            // The lanes have met behind what each read.
            for split in 0..config.k_parts() {
                if split != own && warp::lane_id() == 0 {
                    arrive_at(self.ring.empty(0), cta(split));
                }
            }
        }
        self.sent.advance();
        self.received.advance();
    }

    /// The sums of all CTAs for one chunk of the CTA's columns, added in order of split.
    ///
    /// # Safety
    /// As [`Exchange::run`]; the blocks are full.
    #[inline(always)]
    unsafe fn add(
        &self,
        config: &BlackwellConfig,
        own: u32,
        chunk: u32,
        mine: [f32; CHUNK],
    ) -> [f32; CHUNK] {
        let mut sums = [0.0; CHUNK];
        for split in 0..config.k_parts() {
            if split == own {
                for i in 0..CHUNK {
                    sums[i] += mine[i];
                }
            } else {
                let block = self.block(config, own, split);
                for i in 0..CHUNK / WORD {
                    // SAFETY: the caller's.
                    let word = unsafe { memory::ld_shared_v4_b32(block + place(chunk, i)) };
                    for j in 0..WORD {
                        sums[WORD * i + j] += f32::from_bits(word[j]);
                    }
                }
            }
        }
        sums
    }

    /// The thread's row in the block that split `receiver` has from split `sender`.
    #[inline(always)]
    fn block(&self, config: &BlackwellConfig, receiver: u32, sender: u32) -> u32 {
        let index = if sender < receiver { sender } else { sender - 1 };
        self.base + index * CTA_ROWS * (config.columns / config.k_parts()) * 4
    }
}

/// Sends the thread's row of the columns at `d` to `block` in another CTA.
///
/// # Safety
/// As [`Exchange::run`]; the block is free.
#[inline(always)]
unsafe fn send(config: &BlackwellConfig, block: u32, d: u32) {
    let mut chunk = 0;
    while chunk < config.columns / config.k_parts() / EXCHANGE_COLUMNS {
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
