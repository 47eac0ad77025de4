//! Norm, activation, rotation and quantisation of rows, in one pass over memory.
//!
//! # Contract
//! Parameters: [`RowsParams`]. Any M >= 1, K a multiple of [`RowsSink::granularity`] and at most
//! [`MAX_COLUMNS`](fp4_formats::rows::MAX_COLUMNS); CTAs and threads of [`RowsConfig::launch`], or any others of
//! whole warps. Reads each element of the operands once, and nothing past them; of rows that are longer than
//! [`RowsConfig::KEPT`] chunks of all threads ([`RowsConfig::max_threads`]), the rest once for each pass over the row: the sums
//! of a norm, the largest magnitude, the results. Writes each result once, the updated residual too, and zeros to all
//! padding of 128x4 scales.
//!
//! # Roles
//! A CTA takes rows in turn, a thread [`CHUNK`](fp4_formats::rows::CHUNK) consecutive elements at a time. [`source`] loads and
//! normalises or activates them, [`sink`] quantises and stores them; both are types. The norm, the activation, the
//! rotation, the recipe and the layout are uniform branches.
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
//! The next kernel may start at once; it waits before it reads results. This one prefetches its first row
//! and some of the weights into L2, where writes of the kernels before still reach them, and waits for those kernels.
//!
//! # Arithmetic
//! That of [`fp4_formats::rows`]. Approximate `rcp` and `ex2` occur in gated activations alone
//! ([`Instructions`](crate::floats::Instructions)).

mod reduce;
mod sink;
mod source;

use cuda_std::ptx::{float, marker};
use cuda_std::{kernel, thread, warp};
use fp4_formats::HalfType;
use fp4_formats::arch::Conversion;
use fp4_formats::layout::{TILE_BLOCKS, TILE_ROWS};
use fp4_formats::moe::NOWHERE;
use fp4_formats::quantize::QuantizeParams;
use fp4_formats::rows::arithmetic::{self, CHUNK, Chunk, Statistics, rotated};
use fp4_formats::rows::{Norm, ROWS, RowsConfig, RowsParams, RowsSink};

use crate::pipeline::{follow_stream, release_stream};
use crate::quantize::input::{Bf16, F16};
use reduce::Meeting;
use sink::{Adaptive, Blocks, E4m3, Half, Mxfp4, Nvfp4, Sink};
use source::{Gated, One, Source};

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
    unsafe fn find(&mut self, p: &RowsParams, row: u32) {
        (self.row, self.from, self.exists) = (row, row, true);
        if p.index != 0 {
            // SAFETY: the index has an element for each row.
            let slot = unsafe { source::index(p, row) };
            self.exists = slot != NOWHERE;
            self.from = p.index_divisor.divide(slot).0;
        }
    }
}

/// The kernel body.
///
/// # Safety
/// The launch satisfies the module's contract.
#[inline(always)]
unsafe fn rows<S: Source, K: Sink>(p: &RowsParams) {
    release_stream();
    let thread = thread::thread_idx_x();
    let mut row = thread::block_idx_x();
    let chunks = p.quantize.k / CHUNK as u32;
    let mut place = Place {
        row,
        from: row,
        exists: true,
        chunks,
        groups: chunks.div_ceil(warp::LANES),
        warps: thread::block_dim_x() / warp::LANES,
        warp: thread / warp::LANES,
        lane: warp::lane_id(),
    };
    // SAFETY: the parameters keep the contract; all threads of the CTA run the same iterations.
    unsafe {
        prefetch::<S>(p, &place, row);
        if S::NORMS && p.norm != Norm::None as u32 && place.kept(0) < chunks {
            source::prefetch_weights(p, place.kept(0));
        }
        follow_stream();
        let all = if p.quantize.blocked != 0 {
            p.quantize.m.next_multiple_of(TILE_ROWS as u32)
        } else {
            p.quantize.m
        };
        let mut meeting = Meeting::new();
        while row < all {
            if row < p.quantize.m {
                prefetch::<S>(p, &place, row + thread::grid_dim_x());
                place.find(p, row);
                finish::<S, K>(p, &place, &mut meeting);
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
        if row < p.quantize.m && p.index == 0 && place.kept(i) < place.chunks {
            // SAFETY: the chunk exists.
            unsafe { S::prefetch(p, row, place.kept(i)) };
        }
    }
}

/// Makes the results of a row.
///
/// # Safety
/// The launch satisfies the module's contract; all threads of the CTA are here, and the row exists.
#[inline(always)]
unsafe fn finish<S: Source, K: Sink>(p: &RowsParams, place: &Place, meeting: &mut Meeting) {
    let mut kept = [S::ABSENT; RowsConfig::KEPT];
    for i in 0..RowsConfig::KEPT {
        if place.kept(i) < place.chunks {
            // SAFETY: the chunk exists.
            kept[i] = unsafe { S::load(p, place, place.kept(i)) };
        }
    }
    let mut again = false;
    // SAFETY: all threads are here, and every chunk is loaded once before it is read again.
    unsafe {
        let statistics = statistics::<S>(p, place, &kept, &mut again, meeting);
        let mut amax = 0.0;
        if K::reduces(&p.quantize) {
            each::<S>(p, place, &kept, again, |chunk, _, now| {
                if chunk < place.chunks {
                    let values = turned(p, S::values(p, &statistics, now, chunk));
                    amax = float::max_nan_f32(amax, magnitude(&values));
                }
            });
            amax = meeting.largest(amax, place.warps);
            again = true;
        }
        let shared = K::row(p, place.row, amax, place.warp + place.lane == 0);
        each::<S>(p, place, &kept, again, |chunk, _, now| {
            let mut values = [[0.0; 8]; 2];
            if chunk < place.chunks {
                values = turned(p, S::values(p, &statistics, now, chunk));
            }
            K::store(p, &shared, place, chunk, &values);
        });
    }
}

/// Calls `f` with each of the thread's chunks, its group, and its elements: kept, or loaded, `again` if all have been
/// loaded before. All lanes of a warp have as many; the last may be past the row's end.
///
/// # Safety
/// `p` keeps the module's contract; the first chunks are kept.
#[inline(always)]
unsafe fn each<S: Source>(
    p: &RowsParams,
    place: &Place,
    kept: &[S::Kept; RowsConfig::KEPT],
    again: bool,
    mut f: impl FnMut(u32, u32, &S::Kept),
) {
    const { assert!(RowsConfig::KEPT == 2) };
    let (mut i, mut group, mut now) = (0, place.warp, kept[0]);
    while group < place.groups {
        f(place.chunk(group), group, &now);
        group += place.warps;
        // The pin keeps the compiler from unrolling the loop.
        i = marker::pin(i + 1);
        now = kept[1];
        let chunk = place.chunk(group);
        if i > 1 && chunk < place.chunks {
            // SAFETY: the chunk exists.
            unsafe {
                now = if again { S::reload(p, place, chunk) } else { S::load(p, place, chunk) };
            }
        }
    }
}

/// The statistics of the norm of a row, whose first chunks are kept; `again` becomes true if all have been loaded.
///
/// # Safety
/// The same as [`finish`].
#[inline(always)]
unsafe fn statistics<S: Source>(
    p: &RowsParams,
    place: &Place,
    kept: &[S::Kept; RowsConfig::KEPT],
    again: &mut bool,
    meeting: &mut Meeting,
) -> Statistics {
    let mut statistics = Statistics { mean: 0.0, factor: 1.0 };
    if !S::NORMS || p.norm == Norm::None as u32 {
        return statistics;
    }
    let k = p.quantize.k;
    // SAFETY: all threads are here; groups are the same for all lanes of a warp, and every group is one warp's.
    unsafe {
        if p.norm == Norm::Layer as u32 {
            each::<S>(p, place, kept, *again, |chunk, group, now| {
                let sum = arithmetic::sum(&S::elements(now));
                meeting.add(group, if chunk < place.chunks { sum } else { 0.0 });
            });
            statistics.mean = meeting.sum(place.groups) / k as f32;
            *again = true;
        }
        each::<S>(p, place, kept, *again, |chunk, group, now| {
            let centred = centred(p, &statistics, S::elements(now));
            let squares = arithmetic::squares(&centred, float::fma_rn_f32);
            meeting.add(group, if chunk < place.chunks { squares } else { 0.0 });
        });
        let squares = meeting.sum(place.groups);
        statistics.factor = arithmetic::factor(squares, k, p.epsilon, float::sqrt_rn_f32);
        *again = true;
    }
    statistics
}

/// The chunk's distances from the mean, if it is not 0 by definition.
#[inline(always)]
fn centred(p: &RowsParams, statistics: &Statistics, mut values: Chunk) -> Chunk {
    // A branch, because most norms have no mean.
    if p.norm == Norm::Layer as u32 {
        for half in 0..2 {
            for i in 0..8 {
                values[half][i] = arithmetic::centred(values[half][i], statistics);
            }
        }
    }
    values
}

/// The chunk, rotated if the parameters say so.
#[inline(always)]
fn turned(p: &RowsParams, values: Chunk) -> Chunk {
    match p.rotation() {
        Some(signs) => rotated(&values, signs),
        None => values,
    }
}

/// The largest magnitude of a chunk; NaN if an element is.
#[inline(always)]
pub fn magnitude(values: &Chunk) -> f32 {
    let mut amax = 0.0;
    for half in 0..2 {
        for i in 0..8 {
            amax = float::max_nan_f32(amax, float::abs_f32(values[half][i]));
        }
    }
    amax
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

/// Conversions to e2m1 on this target.
const E2M1: Conversion =
    if cfg!(gpu_e2m1 = "hardware") { Conversion::Hardware } else { Conversion::Emulated };

/// Entry points: name, index in [`ROWS`], source, type, sink.
macro_rules! entries {
    ($($name:ident = $index:literal, $source:ident<$input:ident>, $sink:ty, $kind:ident;)*) => {
        $(
            #[doc = concat!("[`ROWS`]`[", stringify!($index), "]`.")]
            ///
            /// # Safety
            /// The launch satisfies the module's contract.
            #[kernel(max_threads = ROWS[$index].max_threads(E2M1))]
            pub unsafe fn $name(params: RowsParams) {
                const { assert!(ROWS[$index].input as u32 == HalfType::$input as u32) };
                const { assert!(ROWS[$index].gated != <$source<$input> as Source>::NORMS) };
                const { assert!(ROWS[$index].sink as u32 == RowsSink::$kind as u32) };
                // SAFETY: the caller guarantees the contract.
                unsafe { rows::<$source<$input>, $sink>(&params) }
            }
        )*
        crate::assert_names!([$($name),*], ROWS);
    };
}

entries! {
    rows_nvfp4_f16 = 0, One<F16>, Blocks<Nvfp4>, Nvfp4;
    rows_nvfp4_bf16 = 1, One<Bf16>, Blocks<Nvfp4>, Nvfp4;
    rows_gated_nvfp4_f16 = 2, Gated<F16>, Blocks<Nvfp4>, Nvfp4;
    rows_gated_nvfp4_bf16 = 3, Gated<Bf16>, Blocks<Nvfp4>, Nvfp4;
    rows_adaptive_f16 = 4, One<F16>, Adaptive, Adaptive;
    rows_adaptive_bf16 = 5, One<Bf16>, Adaptive, Adaptive;
    rows_gated_adaptive_f16 = 6, Gated<F16>, Adaptive, Adaptive;
    rows_gated_adaptive_bf16 = 7, Gated<Bf16>, Adaptive, Adaptive;
    rows_mxfp4_f16 = 8, One<F16>, Blocks<Mxfp4>, Mxfp4;
    rows_mxfp4_bf16 = 9, One<Bf16>, Blocks<Mxfp4>, Mxfp4;
    rows_gated_mxfp4_f16 = 10, Gated<F16>, Blocks<Mxfp4>, Mxfp4;
    rows_gated_mxfp4_bf16 = 11, Gated<Bf16>, Blocks<Mxfp4>, Mxfp4;
    rows_e4m3_f16 = 12, One<F16>, E4m3, E4m3;
    rows_e4m3_bf16 = 13, One<Bf16>, E4m3, E4m3;
    rows_gated_e4m3_f16 = 14, Gated<F16>, E4m3, E4m3;
    rows_gated_e4m3_bf16 = 15, Gated<Bf16>, E4m3, E4m3;
    rows_half_f16 = 16, One<F16>, Half<F16>, Half;
    rows_half_bf16 = 17, One<Bf16>, Half<Bf16>, Half;
    rows_gated_half_f16 = 18, Gated<F16>, Half<F16>, Half;
    rows_gated_half_bf16 = 19, Gated<Bf16>, Half<Bf16>, Half;
}
