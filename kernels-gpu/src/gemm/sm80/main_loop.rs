//! The main loop: the steps of an item go through the ring of stages, and each warp multiplies its rows by
//! its tokens, in units of 16 columns of K.
//!
//! # Decode
//! A thread loads 16 bytes of codes for each 16 rows: its A fragments of four units, at four bits a weight. A
//! fragment's eight codes are shifted and masked to 16-bit floats and multiplied by their block's scale
//! ([`decoded`](crate::gemm::decoded)): about 15 instructions, for as many products as the warp has eights of
//! tokens.
//!
//! # Multiply
//! An `ldmatrix` loads 16 tokens by 16 columns, the B fragments of two products of a unit; with eight tokens
//! those of two units. The products of a unit are independent of each other. If they are few, units of even
//! and odd number add to separate sums, because a product takes longer than decoding the next one's operand.
//!
//! # Overlap
//! While a unit is multiplied, the operands of the next one are loaded and decoded. Before the last unit of a
//! stage, the next stage is waited for. All warps have then loaded the operands of the stage, so that copies
//! to it start in the next step:
//!
//! ```text
//! unit      |  0  |  1  |  2  |     3      |  0  ...
//! multiply  |  0  |  1  |  2  |     3      |
//! decode    |  1  |  2  |  3  | wait, 0    |        of the next stage
//! copy      |     |  x  |     |            |        to the stage before
//! ```

use cuda_std::ptx::{cp_async, marker, memory, mma};
use cuda_std::{thread, warp};
use fp4_formats::gemm::Item;
use fp4_formats::gemm::fragments::repack::{BLOCK_CODE_BYTES, BLOCK_ROWS, THREAD_BYTES};
use fp4_formats::gemm::fragments::word::Multipliers;
use fp4_formats::gemm::sm80::config::{MMA_ROWS, MMA_SUMS, MMA_TOKENS, PIECE_BYTES, TOKEN_BYTES};
use fp4_formats::gemm::work::CtaTile;

use super::copy::Sources;
use super::memory::{Memory, Warp};
use super::{Cta, Kernel};
use crate::gemm::decoded::{Decoded, STEPS};
use crate::gemm::work::WorkList;

/// A thread's sums: of its warp's 16 rows by eight tokens each.
pub type Sums<const ROWS: usize, const TOKENS: usize> = [[[f32; MMA_SUMS]; TOKENS]; ROWS];

/// The unit beside which copies start: behind the barrier there are products first.
const COPIES: usize = 1;
/// Products of a unit up to which units add to two sets of sums in turn.
const FEW: usize = 2;

/// Adds the products of an item's steps. There are `AHEAD` stages beside the one that is multiplied
/// and the following one.
///
/// # Safety
/// All threads of the CTA, converged; nobody uses the stages, and the item has a step.
#[inline(always)]
pub unsafe fn sum_item<
    K: Kernel,
    L: WorkList,
    const ROWS: usize,
    const TOKENS: usize,
    const UNITS: usize,
    const AHEAD: u32,
>(
    cta: &Cta<'_, L>,
    tile: &CtaTile,
    item: &Item,
) -> Sums<ROWS, TOKENS> {
    let mut sources = Sources::new(cta, tile, item);
    for stage in 0..=AHEAD {
        // SAFETY: the stage is free.
        unsafe { sources.copy(stage) };
        cp_async::cp_async_commit_group();
    }
    let mut consumer = Consumer::<K, ROWS, TOKENS, UNITS> {
        memory: cta.memory,
        places: Places::new::<K>(),
        by: K::Weights::HALF.multipliers(cta.params.one).map(marker::pin),
        sums: [[[[0.0; _]; _]; _]; 2],
        a: [[[0; _]; _]; 2],
        b: [[[0; _]; _]; 2],
        words: [[0; _]; _],
        scales: [K::Weights::NONE; _],
    };
    // SAFETY: all threads are here. Behind the barrier, the copies of all threads to the stage have arrived.
    unsafe {
        cp_async::cp_async_wait_group::<AHEAD>();
        meet();
        consumer.load(0, 0);
        for m in 0..ROWS {
            consumer.decode(0, m);
        }
    }
    let mut stage = 0;
    // The stage of the step before.
    let mut free = AHEAD + 1;
    let mut left = item.count();
    while left > 1 {
        let following = if stage == AHEAD + 1 { 0 } else { stage + 1 };
        // SAFETY: all threads are here. Behind the barrier, the copies of all threads to the following stage
        // have arrived: of the later groups there are `AHEAD`. All have loaded the operands of this stage.
        unsafe {
            consumer
                .multiply::<AHEAD>(stage, Some(Next { following, free, sources: &mut sources }));
        }
        (free, stage) = (stage, following);
        left -= 1;
    }
    // SAFETY: all threads are here, and the last stage is full. Behind the barrier all copies have arrived, and
    // all have read all stages.
    unsafe {
        consumer.multiply::<AHEAD>(stage, None);
        cp_async::cp_async_wait_group::<0>();
        meet();
    }
    consumer.total()
}

/// Waits for all threads of the CTA.
///
/// # Safety
/// All of them reach such a call.
#[inline(always)]
unsafe fn meet() {
    // SAFETY: the caller's.
    unsafe {
        warp::sync();
        thread::sync_threads();
    }
}

/// The step behind the one that is multiplied.
struct Next<'a> {
    /// Its stage.
    following: u32,
    /// The stage of the step before, which the copies of a later one fill.
    free: u32,
    /// Their sources.
    sources: &'a mut Sources,
}

/// A thread's operands and sums.
struct Consumer<K: Kernel, const ROWS: usize, const TOKENS: usize, const UNITS: usize> {
    memory: Memory,
    places: Places,
    by: Multipliers,
    /// Sums of units of even and of odd number; of many products, of all.
    sums: [Sums<ROWS, TOKENS>; 2],
    /// Weights of the unit that is multiplied and of the next one, in turn.
    a: [[[u32; 4]; ROWS]; 2],
    /// Their tokens.
    b: [[[u32; 2]; TOKENS]; 2],
    /// Codes of a block of columns, and their scales.
    words: [[u32; STEPS]; ROWS],
    scales: [<K::Weights as Decoded>::Scales; ROWS],
}

impl<K: Kernel, const ROWS: usize, const TOKENS: usize, const UNITS: usize>
    Consumer<K, ROWS, TOKENS, UNITS>
{
    /// Adds the products of a stage, whose first unit's operands are there. If there is a next step, loads the
    /// operands of its first unit, and starts the copies to the free stage.
    ///
    /// # Safety
    /// All threads of the CTA reach this same call; the stage is full.
    #[inline(always)]
    unsafe fn multiply<const AHEAD: u32>(&mut self, stage: u32, mut next: Option<Next<'_>>) {
        for unit in 0..UNITS {
            let (a, b) = (self.a[unit % 2], self.b[unit % 2]);
            let set = if ROWS * TOKENS <= FEW { unit % 2 } else { 0 };
            // SAFETY: the stages are full; all threads of the warp are here.
            unsafe {
                let mut following = None;
                if unit + 1 < UNITS {
                    following = Some((stage, unit + 1));
                } else if let Some(next) = &next {
                    cp_async::cp_async_wait_group::<AHEAD>();
                    meet();
                    following = Some((next.following, 0));
                }
                if let Some((stage, unit)) = following {
                    self.load(stage, unit);
                }
                for m in 0..ROWS {
                    if let Some((_, unit)) = following {
                        self.decode(unit, m);
                    }
                    for n in 0..TOKENS {
                        K::Weights::multiply_mma_sync(&mut self.sums[set][m][n], a[m], b[n]);
                    }
                }
                if let Some(Next { free, sources, .. }) = &mut next
                    && unit == COPIES
                {
                    sources.copy(*free);
                    cp_async::cp_async_commit_group();
                }
            }
        }
    }

    /// Loads the tokens of a unit, and the codes and scales of the block of columns that begins with it.
    ///
    /// # Safety
    /// All threads of the warp reach this same call; the stage is full.
    #[inline(always)]
    unsafe fn load(&mut self, stage: u32, unit: usize) {
        let (block, of_block) = (unit / STEPS, (unit % STEPS) as u32);
        if of_block == 0 {
            let weights = self.memory.weights(stage);
            for m in 0..ROWS {
                let at = Rows { group: m as u32, block: block as u32 };
                // SAFETY: inside the stage.
                unsafe {
                    let words = weights + self.places.words + at.words();
                    self.words[m] = memory::ld_shared_v4_b32(words);
                    let scales = weights + self.places.scales + at.scales::<K>();
                    self.scales[m] = K::Weights::scales(scales);
                }
            }
        }
        let activations = self.memory.activations(stage) + self.places.tokens;
        let block = block as u32 * K::CONFIG.tokens * TOKEN_BYTES;
        // SAFETY: inside the stage; all threads of the warp are here.
        unsafe {
            if TOKENS == 1 {
                if unit.is_multiple_of(2) {
                    let at = (activations ^ (of_block * 2 * PIECE_BYTES)) + block;
                    let [a, b, c, d] = mma::ldmatrix_m8n8_x4_shared_b16(at);
                    (self.b[0][0], self.b[1][0]) = ([a, b], [c, d]);
                }
            } else {
                let at = (activations ^ (of_block * 2 * PIECE_BYTES)) + block;
                for n in (0..TOKENS).step_by(2) {
                    let at = at + n as u32 * MMA_TOKENS * TOKEN_BYTES;
                    let [a, b, c, d] = mma::ldmatrix_m8n8_x4_shared_b16(at);
                    self.b[unit % 2][n] = [a, b];
                    self.b[unit % 2][n + 1] = [c, d];
                }
            }
        }
    }

    /// Decodes the weights of 16 of the warp's rows of a unit.
    #[inline(always)]
    fn decode(&mut self, unit: usize, m: usize) {
        let step = unit % STEPS;
        let (word, scales) = (self.words[m][step], self.scales[m]);
        self.a[unit % 2][m] = K::Weights::fragment(word, scales, step, self.by);
    }

    /// All sums.
    #[inline(always)]
    fn total(&self) -> Sums<ROWS, TOKENS> {
        let [mut sums, others] = self.sums;
        if ROWS * TOKENS <= FEW {
            for m in 0..ROWS {
                for n in 0..TOKENS {
                    for i in 0..MMA_SUMS {
                        sums[m][n][i] += others[m][n][i];
                    }
                }
            }
        }
        sums
    }
}

/// Offsets of a thread's operands in a stage.
#[derive(Clone, Copy)]
struct Places {
    /// Bytes to the codes of the warp's first 16 rows, and to their scales.
    words: u32,
    scales: u32,
    /// Bytes to the lane's row of a matrix of the warp's first tokens, of the first unit: the piece of another
    /// unit is at the exclusive or with its first piece.
    tokens: u32,
}

impl Places {
    #[inline(always)]
    fn new<K: Kernel>() -> Self {
        let config = &K::CONFIG;
        let Warp { row, token } = Warp::own(config);
        let (lane, block) = (warp::lane_id(), row / BLOCK_ROWS);
        let group = row % BLOCK_ROWS / MMA_ROWS;
        let words =
            block * config.blocks * BLOCK_CODE_BYTES + (group * warp::LANES + lane) * THREAD_BYTES;
        let scales = block * config.blocks * config.scheme.block_scale_bytes()
            + (group * (MMA_ROWS / 2) + lane / 4) * row_scale_bytes::<K>();
        // Matrices are the halves of a unit, of eight tokens and then of the next eight; or, if there are no
        // others, of the next unit.
        let (matrix, row) = (lane / 8, lane % 8);
        let (eight, piece) =
            if config.warp_tokens() == 1 { (0, matrix) } else { (matrix / 2, matrix % 2) };
        let tokens = (token + eight * MMA_TOKENS + row) * TOKEN_BYTES + (piece ^ row) * PIECE_BYTES;
        Self {
            words: marker::pin(words),
            scales: marker::pin(config.code_bytes() + scales),
            tokens: marker::pin(tokens),
        }
    }
}

/// A block of columns of 16 of a warp's rows, in a stage.
#[derive(Clone, Copy)]
struct Rows {
    /// The number of these 16 among the warp's rows.
    group: u32,
    /// The number of the block of columns in the stage.
    block: u32,
}

impl Rows {
    /// Bytes from the codes of the warp's first rows and columns.
    #[inline(always)]
    fn words(self) -> u32 {
        let Self { group, block } = self;
        block * BLOCK_CODE_BYTES + group * warp::LANES * THREAD_BYTES
    }

    /// Bytes from their scales.
    #[inline(always)]
    fn scales<K: Kernel>(self) -> u32 {
        let Self { group, block } = self;
        block * K::CONFIG.scheme.block_scale_bytes()
            + group * (MMA_ROWS / 2) * row_scale_bytes::<K>()
    }
}

/// Bytes of the scales of a thread's two rows.
#[inline(always)]
const fn row_scale_bytes<K: Kernel>() -> u32 {
    2 * K::CONFIG.scheme.block_scales() * K::CONFIG.scheme.scale_bytes()
}
