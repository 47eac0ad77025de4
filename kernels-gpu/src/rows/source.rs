//! The values of a row before they are rotated: of one matrix, normalised or not, or the gated product of two.

use super::{Place, centred};
use crate::floats::Instructions;
use crate::quantize::input::{Input, Word};
use core::marker::PhantomData;
use cuda_std::ptx::{convert, memory};
use fp4_formats::gemm::combine::silu_product;
use fp4_formats::rows::arithmetic::{CHUNK, Chunk, Statistics, normalised};
use fp4_formats::rows::{Norm, RowsParams};

/// Bytes of a chunk of a 16-bit matrix.
const BYTES: u64 = CHUNK as u64 * 2;
/// The elements of a chunk.
pub type Words = [Word; 2];
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

/// The steps of an operation that a copy of the code has. Those that the parameters have to ask for cost branches and keep
/// the compiler from moving instructions across them, so that usual operations have copies of their own.
pub trait Steps {
    /// The [`Norm`].
    fn norm(p: &RowsParams) -> u32;
    /// Whether rows are chosen by an index.
    fn has_index(p: &RowsParams) -> bool;
    /// Whether there is a residual.
    fn has_residual(p: &RowsParams) -> bool;
    /// Whether there are addends behind the weights.
    fn has_bias(p: &RowsParams) -> bool;
    /// The signs of the rotation, if there is one.
    fn rotation(p: &RowsParams) -> Option<u32>;
    /// Whether a gated input's activation is SiLU.
    fn is_silu(p: &RowsParams) -> bool;
}

/// All steps, as the parameters ask for them.
pub struct Any;
/// One matrix as it is, or the product with SiLU.
pub struct Bare;
/// RMSNorm, with or without a residual.
pub struct Rms;

impl Steps for Any {
    #[inline(always)]
    fn norm(p: &RowsParams) -> u32 {
        p.norm
    }

    #[inline(always)]
    fn has_index(p: &RowsParams) -> bool {
        p.index != 0
    }

    #[inline(always)]
    fn has_residual(p: &RowsParams) -> bool {
        p.quantize.up != 0
    }

    #[inline(always)]
    fn has_bias(p: &RowsParams) -> bool {
        p.bias != 0
    }

    #[inline(always)]
    fn rotation(p: &RowsParams) -> Option<u32> {
        p.rotation()
    }

    #[inline(always)]
    fn is_silu(_p: &RowsParams) -> bool {
        false
    }
}

/// Steps of usual operations: the norm, and whether there may be a residual.
macro_rules! usual {
    ($name:ident, $norm:ident, $residual:expr) => {
        impl Steps for $name {
            #[inline(always)]
            fn norm(_p: &RowsParams) -> u32 {
                Norm::$norm as u32
            }

            #[inline(always)]
            fn has_index(_p: &RowsParams) -> bool {
                false
            }

            #[inline(always)]
            fn has_residual(p: &RowsParams) -> bool {
                $residual && p.quantize.up != 0
            }

            #[inline(always)]
            fn has_bias(_p: &RowsParams) -> bool {
                false
            }

            #[inline(always)]
            fn rotation(_p: &RowsParams) -> Option<u32> {
                None
            }

            #[inline(always)]
            fn is_silu(_p: &RowsParams) -> bool {
                true
            }
        }
    };
}

usual!(Bare, None, false);
usual!(Rms, Rms, true);

/// The source of a row.
pub trait Source {
    /// The steps.
    type Steps: Steps;
    /// Whether it may be normalised; otherwise [`RowsParams::norm`] is not looked at.
    const NORMS: bool;
    /// A chunk as it is in memory: 16-byte words.
    type Raw: Raw;
    /// A chunk in registers, which takes as many words.
    type Kept: Copy;

    /// Prefetches a chunk of an input's row into L2.
    ///
    /// # Safety
    /// `p` keeps the module's contract; the chunk exists.
    unsafe fn prefetch(p: &RowsParams, row: u32, chunk: u32);

    /// Address of a word of a chunk.
    fn word(p: &RowsParams, place: &Place, chunk: u32, word: u32) -> u64;

    /// Takes a chunk, and writes what belongs to it on the side.
    ///
    /// # Safety
    /// `p` keeps the module's contract; the chunk exists, and no other thread takes it.
    unsafe fn take(p: &RowsParams, place: &Place, chunk: u32, raw: &Self::Raw) -> Self::Kept;

    /// Whether a chunk that was [taken](Self::take) differs from that in memory.
    fn differs(p: &RowsParams) -> bool;

    /// The words of a chunk that was taken.
    fn words(kept: &Self::Kept) -> Self::Raw;

    /// The chunk of these words.
    fn of_words(words: &Self::Raw) -> Self::Kept;

    /// Loads a chunk again.
    ///
    /// # Safety
    /// This thread has taken the chunk.
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

/// 16-byte words.
pub trait Raw: Copy {
    /// How many.
    const WORDS: u32;
    /// Zeros.
    const NOTHING: Self;

    /// Makes them of each.
    fn of(word: impl FnMut(u32) -> Word) -> Self;

    /// Gives each.
    fn each(&self, give: impl FnMut(u32, Word));
}

impl Raw for Words {
    const WORDS: u32 = 2;
    const NOTHING: Self = NOTHING;

    #[inline(always)]
    fn of(mut word: impl FnMut(u32) -> Word) -> Self {
        [word(0), word(1)]
    }

    #[inline(always)]
    fn each(&self, mut give: impl FnMut(u32, Word)) {
        give(0, self[0]);
        give(1, self[1]);
    }
}

/// Two chunks of 16-bit elements, or one of f32.
impl Raw for [Words; 2] {
    const WORDS: u32 = 4;
    const NOTHING: Self = [NOTHING; 2];

    #[inline(always)]
    fn of(mut word: impl FnMut(u32) -> Word) -> Self {
        [[word(0), word(1)], [word(2), word(3)]]
    }

    #[inline(always)]
    fn each(&self, mut give: impl FnMut(u32, Word)) {
        give(0, self[0][0]);
        give(1, self[0][1]);
        give(2, self[1][0]);
        give(3, self[1][1]);
    }
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

/// Loads a chunk of a source's operands.
///
/// # Safety
/// `p` keeps the module's contract; the chunk exists.
#[inline(always)]
pub unsafe fn fetch<S: Source>(p: &RowsParams, place: &Place, chunk: u32) -> S::Raw {
    if !place.exists {
        return S::Raw::NOTHING;
    }
    // SAFETY: the chunk exists in all operands; its words are aligned.
    S::Raw::of(|word| unsafe { memory::ld_global_nc_v4_b32(S::word(p, place, chunk, word)) })
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
    type Kept = Words;

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
    fn word(p: &RowsParams, place: &Place, chunk: u32, word: u32) -> u64 {
        at(p.quantize.input, p, place.from, chunk) + u64::from(word) * 16
    }

    #[inline(always)]
    unsafe fn take(p: &RowsParams, place: &Place, chunk: u32, raw: &Words) -> Words {
        let mut elements = *raw;
        if T::has_residual(p) {
            // SAFETY: the chunk exists; its sums are this thread's.
            unsafe {
                let residual = load_own(at(p.quantize.up, p, place.row, chunk));
                let (mut sums, residual) = (chunk_of::<I>(raw), chunk_of::<I>(&residual));
                for half in 0..2 {
                    for i in 0..8 {
                        sums[half][i] += residual[half][i];
                    }
                }
                elements = narrowed::<I>(&sums);
                store(at(p.residual_out, p, place.row, chunk), elements);
            }
        }
        elements
    }

    #[inline(always)]
    fn differs(p: &RowsParams) -> bool {
        T::has_residual(p)
    }

    #[inline(always)]
    fn words(kept: &Words) -> Words {
        *kept
    }

    #[inline(always)]
    fn of_words(words: &Words) -> Words {
        *words
    }

    #[inline(always)]
    unsafe fn reload(p: &RowsParams, place: &Place, chunk: u32) -> Words {
        // SAFETY: the chunk exists, and its sums are written.
        unsafe {
            if T::has_residual(p) {
                load_own(at(p.residual_out, p, place.row, chunk))
            } else {
                fetch::<Self>(p, place, chunk)
            }
        }
    }

    #[inline(always)]
    fn elements(kept: &Words) -> Chunk {
        chunk_of::<I>(kept)
    }

    #[inline(always)]
    unsafe fn values(p: &RowsParams, statistics: &Statistics, kept: &Words, chunk: u32) -> Chunk {
        if T::norm(p) == Norm::None as u32 {
            return Self::elements(kept);
        }
        // SAFETY: the chunk exists, and a norm has weights.
        let weights = chunk_of::<I>(&unsafe { load(p.weight + u64::from(chunk) * BYTES) });
        let mut values = centred::<T>(p, statistics, Self::elements(kept));
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
    type Kept = Chunk;

    #[inline(always)]
    unsafe fn prefetch(p: &RowsParams, row: u32, chunk: u32) {
        // SAFETY: chunks of both operands.
        unsafe {
            memory::prefetch_global_l2(at(p.quantize.input, p, row, chunk));
            memory::prefetch_global_l2(at(p.quantize.up, p, row, chunk));
        }
    }

    #[inline(always)]
    fn word(p: &RowsParams, place: &Place, chunk: u32, word: u32) -> u64 {
        let matrix = if word < Words::WORDS { p.quantize.input } else { p.quantize.up };
        at(matrix, p, place.from, chunk) + u64::from(word % Words::WORDS) * 16
    }

    #[inline(always)]
    unsafe fn take(p: &RowsParams, _place: &Place, _chunk: u32, raw: &[Words; 2]) -> Chunk {
        let (mut gate, up) = (chunk_of::<I>(&raw[0]), chunk_of::<I>(&raw[1]));
        if T::is_silu(p) && I::amax(&raw[0]) < f32::INFINITY && I::amax(&raw[1]) < f32::INFINITY {
            for half in 0..2 {
                gate[half] = silu_product::<Instructions, 8>(gate[half], up[half]);
            }
        } else {
            for half in 0..2 {
                let activated = p.combine.activate::<Instructions, 8>(gate[half]);
                gate[half] = p.combine.gate::<Instructions, 8>(activated, up[half]);
            }
        }
        gate
    }

    #[inline(always)]
    fn differs(_p: &RowsParams) -> bool {
        true
    }

    #[inline(always)]
    fn words(kept: &Chunk) -> [Words; 2] {
        let mut words = [NOTHING; 2];
        for i in 0..CHUNK {
            words[i / 8][i % 8 / 4][i % 4] = kept[i / 8][i % 8].to_bits();
        }
        words
    }

    #[inline(always)]
    fn of_words(words: &[Words; 2]) -> Chunk {
        let mut kept = [[0.0; 8]; 2];
        for i in 0..CHUNK {
            kept[i / 8][i % 8] = f32::from_bits(words[i / 8][i % 8 / 4][i % 4]);
        }
        kept
    }

    #[inline(always)]
    unsafe fn reload(p: &RowsParams, place: &Place, chunk: u32) -> Chunk {
        // SAFETY: the same as the caller's.
        unsafe { Self::take(p, place, chunk, &fetch::<Self>(p, place, chunk)) }
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
