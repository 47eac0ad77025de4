//! The main loop on weights folded to e4m3 ([`folded_rows`](super::folded_rows)): products of bytes, at
//! twice the rate of halves.
//!
//! `wgmma` keeps fewer bits of sums of e4m3 products than f32 has, so they are promoted: the products of
//! [`PROMOTED_STEPS`] steps are summed from zero and then added to the sums in f32, times the factors of the
//! thread's two rows.
//!
//! # Overlap
//! A step has two groups of products, with the first 64 columns and with the second, whose operands have
//! registers of their own. Shared memory answers late while the tensor core reads it, so codes are loaded before
//! the group that is begun before they are decoded:
//!
//! | tensor core multiplies | meanwhile the warpgroup |
//! |---|---|
//! | the first 64 columns | asks for the next stage, releases the last one, decodes the second 64 columns, loads the next step's first |
//! | the second 64 columns | decodes the first 64 columns of the next step |
//! | those of the other warpgroup | promotes |

use cuda_std::ptx::{float, marker, wgmma};
use fp4_formats::gemm::sm90::config::{PROMOTED_STEPS, WGMMA_BYTES};

use super::Kernel;
use super::consumer::Consumer;
use super::folded_rows::{Folded, Mxfp4E4m3, Nvfp4E4m3, PRODUCTS, RowPlaces, Rows};
use super::main_loop::MainLoop;
use super::memory::Memory;
use super::multicast;
use super::stage::{descriptor, sixteens};
use crate::pipeline::Cursor;

/// Bytes of a token in a block column.
const HALF: u32 = PRODUCTS as u32 * WGMMA_BYTES;

/// The product of a warpgroup with `SUMS` sums per thread: 2 `SUMS` tokens.
trait Product<const SUMS: usize> {
    /// Adds 64 rows by 32 columns times the tile of `b` to the sums.
    ///
    /// # Safety
    /// * All threads of the warpgroup reach this same call, after a `wgmma.fence`.
    /// * `b` describes a tile of 32 columns by 2 `SUMS` tokens of a stage that has arrived.
    /// * Nothing accesses `sums`, and no copy overwrites the stage, until the group of this
    ///   product has been waited for.
    unsafe fn add(sums: &mut [f32; SUMS], a: [u32; 4], b: u64);

    /// The same where `adds` is not 0, and otherwise sets the sums to it.
    ///
    /// # Safety
    /// As [`add`](Self::add).
    unsafe fn choose(sums: &mut [f32; SUMS], a: [u32; 4], b: u64, adds: u32);
}

/// The products of e4m3.
struct Bytes;

macro_rules! products {
    ($($sums:literal = $add:ident, $choose:ident;)*) => {
        $(
            impl Product<$sums> for Bytes {
                #[inline(always)]
                unsafe fn add(sums: &mut [f32; $sums], a: [u32; 4], b: u64) {
                    // SAFETY: the warpgroup is converged, the tile has arrived, and nothing accesses
                    // the sums or the tile until the product has been waited for.
                    unsafe { wgmma::$add(sums, a, b) }
                }

                #[inline(always)]
                unsafe fn choose(sums: &mut [f32; $sums], a: [u32; 4], b: u64, adds: u32) {
                    // SAFETY: as in `add`.
                    unsafe { wgmma::$choose(sums, a, b, adds) }
                }
            }
        )*
    };
}

products! {
    16 = wgmma_m64n32k32_f32_e4m3_e4m3, wgmma_m64n32k32_f32_e4m3_e4m3_choose;
    32 = wgmma_m64n64k32_f32_e4m3_e4m3, wgmma_m64n64k32_f32_e4m3_e4m3_choose;
    48 = wgmma_m64n96k32_f32_e4m3_e4m3, wgmma_m64n96k32_f32_e4m3_e4m3_choose;
    56 = wgmma_m64n112k32_f32_e4m3_e4m3, wgmma_m64n112k32_f32_e4m3_e4m3_choose;
    64 = wgmma_m64n128k32_f32_e4m3_e4m3, wgmma_m64n128k32_f32_e4m3_e4m3_choose;
    80 = wgmma_m64n160k32_f32_e4m3_e4m3, wgmma_m64n160k32_f32_e4m3_e4m3_choose;
    96 = wgmma_m64n192k32_f32_e4m3_e4m3, wgmma_m64n192k32_f32_e4m3_e4m3_choose;
}

/// Makes main loops for each number of sums of a tile's tokens.
macro_rules! main_loops {
    ($($weights:ty: $($sums:literal),*;)*) => {
        $($(
            impl<const BLOCKS: usize> MainLoop<$sums, BLOCKS> for $weights {
                #[inline(always)]
                unsafe fn sum_item<K: Kernel>(
                    consumer: &mut Consumer<Self, $sums, BLOCKS>,
                    memory: Memory,
                    width: u32,
                    count: u32,
                    cursor: &mut Cursor,
                ) {
                    let steps = Steps { memory, places: RowPlaces::new(memory.config) };
                    // SAFETY: the caller's.
                    unsafe {
                        if const { K::CONFIG.narrows() } && width <= 96 {
                            steps.sum_steps::<_, $sums, BLOCKS, 48>(consumer, count, cursor);
                        } else if const { K::CONFIG.narrows() } && width <= 112 {
                            steps.sum_steps::<_, $sums, BLOCKS, 56>(consumer, count, cursor);
                        } else {
                            steps.sum_steps::<_, $sums, BLOCKS, $sums>(consumer, count, cursor);
                        }
                    }
                }
            }
        )*)*
    };
}

main_loops! {
    Nvfp4E4m3: 16, 32, 64, 80;
    Mxfp4E4m3: 16, 32, 64, 96;
}

/// The places of steps.
#[derive(Clone, Copy)]
struct Steps {
    memory: Memory,
    places: RowPlaces,
}

impl Steps {
    /// Sums the products of the next `count` steps, at least one, into the first `N` sums of the
    /// warpgroup's block.
    ///
    /// # Safety
    /// All threads of the warpgroup, converged; the ring is initialised and known to them.
    #[inline(always)]
    unsafe fn sum_steps<W: Folded, const SUMS: usize, const BLOCKS: usize, const N: usize>(
        self,
        consumer: &mut Consumer<W, SUMS, BLOCKS>,
        count: u32,
        cursor: &mut Cursor,
    ) where
        Bytes: Product<N>,
    {
        const { assert!(BLOCKS == 1) };
        let memory = self.memory;
        let (config, ring) = (memory.config, memory.ring());
        let leads = multicast::leads(config);
        let mut step = 0;
        let mut last = cursor.stage;
        let mut partial = [0.0; N];
        // SAFETY: the stage has arrived when the wait returns.
        let mut first = unsafe {
            ring.wait_full(cursor);
            self.rows(cursor).load::<W>(0).operands()
        };
        loop {
            let stage = cursor.stage;
            let tokens = memory.activations(stage);
            // Pinned: the compiler would take other registers for sums that begin.
            let adds = marker::pin(step) % PROMOTED_STEPS;
            let rows = self.rows(cursor);
            // SAFETY: the warpgroup is converged, and the stage has arrived; operands and sums of
            // products that may be unfinished are left alone: when all but one group are finished,
            // that one has the other operands.
            unsafe {
                let second = rows.load::<W>(1);
                products(&mut partial, first, tokens, 0, Some(adds));
                step += 1;
                cursor.advance();
                let arrived = step < count && ring.is_full(cursor);
                wgmma::wgmma_wait_group::<1>();
                multicast::release_led(config, ring.empty(last), step > 1, leads);
                let second = second.operands();
                last = stage;
                let mut next = None;
                if step < count {
                    if !arrived {
                        ring.wait_full(cursor);
                    }
                    next = Some(self.rows(cursor).load::<W>(0));
                }
                products(&mut partial, second, tokens, HALF, None);
                if let Some(next) = next {
                    wgmma::wgmma_wait_group::<1>();
                    first = next.operands();
                }
                if step.is_multiple_of(PROMOTED_STEPS) || step >= count {
                    let factors = rows.factors();
                    wgmma::wgmma_wait_group::<0>();
                    promote(consumer, &partial, factors);
                    if step >= count {
                        multicast::release_led(config, ring.empty(last), true, leads);
                        return;
                    }
                }
            }
        }
    }

    /// The weights of the stage that the cursor is at.
    #[inline(always)]
    fn rows(&self, cursor: &Cursor) -> Rows {
        let weights = self.memory.weights(cursor.stage);
        Rows { config: self.memory.config, weights, places: self.places }
    }
}

/// Begins the products of a block column, and makes them a group: the first product sets the sums if `adds`
/// [says so](Product::choose).
///
/// # Safety
/// The warpgroup is converged; the tokens in the block column are `at` bytes from the shared
/// address `tokens`, and have arrived, and nothing accesses `sums` and the operands until the group has
/// been waited for.
#[inline(always)]
unsafe fn products<const N: usize>(
    sums: &mut [f32; N],
    operands: [[u32; 4]; PRODUCTS],
    tokens: u32,
    at: u32,
    adds: Option<u32>,
) where
    Bytes: Product<N>,
{
    let tile = |k: u32| descriptor(tokens, sixteens(at + k * WGMMA_BYTES));
    // SAFETY: the caller's; operands and sums are written above the fence, and the tokens arrived by
    // copies, in the async proxy.
    unsafe {
        wgmma::wgmma_fence();
        match adds {
            Some(adds) => Bytes::choose(sums, operands[0], tile(0), adds),
            None => Bytes::add(sums, operands[0], tile(0)),
        }
        Bytes::add(sums, operands[1], tile(1));
        wgmma::wgmma_commit_group();
    }
}

/// Adds sums of products to the sums in f32, times the factors of their rows.
#[inline(always)]
fn promote<W, const SUMS: usize, const BLOCKS: usize, const N: usize>(
    consumer: &mut Consumer<W, SUMS, BLOCKS>,
    partial: &[f32; N],
    factors: [f32; 2],
) {
    for i in 0..N {
        let sum = consumer.sum_mut(i);
        // Pinned: arithmetic is not ordered behind the wait for the products, nor before the next.
        let product = f32::from_bits(marker::pin(partial[i].to_bits()));
        let promoted = float::fma_rn_f32(product, factors[i / 2 % 2], *sum);
        *sum = f32::from_bits(marker::pin(promoted.to_bits()));
    }
}
