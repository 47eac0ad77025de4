//! The largest magnitude of a matrix or of each of its rows, before it is
//! quantised: of `input` or of `silu(input) * up`.
//!
//! # Contract
//! The parameters are [`AmaxParams`]. M is at least 1, K is a multiple of 16; grid and threads
//! are those of the [`AmaxConfig`]. Each element is read once. The result does not depend on the
//! order of execution: magnitudes are not negative, so their bits are ordered like integers, and
//! the bits of NaN are larger than those of any number.
//!
//! # Roles
//! Whole matrix: all threads visit its 16-byte words in a grid-stride loop, and each CTA
//! combines its maximum with `out` by an atomic reduction. Rows: one warp per row.
//!
//! # Shared memory
//! | at | what |
//! |---|---|
//! | 0 | the maximum of each warp |
//!
//! # Barriers
//! | barrier | arrives | waits | guards |
//! |---|---|---|---|
//! | 0, maxima full | all threads | all threads | each warp's maximum is stored |

use super::input::{Bf16, F16, F32, Input, Word};
use super::source::swiglu;
use crate::pipeline::{follow_stream, release_stream};
use cuda_std::ptx::{float, memory, reduce};
use cuda_std::{kernel, shared, thread, warp};
use fp4_formats::quantize::{AMAX, AMAX_LOADS, AmaxConfig, AmaxParams};

/// Number of the kernels' static buffer; other kernels use the size of their staging buffer as its
/// number.
const BUFFER: u32 = 1;

/// The kernel body.
///
/// # Safety
/// The launch satisfies the module's contract.
#[inline(always)]
unsafe fn amax<I: Input, const SILU: bool>(config: &AmaxConfig, p: &AmaxParams) {
    release_stream();
    follow_stream();
    let lane = warp::lane_id();
    let warp_index = thread::thread_idx_x() / warp::LANES;
    let row_words = p.k / I::PER_WORD as u32;
    if p.per_row != 0 {
        let mut row = thread::block_idx_x() * config.warps + warp_index;
        while row < p.m {
            let first = u64::from(row) * u64::from(row_words);
            // SAFETY: the row has these words.
            let found = unsafe {
                largest::<I, SILU>(p, first, u64::from(lane), u64::from(row_words), warp::LANES)
            };
            // SAFETY: the loop is uniform in the warp.
            let found = unsafe { warp::max_u32(found) };
            if lane == 0 {
                // SAFETY: `out` has one element per row.
                unsafe { memory::st_global_b32(p.out + u64::from(row) * 4, found) };
            }
            row += thread::grid_dim_x() * config.warps;
        }
        return;
    }

    let threads = config.threads();
    let index =
        u64::from(thread::block_idx_x()) * u64::from(threads) + u64::from(thread::thread_idx_x());
    // SAFETY: the matrix has these words.
    let found = unsafe {
        let words = u64::from(p.m) * u64::from(row_words);
        largest::<I, SILU>(p, 0, index, words, thread::grid_dim_x() * threads)
    };
    let maxima = shared::fixed::<BUFFER, { 4 * warp::LANES }, 4>();
    // SAFETY: all threads are here, and every warp has its own element of the buffer.
    let found = unsafe {
        let found = warp::max_u32(found);
        if lane == 0 {
            memory::st_shared_b32(maxima + warp_index * 4, found);
        }
        thread::sync_threads();
        found
    };
    if thread::thread_idx_x() == 0 {
        let mut all = found;
        for other in 1..config.warps {
            // SAFETY: these elements were stored before the barrier.
            all = all.max(unsafe { memory::ld_shared_b32(maxima + other * 4) });
        }
        // SAFETY: `out` is one element, which held zero before the launch.
        unsafe { reduce::red_relaxed_gpu_global_max_u32(p.out, all) };
    }
}

/// Bits of the largest magnitude among words `first + index + i * stride`, `index`
/// below `words`.
///
/// # Safety
/// Words `first .. first + words` exist.
#[inline(always)]
unsafe fn largest<I: Input, const SILU: bool>(
    p: &AmaxParams,
    first: u64,
    mut index: u64,
    words: u64,
    stride: u32,
) -> u32 {
    let mut found = 0.0;
    let stride = u64::from(stride);
    while index < words {
        let mut input = [[0; 4]; AMAX_LOADS];
        let mut up = [[0; 4]; AMAX_LOADS];
        for i in 0..AMAX_LOADS {
            // Words past the end repeat the last word.
            let at = (first + (index + stride * i as u64).min(words - 1)) * 16;
            // SAFETY: the caller guarantees that the words exist.
            unsafe {
                input[i] = memory::ld_global_nc_no_allocate_v4_b32(p.input + at);
                if SILU {
                    up[i] = memory::ld_global_nc_no_allocate_v4_b32(p.up + at);
                }
            }
        }
        let of_words = if SILU { product_amax::<I>(&input, &up) } else { I::amax(&input) };
        found = float::max_nan_f32(found, of_words);
        index += stride * AMAX_LOADS as u64;
    }
    found.to_bits()
}

/// The largest magnitude of `silu(gate) * up`.
#[inline(always)]
fn product_amax<I: Input>(gate: &[Word; AMAX_LOADS], up: &[Word; AMAX_LOADS]) -> f32 {
    let mut amax = 0.0;
    for group in 0..AMAX_LOADS * I::PER_WORD / 8 {
        let product = swiglu(I::group(gate, group), I::group(up, group));
        for i in 0..8 {
            amax = float::max_nan_f32(amax, float::abs_f32(product[i]));
        }
    }
    amax
}

/// Entry points: name, index in [`AMAX`], type, whether of the gated product.
macro_rules! entries {
    ($($name:ident = $index:literal, $input:ident, $silu:literal;)*) => {
        $(
            #[doc = concat!("[`AMAX`]`[", stringify!($index), "]`.")]
            ///
            /// # Safety
            /// The launch satisfies the module's contract.
            #[kernel(threads = AMAX[$index].threads(), min_blocks = AMAX[$index].min_blocks)]
            pub unsafe fn $name(params: AmaxParams) {
                const CONFIG: &AmaxConfig = &AMAX[$index];
                const { assert!(CONFIG.input as u32 == <$input as Input>::TYPE as u32) };
                const { assert!(CONFIG.silu == $silu) };
                // SAFETY: the caller guarantees the contract.
                unsafe { amax::<$input, $silu>(CONFIG, &params) }
            }
        )*
        crate::assert_names!([$($name),*], AMAX);
    };
}

entries! {
    quantize_amax_f32 = 0, F32, false;
    quantize_amax_f16 = 1, F16, false;
    quantize_amax_bf16 = 2, Bf16, false;
    quantize_silu_amax_f32 = 3, F32, true;
    quantize_silu_amax_f16 = 4, F16, true;
    quantize_silu_amax_bf16 = 5, Bf16, true;
}
