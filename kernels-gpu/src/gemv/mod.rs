//! Batched NVFP4 matrix times NVFP4 vector: `C[l, m] = alpha * sum_k A[l, m, k] B[l, k]`.
//!
//! # Contract
//! Parameters: [`GemvParams`]. Any M, L >= 1; K a multiple of 16 (of 32 for
//! configurations with 16-byte loads). Grid `(ctas, L)`: CTAs of one batch
//! entry share its row groups in grid-stride order. Reads each byte of `A` and
//! its scales once, nothing past them; writes each `C` element once.
//!
//! # Roles
//! Every warp does the same: the CTA decodes a panel of the vector into shared
//! memory ([`vector::stage`]), each warp streams its
//! [`GemvConfig::rows_per_warp`] rows past it ([`rows::Stream`]), and at a row's
//! end sums over its lanes and stores ([`epilogue::store`]).
//!
//! # Shared memory
//! | at | what |
//! |---|---|
//! | 0 | elements of the resident panel, decoded ([`BlockDot::ELEMENT`]), in planes |
//! | after them | one f32 scale a block |
//!
//! A lane reads one chunk (one or two blocks) of the vector a step. Word `w` of
//! the chunks stands in plane `w`, so that neighbouring lanes read neighbouring
//! 16-byte words and no two of them meet in a bank.
//!
//! # Barriers
//! | barrier | arrives | waits | guards |
//! |---|---|---|---|
//! | 0, panel free | all threads | all threads | nobody still reads the previous panel |
//! | 0, panel full | all threads | all threads | the panel is decoded |
//!
//! # Arithmetic
//! The dot product of a block of 16 is exact (see each [`BlockDot`]); scale
//! products, their product with the block sum, and sums over blocks are f32.

mod epilogue;
mod rows;
mod vector;

#[cfg(gpu_e2m1 = "hardware")]
mod convert_dot;
#[cfg(gpu_e2m1 = "emulated")]
mod integer_dot;

#[cfg(gpu_e2m1 = "hardware")]
use convert_dot::ConvertDot as Dot;
#[cfg(gpu_e2m1 = "emulated")]
use integer_dot::IntegerDot as Dot;

use cuda_std::{kernel, shared, thread, warp};
use fp4_formats::ScaleLayout;
use fp4_formats::gemv::{CONFIGS, GemvConfig, GemvParams, PANEL, VectorElement};
use rows::{Rows, Segment, Stream};

/// How an architecture multiplies 16 codes of the matrix with 16 elements of
/// the decoded vector.
trait BlockDot: Copy {
    /// What the vector is decoded to.
    const ELEMENT: VectorElement;
    /// What a block sum must be multiplied with to be in units of the values.
    const UNIT: f32;
    /// 16-byte words of a decoded block.
    const WORDS: u32;
    /// A decoded block: its 16-byte words.
    type Block: Copy;

    /// What decoding needs in registers.
    fn new() -> Self;

    /// Decodes 16 codes and stores word `w` of the result at the shared address
    /// `address + w * plane`.
    ///
    /// # Safety
    /// Those are 16-byte aligned words of the CTA's shared memory.
    unsafe fn stage(self, address: u32, plane: u32, codes: [u32; 2]);

    /// Loads what [`BlockDot::stage`] stored.
    ///
    /// # Safety
    /// A block was staged there and a barrier passed since.
    unsafe fn load(address: u32, plane: u32) -> Self::Block;

    /// Exact dot product, in [`BlockDot::UNIT`]s.
    fn dot(self, codes: [u32; 2], vector: &Self::Block) -> f32;
}

/// Bytes of the widest shared-memory access.
const WORD: u32 = 16;

/// Shared addresses of a panel.
#[derive(Clone, Copy)]
struct Panel {
    elements: u32,
    /// Bytes of a plane.
    plane: u32,
    scales: u32,
}

impl Panel {
    /// The one panel of the CTA, laid out for a vector of `k` elements.
    #[inline(always)]
    fn new<D: BlockDot>(config: &GemvConfig, k: u32) -> Self {
        let elements = shared::dynamic::<16>();
        let resident = k.min(PANEL);
        Self {
            elements,
            plane: resident / config.chunk_elements() * WORD,
            scales: elements + resident * D::ELEMENT as u32,
        }
    }

    /// Address of word 0 of block `block` of the panel.
    #[inline(always)]
    fn block<D: BlockDot, const CHUNK: usize>(&self, block: u32) -> u32 {
        let chunk = CHUNK as u32;
        self.elements + block % chunk * D::WORDS * self.plane + block / chunk * WORD
    }
}

/// The kernel body for configuration `INDEX`.
///
/// # Safety
/// As the module's contract; launched with the configuration's threads and
/// `shared_bytes(k)` of dynamic shared memory.
#[inline(always)]
unsafe fn gemv<const INDEX: usize, const ROWS: usize, const CHUNK: usize>(p: &GemvParams) {
    const { assert!(CONFIGS[INDEX].rows_per_warp as usize == ROWS) };
    const { assert!(CONFIGS[INDEX].load_bytes as usize == CHUNK * 8) };
    // One 16-byte word of a 128x4 tile holds the scales of four rows.
    const { assert!(matches!(CONFIGS[INDEX].scale_layout, ScaleLayout::Linear) || ROWS == 4) };
    let config: &GemvConfig = const { &CONFIGS[INDEX] };

    let dot = Dot::new();
    let batch = thread::block_idx_y();
    let panel = Panel::new::<Dot>(config, p.k);
    let warp_index = thread::thread_idx_x() / warp::LANES;
    let tiles = config.tiles(p.m);
    let segment = |tile: u32, first: u32| Segment {
        rows: Rows::<ROWS>::new(config, p, batch, tile * config.warps + warp_index),
        first,
        count: if tile < tiles { (p.k - first).min(PANEL) } else { 0 },
    };

    let mut tile = thread::block_idx_x();
    let mut current = segment(tile, 0);
    let mut stream = Stream::<ROWS, CHUNK>::start(config, &current);
    let mut sums = [0.0; ROWS];
    let mut staged = false;
    while tile < tiles {
        if !staged || p.k > PANEL {
            // SAFETY: the loop is the same for all threads of the CTA, so all
            // of them stage together.
            unsafe {
                vector::stage::<Dot, ROWS, CHUNK>(dot, p, batch, &current, panel, config.threads())
            };
            staged = true;
        }
        let row_ends = current.first + current.count == p.k;
        let next = || {
            if row_ends {
                segment(tile + thread::grid_dim_x(), 0)
            } else {
                segment(tile, current.first + PANEL)
            }
        };
        // SAFETY: the stream was started for `current`, whose part of the
        // vector is staged.
        unsafe { stream.accumulate(dot, config, &current, next, panel, &mut sums) };
        let next = next();
        if row_ends {
            // SAFETY: all lanes of the warp are here; the rows are this warp's.
            unsafe { epilogue::store(p, batch, &current.rows, sums, p.alpha * Dot::UNIT) };
            sums = [0.0; ROWS];
            tile += thread::grid_dim_x();
        }
        current = next;
    }
}

/// Entry points: name, index in [`CONFIGS`], rows a warp, blocks a chunk.
macro_rules! entries {
    ($($name:ident = $index:literal, $rows:literal, $chunk:literal;)*) => {
        $(
            #[doc = concat!("[`CONFIGS`]`[", stringify!($index), "]`.")]
            ///
            /// # Safety
            /// As the module's contract.
            #[kernel(threads = CONFIGS[$index].threads(), min_blocks = CONFIGS[$index].min_blocks)]
            pub unsafe fn $name(params: GemvParams) {
                // SAFETY: the caller's.
                unsafe { gemv::<$index, $rows, $chunk>(&params) }
            }
        )*
        crate::assert_names!([$($name),*], CONFIGS);
    };
}

entries! {
    gemv_nvfp4_linear_r2w8 = 0, 2, 2;
    gemv_nvfp4_linear_r2w4 = 1, 2, 2;
    gemv_nvfp4_linear_r1w4 = 2, 1, 2;
    gemv_nvfp4_linear_r2w4_k16 = 3, 2, 1;
    gemv_nvfp4_linear_r1w4_k16 = 4, 1, 1;
    gemv_nvfp4_128x4_r4w8 = 5, 4, 2;
    gemv_nvfp4_128x4_r4w4 = 6, 4, 2;
    gemv_nvfp4_128x4_r4w4_k16 = 7, 4, 1;
}
