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
//! those of two units. More than 64 tokens are loaded part by part. The products of a unit are
//! independent of each other. If they are few, units of even and odd number add to separate sums, because a
//! product takes longer than decoding the next one's operand.
//!
//! # Overlap
//! While a part of a unit is multiplied, the tokens of the next part are loaded; beside a unit's last part, the
//! weights of the next unit are decoded. Weights arrive a step before the activations that they are multiplied
//! with, so that their codes are loaded in front of the barrier. Before the last part of a stage, the next
//! stage of activations is waited for. All warps have then loaded the operands of this stage, so that copies to
//! it start in the next step. The last part's products are tied to the barrier's result: ptxas would move
//! them in front of it, and nothing would overlap the loads behind it.
//!
//! ```text
//! unit         |  0  |  1  |  2  |     3      |  0  ...
//! multiply     |  0  |  1  |  2  |     3      |
//! load tokens  |  1  |  2  |  3  | wait, 0    |        of the next stage
//! load weights |     |     |     | all        |        of the next stage
//! decode       |  1  |  2  |  3  |     0      |        of the next stage
//! copy         |     |  x  |     |            |        to the stage before
//! ```

use cuda_std::ptx::{barrier, cp_async, marker, memory, mma};
use cuda_std::warp;
use fp4_formats::gemm::Item;
use fp4_formats::gemm::fragments::word::Multipliers;
use fp4_formats::gemm::sm80::config::{MMA_SUMS, MMA_TOKENS, PIECE_BYTES, TOKEN_BYTES};
use fp4_formats::gemm::work::CtaTile;

use super::copy::Sources;
use super::memory::Memory;
use super::places::{Places, Rows};
use super::{Cta, Kernel};
use crate::gemm::decoded::{Decoded, STEPS, Scales};
use crate::gemm::warps::{Sums, meet};
use crate::gemm::work::WorkList;
use crate::pipeline;

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
    const PART: usize,
    const UNITS: usize,
    const AHEAD: u32,
>(
    cta: &Cta<'_, L>,
    tile: &CtaTile,
    item: &Item,
) -> Sums<ROWS, TOKENS> {
    let mut sources = Sources::new(cta, tile, item);
    // SAFETY: the stages are free.
    unsafe { sources.copy_weights(0) };
    if !L::GROUPED {
        pipeline::follow_stream();
    }
    for stage in 0..=AHEAD {
        // SAFETY: the stages are free.
        unsafe { sources.copy(stage, stage + 1) };
        cp_async::cp_async_commit_group();
    }
    let mut consumer = Consumer::<K, ROWS, TOKENS, PART, UNITS> {
        memory: cta.memory,
        places: Places::new::<K>(),
        by: K::Weights::HALF.multipliers(cta.params.own.one).map(marker::pin),
        sums: [[[[0.0; _]; _]; _]; 2],
        a: [[[0; _]; _]; 2],
        b: [[[0; _]; _]; 2],
        words: [[0; _]; _],
        scales: [<<K::Weights as Decoded>::Scales>::NONE; _],
    };
    // SAFETY: all threads are here. Behind the barrier, the copies of all threads to the stages have arrived.
    unsafe {
        cp_async::cp_async_wait_group::<AHEAD>();
        meet();
        consumer.load_weights(0, 0);
        consumer.load_tokens(consumer.tokens_at(0), Unit { number: 0, part: 0 });
        for m in 0..ROWS {
            consumer.decode(0, m);
        }
    }
    let mut at = Stages::<AHEAD> { read: 0, free: AHEAD + 1, weights: 0, free_weights: AHEAD + 2 };
    let mut left = item.count();
    while left > 1 {
        // SAFETY: all threads are here, and the stages are full.
        unsafe { consumer.multiply(&at, Some(&mut sources)) };
        at.advance();
        left -= 1;
    }
    // SAFETY: all threads are here, and the last stage is full. Behind the barrier all copies have arrived, and
    // all have read all stages.
    unsafe {
        consumer.multiply(&at, None);
        cp_async::cp_async_wait_group::<0>();
        meet();
    }
    consumer.total()
}

/// The stages of a step. There are `AHEAD` beside the one that is multiplied and the following one.
struct Stages<const AHEAD: u32> {
    /// The stages of its activations and weights.
    read: u32,
    weights: u32,
    /// The stages of the step before, to which copies go.
    free: u32,
    free_weights: u32,
}

impl<const AHEAD: u32> Stages<AHEAD> {
    /// The stage of the next step's activations.
    #[inline(always)]
    fn next(&self) -> u32 {
        if self.read == AHEAD + 1 { 0 } else { self.read + 1 }
    }

    /// The stage of the next step's weights.
    #[inline(always)]
    fn next_weights(&self) -> u32 {
        if self.weights == AHEAD + 2 { 0 } else { self.weights + 1 }
    }

    /// Goes on to the next step.
    #[inline(always)]
    fn advance(&mut self) {
        (self.free, self.read) = (self.read, self.next());
        (self.free_weights, self.weights) = (self.weights, self.next_weights());
    }
}

/// Waits for all threads of the CTA. Returns 0, as the barrier's result: what uses it stays behind the barrier.
///
/// # Safety
/// All of them reach such a call.
#[inline(always)]
unsafe fn meet_none() -> u32 {
    // SAFETY: the caller's.
    unsafe {
        warp::sync();
        barrier::bar_red_popc_u32::<0>(marker::pin(0) != 0)
    }
}

/// A part of the tokens of a unit of 16 columns of a stage.
#[derive(Clone, Copy)]
struct Unit {
    number: usize,
    part: usize,
}

/// A thread's operands and sums.
struct Consumer<
    K: Kernel,
    const ROWS: usize,
    const TOKENS: usize,
    const PART: usize,
    const UNITS: usize,
> {
    memory: Memory,
    places: Places,
    by: Multipliers,
    /// Sums of units of even and of odd number; of many products, of all.
    sums: [Sums<ROWS, TOKENS>; 2],
    /// Weights of the unit that is multiplied and of the next one, in turn.
    a: [[[u32; 4]; ROWS]; 2],
    /// Tokens of the part that is multiplied and of the next one, in turn.
    b: [[[u32; 2]; PART]; 2],
    /// Codes of a block of columns, and their scales.
    words: [[u32; STEPS]; ROWS],
    scales: [<K::Weights as Decoded>::Scales; ROWS],
}

impl<K: Kernel, const ROWS: usize, const TOKENS: usize, const PART: usize, const UNITS: usize>
    Consumer<K, ROWS, TOKENS, PART, UNITS>
{
    /// Parts of a warp's tokens.
    const PARTS: usize = TOKENS / PART;

    /// Adds the products of a stage, whose first part's operands are there. If there is a next step, loads the
    /// operands of its first part, and starts the copies to the free stage.
    ///
    /// # Safety
    /// All threads of the CTA reach this same call; the stage is full.
    #[inline(always)]
    unsafe fn multiply<const AHEAD: u32>(
        &mut self,
        stages: &Stages<AHEAD>,
        mut next: Option<&mut Sources>,
    ) {
        let parts = UNITS * Self::PARTS;
        // Their addresses are there when the barrier is passed.
        let tokens = self.tokens_at(stages.read);
        let next_tokens = marker::pin(self.tokens_at(stages.next()));
        for at in 0..parts {
            let Unit { number, part } = Self::unit(at);
            let (mut a, b) = (self.a[number % 2], self.b[at % 2]);
            let set = if ROWS * TOKENS <= FEW { number % 2 } else { 0 };
            let mut following = None;
            // SAFETY: the stages are full; all threads of the warp are here.
            unsafe {
                if part == 0 && (number + 1).is_multiple_of(STEPS) {
                    if number + 1 < UNITS {
                        self.load_weights(stages.weights, (number + 1) / STEPS);
                    } else if next.is_some() {
                        self.load_weights(stages.next_weights(), 0);
                    }
                }
                if at + 1 < parts {
                    following = Some(Self::unit(at + 1));
                    self.load_tokens(tokens, Self::unit(at + 1));
                } else if next.is_some() {
                    cp_async::cp_async_wait_group::<AHEAD>();
                    // Products that use it stay behind the barrier, where they overlap loads.
                    let nothing = meet_none();
                    for a in &mut a {
                        a[0] ^= nothing;
                    }
                    following = Some(Self::unit(0));
                    self.load_tokens(next_tokens, Self::unit(0));
                }
                for m in 0..ROWS {
                    if let Some(Unit { number, part: 0 }) = following {
                        self.decode(number, m);
                    }
                    for n in 0..PART {
                        let sums = &mut self.sums[set][m][part * PART + n];
                        K::Weights::multiply_mma_sync(sums, a[m], b[n]);
                    }
                }
                if let Some(sources) = &mut next
                    && at == COPIES * Self::PARTS
                {
                    sources.copy(stages.free, stages.free_weights);
                    cp_async::cp_async_commit_group();
                }
            }
        }
    }

    /// The unit and part that stand `at` parts behind a stage's first.
    #[inline(always)]
    const fn unit(at: usize) -> Unit {
        Unit { number: at / Self::PARTS, part: at % Self::PARTS }
    }

    /// Loads the codes and scales of a block of columns.
    ///
    /// # Safety
    /// The stage is full.
    #[inline(always)]
    unsafe fn load_weights(&mut self, stage: u32, block: usize) {
        let weights = self.memory.weights(stage);
        for m in 0..ROWS {
            let at = Rows { group: m as u32, block: block as u32 };
            // SAFETY: inside the stage.
            unsafe {
                let words = weights + self.places.words + at.words();
                self.words[m] = memory::ld_shared_v4_b32(words);
                let scales = weights + self.places.scales + at.scales::<K>();
                self.scales[m] = Scales::load(scales);
            }
        }
    }

    /// Address of the lane's row of a matrix of the warp's first tokens and columns in a stage.
    #[inline(always)]
    fn tokens_at(&self, stage: u32) -> u32 {
        self.memory.activations(stage) + self.places.tokens
    }

    /// Loads a part of the tokens of a unit; `tokens` is [their address](Self::tokens_at) in a stage.
    ///
    /// # Safety
    /// All threads of the warp reach this same call; the stage is full.
    #[inline(always)]
    unsafe fn load_tokens(&mut self, tokens: u32, unit: Unit) {
        let Unit { number, part } = unit;
        let (block, of_block) = (number / STEPS, (number % STEPS) as u32);
        let at =
            (tokens ^ (of_block * 2 * PIECE_BYTES)) + block as u32 * K::CONFIG.tokens * TOKEN_BYTES;
        // SAFETY: inside the stage; all threads of the warp are here.
        unsafe {
            if TOKENS == 1 {
                if number.is_multiple_of(2) {
                    let [a, b, c, d] = mma::ldmatrix_m8n8_x4_shared_b16(at);
                    (self.b[0][0], self.b[1][0]) = ([a, b], [c, d]);
                }
            } else {
                let b = &mut self.b[(number * Self::PARTS + part) % 2];
                for n in (0..PART).step_by(2) {
                    let at = at + (part * PART + n) as u32 * MMA_TOKENS * TOKEN_BYTES;
                    let [first, second, third, fourth] = mma::ldmatrix_m8n8_x4_shared_b16(at);
                    (b[n], b[n + 1]) = ([first, second], [third, fourth]);
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
