//! The main loop on weights folded to e4m3 ([`fold`]): products of bytes, at twice the rate of halves.
//!
//! `wgmma` keeps fewer bits of sums of e4m3 products than f32 has, so they are promoted: the products of
//! a step, 128 columns, are summed from zero and then added to the sums in f32, times the factors of the
//! thread's two rows. Of more than [`PANEL`] tokens the step's products are done a panel of tokens
//! at a time, so that registers suffice; all take the same operands.
//!
//! | while these products run | the warpgroup |
//! |---|---|
//! | the second 64 columns of the last panel | decodes the first 64 columns of the next step |
//! | none of its own: the other warpgroup's | promotes the panel |
//! | the first 64 columns of the first panel | decodes the second 64 columns |

use cuda_std::ptx::{float, integer, marker, memory, wgmma};
use cuda_std::{thread, warp};
use fp4_formats::gemm::hopper::config::{BOX_BYTES, HopperConfig};
use fp4_formats::gemm::hopper::repack::{CHUNK_BLOCKS, CHUNK_CODE_BYTES, WGMMA_BYTES, word_offset};
use fp4_formats::gemm::hopper::{Scheme, fold};

use super::consumer::{Consumer, descriptor, lane};
use super::decode::{MainLoop, Weights};
use super::multicast::release;
use super::tile::Memory;
use crate::pipeline::{Cursor, Ring};

/// Products of a block column: 64 columns.
const PRODUCTS: usize = 2;
/// Words of a block column that a thread decodes: one for each 16 columns.
const WORDS: usize = 4;
/// Block columns of a step.
const COLUMNS: usize = CHUNK_BLOCKS as usize;
/// Magnitudes, and signs of a word that are sign bits of bytes.
const MAGNITUDES: u32 = 0x7777_7777;
const SIGNS: u32 = 0x8080_8080;

/// How a format's tables become magnitudes.
pub trait Folded: Weights {
    /// What stands for the scales of a thread's two rows by 64 columns, as loaded.
    type Tables: Copy;

    /// Loads it.
    ///
    /// # Safety
    /// `address` is the shared address of the first in a chunk that has arrived.
    unsafe fn tables(address: u32) -> Self::Tables;

    /// The magnitudes of row `row` of the two in the word `word`.
    fn magnitudes(tables: Self::Tables, word: usize, row: usize) -> [u32; 2];
}

/// NVFP4 as e4m3.
pub struct Nvfp4E4m3;
/// MXFP4 as e4m3.
pub struct Mxfp4E4m3;

impl Weights for Nvfp4E4m3 {
    const SCHEME: Scheme = Scheme::NVFP4_E4M3;
}

impl Weights for Mxfp4E4m3 {
    const SCHEME: Scheme = Scheme::MXFP4_E4M3;
}

impl Folded for Nvfp4E4m3 {
    /// Of each block, row `g` in the low half.
    type Tables = [u32; WORDS];

    #[inline(always)]
    unsafe fn tables(address: u32) -> Self::Tables {
        // SAFETY: sixteen bytes, aligned to their size.
        unsafe { memory::ld_shared_v4_b32(address) }
    }

    #[inline(always)]
    fn magnitudes(tables: Self::Tables, word: usize, row: usize) -> [u32; 2] {
        let both = marker::pin(tables[word]);
        fold::nvfp4_magnitudes(if row == 0 { both & 0xffff } else { both >> 16 })
    }
}

impl Folded for Mxfp4E4m3 {
    /// A byte for each block and row, `g` first.
    type Tables = u32;

    #[inline(always)]
    unsafe fn tables(address: u32) -> Self::Tables {
        // SAFETY: four bytes, aligned to their size.
        unsafe { memory::ld_shared_b32(address) }
    }

    #[inline(always)]
    fn magnitudes(tables: Self::Tables, word: usize, row: usize) -> [u32; 2] {
        let byte = word / 2 * 2 + row;
        fold::mxfp4_magnitudes(marker::pin(tables) >> (8 * byte) & 0xff)
    }
}

/// The product of a warpgroup with `SUMS` sums per thread: 2 `SUMS` tokens.
trait Product<const SUMS: usize> {
    /// Sets the sums to, or adds to them, 64 rows by 32 columns times the tile of `b`.
    ///
    /// # Safety
    /// * All threads of the warpgroup reach this same call, after a `wgmma.fence`.
    /// * `b` describes a tile of 32 columns by 2 `SUMS` tokens of a stage that has arrived.
    /// * Nothing accesses `sums`, and no copy overwrites the stage, until the group of this
    ///   product has been waited for.
    unsafe fn multiply<const SET: bool>(sums: &mut [f32; SUMS], a: [u32; 4], b: u64);
}

/// The products of e4m3.
struct Bytes;

macro_rules! products {
    ($($sums:literal = $add:ident, $set:ident;)*) => {
        $(
            impl Product<$sums> for Bytes {
                #[inline(always)]
                unsafe fn multiply<const SET: bool>(sums: &mut [f32; $sums], a: [u32; 4], b: u64) {
                    // SAFETY: the warpgroup is converged, the tile has arrived, and nothing accesses
                    // the sums or the tile until the product has been waited for.
                    unsafe {
                        if SET { wgmma::$set(sums, a, b) } else { wgmma::$add(sums, a, b) }
                    }
                }
            }
        )*
    };
}

products! {
    16 = wgmma_m64n32k32_f32_e4m3_e4m3, wgmma_m64n32k32_f32_e4m3_e4m3_set;
    32 = wgmma_m64n64k32_f32_e4m3_e4m3, wgmma_m64n64k32_f32_e4m3_e4m3_set;
    48 = wgmma_m64n96k32_f32_e4m3_e4m3, wgmma_m64n96k32_f32_e4m3_e4m3_set;
    56 = wgmma_m64n112k32_f32_e4m3_e4m3, wgmma_m64n112k32_f32_e4m3_e4m3_set;
    64 = wgmma_m64n128k32_f32_e4m3_e4m3, wgmma_m64n128k32_f32_e4m3_e4m3_set;
}

/// Main loops with as many sums as a tile's tokens take, in panels of so many.
macro_rules! main_loops {
    ($($weights:ty: $($sums:literal in $panel:literal),*;)*) => {
        $($(
            impl<const BLOCKS: usize> MainLoop<$sums, BLOCKS> for $weights {
                #[inline(always)]
                unsafe fn multiply(
                    consumer: &mut Consumer<Self, $sums, BLOCKS>,
                    config: &HopperConfig,
                    width: u32,
                    count: u32,
                    memory: Memory,
                    ring: Ring,
                    cursor: &mut Cursor,
                ) {
                    let step = Steps { config, memory, ring };
                    // SAFETY: the caller's.
                    unsafe {
                        if config.narrows() && width <= 96 {
                            step.multiply::<_, $sums, BLOCKS, 48>(consumer, count, cursor);
                        } else if config.narrows() && width <= 112 {
                            step.multiply::<_, $sums, BLOCKS, 56>(consumer, count, cursor);
                        } else {
                            step.multiply::<_, $sums, BLOCKS, $panel>(consumer, count, cursor);
                        }
                    }
                }
            }
        )*)*
    };
}

main_loops! {
    Nvfp4E4m3: 16 in 16, 32 in 32, 64 in 64, 128 in 64;
    Mxfp4E4m3: 16 in 16, 32 in 32, 64 in 64, 128 in 64;
}

/// Where steps are.
#[derive(Clone, Copy)]
struct Steps<'a> {
    config: &'a HopperConfig,
    memory: Memory,
    ring: Ring,
}

impl Steps<'_> {
    /// Sums the products of the next `count` steps, at least one, into the sums of the warpgroup's
    /// block, `PANEL` of them at a time; where no whole number of panels has room for all sums, into
    /// the first.
    ///
    /// # Safety
    /// All threads of the warpgroup, converged; the ring is initialised and known to them.
    #[inline(always)]
    unsafe fn multiply<W: Folded, const SUMS: usize, const BLOCKS: usize, const PANEL: usize>(
        self,
        consumer: &mut Consumer<W, SUMS, BLOCKS>,
        count: u32,
        cursor: &mut Cursor,
    ) where
        Bytes: Product<PANEL>,
    {
        const { assert!(BLOCKS == 1 && SUMS / PANEL <= 2) };
        let Self { config, memory, ring } = self;
        let (last_panel, mut last) = (SUMS / PANEL - 1, *cursor);
        let mut partial = [0.0; PANEL];
        // Of the step that `partial` is from.
        let mut factors = [0.0; 2];
        let mut step = 0;
        loop {
            // SAFETY: the stage has arrived when the wait returns. The warpgroup is converged; the
            // operands of products that may be unfinished are left alone.
            unsafe {
                ring.wait_full(cursor);
                let tokens = memory.activations(config, cursor.stage);
                let weights = Stage::<W>::load(config, memory.weights(config, cursor.stage));
                // Of the last step only the last panel's second half may run: the registers of the
                // operands of the first are free.
                wgmma::wgmma_wait_group::<1>();
                let first = weights.operands(0);
                wgmma::wgmma_wait_group::<0>();
                promote(consumer, last_panel, &partial, factors);
                release(config, ring.empty(last.stage), step > 0);
                products::<true, PANEL>(&mut partial, first, tokens, 0);
                let second = weights.operands(1);
                products::<false, PANEL>(&mut partial, second, tokens, 1);
                factors = weights.factors;
                for panel in 1..SUMS / PANEL {
                    wgmma::wgmma_wait_group::<0>();
                    promote(consumer, panel - 1, &partial, factors);
                    let tokens = tokens + (panel * PANEL) as u32 * 2 * BOX_BYTES;
                    products::<true, PANEL>(&mut partial, first, tokens, 0);
                    products::<false, PANEL>(&mut partial, second, tokens, 1);
                }
            }
            last = *cursor;
            cursor.advance();
            step += 1;
            if step >= count {
                break;
            }
        }
        // SAFETY: the warpgroup is converged; with its products the last stage is read.
        unsafe {
            wgmma::wgmma_wait_group::<0>();
            promote(consumer, last_panel, &partial, factors);
            release(config, ring.empty(last.stage), true);
        }
    }
}

/// The weights of a thread's two rows in a stage.
struct Stage<W: Folded> {
    words: [[u32; WORDS]; COLUMNS],
    tables: [W::Tables; COLUMNS],
    factors: [f32; 2],
}

impl<W: Folded> Stage<W> {
    /// Loads them.
    ///
    /// # Safety
    /// `weights` is the shared address of a stage's weights, which have arrived.
    #[inline(always)]
    unsafe fn load(config: &HopperConfig, weights: u32) -> Self {
        let scheme = config.scheme;
        let (lane, quad) = (lane(), lane() / 4);
        let block = thread::thread_idx_x() / (4 * warp::LANES);
        let tables = |kb: usize| {
            let at = (block * CHUNK_BLOCKS + kb as u32) * scheme.block_scale_bytes();
            let of_quad = quad * 2 * scheme.block_scales() * scheme.scale_bytes();
            weights + CHUNK_CODE_BYTES + at + of_quad
        };
        let factors = weights + scheme.factors_offset() + (block * warp::LANES + quad) * 2;
        // SAFETY: inside the chunk.
        unsafe {
            let factors = u32::from(memory::ld_shared_u16(factors));
            Self {
                words: core::array::from_fn(|kb| {
                    memory::ld_shared_v4_b32(weights + word_offset(block, kb as u32, lane, 0))
                }),
                tables: core::array::from_fn(|kb| W::tables(tables(kb))),
                factors: [(factors & 0xff) << 23, factors >> 8 << 23].map(f32::from_bits),
            }
        }
    }

    /// The operands of a block column.
    #[inline(always)]
    fn operands(&self, kb: usize) -> [[u32; 4]; PRODUCTS] {
        let mut operands = [[0; 4]; PRODUCTS];
        for word in 0..WORDS {
            let bits = marker::pin(self.words[kb][word]);
            let magnitudes = bits & MAGNITUDES;
            for row in 0..2 {
                let [low, high] = W::magnitudes(self.tables[kb], word, row);
                let selected = integer::prmt_b32(low, high, magnitudes >> (16 * row));
                let operand = selected | bits << (4 * row) & SIGNS;
                operands[word / 2][word % 2 * 2 + row] = marker::pin(operand);
            }
        }
        operands
    }
}

/// Begins the products of a block column with a panel of tokens, and makes them a group.
///
/// # Safety
/// The warpgroup is converged; `tokens` is the shared address of the panel's tokens, which have arrived,
/// and nothing accesses `sums` and the operands until the group has been waited for.
#[inline(always)]
unsafe fn products<const SET: bool, const PANEL: usize>(
    sums: &mut [f32; PANEL],
    operands: [[u32; 4]; PRODUCTS],
    tokens: u32,
    kb: usize,
) where
    Bytes: Product<PANEL>,
{
    let tile = |k: usize| descriptor(tokens, (kb * PRODUCTS + k) as u32 * WGMMA_BYTES);
    // SAFETY: the caller's; operands and sums are written above the fence, and the tokens arrived by
    // copies, in the async proxy.
    unsafe {
        wgmma::wgmma_fence();
        Bytes::multiply::<SET>(sums, operands[0], tile(0));
        Bytes::multiply::<false>(sums, operands[1], tile(1));
        wgmma::wgmma_commit_group();
    }
}

/// Adds a step's sums to those of panel `panel`, times the factors of their rows.
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
