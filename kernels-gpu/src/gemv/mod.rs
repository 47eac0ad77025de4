//! Batched NVFP4 GEMV: `C[l, m] = alpha * sum_k A[l, k] * B[l, m, k]`, `A` the activations and `B`
//! the weights.
//!
//! # Contract
//! The parameters are [`GemvParams`]. M and L are at least 1; K is a multiple of 16, or of 32 for
//! configurations with 16-byte loads. The grid is `(ctas, L)`: the CTAs of one batch entry process
//! its tiles of row groups in a grid-stride loop. Each byte of `B` and its scales is read once,
//! nothing is read past them, and each element of `C` is written once.
//!
//! # Pipeline
//! All warps have the same role:
//!
//! ```text
//! A --all threads decode-------------> panel in shared memory --+
//!                                                               +--> dot products --> sums --> C
//! B --each lane, one chunk per row---> registers ---------------+
//! ```
//!
//! [`activations::stage`] decodes the panel, [`weights::Stream`] loads and multiplies
//! [`GemvConfig::rows_per_warp`] rows per warp, and [`epilogue::store`] sums over the lanes and
//! stores.
//!
//! # Shared memory
//! | offset | contents |
//! |---|---|
//! | 0 | the decoded elements ([`BlockDot::ELEMENT`]) of the resident panel, in planes |
//! | after them | one f32 scale per block |
//!
//! In each step a lane reads one chunk (one or two blocks) of the activations. Word `w` of every
//! chunk is in plane `w`, so adjacent lanes read adjacent 16-byte words and there are no bank
//! conflicts.
//!
//! # Barriers
//! | barrier | arrive | wait | meaning |
//! |---|---|---|---|
//! | 0, panel free | all threads | all threads | no thread still reads the previous panel |
//! | 0, panel full | all threads | all threads | the panel is decoded |
//!
//! # Arithmetic
//! The dot product of a block of 16 elements is exact (see each [`BlockDot`]). The product of two
//! scales, its product with the block's dot product, and the sum over blocks are f32.

mod activations;
mod epilogue;
mod weights;

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
use fp4_formats::gemv::{CONFIGS, DecodedElement, GemvConfig, GemvParams, PANEL};
use weights::{Rows, Segment, Stream};

/// How an architecture multiplies a block of 16 codes of the weights with 16 decoded elements of the
/// activations.
trait BlockDot: Copy {
    /// How a decoded element is stored.
    const ELEMENT: DecodedElement;
    /// Factor that turns the result of [`dot`](Self::dot) into the dot product of the values.
    const UNIT: f32;
    /// Number of 16-byte words in a decoded block.
    const WORDS: u32;
    /// A decoded block: its 16-byte words.
    type Block: Copy;

    /// The constants that decoding keeps in registers.
    fn new() -> Self;

    /// Decodes 16 codes and stores word `w` of the result at the shared address
    /// `address + w * plane`.
    ///
    /// # Safety
    /// These addresses are 16-byte aligned words of the CTA's shared memory, which no other thread
    /// accesses at the same time.
    unsafe fn stage(self, address: u32, plane: u32, codes: [u32; 2]);

    /// Loads a block that [`BlockDot::stage`] stored.
    ///
    /// # Safety
    /// A block was staged at `address` with the same `plane`, and all threads have passed a barrier
    /// since.
    unsafe fn load(address: u32, plane: u32) -> Self::Block;

    /// The exact dot product, in units of [`BlockDot::UNIT`].
    fn dot(self, codes: [u32; 2], activations: &Self::Block) -> f32;
}

/// Bytes of the widest access to shared memory.
const WORD: u32 = 16;

/// The shared memory of a panel.
#[derive(Clone, Copy)]
struct Panel {
    /// Shared address of the decoded elements.
    elements: u32,
    /// Bytes of a plane.
    plane: u32,
    /// Shared address of the scales.
    scales: u32,
}

impl Panel {
    /// The CTA's panel for activations of `k` elements.
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

    /// Shared address of word 0 of block `block`.
    #[inline(always)]
    fn block<D: BlockDot, const CHUNK: usize>(&self, block: u32) -> u32 {
        let chunk = CHUNK as u32;
        self.elements + block % chunk * D::WORDS * self.plane + block / chunk * WORD
    }
}

/// The kernel body for configuration `INDEX`.
///
/// # Safety
/// * `p` and the grid satisfy the module's contract.
/// * The launch has [`GemvConfig::threads`] threads per CTA and
///   [`shared_bytes`](fp4_formats::gemv::shared_bytes) of dynamic shared memory.
#[inline(always)]
unsafe fn gemv<const INDEX: usize, const ROWS: usize, const CHUNK: usize>(p: &GemvParams) {
    const { assert!(CONFIGS[INDEX].rows_per_warp as usize == ROWS) };
    const { assert!(CONFIGS[INDEX].load_bytes as usize == CHUNK * 8) };
    // 16 bytes of a 128x4 tile hold the scales of four rows.
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
            // SAFETY: the loop is uniform in the CTA, so all threads call it together; `p` and
            // `panel` are the CTA's.
            unsafe {
                activations::stage::<Dot, ROWS, CHUNK>(
                    dot,
                    p,
                    batch,
                    &current,
                    panel,
                    config.threads(),
                )
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
        // SAFETY: the stream was started for `current`, whose activations are staged.
        unsafe { stream.accumulate(dot, config, &current, next, panel, &mut sums) };
        let next = next();
        if row_ends {
            // SAFETY: the loop is uniform in the warp, and no other warp has these rows.
            unsafe { epilogue::store(p, batch, &current.rows, sums, p.alpha * Dot::UNIT) };
            sums = [0.0; ROWS];
            tile += thread::grid_dim_x();
        }
        current = next;
    }
}

/// Entry points: name, index in [`CONFIGS`], rows per warp, blocks per chunk.
macro_rules! entries {
    ($($name:ident = $index:literal, $rows:literal, $chunk:literal;)*) => {
        $(
            #[doc = concat!("[`CONFIGS`]`[", stringify!($index), "]`.")]
            ///
            /// # Safety
            /// The launch satisfies the module's contract and has the configuration's threads
            /// and shared memory.
            #[kernel(threads = CONFIGS[$index].threads(), min_blocks = CONFIGS[$index].min_blocks)]
            pub unsafe fn $name(params: GemvParams) {
                // SAFETY: the caller guarantees what `gemv` requires.
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
