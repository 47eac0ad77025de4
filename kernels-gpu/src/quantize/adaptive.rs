//! Adaptive block scaling ([`fp4_formats::recipe::AdaptiveTensor`]): one kernel for all its recipes,
//! for inputs of any type, gated or not.
//!
//! # Roles
//! Every lane quantises one block of a task at a time, as in [`super`], and reads its elements from
//! global memory, where they are consecutive: for the largest magnitude, for the error of either
//! scale, and for the codes. All but the first time they come from a cache. These passes are one
//! loop that is not unrolled, with one copy of the code that reads and rounds eight elements.
//! Arithmetic dominates (four roundings and two divisions an element), so that shared memory would
//! not make it faster.

use super::convert::AnyRange;
use super::input::{Bf16, F16, F32};
use super::place::{Cursor, Linear, Place, Tasks, Tiled, Walk};
use super::source::{load, swiglu};
use super::store::first_not_finite;
use crate::pipeline::{follow_stream, release_stream};
use cuda_std::ptx::{float, marker, memory, reduce};
use cuda_std::{thread, warp};
use fp4_formats::quantize::{QuantizeConfig, QuantizeParams, ScaleSource};
use fp4_formats::recipe::{AdaptiveRecipe, AdaptiveTensor, BlockScale};
use fp4_formats::{BlockFormat, FloatType, Nvfp4};

/// Groups of eight elements in a block.
const GROUPS: u32 = Nvfp4::BLOCK as u32 / 8;

/// The result of a pass over a block.
mod pass {
    /// The largest magnitude, and the first element that is not finite.
    pub const MAXIMUM: u32 = 0;
    /// The error with the largest magnitude on 6.
    pub const ON_SIX: u32 = 1;
    /// The error with it on 4.
    pub const ON_FOUR: u32 = 2;
    /// The codes.
    pub const CODES: u32 = 3;
}

/// The kernel body.
///
/// # Safety
/// The launch satisfies the contract of [`super`].
#[inline(always)]
pub unsafe fn quantize(config: &QuantizeConfig, p: &QuantizeParams) {
    release_stream();
    let blocks = p.k / Nvfp4::BLOCK as u32;
    // SAFETY: K is at least a block; dividing by it then needs no check.
    unsafe { core::hint::assert_unchecked(blocks > 0) };
    let warp_index = thread::thread_idx_x() / warp::LANES;
    let blocked = p.blocked != 0;
    let (tasks, mut task): (Tasks<1>, Cursor) = if blocked {
        Tasks::new::<Tiled>(config, p, blocks, warp_index)
    } else {
        Tasks::new::<Linear>(config, p, blocks, warp_index)
    };
    follow_stream();
    let by_row = p.source == ScaleSource::RowAmax as u32;
    let mut first = thread::block_idx_x() + thread::thread_idx_x() == 0;
    while task.task < tasks.end {
        let place = if blocked {
            next::<Tiled>(&tasks, &mut task)
        } else {
            next::<Linear>(&tasks, &mut task)
        };
        if place.exists {
            let (row, column) = if by_row {
                let blocks = u64::from(blocks);
                ((place.block / blocks) as u32, place.block % blocks)
            } else {
                (0, 1)
            };
            // SAFETY: the row exists; the block exists, and no other lane has it.
            // `tensor_out` has room for one parameter, or one per row.
            unsafe {
                let (tensor, parameter) = tensor(p, row);
                // Block 0 is that of the first thread's first task.
                if p.tensor_out != 0 && (column == 0 || (first && !by_row)) {
                    let address = p.tensor_out + u64::from(row) * 4;
                    memory::st_global_b32(address, parameter.to_bits());
                }
                first = false;
                let byte = block(p, &tensor, place.block);
                memory::st_global_b8(place.scale, u16::from(byte));
            }
        } else if blocked {
            // SAFETY: `place.scale` is a padding byte of the scales.
            unsafe { memory::st_global_b8(place.scale, 0) };
        }
    }
}

/// The lane's block of the task, of which the cursor goes to the next.
#[inline(always)]
fn next<W: Walk>(tasks: &Tasks<1>, task: &mut Cursor) -> Place {
    let place = W::place(tasks, task);
    W::advance(tasks, task);
    place
}

/// Returns the values that the blocks of the tensor, or of a row of it, share, and its parameter.
///
/// # Safety
/// `p` keeps its contract, and row `row` exists.
#[inline(always)]
unsafe fn tensor(p: &QuantizeParams, row: u32) -> (AdaptiveTensor, f32) {
    let recipe = AdaptiveRecipe::from_code(p.recipe);
    let (parameter, amax) = if p.source == ScaleSource::Given as u32 {
        (p.given, recipe.tensor_maximum(p.given))
    } else {
        // SAFETY: the parameters name a maximum for each row, or one.
        let amax =
            f32::from_bits(unsafe { memory::ld_global_nc_b32(p.tensor + u64::from(row) * 4) });
        (recipe.tensor_parameter(amax), amax)
    };
    (AdaptiveTensor::new(recipe, parameter, amax), parameter)
}

/// Quantises block `index` of the matrix and stores its codes; returns the code of its scale.
///
/// # Safety
/// `p` keeps its contract; the block exists, and no other lane stores its codes.
#[inline(always)]
unsafe fn block(p: &QuantizeParams, tensor: &AdaptiveTensor, index: u64) -> u8 {
    let start = index * u64::from(GROUPS);
    let (mut amax, mut error, mut least, mut factor) = (0.0, 0.0, 0.0, 0.0);
    // Sources of the codes of this pass, of the candidate, and of the stored values.
    let (mut tried, mut candidate, mut chosen) =
        (BlockScale::ZERO, BlockScale::ZERO, BlockScale::ZERO);
    let (mut step, mut pass) = (0, pass::MAXIMUM);
    loop {
        let group = start + u64::from(step % GROUPS);
        // SAFETY: elements and codes of an existing block; `errors` is the error word.
        unsafe {
            let values = group_of(p, group);
            if pass == pass::MAXIMUM {
                for value in values {
                    amax = float::max_nan_f32(amax, float::abs_f32(value));
                }
                if p.errors != 0
                    && let Some(first) = first_not_finite(values)
                {
                    let index = group * 8 + u64::from(first);
                    reduce::red_relaxed_gpu_global_min_u64(p.errors, index);
                }
            } else {
                let codes = tried.codes::<AnyRange<F32>>(values);
                if pass == pass::CODES {
                    memory::st_global_b32(p.codes + group * 4, codes);
                } else {
                    error = tensor.add_errors::<AnyRange<F32>>(factor, codes, values, error);
                }
            }
        }
        // The pin keeps the compiler from unrolling the loop.
        step = marker::pin(step + 1);
        if !step.is_multiple_of(GROUPS) {
            continue;
        }
        if pass == pass::CODES {
            return chosen.byte;
        }
        if pass == pass::ON_SIX || (pass == pass::ON_FOUR && error < least) {
            (chosen, least) = (candidate, error);
        }
        if pass == pass::ON_FOUR {
            tried = chosen;
        } else {
            let way = tensor.candidate::<AnyRange<F32>>(amax, pass == pass::ON_SIX);
            (candidate, tried, factor, error) = (way.scale, way.tried, way.factor, 0.0);
        }
        pass += 1;
    }
}

/// Elements `8 group ..` of the matrix, or of the gated product.
///
/// # Safety
/// `p` keeps its contract, and the elements exist.
#[inline(always)]
unsafe fn group_of(p: &QuantizeParams, group: u64) -> [f32; 8] {
    // SAFETY: the elements exist; both operands have the same shape.
    unsafe {
        let values = elements(p, p.input, group);
        if p.up == 0 { values } else { swiglu(values, elements(p, p.up, group)) }
    }
}

/// Elements `8 group ..` of a matrix of the type that the parameters name.
///
/// # Safety
/// The elements exist.
#[inline(always)]
unsafe fn elements(p: &QuantizeParams, operand: u64, group: u64) -> [f32; 8] {
    // SAFETY: the caller guarantees that the elements exist.
    unsafe {
        if p.element == FloatType::F32 as u32 {
            load::<F32>(operand, group)
        } else if p.element == FloatType::F16 as u32 {
            load::<F16>(operand, group)
        } else {
            load::<Bf16>(operand, group)
        }
    }
}
