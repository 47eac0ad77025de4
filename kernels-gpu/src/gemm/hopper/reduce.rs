//! The end of a tile: the cluster's sums are added and stored.

use cuda_std::ptx::{cluster, remote};
use cuda_std::thread;
use fp4_formats::gemm::hopper::config::{CONSUMERS, HopperConfig};
use fp4_formats::gemm::hopper::params::HopperParams;
use fp4_formats::gemm::hopper::repack::WARPGROUP;

use super::decode::Weights;
use super::{Memory, Work};
use crate::gemm::blocks;
use crate::gemm::epilogue::{self, COLUMNS};

/// Threads that take part.
const THREADS: u32 = CONSUMERS * WARPGROUP;
/// CTAs whose sums are loaded together.
const BATCH: u32 = 4;

/// Adds the sums of all CTAs of the cluster, in the order of their ranks, for this CTA's part
/// of the tile, and stores the results. A part is a run of pieces of eight rows of a token.
///
/// # Safety
/// All consumer threads; the sums of all CTAs of the cluster are in shared memory, where they
/// stay until the next barrier.
#[inline(always)]
pub unsafe fn reduce<W: Weights>(
    config: &HopperConfig,
    p: &HopperParams,
    work: &Work,
    memory: Memory,
) {
    let columns = config.rows / COLUMNS as u32;
    let tokens = (p.problem.m - work.token).min(config.tokens);
    let pieces = tokens * columns;
    let first = part(pieces, work.rank, work.splits);
    let end = part(pieces, work.rank + 1, work.splits);
    let unit = const { (1u32 << W::SCHEME.unit_log2()) as f32 };
    let mut piece = first + thread::thread_idx_x();
    while piece < end {
        let (token, column) = (piece / columns, piece % columns * COLUMNS as u32);
        let at = (token * config.sum_pitch() + column) * size_of::<f32>() as u32;
        piece += THREADS;
        let place = [work.token + token, work.row_tile * config.rows + column];
        if place[1] >= p.problem.n {
            continue;
        }
        let mut sums = [0.0; COLUMNS];
        let mut batch = 0;
        while batch < work.splits {
            // Loads of several CTAs are under way at a time. All are used, hence finished before
            // this CTA says that it reads no more.
            let mut parts = [[[0; 4]; 2]; BATCH as usize];
            for i in 0..BATCH {
                if batch + i < work.splits {
                    let address = cluster::mapa_shared_cluster_u32(memory.base + at, batch + i);
                    // SAFETY: sums of a CTA of the cluster, at multiples of 16 bytes.
                    parts[i as usize] = unsafe {
                        [
                            remote::ld_shared_cluster_v4_b32(address),
                            remote::ld_shared_cluster_v4_b32(address + 16),
                        ]
                    };
                }
            }
            for i in 0..BATCH {
                let exists = batch + i < work.splits;
                for j in 0..COLUMNS {
                    let part = f32::from_bits(parts[i as usize][j / 4][j % 4]);
                    sums[j] = if exists { sums[j] + part } else { sums[j] };
                }
            }
            batch += BATCH;
        }
        // SAFETY: the token exists; the rest is the caller's. A block of NVFP4 is two pieces of
        // neighbouring lanes: the first of a part is even, as are their numbers.
        unsafe {
            let results = epilogue::apply(&p.epilogue, unit, place, p.problem.n - place[1], sums);
            if blocks::wanted(&p.epilogue) {
                blocks::store_half(&p.epilogue, &p.problem, work.batch, place, results);
            } else {
                epilogue::store_results(&p.epilogue, &p.problem, work.batch, place, results);
            }
        }
    }
    if blocks::wanted(&p.epilogue) && work.token + tokens == p.problem.m {
        let (blocks, rank) = (config.rows / blocks::BLOCK as u32, work.rank);
        let part = [work.row_tile * blocks, blocks];
        let threads = [rank * THREADS + thread::thread_idx_x(), work.splits * THREADS];
        // SAFETY: the caller's.
        unsafe { blocks::pad_rows(&p.epilogue, &p.problem, work.batch, part, threads) };
    }
}

/// First of part `index` of `pieces`, even.
#[inline(always)]
fn part(pieces: u32, index: u32, parts: u32) -> u32 {
    pieces / 2 * index / parts * 2
}
