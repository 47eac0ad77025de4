//! The results of a row: block-scaled, e4m3, or 16 bits.

use super::source::{Narrow, narrowed, store};
use super::{Place, magnitude, pad_blocks};
use crate::floats;
use crate::quantize::AnyRange;
use crate::quantize::F32;
use crate::quantize::convert::Moderate;
use crate::quantize::recipe::{ANY, Mx, Nv, Recipe};
use crate::quantize::store::first_not_finite;
use core::hint::cold_path;
use core::marker::PhantomData;
use cuda_std::ptx::{float, marker, memory, reduce};
use cuda_std::warp;
use fp4_formats::quantize::{QuantizeParams, ScaleSource, tokens};
use fp4_formats::recipe::{BlockScale, Nvfp4Recipe};
use fp4_formats::rows::RowsParams;
use fp4_formats::rows::arithmetic::{CHUNK, Chunk};

/// The kind of a row's results.
pub trait Sink {
    /// The values that a row's chunks share.
    type Row: Copy;

    /// Whether the row's largest magnitude is needed.
    fn reduces(p: &QuantizeParams) -> bool;

    /// The sink of the usual recipe alone.
    type Usual: Sink;

    /// Whether one matrix as it is has a copy of the code.
    const PLAIN: bool = true;
    /// Bits of an element of the results.
    const BITS: u32;
    /// Whether there are registers for the weights of a thread's first chunks.
    const HOLDS: bool = true;

    /// Whether the recipe is the usual one.
    fn is_usual(p: &QuantizeParams) -> bool;

    /// The values that a row's chunks share, of its largest magnitude if that is [needed](Self::reduces).
    fn row(p: &RowsParams, amax: f32) -> Self::Row;

    /// Writes what belongs to a row of this largest magnitude.
    ///
    /// # Safety
    /// `p` keeps the module's contract; the row exists, and one thread does it.
    unsafe fn note(p: &RowsParams, row: u32, amax: f32);

    /// Quantises and stores a chunk, which may be past the row's end.
    ///
    /// # Safety
    /// `p` keeps the module's contract; all lanes of the warp are here, each with its own chunk.
    unsafe fn store(p: &RowsParams, of_row: &Self::Row, place: &Place, chunk: u32, values: &Chunk);

    /// Writes the padding that belongs to row `row`, which may itself be padding.
    ///
    /// # Safety
    /// `p` keeps the module's contract; each thread of the CTA calls it with its number.
    unsafe fn pad(p: &RowsParams, row: u32, thread: u32);
}

/// Address of the scale of block `block` of a row of `blocks` blocks.
#[inline(always)]
pub fn scale(p: &QuantizeParams, row: u32, block: u32, blocks: u32) -> u64 {
    let [row, block, blocks] = [row, block, blocks].map(u64::from);
    p.scales + super::layout(p).offset(row as usize, block as usize, blocks as usize) as u64
}

/// Index of a chunk's first element in the matrix.
#[inline(always)]
pub fn element(p: &QuantizeParams, row: u32, chunk: u32) -> u64 {
    u64::from(row) * u64::from(p.k) + u64::from(chunk) * CHUNK as u64
}

/// Lowers the error word to the first of a group's values that is not finite.
///
/// # Safety
/// `p` keeps the module's contract.
#[inline(always)]
unsafe fn report(p: &QuantizeParams, index: u64, values: [f32; 8]) {
    if p.errors != 0
        && let Some(first) = first_not_finite(values)
    {
        // SAFETY: `errors` is the error word.
        unsafe { reduce::red_relaxed_gpu_global_min_u64(p.errors, index + u64::from(first)) };
    }
}

/// Rounds a chunk of any magnitudes and stores its codes; reports values that are not finite.
///
/// # Safety
/// `p` keeps the module's contract; no other thread has the chunk, which begins at element `index`.
#[inline(always)]
pub unsafe fn store_any(p: &QuantizeParams, scale: BlockScale, index: u64, values: &Chunk) {
    let mut half = 0;
    while half < 2 {
        let index = index + u64::from(half) * 8;
        // Element by element, and anew for each use: arrays that a loop carries would be kept in local memory.
        let group = |_| {
            let mut group = [0.0; 8];
            for i in 0..8 {
                group[i] = if half == 0 { values[0][i] } else { values[1][i] };
            }
            group
        };
        let [codes] = scale.group_codes::<AnyRange<F32>, 1>(group);
        // SAFETY: the chunk's codes, four bytes for eight elements.
        unsafe {
            memory::st_global_b32(p.codes + index / 2, codes);
            report(p, index, group(0));
        }
        // The pin keeps the compiler from unrolling the loop.
        half = marker::pin(half + 1);
    }
}

/// Writes the parameter and the multiplier of a row, or of the tensor for row 0.
///
/// # Safety
/// `p` keeps the module's contract; the row exists.
#[inline(always)]
pub unsafe fn write_level(p: &RowsParams, row: u32, by_row: bool, parameter: f32, multiplier: f32) {
    // SAFETY: elements of existing rows.
    unsafe {
        if p.quantize.tensor_out != 0 && (by_row || row == 0) {
            let at = p.quantize.tensor_out + u64::from(row) * 4;
            memory::st_global_b32(at, parameter.to_bits());
        }
        if p.multipliers != 0 {
            memory::st_global_b32(p.multipliers + u64::from(row) * 4, multiplier.to_bits());
        }
    }
}

/// A block format of which this module has the recipes that depend on the largest magnitude.
pub trait Format {
    /// The recipes.
    type Recipe: Recipe;
    /// The format by the usual recipe.
    type Usual: Format;
    /// Lanes that have a block's chunks.
    const LANES: u32;
    /// Whether there are parameters of rows.
    const LEVELS: bool;

    /// Whether the recipe is the usual one.
    fn is_usual(p: &QuantizeParams) -> bool;
}

/// [`fp4_formats::Nvfp4`].
pub struct Nvfp4;
/// [`fp4_formats::Mxfp4`].
pub struct Mxfp4;

/// The same by TorchAO's recipe.
pub struct TorchAo;

impl Format for Nvfp4 {
    type Recipe = Nv<ANY>;
    type Usual = TorchAo;
    const LANES: u32 = 1;
    const LEVELS: bool = true;

    #[inline(always)]
    fn is_usual(p: &QuantizeParams) -> bool {
        matches!(Nvfp4Recipe::from_code(p.recipe), Nvfp4Recipe::TorchAo)
    }
}

impl Format for TorchAo {
    type Recipe = Nv<{ Nvfp4Recipe::TorchAo as u32 }>;
    type Usual = Self;
    const LANES: u32 = Nvfp4::LANES;
    const LEVELS: bool = Nvfp4::LEVELS;

    #[inline(always)]
    fn is_usual(_p: &QuantizeParams) -> bool {
        true
    }
}

impl Format for Mxfp4 {
    type Recipe = Mx;
    type Usual = Self;
    const LANES: u32 = 2;
    const LEVELS: bool = false;

    #[inline(always)]
    fn is_usual(_p: &QuantizeParams) -> bool {
        true
    }
}

/// Codes and scales of a block format.
pub struct Blocks<F>(PhantomData<F>);

impl<F: Format> Blocks<F> {
    /// The parameter of a row.
    #[inline(always)]
    fn parameter(p: &RowsParams, amax: f32) -> f32 {
        if Self::reduces(&p.quantize) {
            <F::Recipe as Recipe>::parameter(&p.quantize, amax)
        } else {
            p.quantize.given
        }
    }
}

impl<F: Format> Sink for Blocks<F> {
    type Row = <F::Recipe as Recipe>::Tensor;
    type Usual = Blocks<F::Usual>;
    const BITS: u32 = 4;
    const PLAIN: bool = F::LEVELS;
    /// Emulated conversions to e4m3 take more registers, too.
    const HOLDS: bool = F::LEVELS && cfg!(gpu_e4m3 = "hardware");

    #[inline(always)]
    fn reduces(p: &QuantizeParams) -> bool {
        F::LEVELS && p.source == ScaleSource::RowAmax as u32
    }

    #[inline(always)]
    fn is_usual(p: &QuantizeParams) -> bool {
        F::is_usual(p)
    }

    #[inline(always)]
    fn row(p: &RowsParams, amax: f32) -> Self::Row {
        <F::Recipe as Recipe>::of_parameter(&p.quantize, Self::parameter(p, amax))
    }

    #[inline(always)]
    unsafe fn note(p: &RowsParams, row: u32, amax: f32) {
        if F::LEVELS {
            let parameter = Self::parameter(p, amax);
            let multiplier = <F::Recipe as Recipe>::multiplier(&p.quantize, parameter);
            // SAFETY: the same as the caller's.
            unsafe { write_level(p, row, Self::reduces(&p.quantize), parameter, multiplier) };
        }
    }

    #[inline(always)]
    unsafe fn store(p: &RowsParams, of_row: &Self::Row, place: &Place, chunk: u32, values: &Chunk) {
        let q = &p.quantize;
        let mut amax = magnitude(values);
        let mut distance = F::LANES / 2;
        while distance > 0 {
            // SAFETY: all lanes are here. The chunks of a block all exist or do not.
            amax = float::max_nan_f32(amax, unsafe { warp::shuffle_xor_f32(amax, distance) });
            distance /= 2;
        }
        if chunk >= place.chunks {
            return;
        }
        let index = element(q, place.row, chunk);
        let mut scale_of_block = <F::Recipe as Recipe>::block::<F32>(q, of_row, amax);
        // SAFETY: the chunk exists, and no other lane has it.
        unsafe {
            if <F::Recipe as Recipe>::is_moderate::<F32>(q, of_row, &scale_of_block, amax) {
                let codes: [u32; 2] =
                    scale_of_block.group_codes::<Moderate<F32>, 2>(|half| values[half]);
                memory::st_global_v2_b32(q.codes + index / 2, codes);
            } else {
                cold_path();
                scale_of_block = <F::Recipe as Recipe>::any::<F32>(q, of_row, scale_of_block, amax);
                store_any(q, scale_of_block, index, values);
            }
            if chunk.is_multiple_of(F::LANES) {
                let at = scale(q, place.row, chunk / F::LANES, place.chunks / F::LANES);
                memory::st_global_b8(at, u16::from(scale_of_block.byte));
            }
        }
    }

    #[inline(always)]
    unsafe fn pad(p: &RowsParams, row: u32, thread: u32) {
        let blocks = p.quantize.k / CHUNK as u32 / F::LANES;
        // SAFETY: the same as the caller's.
        unsafe { pad_blocks(&p.quantize, blocks, row, thread) };
    }
}

/// e4m3 with a scale for each row.
pub struct E4m3;

impl Sink for E4m3 {
    /// The factor of the elements.
    type Row = f32;
    type Usual = Self;
    const BITS: u32 = 8;

    #[inline(always)]
    fn reduces(_p: &QuantizeParams) -> bool {
        true
    }

    #[inline(always)]
    fn is_usual(_p: &QuantizeParams) -> bool {
        true
    }

    #[inline(always)]
    fn row(_p: &RowsParams, amax: f32) -> f32 {
        tokens::to_codes(amax)
    }

    #[inline(always)]
    unsafe fn note(p: &RowsParams, row: u32, amax: f32) {
        let at = p.multipliers + u64::from(row) * 4;
        // SAFETY: the row exists.
        unsafe { memory::st_global_b32(at, tokens::scale(amax).to_bits()) };
    }

    #[inline(always)]
    unsafe fn store(p: &RowsParams, of_row: &f32, place: &Place, chunk: u32, values: &Chunk) {
        if chunk >= place.chunks {
            return;
        }
        let mut codes = [0; 4];
        for i in 0..4 {
            let (half, at) = (i / 2, i % 2 * 4);
            let x = |j: usize| values[half][at + j] * *of_row;
            let low = u32::from(floats::e4m3_of_floats(x(1), x(0)));
            codes[i] = low | u32::from(floats::e4m3_of_floats(x(3), x(2))) << 16;
        }
        // SAFETY: the chunk exists, and no other lane has it.
        unsafe {
            let at = p.quantize.codes + element(&p.quantize, place.row, chunk);
            memory::st_global_v4_b32(at, codes);
        }
    }

    #[inline(always)]
    unsafe fn pad(_p: &RowsParams, _row: u32, _thread: u32) {}
}

/// Elements of `I`.
pub struct Half<I>(PhantomData<I>);

impl<I: Narrow> Sink for Half<I> {
    type Row = ();
    type Usual = Self;
    const BITS: u32 = 16;

    #[inline(always)]
    fn reduces(_p: &QuantizeParams) -> bool {
        false
    }

    #[inline(always)]
    fn is_usual(_p: &QuantizeParams) -> bool {
        true
    }

    #[inline(always)]
    fn row(_p: &RowsParams, _amax: f32) {}

    #[inline(always)]
    unsafe fn note(_p: &RowsParams, _row: u32, _amax: f32) {}

    #[inline(always)]
    unsafe fn store(p: &RowsParams, (): &(), place: &Place, chunk: u32, values: &Chunk) {
        if chunk >= place.chunks {
            return;
        }
        let at = p.quantize.codes + element(&p.quantize, place.row, chunk) * 2;
        // SAFETY: the chunk exists, and no other lane has it.
        unsafe { store(at, narrowed::<I>(values)) };
    }

    #[inline(always)]
    unsafe fn pad(_p: &RowsParams, _row: u32, _thread: u32) {}
}
