//! Norm, activation, rotation and quantisation of rows, in one pass over memory.
//!
//! # Contract
//! Parameters: [`RowsParams`]. Any M >= 1, K a multiple of [`RowsSink::granularity`] and at most
//! [`MAX_COLUMNS`](fp4_formats::rows::MAX_COLUMNS); CTAs and threads of [`RowsConfig::launch`], or any others of
//! whole warps; for kernels of few rows those of [`RowsConfig::few`], with RMSNorm, and without index, bias and rotation. Reads each
//! element of the operands once, or once for each CTA that shares the row, and nothing past them; of rows that are longer than
//! [`RowsConfig::KEPT`] chunks of all threads ([`RowsConfig::MAX_THREADS`]), the rest once for each pass over the row: the sums
//! of a norm, the largest magnitude, the results. Writes each result once, the updated residual too, and zeros to all
//! padding of 128x4 scales. Elements of the input's type may take the place of the input or of the residual, from its beginning on.
//!
//! # Roles
//! [Few] rows with RMSNorm have kernels of their own, in which CTAs share a row. In the others a CTA takes rows in turn, a thread
//! [`CHUNK`](fp4_formats::rows::CHUNK) consecutive elements at a time; the first chunks of the
//! next row are on their way to registers while a row is finished, and the weights of a thread's first chunks stay there.
//! [`source`] loads and normalises or activates elements, [`sink`] quantises and stores them; both are types. The norm, the
//! activation, the rotation, the recipe and the layout are uniform branches; operations that engines have most often (one
//! matrix as it is or with RMSNorm, SiLU, TorchAO's recipe of NVFP4) have copies of the code without them
//! ([`Steps`], [`Sink::Usual`]).
//!
//! # Shared memory
//! | buffer | what |
//! |---|---|
//! | sums, twice | sums of the row's groups of chunks: of squares, or of elements |
//! | maxima, twice | the largest magnitude of each warp |
//!
//! A reduction uses the other buffer than the one before: the barrier of the one between is behind all reads.
//!
//! # Barriers
//! | barrier | arrives | waits | guards |
//! |---|---|---|---|
//! | 0, sums full | all threads | all threads | each group's sum is stored |
//! | 0, maxima full | all threads | all threads | each warp's magnitude is stored |
//!
//! # Dependent launches
//! The next kernel may start at once; it waits before it reads results. This one prefetches its first row, or the weights of few rows, into L2, where
//! writes of the kernels before still reach it, and waits for those kernels.
//!
//! # Arithmetic
//! That of [`fp4_formats::rows`]. Approximate `rcp` and `ex2` occur in gated activations alone
//! ([`Instructions`](crate::floats::Instructions)).

mod adaptive;
mod few;
mod passes;
mod reduce;
mod sink;
mod source;
mod steps;

use cuda_std::ptx::float;
use cuda_std::{kernel, thread, warp};
use fp4_formats::HalfType;
use fp4_formats::layout::{ScaleLayout, TILE_BLOCKS};
use fp4_formats::moe::NOWHERE;
use fp4_formats::quantize::QuantizeParams;
use fp4_formats::rows::arithmetic::{CHUNK, Chunk};
use fp4_formats::rows::{Norm, ROWS, RowsConfig, RowsParams, RowsSink, RowsSource};

use crate::pipeline::{follow_stream, release_stream};
use crate::quantize::input::{Bf16, F16};
use adaptive::Adaptive;
use few::Few;
use passes::finish;
use reduce::Meeting;
use sink::{Blocks, E4m3, Half, Mxfp4, Nvfp4, Sink};
use source::{Gated, Narrow, One, SILU, Source};
use steps::{Any, Bare, Rms, Steps};

/// The place of a row, and of this thread in it.
#[derive(Clone, Copy)]
pub struct Place {
    /// The result's row.
    row: u32,
    /// The input's row; of no use if it does not exist.
    from: u32,
    /// Whether the row is made of one of the input's; otherwise it is made of zeros.
    exists: bool,
    /// Chunks of a row.
    chunks: u32,
    /// Groups of 32 chunks.
    groups: u32,
    /// Warps of the CTA, and this thread's.
    warps: u32,
    warp: u32,
    lane: u32,
}

impl Place {
    /// This thread's in the result's row `row`, made of the input's row of that number.
    #[inline(always)]
    fn new(p: &RowsParams, row: u32, thread: u32) -> Self {
        let chunks = p.quantize.k / CHUNK as u32;
        Self {
            row,
            from: row,
            exists: true,
            chunks,
            groups: chunks.div_ceil(warp::LANES),
            warps: thread::block_dim_x() / warp::LANES,
            warp: thread / warp::LANES,
            lane: warp::lane_id(),
        }
    }

    /// The lane's chunk of a group; of the last one it may be past the row's end.
    #[inline(always)]
    fn chunk(&self, group: u32) -> u32 {
        group * warp::LANES + self.lane
    }

    /// The chunk that a thread has as its `i`-th.
    #[inline(always)]
    fn kept(&self, i: usize) -> u32 {
        self.chunk(self.warp + i as u32 * self.warps)
    }

    /// Finds the input's row of the result's row `row`.
    ///
    /// # Safety
    /// `p` keeps the module's contract, and the row exists.
    #[inline(always)]
    unsafe fn find<T: Steps>(&mut self, p: &RowsParams, row: u32) {
        (self.row, self.from, self.exists) = (row, row, true);
        if T::has_index(p) {
            // SAFETY: the index has an element for each row.
            let slot = unsafe { source::index(p, row) };
            self.exists = slot != NOWHERE;
            self.from = p.index_divisor.divide(slot).0;
        }
    }
}

/// The layout of block scales.
#[inline(always)]
fn layout(p: &QuantizeParams) -> ScaleLayout {
    match p.blocked != 0 {
        true => ScaleLayout::Blocked128x4,
        false => ScaleLayout::Linear,
    }
}

/// Rows of results, and of the padding of 128x4 scales.
#[inline(always)]
fn padded(p: &RowsParams) -> u32 {
    RowsConfig::padded(p.quantize.m, layout(&p.quantize))
}

/// The kernel body.
///
/// # Safety
/// The launch satisfies the module's contract, and asks for no step that `S` has not, nor for a recipe that `K` has not.
#[inline(always)]
unsafe fn rows<S: Source, K: Sink>(p: &RowsParams) {
    release_stream();
    let thread = thread::thread_idx_x();
    let mut row = thread::block_idx_x();
    let mut place = Place::new(p, row, thread);
    let chunks = place.chunks;
    let mut raw = [S::NOTHING; RowsConfig::KEPT];
    let mut weights = [source::NOTHING; RowsConfig::KEPT];
    // SAFETY: the parameters keep the contract; all threads of the CTA run the same iterations.
    unsafe {
        prefetch::<S>(p, &place, row);
        follow_stream();
        if S::Steps::AHEAD {
            for i in 0..RowsConfig::KEPT {
                if K::HOLDS && place.kept(i) < chunks {
                    weights[i] = source::weights::<S>(p, place.kept(i));
                }
            }
            fetch::<S>(p, &mut place, row, &mut raw);
        }
        let of_all = K::row(p, 0.0);
        let all = padded(p);
        let mut meeting = Meeting::new();
        while row < all {
            if row < p.quantize.m {
                let next = row + thread::grid_dim_x();
                if !S::Steps::AHEAD {
                    // Nothing of the row before stays in registers.
                    raw = [S::NOTHING; RowsConfig::KEPT];
                    fetch::<S>(p, &mut place, row, &mut raw);
                }
                if !S::Steps::AHEAD || S::Steps::has_residual(p) {
                    prefetch::<S>(p, &place, next);
                }
                let now = place;
                let mut kept = [[[0.0; 8]; 2]; RowsConfig::KEPT];
                for i in 0..RowsConfig::KEPT {
                    // A chunk past the row's end is zeros, which add nothing: fewer branches, if nothing is written.
                    let anyhow = S::Steps::AHEAD && !S::Steps::has_residual(p);
                    if anyhow || now.kept(i) < chunks {
                        kept[i] = S::take(p, &now, now.kept(i), &raw[i], true);
                    }
                }
                if S::Steps::AHEAD {
                    fetch::<S>(p, &mut place, next, &mut raw);
                }
                finish::<S, K>(p, &now, &kept, &weights, &of_all, &mut meeting);
            }
            K::pad(p, row, thread);
            row += thread::grid_dim_x();
        }
    }
}

/// Prefetches this thread's first chunks of the result's row `row` into L2, if there is such a row and the input's rows
/// are in order.
///
/// # Safety
/// The launch satisfies the module's contract.
#[inline(always)]
unsafe fn prefetch<S: Source>(p: &RowsParams, place: &Place, row: u32) {
    for i in 0..RowsConfig::KEPT {
        if row < p.quantize.m && !S::Steps::has_index(p) && place.kept(i) < place.chunks {
            // SAFETY: the chunk exists.
            unsafe { S::prefetch(p, row, place.kept(i)) };
        }
    }
}

/// Finds the input's row of the result's row `row`, if there is one, and loads this thread's first chunks.
///
/// # Safety
/// The launch satisfies the module's contract.
#[inline(always)]
unsafe fn fetch<S: Source>(
    p: &RowsParams,
    place: &mut Place,
    row: u32,
    raw: &mut [S::Raw; RowsConfig::KEPT],
) {
    if row < p.quantize.m {
        // SAFETY: the row exists, and so do the chunks.
        unsafe {
            place.find::<S::Steps>(p, row);
            for i in 0..RowsConfig::KEPT {
                if place.kept(i) < place.chunks {
                    raw[i] = S::fetch(p, place, place.kept(i));
                }
            }
        }
    }
}

/// The largest magnitude of a chunk; NaN if an element is.
#[inline(always)]
pub fn magnitude(values: &Chunk) -> f32 {
    let larger = |x: f32, y: f32| float::max_nan_f32(float::abs_f32(x), float::abs_f32(y));
    // Four chains, because each step of one waits for the step before.
    let mut largest = [0.0; 4];
    for i in 0..4 {
        let low = larger(values[0][2 * i], values[0][2 * i + 1]);
        let high = larger(values[1][2 * i], values[1][2 * i + 1]);
        largest[i] = float::max_nan_f32(low, high);
    }
    float::max_nan_f32(
        float::max_nan_f32(largest[0], largest[1]),
        float::max_nan_f32(largest[2], largest[3]),
    )
}

/// Writes zeros to the padding of 128x4 scales that belongs to row `row` of `blocks` blocks, which may itself be padding.
///
/// # Safety
/// `p` keeps the module's contract; `thread` is this thread's number.
#[inline(always)]
unsafe fn pad_blocks(p: &QuantizeParams, blocks: u32, row: u32, thread: u32) {
    if p.blocked == 0 {
        return;
    }
    let all = blocks.next_multiple_of(TILE_BLOCKS as u32);
    let mut block = thread + if row < p.m { blocks } else { 0 };
    while block < all {
        // SAFETY: a byte of the scales that no block has.
        unsafe { cuda_std::ptx::memory::st_global_b8(sink::scale(p, row, block, blocks), 0) };
        block += thread::block_dim_x();
    }
}

/// Whether an operation has no step but a norm or an activation.
#[inline(always)]
fn is_simple(p: &RowsParams) -> bool {
    p.index == 0 && p.bias == 0 && p.rotation().is_none()
}

impl<I: Narrow> One<I, Any> {
    /// The kernel body in the copy for the operation.
    ///
    /// # Safety
    /// The launch satisfies the module's contract.
    #[inline(always)]
    unsafe fn run<K: Sink>(p: &RowsParams) {
        // SAFETY: the copies have the steps that the parameters ask for.
        unsafe {
            if is_simple(p) && K::is_usual(&p.quantize) {
                if p.norm == Norm::Rms as u32 {
                    return rows::<One<I, Rms>, K::Usual>(p);
                }
                if K::PLAIN && p.norm == Norm::None as u32 && p.quantize.up == 0 {
                    return rows::<One<I, Bare>, K::Usual>(p);
                }
            }
            rows::<Self, K>(p);
        }
    }
}

impl<I: Narrow> Gated<I, Any> {
    /// The kernel body in the copy for the operation.
    ///
    /// # Safety
    /// The launch satisfies the module's contract.
    #[inline(always)]
    unsafe fn run<K: Sink>(p: &RowsParams) {
        // SAFETY: the copies have the steps that the parameters ask for.
        unsafe {
            if is_simple(p) && K::is_usual(&p.quantize) && p.combine == SILU {
                return rows::<Gated<I, Bare>, K::Usual>(p);
            }
            rows::<Self, K>(p);
        }
    }
}

/// Entry points: name, index in [`ROWS`], source, type, sink.
macro_rules! entries {
    ($($name:ident = $index:literal, $source:ident<$input:ident>, $sink:ty, $kind:ident;)*) => {
        $(
            #[doc = concat!("[`ROWS`]`[", stringify!($index), "]`.")]
            ///
            /// # Safety
            /// The launch satisfies the module's contract.
            // Without a least number of CTAs ptxas spills for more of them than one.
            #[kernel(max_threads = RowsConfig::MAX_THREADS, min_blocks = 1)]
            pub unsafe fn $name(params: RowsParams) {
                const { assert!(ROWS[$index].input as u32 == HalfType::$input as u32) };
                const { assert!(ROWS[$index].source as u32 == RowsSource::$source as u32) };
                const { assert!(ROWS[$index].sink as u32 == RowsSink::$kind as u32) };
                // SAFETY: the caller guarantees the contract.
                unsafe { $source::<$input, Any>::run::<$sink>(&params) }
            }
        )*
        crate::assert_names!([$($name),*], ROWS);
    };
}

entries! {
    rows_nvfp4_f16 = 0, One<F16>, Blocks<Nvfp4>, Nvfp4;
    rows_nvfp4_bf16 = 1, One<Bf16>, Blocks<Nvfp4>, Nvfp4;
    rows_few_nvfp4_f16 = 2, Few<F16>, Blocks<Nvfp4>, Nvfp4;
    rows_few_nvfp4_bf16 = 3, Few<Bf16>, Blocks<Nvfp4>, Nvfp4;
    rows_gated_nvfp4_f16 = 4, Gated<F16>, Blocks<Nvfp4>, Nvfp4;
    rows_gated_nvfp4_bf16 = 5, Gated<Bf16>, Blocks<Nvfp4>, Nvfp4;
    rows_adaptive_f16 = 6, One<F16>, Adaptive, Adaptive;
    rows_adaptive_bf16 = 7, One<Bf16>, Adaptive, Adaptive;
    rows_few_adaptive_f16 = 8, Few<F16>, Adaptive, Adaptive;
    rows_few_adaptive_bf16 = 9, Few<Bf16>, Adaptive, Adaptive;
    rows_gated_adaptive_f16 = 10, Gated<F16>, Adaptive, Adaptive;
    rows_gated_adaptive_bf16 = 11, Gated<Bf16>, Adaptive, Adaptive;
    rows_mxfp4_f16 = 12, One<F16>, Blocks<Mxfp4>, Mxfp4;
    rows_mxfp4_bf16 = 13, One<Bf16>, Blocks<Mxfp4>, Mxfp4;
    rows_few_mxfp4_f16 = 14, Few<F16>, Blocks<Mxfp4>, Mxfp4;
    rows_few_mxfp4_bf16 = 15, Few<Bf16>, Blocks<Mxfp4>, Mxfp4;
    rows_gated_mxfp4_f16 = 16, Gated<F16>, Blocks<Mxfp4>, Mxfp4;
    rows_gated_mxfp4_bf16 = 17, Gated<Bf16>, Blocks<Mxfp4>, Mxfp4;
    rows_e4m3_f16 = 18, One<F16>, E4m3, E4m3;
    rows_e4m3_bf16 = 19, One<Bf16>, E4m3, E4m3;
    rows_few_e4m3_f16 = 20, Few<F16>, E4m3, E4m3;
    rows_few_e4m3_bf16 = 21, Few<Bf16>, E4m3, E4m3;
    rows_gated_e4m3_f16 = 22, Gated<F16>, E4m3, E4m3;
    rows_gated_e4m3_bf16 = 23, Gated<Bf16>, E4m3, E4m3;
    rows_half_f16 = 24, One<F16>, Half<F16>, Half;
    rows_half_bf16 = 25, One<Bf16>, Half<Bf16>, Half;
    rows_few_half_f16 = 26, Few<F16>, Half<F16>, Half;
    rows_few_half_bf16 = 27, Few<Bf16>, Half<Bf16>, Half;
    rows_gated_half_f16 = 28, Gated<F16>, Half<F16>, Half;
    rows_gated_half_bf16 = 29, Gated<Bf16>, Half<Bf16>, Half;
}
