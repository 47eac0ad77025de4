//! The main loop on weights folded to e4m3 ([`folded_rows`](super::folded_rows)): products of bytes, at
//! twice the rate of halves.
//!
//! `wgmma` keeps fewer bits of sums of e4m3 products than f32 has, so they are promoted: the products of
//! [`PROMOTED_STEPS`](fp4_formats::gemm::sm90::config::PROMOTED_STEPS) steps are summed from zero and then added to the
//! sums in f32, times the factors of the thread's two rows. Kernels that [add fast](fp4_formats::gemm::Adding::Fast) do
//! so at the end of a tile only: they have one set of sums, and room for twice the tokens.
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
use fp4_formats::gemm::Adding;
use fp4_formats::gemm::sm90::config::WGMMA_BYTES;

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
    112 = wgmma_m64n224k32_f32_e4m3_e4m3, wgmma_m64n224k32_f32_e4m3_e4m3_choose;
    128 = wgmma_m64n256k32_f32_e4m3_e4m3, wgmma_m64n256k32_f32_e4m3_e4m3_choose;
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
                    let mut factors = [1.0; 2];
                    // SAFETY: the caller's.
                    unsafe {
                        if const { K::CONFIG.is_wide() } {
                            match width {
                                ..=64 => steps.sum::<_, $sums, BLOCKS, 32>(consumer, &mut factors, count, cursor),
                                65..=96 => steps.sum::<_, $sums, BLOCKS, 48>(consumer, &mut factors, count, cursor),
                                97..=128 => steps.sum::<_, $sums, BLOCKS, 64>(consumer, &mut factors, count, cursor),
                                129..=160 => steps.sum::<_, $sums, BLOCKS, 80>(consumer, &mut factors, count, cursor),
                                161..=192 => steps.sum::<_, $sums, BLOCKS, 96>(consumer, &mut factors, count, cursor),
                                193..=224 => steps.sum::<_, $sums, BLOCKS, 112>(consumer, &mut factors, count, cursor),
                                225.. => steps.sum::<_, $sums, BLOCKS, $sums>(consumer, &mut factors, count, cursor),
                            }
                        } else if const { K::CONFIG.narrows() } && width <= 96 {
                            steps.sum::<_, $sums, BLOCKS, 48>(consumer, &mut factors, count, cursor);
                        } else if const { K::CONFIG.narrows() } && width <= 112 {
                            steps.sum::<_, $sums, BLOCKS, 56>(consumer, &mut factors, count, cursor);
                        } else {
                            steps.sum::<_, $sums, BLOCKS, $sums>(consumer, &mut factors, count, cursor);
                        }
                    }
                    match const { K::CONFIG.adding } {
                        Adding::Promoted => {}
                        Adding::Fast => multiply(&mut consumer.sums[0], factors),
                    }
                }
            }
        )*)*
    };
}

main_loops! {
    Nvfp4E4m3: 16, 32, 64, 80, 128;
    Mxfp4E4m3: 16, 32, 64, 96, 128;
}

/// The places of steps.
#[derive(Clone, Copy)]
struct Steps {
    memory: Memory,
    places: RowPlaces,
}

impl Steps {
    /// Sums the products of the next `count` steps, at least one, into the first `N` sums of the
    /// warpgroup's block. Sums that are added fast lack `factors`.
    ///
    /// # Safety
    /// All threads of the warpgroup, converged; the ring is initialised and known to them.
    #[inline(always)]
    unsafe fn sum<W: Folded, const SUMS: usize, const BLOCKS: usize, const N: usize>(
        self,
        consumer: &mut Consumer<W, SUMS, BLOCKS>,
        factors: &mut [f32; 2],
        count: u32,
        cursor: &mut Cursor,
    ) where
        Bytes: Product<N>,
    {
        const { assert!(BLOCKS == 1) };
        // There are: narrower products than the tile are asked for where it has several.
        let Some(sums) = consumer.sums[0].first_chunk_mut::<N>() else { return };
        // SAFETY: the caller's.
        unsafe {
            match self.memory.config.adding {
                Adding::Promoted => {
                    let mut partial = [0.0; N];
                    self.sum_steps::<W, _, N>(&mut partial, Onto(sums), count, cursor);
                }
                Adding::Fast => self.sum_steps::<W, _, N>(sums, Later(factors), count, cursor),
            }
        }
    }

    /// Sums the products of the next `count` steps, at least one, into `partial`, whatever it has, and promotes them.
    ///
    /// # Safety
    /// As [`sum`](Self::sum).
    #[inline(always)]
    unsafe fn sum_steps<W: Folded, P: Promote<N>, const N: usize>(
        self,
        partial: &mut [f32; N],
        mut promoted: P,
        count: u32,
        cursor: &mut Cursor,
    ) where
        Bytes: Product<N>,
    {
        let memory = self.memory;
        let (config, ring) = (memory.config, memory.ring());
        let leads = multicast::leads(config);
        let mut step = 0;
        let mut last = cursor.stage;
        // SAFETY: the stage has arrived when the wait returns.
        let mut first = unsafe {
            ring.wait_full(cursor);
            self.rows(cursor).load::<W>(0).operands()
        };
        loop {
            let stage = cursor.stage;
            let tokens = memory.activations(stage);
            // Pinned: the compiler would take other registers for sums that begin.
            let adds = config.unpromoted(marker::pin(step));
            let rows = self.rows(cursor);
            // SAFETY: the warpgroup is converged, and the stage has arrived; operands and sums of
            // products that may be unfinished are left alone: when all but one group are finished,
            // that one has the other operands.
            unsafe {
                let second = rows.load::<W>(1);
                products(partial, first, tokens, 0, Some(adds));
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
                products(partial, second, tokens, HALF, None);
                if let Some(next) = next {
                    wgmma::wgmma_wait_group::<1>();
                    first = next.operands();
                }
                if config.promotes(step) || step >= count {
                    let factors = rows.factors();
                    wgmma::wgmma_wait_group::<0>();
                    promoted.promote(partial, factors);
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

/// The sums in f32 of products that were summed by `wgmma`.
trait Promote<const N: usize> {
    /// Promotes the sums of products, times the factors of their rows.
    fn promote(&mut self, partial: &mut [f32; N], factors: [f32; 2]);
}

/// Sums that others are added to.
struct Onto<'a, const N: usize>(&'a mut [f32; N]);

/// The factors of sums that are multiplied with them where the products of all widths meet: ptxas would move the sums to
/// other registers, of which it has too few.
struct Later<'a>(&'a mut [f32; 2]);

impl<const N: usize> Promote<N> for Onto<'_, N> {
    #[inline(always)]
    fn promote(&mut self, partial: &mut [f32; N], factors: [f32; 2]) {
        for i in 0..N {
            let promoted = float::fma_rn_f32(product(partial[i]), factors[i / 2 % 2], self.0[i]);
            self.0[i] = f32::from_bits(marker::pin(promoted.to_bits()));
        }
    }
}

impl<const N: usize> Promote<N> for Later<'_> {
    #[inline(always)]
    fn promote(&mut self, _: &mut [f32; N], factors: [f32; 2]) {
        *self.0 = factors;
    }
}

/// Multiplies sums of products with the factors of their rows.
#[inline(always)]
fn multiply<const SUMS: usize>(sums: &mut [f32; SUMS], factors: [f32; 2]) {
    for i in 0..SUMS {
        let scaled = product(sums[i]) * factors[i / 2 % 2];
        sums[i] = f32::from_bits(marker::pin(scaled.to_bits()));
    }
}

/// Ties a sum of products to its place: arithmetic is not ordered behind the wait for the products, nor before the next.
#[inline(always)]
fn product(sum: f32) -> f32 {
    f32::from_bits(marker::pin(sum.to_bits()))
}
