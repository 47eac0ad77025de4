//! The values of a row before they are rotated: of one matrix, normalised or not, or the gated product of two.

use super::Place;
use super::passes::centred;
use super::steps::Steps;
use crate::floats::Instructions;
use crate::quantize::input::{Input, Word};
use core::marker::PhantomData;
use cuda_std::ptx::{convert, marker, memory};
use fp4_formats::gemm::combine::silu_product;
use fp4_formats::gemm::{Activation, Combine};
use fp4_formats::rows::arithmetic::{CHUNK, Chunk, Statistics, normalised};
use fp4_formats::rows::{Norm, RowsParams};

/// The product with SiLU.
pub const SILU: Combine = Activation::Silu.combine(true);
/// Bytes of a chunk of a 16-bit matrix.
const BYTES: u64 = CHUNK as u64 * 2;
/// The elements of a chunk.
pub type Words = [Word; 2];
/// Zeros.
pub const NOTHING: Words = [[0; 4]; 2];

/// A 16-bit type of elements.
pub trait Narrow: Input {
    /// Two numbers, rounded to nearest even; `low` in the low half.
    fn pair(high: f32, low: f32) -> u32;
}

impl Narrow for crate::quantize::input::F16 {
    #[inline(always)]
    fn pair(high: f32, low: f32) -> u32 {
        convert::cvt_rn_f16x2_f32(high, low)
    }
}

impl Narrow for crate::quantize::input::Bf16 {
    #[inline(always)]
    fn pair(high: f32, low: f32) -> u32 {
        convert::cvt_rn_bf16x2_f32(high, low)
    }
}

/// The source of a row.
pub trait Source {
    /// The steps.
    type Steps: Steps;
    /// Whether it may be normalised; otherwise [`RowsParams::norm`] is not looked at.
    const NORMS: bool;
    /// A chunk as it is in memory.
    type Raw: Copy;
    /// A chunk of zeros.
    const NOTHING: Self::Raw;

    /// Prefetches a chunk of an input's row into L2.
    ///
    /// # Safety
    /// `p` keeps the module's contract; the chunk exists.
    unsafe fn prefetch(p: &RowsParams, row: u32, chunk: u32);

    /// Loads a chunk.
    ///
    /// # Safety
    /// `p` keeps the module's contract; the chunk exists.
    unsafe fn fetch(p: &RowsParams, place: &Place, chunk: u32) -> Self::Raw;

    /// The elements of a chunk that was [loaded](Self::fetch), which may be normalised; writes what belongs to it on the
    /// side if `writes` says so.
    ///
    /// # Safety
    /// The same as [`fetch`](Self::fetch). No other thread takes the chunk with `writes`; if others take it without, sums are
    /// written elsewhere than it is read.
    unsafe fn take(
        p: &RowsParams,
        place: &Place,
        chunk: u32,
        raw: &Self::Raw,
        writes: bool,
    ) -> Chunk;

    /// Loads a chunk again, and returns its elements.
    ///
    /// # Safety
    /// This thread has [taken](Self::take) the chunk.
    unsafe fn reload(p: &RowsParams, place: &Place, chunk: u32) -> Chunk;

    /// The chunk's values, of its elements and the norm's weights.
    ///
    /// # Safety
    /// `p` keeps the module's contract; the chunk exists.
    unsafe fn values(
        p: &RowsParams,
        statistics: &Statistics,
        elements: &Chunk,
        weights: &Words,
        chunk: u32,
    ) -> Chunk;
}

/// Loads a chunk of the norm's weights, if there is a norm.
///
/// # Safety
/// `p` keeps the module's contract; the chunk exists.
#[inline(always)]
pub unsafe fn weights<S: Source>(p: &RowsParams, chunk: u32) -> Words {
    if S::NORMS && S::Steps::norm(p) != Norm::None as u32 {
        // SAFETY: the chunk exists, and a norm has weights.
        unsafe { load(p.weight + u64::from(chunk) * BYTES) }
    } else {
        NOTHING
    }
}

/// Prefetches a chunk of the norm's weights into L2.
///
/// # Safety
/// `p` keeps the module's contract; there is a norm, and the chunk exists.
#[inline(always)]
pub unsafe fn prefetch_weights(p: &RowsParams, chunk: u32) {
    // SAFETY: the chunk exists, and a norm has weights.
    unsafe { memory::prefetch_global_l2(p.weight + u64::from(chunk) * BYTES) }
}

/// The element of the index that a row has.
///
/// # Safety
/// There is an index, and the row exists.
#[inline(always)]
pub unsafe fn index(p: &RowsParams, row: u32) -> u32 {
    // SAFETY: the caller guarantees that the element exists.
    unsafe { memory::ld_global_b32(p.index + u64::from(row) * 4) }
}

/// Address of a chunk of a row of a matrix.
#[inline(always)]
fn at(matrix: u64, p: &RowsParams, row: u32, chunk: u32) -> u64 {
    matrix + u64::from(row) * (u64::from(p.quantize.k) * 2) + u64::from(chunk) * BYTES
}

/// Loads a chunk, which no kernel that runs at the same time writes.
///
/// # Safety
/// It exists.
#[inline(always)]
unsafe fn load(address: u64) -> Words {
    // SAFETY: the caller guarantees that the chunk exists; it is aligned.
    unsafe { [memory::ld_global_nc_v4_b32(address), memory::ld_global_nc_v4_b32(address + 16)] }
}

/// Loads a chunk, which this thread may write.
///
/// # Safety
/// The same as [`load`].
#[inline(always)]
unsafe fn load_own(address: u64) -> Words {
    // SAFETY: the caller guarantees that the chunk exists; it is aligned.
    unsafe { [memory::ld_global_v4_b32(address), memory::ld_global_v4_b32(address + 16)] }
}

/// Stores a chunk.
///
/// # Safety
/// It exists, and no other thread stores it.
#[inline(always)]
pub unsafe fn store(address: u64, words: Words) {
    // SAFETY: the caller's; the chunk is aligned.
    unsafe {
        memory::st_global_v4_b32(address, words[0]);
        memory::st_global_v4_b32(address + 16, words[1]);
    }
}

/// The values of a chunk.
#[inline(always)]
fn chunk_of<I: Input>(words: &Words) -> Chunk {
    [I::group(words, 0), I::group(words, 1)]
}

/// The chunk, rounded to the type.
#[inline(always)]
pub fn narrowed<I: Narrow>(values: &Chunk) -> Words {
    let mut words = NOTHING;
    for half in 0..2 {
        for i in 0..4 {
            words[half][i] = I::pair(values[half][2 * i + 1], values[half][2 * i]);
        }
    }
    words
}

/// One matrix of `I`, normalised if its steps have a norm.
pub struct One<I, T>(PhantomData<(I, T)>);

impl<I: Narrow, T: Steps> Source for One<I, T> {
    type Steps = T;
    const NORMS: bool = true;
    type Raw = Words;
    const NOTHING: Words = NOTHING;

    #[inline(always)]
    unsafe fn prefetch(p: &RowsParams, row: u32, chunk: u32) {
        // SAFETY: chunks of the input and of the residual.
        unsafe {
            memory::prefetch_global_l2(at(p.quantize.input, p, row, chunk));
            if T::has_residual(p) {
                memory::prefetch_global_l2(at(p.quantize.up, p, row, chunk));
            }
        }
    }

    #[inline(always)]
    unsafe fn fetch(p: &RowsParams, place: &Place, chunk: u32) -> Words {
        if !place.exists {
            return NOTHING;
        }
        // SAFETY: the chunk exists.
        unsafe { load(at(p.quantize.input, p, place.from, chunk)) }
    }

    #[inline(always)]
    unsafe fn take(p: &RowsParams, place: &Place, chunk: u32, raw: &Words, writes: bool) -> Chunk {
        let mut elements = chunk_of::<I>(raw);
        if T::has_residual(p) {
            // SAFETY: the chunk exists.
            let residual = unsafe { load_own(at(p.quantize.up, p, place.row, chunk)) };
            let residual = chunk_of::<I>(&residual);
            for half in 0..2 {
                for i in 0..8 {
                    elements[half][i] += residual[half][i];
                }
            }
            let sums = narrowed::<I>(&elements);
            if writes {
                // SAFETY: the chunk exists; its sums are this thread's.
                unsafe { store(at(p.residual_out, p, place.row, chunk), sums) };
            }
            elements = chunk_of::<I>(&sums);
        }
        elements
    }

    #[inline(always)]
    unsafe fn reload(p: &RowsParams, place: &Place, chunk: u32) -> Chunk {
        let mut words = NOTHING;
        // SAFETY: the chunk exists, and its sums are written.
        unsafe {
            if T::has_residual(p) {
                words = load_own(at(p.residual_out, p, place.row, chunk));
            } else if place.exists {
                words = load(at(p.quantize.input, p, place.from, chunk));
            }
        }
        chunk_of::<I>(&words)
    }

    #[inline(always)]
    unsafe fn values(
        p: &RowsParams,
        statistics: &Statistics,
        elements: &Chunk,
        weights: &Words,
        chunk: u32,
    ) -> Chunk {
        let mut values = centred::<T>(p, statistics, *elements);
        if T::norm(p) == Norm::None as u32 {
            return values;
        }
        // The pins keep the compiler from widening weights once for all rows, which would take twice the registers.
        let mut packed = NOTHING;
        for half in 0..2 {
            for i in 0..4 {
                packed[half][i] = marker::pin(weights[half][i]);
            }
        }
        let weights = chunk_of::<I>(&packed);
        for half in 0..2 {
            for i in 0..8 {
                values[half][i] = normalised(values[half][i], statistics, weights[half][i]);
            }
        }
        if T::has_bias(p) {
            // SAFETY: the chunk exists.
            let bias = chunk_of::<I>(&unsafe { load(p.bias + u64::from(chunk) * BYTES) });
            for half in 0..2 {
                for i in 0..8 {
                    values[half][i] += bias[half][i];
                }
            }
        }
        values
    }
}

/// `act(gate) * up` of two matrices of `I`.
pub struct Gated<I, T>(PhantomData<(I, T)>);

impl<I: Narrow, T: Steps> Source for Gated<I, T> {
    type Steps = T;
    const NORMS: bool = false;
    type Raw = [Words; 2];
    const NOTHING: [Words; 2] = [NOTHING; 2];

    #[inline(always)]
    unsafe fn prefetch(p: &RowsParams, row: u32, chunk: u32) {
        // SAFETY: chunks of both operands.
        unsafe {
            memory::prefetch_global_l2(at(p.quantize.input, p, row, chunk));
            memory::prefetch_global_l2(at(p.quantize.up, p, row, chunk));
        }
    }

    #[inline(always)]
    unsafe fn fetch(p: &RowsParams, place: &Place, chunk: u32) -> [Words; 2] {
        if !place.exists {
            return [NOTHING; 2];
        }
        // SAFETY: the chunk exists in both operands.
        unsafe {
            [
                load(at(p.quantize.input, p, place.from, chunk)),
                load(at(p.quantize.up, p, place.from, chunk)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn take(
        p: &RowsParams,
        _place: &Place,
        _chunk: u32,
        raw: &[Words; 2],
        _writes: bool,
    ) -> Chunk {
        let (mut gate, up) = (chunk_of::<I>(&raw[0]), chunk_of::<I>(&raw[1]));
        if T::is_silu(p) && I::amax(&raw[0]) < f32::INFINITY && I::amax(&raw[1]) < f32::INFINITY {
            for half in 0..2 {
                gate[half] = silu_product::<Instructions, 8>(gate[half], up[half]);
            }
        } else {
            let combine = if T::is_silu(p) { &SILU } else { &p.combine };
            for half in 0..2 {
                let activated = combine.activate::<Instructions, 8>(gate[half]);
                gate[half] = combine.gate::<Instructions, 8>(activated, up[half]);
            }
        }
        gate
    }

    #[inline(always)]
    unsafe fn reload(p: &RowsParams, place: &Place, chunk: u32) -> Chunk {
        // SAFETY: the same as the caller's.
        unsafe { Self::take(p, place, chunk, &Self::fetch(p, place, chunk), true) }
    }

    #[inline(always)]
    unsafe fn values(
        _p: &RowsParams,
        _statistics: &Statistics,
        elements: &Chunk,
        _weights: &Words,
        _chunk: u32,
    ) -> Chunk {
        *elements
    }
}
