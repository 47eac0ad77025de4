//! The main loop on weights folded to e4m3 ([`folded_rows`](super::folded_rows)): products of bytes, at
//! twice the rate of halves.
//!
//! `wgmma` keeps fewer bits of sums of e4m3 products than f32 has, so they are promoted: the products of
//! a step, 128 columns, are summed from zero and then added to the sums in f32, times the factors of the
//! thread's two rows. For more than 128 tokens the products of a step are done a panel of tokens at a
//! time, so that registers suffice; all panels take the same operands.
//!
//! | while these products run | the warpgroup |
//! |---|---|
//! | the first 64 columns of the first panel | decodes the second 64 columns |
//! | the second 64 columns, of one panel | decodes the first 64 columns of the next step |
//! | those of the other warpgroup | promotes a panel |
//!
//! No product runs from one step to the next, because the compiler may copy its sums there.

use cuda_std::ptx::{float, marker, wgmma};
use fp4_formats::gemm::sm90::config::{BOX_BYTES, WGMMA_BYTES};

use super::Kernel;
use super::consumer::Consumer;
use super::folded_rows::{Folded, Mxfp4E4m3, Nvfp4E4m3, PRODUCTS, RowPlaces, Rows};
use super::main_loop::MainLoop;
use super::memory::Memory;
use super::multicast::release;
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

    /// Sets the sums to it; `zero` is 0, which the compiler does not know: it would otherwise take
    /// other registers for the sums.
    ///
    /// # Safety
    /// As [`add`](Self::add).
    unsafe fn set(sums: &mut [f32; SUMS], a: [u32; 4], b: u64, zero: u32);
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
                unsafe fn set(sums: &mut [f32; $sums], a: [u32; 4], b: u64, zero: u32) {
                    // SAFETY: as in `add`.
                    unsafe { wgmma::$choose(sums, a, b, zero) }
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
}

/// Makes main loops for each number of sums of a tile's tokens, in panels of so many.
macro_rules! main_loops {
    ($($weights:ty: $($sums:literal in $panels:literal of $panel:literal),*;)*) => {
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
                            steps.sum_steps::<_, $sums, BLOCKS, 1, 48>(consumer, count, cursor);
                        } else if const { K::CONFIG.narrows() } && width <= 112 {
                            steps.sum_steps::<_, $sums, BLOCKS, 1, 56>(consumer, count, cursor);
                        } else {
                            steps.sum_steps::<_, $sums, BLOCKS, $panels, $panel>(
                                consumer, count, cursor,
                            );
                        }
                    }
                }
            }
        )*)*
    };
}

main_loops! {
    Nvfp4E4m3: 16 in 1 of 16, 32 in 1 of 32, 64 in 1 of 64, 128 in 2 of 64;
    Mxfp4E4m3: 16 in 1 of 16, 32 in 1 of 32, 64 in 1 of 64, 128 in 2 of 64;
}

/// The places of steps.
#[derive(Clone, Copy)]
struct Steps {
    memory: Memory,
    places: RowPlaces,
}

impl Steps {
    /// Sums the products of the next `count` steps, at least one, into the first `PANELS * PANEL` sums of
    /// the warpgroup's block, a panel at a time. The products of a panel are two groups, with the first
    /// 64 columns and with the second.
    ///
    /// # Safety
    /// All threads of the warpgroup, converged; the ring is initialised and known to them.
    #[inline(always)]
    unsafe fn sum_steps<
        W: Folded,
        const SUMS: usize,
        const BLOCKS: usize,
        const PANELS: usize,
        const PANEL: usize,
    >(
        self,
        consumer: &mut Consumer<W, SUMS, BLOCKS>,
        count: u32,
        cursor: &mut Cursor,
    ) where
        Bytes: Product<PANEL>,
    {
        const { assert!(BLOCKS == 1) };
        let memory = self.memory;
        let (config, ring) = (memory.config, memory.ring());
        let mut step = 0;
        let mut partial = [0.0; PANEL];
        // SAFETY: the stage has arrived when the wait returns.
        let mut first = unsafe {
            ring.wait_full(cursor);
            self.rows(cursor).operands::<W>(0)
        };
        loop {
            let stage = cursor.stage;
            let tokens = memory.activations(stage);
            let zero = u32::from(marker::pin(step) == u32::MAX);
            step += 1;
            // SAFETY: the warpgroup is converged, and the stage has arrived; operands and sums of
            // products that may be unfinished are left alone. The next stage has arrived when its wait
            // returns; of the products only the last group may run then, so that the operands of the
            // first 64 columns are free.
            unsafe {
                let rows = self.rows(cursor);
                products(&mut partial, first, tokens, 0, Some(zero));
                let second = rows.operands::<W>(1);
                products(&mut partial, second, tokens, HALF, None);
                let factors = rows.factors();
                for panel in 1..PANELS {
                    wgmma::wgmma_wait_group::<0>();
                    promote(consumer, panel - 1, &partial, factors);
                    let at = (panel * PANEL) as u32 * 2 * BOX_BYTES;
                    products(&mut partial, first, tokens, at, Some(zero));
                    products(&mut partial, second, tokens, at + HALF, None);
                }
                cursor.advance();
                if PANELS == 1 && step < count {
                    ring.wait_full(cursor);
                    wgmma::wgmma_wait_group::<1>();
                    first = self.rows(cursor).operands::<W>(0);
                    wgmma::wgmma_wait_group::<0>();
                    promote(consumer, 0, &partial, factors);
                    release(config, ring.empty(stage), true);
                    continue;
                }
                wgmma::wgmma_wait_group::<0>();
                promote(consumer, PANELS - 1, &partial, factors);
                release(config, ring.empty(stage), true);
                if step >= count {
                    return;
                }
                // With several panels, there is no register for it before the sums are promoted.
                ring.wait_full(cursor);
                first = self.rows(cursor).operands::<W>(0);
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

/// Begins the products of a block column with a panel of tokens, and makes them a group: the first
/// product sets the sums if it is given a [`zero`](Product::set).
///
/// # Safety
/// The warpgroup is converged; the panel's tokens in the block column are `at` bytes from the shared
/// address `tokens`, and have arrived, and nothing accesses `sums` and the operands until the group has
/// been waited for.
#[inline(always)]
unsafe fn products<const PANEL: usize>(
    sums: &mut [f32; PANEL],
    operands: [[u32; 4]; PRODUCTS],
    tokens: u32,
    at: u32,
    zero: Option<u32>,
) where
    Bytes: Product<PANEL>,
{
    let tile = |k: u32| descriptor(tokens, sixteens(at + k * WGMMA_BYTES));
    // SAFETY: the caller's; operands and sums are written above the fence, and the tokens arrived by
    // copies, in the async proxy.
    unsafe {
        wgmma::wgmma_fence();
        match zero {
            Some(zero) => Bytes::set(sums, operands[0], tile(0), zero),
            None => Bytes::add(sums, operands[0], tile(0)),
        }
        Bytes::add(sums, operands[1], tile(1));
        wgmma::wgmma_commit_group();
    }
}

/// Adds a step's sums to the sums of panel `panel`, times the factors of their rows.
#[inline(always)]
fn promote<W, const SUMS: usize, const BLOCKS: usize, const PANEL: usize>(
    consumer: &mut Consumer<W, SUMS, BLOCKS>,
    panel: usize,
    partial: &[f32; PANEL],
    factors: [f32; 2],
) {
    for i in 0..PANEL {
        let sum = consumer.sum_mut(panel * PANEL + i);
        // Pinned: arithmetic is not ordered behind the wait for the products, nor before the next.
        let product = f32::from_bits(marker::pin(partial[i].to_bits()));
        let promoted = float::fma_rn_f32(product, factors[i / 2 % 2], *sum);
        *sum = f32::from_bits(marker::pin(promoted.to_bits()));
    }
}
