//! The values of a row before they are rotated: of one matrix, normalised or not, or the gated product of two.

use super::{Place, centred};
use crate::floats::Instructions;
use crate::quantize::input::{Input, Word};
use core::marker::PhantomData;
use cuda_std::ptx::{convert, memory};
use fp4_formats::gemm::Combine;
use fp4_formats::rows::arithmetic::{CHUNK, Chunk, Statistics, normalised};
use fp4_formats::rows::{Norm, RowsParams};

/// Bytes of a chunk of a 16-bit matrix.
const BYTES: u64 = CHUNK as u64 * 2;
/// The elements of a chunk.
type Words = [Word; 2];
const NOTHING: Words = [[0; 4]; 2];

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
    /// Whether it may be normalised; otherwise [`RowsParams::norm`] is not looked at.
    const NORMS: bool;
    /// A chunk in registers.
    type Kept: Copy;
    /// A chunk of nothing.
    const ABSENT: Self::Kept;

    /// Prefetches a chunk of an input's row into L2.
    ///
    /// # Safety
    /// `p` keeps the module's contract; the chunk exists.
    unsafe fn prefetch(p: &RowsParams, row: u32, chunk: u32);

    /// Loads a chunk, and writes what belongs to it on the side.
    ///
    /// # Safety
    /// `p` keeps the module's contract; the chunk exists, and no other thread loads it.
    unsafe fn load(p: &RowsParams, place: &Place, chunk: u32) -> Self::Kept;

    /// Loads a chunk again.
    ///
    /// # Safety
    /// This thread has [loaded](Self::load) the chunk.
    unsafe fn reload(p: &RowsParams, place: &Place, chunk: u32) -> Self::Kept;

    /// The elements that are normalised.
    fn elements(kept: &Self::Kept) -> Chunk;

    /// The chunk's values.
    ///
    /// # Safety
    /// `p` keeps the module's contract; the chunk exists.
    unsafe fn values(
        p: &RowsParams,
        statistics: &Statistics,
        kept: &Self::Kept,
        chunk: u32,
    ) -> Chunk;
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

/// Prefetches a chunk of the weights into L2.
///
/// # Safety
/// There are weights, and the chunk exists.
#[inline(always)]
pub unsafe fn prefetch_weights(p: &RowsParams, chunk: u32) {
    // SAFETY: the chunk exists.
    unsafe { memory::prefetch_global_l2(p.weight + u64::from(chunk) * BYTES) };
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

/// One matrix of `I`, normalised if the parameters say so.
pub struct One<I>(PhantomData<I>);

impl<I: Narrow> Source for One<I> {
    const NORMS: bool = true;
    type Kept = Words;
    const ABSENT: Words = NOTHING;

    #[inline(always)]
    unsafe fn prefetch(p: &RowsParams, row: u32, chunk: u32) {
        // SAFETY: chunks of the input and of the residual.
        unsafe {
            memory::prefetch_global_l2(at(p.quantize.input, p, row, chunk));
            if p.quantize.up != 0 {
                memory::prefetch_global_l2(at(p.quantize.up, p, row, chunk));
            }
        }
    }

    #[inline(always)]
    unsafe fn load(p: &RowsParams, place: &Place, chunk: u32) -> Words {
        // SAFETY: the chunk exists in all operands; its sums are this thread's.
        unsafe {
            let mut elements = NOTHING;
            if place.exists {
                elements = load(at(p.quantize.input, p, place.from, chunk));
            }
            if p.quantize.up != 0 {
                let residual = load_own(at(p.quantize.up, p, place.row, chunk));
                let (x, y) = (chunk_of::<I>(&elements), chunk_of::<I>(&residual));
                let mut sums = [[0.0; 8]; 2];
                for half in 0..2 {
                    for i in 0..8 {
                        sums[half][i] = x[half][i] + y[half][i];
                    }
                }
                elements = narrowed::<I>(&sums);
                store(at(p.residual_out, p, place.row, chunk), elements);
            }
            elements
        }
    }

    #[inline(always)]
    unsafe fn reload(p: &RowsParams, place: &Place, chunk: u32) -> Words {
        let mut elements = NOTHING;
        // SAFETY: the chunk exists, and its sums are written.
        unsafe {
            if p.quantize.up != 0 {
                elements = load_own(at(p.residual_out, p, place.row, chunk));
            } else if place.exists {
                elements = load(at(p.quantize.input, p, place.from, chunk));
            }
            elements
        }
    }

    #[inline(always)]
    fn elements(kept: &Words) -> Chunk {
        chunk_of::<I>(kept)
    }

    #[inline(always)]
    unsafe fn values(p: &RowsParams, statistics: &Statistics, kept: &Words, chunk: u32) -> Chunk {
        let mut values = centred(p, statistics, Self::elements(kept));
        if p.norm == Norm::None as u32 {
            return values;
        }
        // SAFETY: the chunk exists, and a norm has weights.
        let weights = chunk_of::<I>(&unsafe { load(p.weight + u64::from(chunk) * BYTES) });
        for half in 0..2 {
            for i in 0..8 {
                values[half][i] = normalised(values[half][i], statistics, weights[half][i]);
            }
        }
        if p.bias != 0 {
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
pub struct Gated<I>(PhantomData<I>);

impl<I: Narrow> Source for Gated<I> {
    const NORMS: bool = false;
    type Kept = Chunk;
    const ABSENT: Chunk = [[0.0; 8]; 2];

    #[inline(always)]
    unsafe fn prefetch(p: &RowsParams, row: u32, chunk: u32) {
        // SAFETY: chunks of both operands.
        unsafe {
            memory::prefetch_global_l2(at(p.quantize.input, p, row, chunk));
            memory::prefetch_global_l2(at(p.quantize.up, p, row, chunk));
        }
    }

    #[inline(always)]
    unsafe fn load(p: &RowsParams, place: &Place, chunk: u32) -> Chunk {
        let [mut gate, mut up] = [NOTHING; 2];
        if place.exists {
            // SAFETY: the chunk exists in both operands.
            unsafe {
                gate = load(at(p.quantize.input, p, place.from, chunk));
                up = load(at(p.quantize.up, p, place.from, chunk));
            }
        }
        let (mut gate, up) = (chunk_of::<I>(&gate), chunk_of::<I>(&up));
        for half in 0..2 {
            gate[half] = product(&p.combine, gate[half], up[half]);
        }
        gate
    }

    #[inline(always)]
    unsafe fn reload(p: &RowsParams, place: &Place, chunk: u32) -> Chunk {
        // SAFETY: the same as the caller's.
        unsafe { Self::load(p, place, chunk) }
    }

    #[inline(always)]
    fn elements(kept: &Chunk) -> Chunk {
        *kept
    }

    #[inline(always)]
    unsafe fn values(
        _p: &RowsParams,
        _statistics: &Statistics,
        kept: &Chunk,
        _chunk: u32,
    ) -> Chunk {
        *kept
    }
}

/// The gated product of eight elements.
#[inline(always)]
fn product(combine: &Combine, gate: [f32; 8], up: [f32; 8]) -> [f32; 8] {
    let activated = combine.activate::<Instructions, 8>(gate);
    combine.gate::<Instructions, 8>(activated, up)
}
