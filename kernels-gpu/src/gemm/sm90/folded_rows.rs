//! A thread's rows of weights folded to e4m3 ([`fold`]): their places in a stage, and the way from
//! codes and tables to the operands of products.

use cuda_std::ptx::{integer, marker, memory};
use cuda_std::warp;
use fp4_formats::gemm::fold;
use fp4_formats::gemm::fragments::Scheme;
use fp4_formats::gemm::sm90::config::Sm90Config;

use super::operands::Weights;
use super::stage::{Places, first_block, lane};

/// Products of a block column: 64 columns.
pub const PRODUCTS: usize = 2;
/// Words of a block column that a thread decodes: one for each 16 columns.
const WORDS: usize = 4;

/// The magnitudes of a format's tables.
pub trait Folded: Weights + Copy {
    /// The tables that stand for the scales of a thread's two rows by 64 columns, as loaded.
    type Tables: Copy;

    /// Loads it.
    ///
    /// # Safety
    /// `address` is the shared address of the first in a chunk that has arrived.
    unsafe fn tables(address: u32) -> Self::Tables;

    /// Ties tables to a place; see `marker::pin`.
    fn pin(tables: Self::Tables) -> Self::Tables;

    /// The magnitudes of row `row` of the two in the word `word`.
    fn magnitudes(tables: Self::Tables, word: usize, row: usize) -> [u32; 2];
}

/// NVFP4 as e4m3.
#[derive(Clone, Copy)]
pub struct Nvfp4E4m3;
/// MXFP4 as e4m3.
#[derive(Clone, Copy)]
pub struct Mxfp4E4m3;

impl Weights for Nvfp4E4m3 {
    const SCHEME: Scheme = Scheme::NVFP4_E4M3;
}

impl Weights for Mxfp4E4m3 {
    const SCHEME: Scheme = Scheme::MXFP4_E4M3;
}

impl Folded for Nvfp4E4m3 {
    /// Tables of each block, row `g` in the low half.
    type Tables = [u32; WORDS];

    #[inline(always)]
    unsafe fn tables(address: u32) -> Self::Tables {
        // SAFETY: sixteen bytes, aligned to their size.
        unsafe { memory::ld_shared_v4_b32(address) }
    }

    #[inline(always)]
    fn pin(tables: Self::Tables) -> Self::Tables {
        tables.map(marker::pin)
    }

    #[inline(always)]
    fn magnitudes(tables: Self::Tables, word: usize, row: usize) -> [u32; 2] {
        let both = tables[word];
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
    fn pin(tables: Self::Tables) -> Self::Tables {
        marker::pin(tables)
    }

    #[inline(always)]
    fn magnitudes(tables: Self::Tables, word: usize, row: usize) -> [u32; 2] {
        let byte = word / 2 * 2 + row;
        fold::mxfp4_magnitudes(tables >> (8 * byte) & 0xff)
    }
}

/// Places of a thread's two rows in a stage's weights. They are kept in registers across the main
/// loop.
#[derive(Clone, Copy)]
pub struct RowPlaces {
    /// Codes and tables.
    weights: Places,
    /// Bytes to the rows' factors.
    factors: u32,
}

impl RowPlaces {
    #[inline(always)]
    pub fn new(config: &Sm90Config) -> Self {
        let rows = (first_block::<1>() * warp::LANES + lane() / 4) * 2;
        let factors = marker::pin(config.scheme.factors_offset() + rows);
        Self { weights: Places::new::<1>(config), factors }
    }
}

/// A thread's two rows of weights in a stage.
#[derive(Clone, Copy)]
pub struct Rows {
    pub config: &'static Sm90Config,
    /// Shared address of the stage's weights.
    pub weights: u32,
    pub places: RowPlaces,
}

impl Rows {
    /// The factors of both rows.
    ///
    /// # Safety
    /// The weights have arrived.
    #[inline(always)]
    pub unsafe fn factors(self) -> [f32; 2] {
        // SAFETY: inside the chunk.
        let both = unsafe { memory::ld_shared_u16(self.weights + self.places.factors) };
        let both = u32::from(both);
        [(both & 0xff) << 23, both >> 8 << 23].map(f32::from_bits)
    }

    /// Loads the codes and tables of a block column.
    ///
    /// # Safety
    /// The weights have arrived.
    #[inline(always)]
    pub unsafe fn load<W: Folded>(self, kb: u32) -> Loaded<W> {
        let Places { words, scales } = self.places.weights.of(self.config, 0, kb);
        // SAFETY: inside the chunk.
        unsafe {
            let tables = W::tables(self.weights + scales);
            Loaded { words: memory::ld_shared_v4_b32(self.weights + words), tables }
        }
    }
}

/// Codes and tables of a block column.
#[derive(Clone, Copy)]
pub struct Loaded<W: Folded> {
    words: [u32; WORDS],
    tables: W::Tables,
}

impl<W: Folded> Loaded<W> {
    /// The operands.
    #[inline(always)]
    pub fn operands(self) -> [[u32; 4]; PRODUCTS] {
        let tables = W::pin(self.tables);
        let mut operands = [[0; 4]; PRODUCTS];
        for word in 0..WORDS {
            let bits = marker::pin(self.words[word]);
            let magnitudes = bits & fold::MAGNITUDES;
            for row in 0..2 {
                let [low, high] = W::magnitudes(tables, word, row);
                let selected = integer::prmt_b32(low, high, magnitudes >> (16 * row));
                let operand = selected | bits << (4 * row) & fold::SIGNS;
                operands[word / 2][word % 2 * 2 + row] = marker::pin(operand);
            }
        }
        operands
    }
}
