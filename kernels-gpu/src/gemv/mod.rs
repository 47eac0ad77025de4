//! Batched NVFP4 GEMV: `C[l, m] = alpha * sum_k A[l, k] * B[l, m, k]`, `A` the activations and `B`
//! the weights.
//!
//! # Contract
//! The parameters are [`GemvParams`], and the launch is a [`Geometry`] of the kernel's
//! [`GemvConfig`]. M and L are at least 1; K is a multiple of 16, or of 32 for kernels with 16-byte
//! loads. The grid is `(ctas, L)`: the CTAs of one batch entry share its row groups evenly. Each
//! byte of `B` and its scales is read once, nothing is read past them, and each element of `C` is
//! written once. `B` is complete when the launch starts; `A` may be the work of the stream's
//! earlier kernels.
//!
//! [`Geometry`]: fp4_formats::gemv::Geometry
//!
//! # Pipeline
//! The threads share a row, each one chunk of it. All warps have the same role:
//!
//! ```text
//! A --one chunk per thread, decoded----------> registers --+
//!                                                          +--> dot products --> sums over a warp
//! B --one chunk per thread, of ROWS rows-----> registers --+                            |
//!                                                                       table in shared memory
//!                                                                                       |
//!                                                               C <-- sums over the warps
//! ```
//!
//! Loads of the weights begin before the stream's earlier kernels are complete.
//! [`weights::Stream`] refills a row's registers as soon as they have been used.
//!
//! # Shared memory
//! | offset | contents |
//! |---|---|
//! | 0 | f32 sums `[rows of the CTA, warps]` |
//!
//! Each element has one thread that writes it, in one panel after the other.
//!
//! # Barriers
//! | barrier | arrive | wait | meaning |
//! |---|---|---|---|
//! | 0, table full | all threads | all threads | the sums of all rows are in the table |
//!
//! # Arithmetic
//! The dot product of a block of 16 elements is exact (see each [`BlockDot`]). The product of two
//! scales, its product with the block's dot product, and the sums over blocks, threads, panels and
//! warps are f32.

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

use crate::pipeline::{follow_stream, release_stream};
use activations::Activations;
use cuda_std::{kernel, shared, thread};
use epilogue::Table;
use fp4_formats::gemv::{CONFIGS, GemvConfig, GemvParams, MAX_WARPS, MIN_BLOCKS, ROWS};
use fp4_formats::{BlockFormat, Nvfp4, WARP};
use weights::Stream;

/// The product of an architecture of a block of 16 codes of the weights with 16 decoded elements of
/// the activations.
trait BlockDot: Copy {
    /// Factor that turns the result of [`dot`](Self::dot) into the dot product of the values.
    const UNIT: f32;
    /// A decoded block.
    type Block: Copy;

    /// The constants that decoding keeps in registers.
    fn new() -> Self;

    /// Decodes 16 codes.
    fn decode(self, codes: [u32; 2]) -> Self::Block;

    /// The exact dot product, in units of [`BlockDot::UNIT`].
    fn dot(self, codes: [u32; 2], activations: &Self::Block) -> f32;
}

/// The work of a CTA: row groups of a batch entry.
#[derive(Clone, Copy)]
struct RowGroups<'a> {
    config: &'static GemvConfig,
    p: &'a GemvParams,
    batch: u32,
    /// The first row group.
    begin: u32,
    /// Row groups.
    count: u32,
}

impl<'a> RowGroups<'a> {
    #[inline(always)]
    fn new(config: &'static GemvConfig, p: &'a GemvParams) -> Self {
        let cta = thread::block_idx_x();
        Self {
            config,
            p,
            batch: thread::block_idx_y(),
            begin: cta * p.share + cta.min(p.rest),
            count: p.share + u32::from(cta < p.rest),
        }
    }

    /// Row `i` of the CTA's row group `group`, or past the last row.
    #[inline(always)]
    fn row(&self, group: u32, i: u32) -> u32 {
        self.config.row(self.begin + group, i)
    }

    /// Bytes of a row's codes.
    #[inline(always)]
    fn row_codes(&self) -> u64 {
        u64::from(self.p.k / 2)
    }

    /// Bytes from the weights' first scale in the batch entry to that of row `row` and block
    /// `block`.
    #[inline(always)]
    fn scale_offset(&self, row: u32, block: u32) -> u64 {
        self.config.scale_layout.offset(row as usize, block as usize, self.blocks()) as u64
    }

    /// Blocks of a row.
    #[inline(always)]
    fn blocks(&self) -> usize {
        (self.p.k / Nvfp4::BLOCK as u32) as usize
    }

    /// Addresses of the codes and of the first scale of row `row` of the weights.
    #[inline(always)]
    fn row_addresses(&self, row: u32) -> [u64; 2] {
        let p = self.p;
        let index = u64::from(self.batch) * u64::from(p.m) + u64::from(row);
        [
            p.b_codes + index * self.row_codes(),
            p.b_scales + u64::from(self.batch) * p.b_scale_stride + self.scale_offset(row, 0),
        ]
    }
}

/// The kernel body of `CONFIGS[INDEX]`, whose chunks have `CHUNK` blocks.
///
/// # Safety
/// `p` and the launch satisfy the module's contract.
#[inline(always)]
unsafe fn gemv<const INDEX: usize, const CHUNK: usize>(p: &GemvParams) {
    const { assert!(CONFIGS[INDEX].load_bytes as usize == CHUNK * 8) };
    release_stream();
    let dot = Dot::new();
    let part = RowGroups::new(const { &CONFIGS[INDEX] }, p);
    let table = Table::new(shared::dynamic::<16>());
    let chunks = p.k / part.config.chunk_elements();
    let mut first = 0;
    while first < chunks {
        let chunk = first + thread::thread_idx_x();
        let here = thread::thread_idx_x() < p.panel && chunk < chunks;
        // SAFETY: `part` is the CTA's, and the chunk exists if it is `here`.
        let mut weights = unsafe { Stream::<CHUNK>::start(&part, chunk, here) };
        follow_stream();
        // SAFETY: the stream's earlier kernels are complete, and the chunk exists if it is `here`.
        let activations = unsafe { Activations::<Dot, CHUNK>::load(dot, &part, chunk, here) };
        let mut group = 0;
        while group < part.count {
            // SAFETY: `part` is the CTA's; the loop is uniform in the warp, and the table has these
            // rows.
            unsafe {
                let sums = weights.multiply(dot, &part, group, &activations);
                table.add(&part, group, sums, first > 0);
            }
            group += part.config.groups_in_flight();
        }
        first += p.panel;
    }
    // SAFETY: all threads are here, and the table has the sums of the CTA's rows; earlier kernels
    // are complete, so the result may be written.
    unsafe {
        thread::sync_threads();
        epilogue::store(&part, &table, p.alpha * Dot::UNIT);
    }
}

/// Entry points: name, index in [`CONFIGS`], blocks per chunk.
macro_rules! entries {
    ($($name:ident = $index:literal, $chunk:literal;)*) => {
        $(
            #[doc = concat!("[`CONFIGS`]`[", stringify!($index), "]`.")]
            ///
            /// # Safety
            /// The launch satisfies the module's contract.
            #[kernel(max_threads = MAX_WARPS * WARP, min_blocks = MIN_BLOCKS)]
            pub unsafe fn $name(params: GemvParams) {
                // SAFETY: the caller guarantees what `gemv` requires.
                unsafe { gemv::<$index, $chunk>(&params) }
            }
        )*
        crate::assert_names!([$($name),*], CONFIGS);
    };
}

entries! {
    gemv_nvfp4_linear = 0, 2;
    gemv_nvfp4_linear_k16 = 1, 1;
    gemv_nvfp4_128x4 = 2, 2;
    gemv_nvfp4_128x4_k16 = 3, 1;
}
