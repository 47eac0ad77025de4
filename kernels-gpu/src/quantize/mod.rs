//! Quantise to NVFP4 or MXFP4: `input` or `silu(input) * up`, f32, f16 or bf16,
//! [M, K], to codes and block scales.
//!
//! # Contract
//! Parameters: [`QuantizeParams`]. Any M >= 1, K a multiple of the block, M K at most
//! 2^40; grid and threads of the [`QuantizeConfig`]. Reads each element once and
//! nothing past them; writes each code and each scale once, and zeros to all
//! padding of 128x4 scales. Codes and scales are those of
//! [`recipe`](fp4_formats::recipe) in every bit.
//!
//! # Roles
//! Every warp does the same: it takes tasks of 32 blocks ([`place`]), copies them to
//! shared memory, 16 consecutive bytes a lane ([`source`]), and each lane quantises
//! one block. The copies of [`QuantizeConfig::stages`] tasks are under way at any time.
//! The launch says which ([`QuantizeParams::depth`]).
//!
//! # Shared memory
//! A ring of [`QuantizeConfig::stages`] stages of [`QuantizeConfig::stage_bytes`] for
//! each warp.
//!
//! # Barriers
//! | barrier | arrives | waits | guards |
//! |---|---|---|---|
//! | copy group and warp, stage full | 32 lanes | 32 lanes | the copies of all lanes are complete |
//! | warp, stage free | 32 lanes | 32 lanes | all lanes have read their blocks |
//!
//! # Dependent launches
//! While the kernels before end, each warp brings the words of its first task to L2, where a
//! write of theirs still replaces them; it reads them when those kernels have ended.
//!
//! # Arithmetic
//! The recipe's, see [`fp4_formats::recipe`]. `silu(g) = g * rcp(1 + ex2(-g * log2 e))`
//! in f32 with the approximate `rcp` and `ex2`, and its product with `up` is
//! quantised as it is, not rounded to the input's type first. The product's
//! relative error is below 2^-16 where it is above 2^-110.

pub mod amax;
mod convert;
mod input;
mod place;
mod recipe;
mod source;

#[cfg(gpu_e2m1 = "hardware")]
#[path = "e2m1_hardware.rs"]
mod e2m1;
#[cfg(gpu_e2m1 = "emulated")]
#[path = "e2m1_float.rs"]
mod e2m1;

pub use convert::AnyRange;
use convert::{Moderate, is_moderate};
use cuda_std::ptx::{cp_async, memory, reduce};
use cuda_std::{kernel, shared, thread, warp};
use fp4_formats::quantize::{Format, QUANTIZE, QuantizeConfig, QuantizeParams, ScaleSource};
use fp4_formats::recipe::{BlockScale, Convert, Nvfp4Recipe};
use fp4_formats::{BlockFormat, FloatType, ScaleLayout};
pub use input::F32;
use input::{Bf16, F16, Input};
use place::{Linear, Place, Steps, Tiled, Walk};
use recipe::{ANY, Mx, Nv, Recipe};
use source::{Plain, Source, Swiglu};

use crate::pipeline::{follow_stream, release_stream};

/// What all tasks of a launch have in common, seen by one lane.
#[derive(Clone, Copy)]
struct TaskShape {
    /// Blocks of a row.
    blocks: u32,
    /// Bytes of a block's elements.
    block_bytes: u32,
    /// The lane's first word: the slot of its block, and its place in the block.
    first_slot: u32,
    first_byte: u32,
}

/// The kernel body. `C`: 16-byte words of a block; `GROUPS`: words of its codes;
/// `ring`: shared address of the CTA's stages.
///
/// # Safety
/// As the module's contract.
#[inline(always)]
unsafe fn quantize<R, S, const C: usize, const GROUPS: usize, const BEHIND: u32>(
    config: &QuantizeConfig,
    p: &QuantizeParams,
    ring: u32,
) where
    R: Recipe,
    S: Source<C>,
{
    release_stream();
    // A loop each: what tells them apart would otherwise be a tenth of it.
    // SAFETY: the caller's.
    unsafe {
        match (p.blocked == 0, p.source == ScaleSource::RowAmax as u32) {
            (true, false) => tasks::<R, S, Linear, C, GROUPS, BEHIND, false>(config, p, ring),
            (true, true) => tasks::<R, S, Linear, C, GROUPS, BEHIND, true>(config, p, ring),
            (false, false) => tasks::<R, S, Tiled, C, GROUPS, BEHIND, false>(config, p, ring),
            (false, true) => tasks::<R, S, Tiled, C, GROUPS, BEHIND, true>(config, p, ring),
        }
    }
}

/// The warp's tasks. `BEHIND`: stages that may be under way when one is taken.
/// `BY_ROW`: each row has a scale of its own.
///
/// # Safety
/// As the module's contract; `W` is the walk of the scales' layout.
#[inline(always)]
unsafe fn tasks<
    R,
    S,
    W,
    const C: usize,
    const GROUPS: usize,
    const BEHIND: u32,
    const BY_ROW: bool,
>(
    config: &QuantizeConfig,
    p: &QuantizeParams,
    ring: u32,
) where
    R: Recipe,
    S: Source<C>,
    W: Walk,
{
    const { assert!(R::Format::BLOCK == GROUPS * 8) };
    let lane = warp::lane_id();
    let shape = TaskShape {
        blocks: p.k / R::Format::BLOCK as u32,
        block_bytes: C as u32 * 16,
        first_slot: lane / C as u32,
        first_byte: lane % C as u32 * 16,
    };
    // SAFETY: K is at least a block; dividing by it then needs no check.
    unsafe { core::hint::assert_unchecked(shape.blocks > 0) };
    let warp_index = thread::thread_idx_x() / warp::LANES;
    let stage_bytes = config.stage_bytes();
    let first = ring + warp_index * config.stages() * stage_bytes;
    let end = first + config.stages() * stage_bytes;

    let count = fp4_formats::quantize::tasks(p.m, shape.blocks, W::LAYOUT) as u32;
    let walk = W::new(p, &shape);
    let mut ahead = Steps::new(config, p.depth, warp_index);
    let mut steps = ahead;
    let mut stage = first;
    if ahead.task < count {
        // SAFETY: there is such a task.
        unsafe { S::prefetch::<W>(p, &walk.loads(ahead.task)) };
    }
    follow_stream();
    while stage < end {
        // SAFETY: nothing was read from the stage yet.
        unsafe { issue::<S, W, C>(p, &walk, ahead.task, count, stage) };
        ahead.advance();
        stage += stage_bytes;
    }
    stage = first;

    // SAFETY: row 0 exists.
    let (tensor, parameter) = unsafe { R::tensor(p, 0) };
    let shared = (tensor, is_moderate(parameter));
    if p.tensor_out != 0 && !BY_ROW && thread::block_idx_x() + thread::thread_idx_x() == 0 {
        // SAFETY: `tensor_out` is room for a parameter.
        unsafe { memory::st_global_b32(p.tensor_out, parameter.to_bits()) };
    }

    while steps.task < count {
        cp_async::cp_async_wait_group::<BEHIND>();
        // SAFETY: the loop is the same for all lanes; the stage's copies are complete
        // at the first barrier and its words taken at the second; the place is this
        // lane's.
        unsafe {
            warp::sync();
            let block = S::take(stage);
            warp::sync();
            issue::<S, W, C>(p, &walk, ahead.task, count, stage);
            let place = walk.place(steps.task, BY_ROW);
            finish::<R, S, C, GROUPS, BY_ROW>(p, &place, W::LAYOUT, shared, &block);
        }
        ahead.advance();
        steps.advance();
        stage += stage_bytes;
        if stage == end {
            stage = first;
        }
    }
}

/// Starts the copies of a task, if there is one, and makes them a group.
///
/// # Safety
/// `p` keeps its contract; no lane reads `stage` any more.
#[inline(always)]
unsafe fn issue<S: Source<C>, W: Walk, const C: usize>(
    p: &QuantizeParams,
    walk: &W,
    task: u32,
    count: u32,
    stage: u32,
) {
    if task < count {
        // SAFETY: there is such a task.
        unsafe { S::issue::<W>(p, &walk.loads(task), stage) };
    }
    cp_async::cp_async_commit_group();
}

/// Quantises a lane's block and stores codes and scale.
///
/// # Safety
/// `p` keeps its contract; the place is this lane's alone.
#[inline(always)]
unsafe fn finish<
    R: Recipe,
    S: Source<C>,
    const C: usize,
    const GROUPS: usize,
    const BY_ROW: bool,
>(
    p: &QuantizeParams,
    place: &Place,
    layout: ScaleLayout,
    (mut tensor, mut moderate): (R::Tensor, bool),
    block: &S::Block,
) {
    if !place.exists {
        if layout == ScaleLayout::Blocked128x4 {
            // SAFETY: a padding byte of the scales.
            unsafe { memory::st_global_b8(place.scale, 0) };
        }
        return;
    }
    if BY_ROW {
        // SAFETY: the row exists.
        let (of_row, parameter) = unsafe { R::tensor(p, place.row) };
        (tensor, moderate) = (of_row, is_moderate(parameter));
        if p.tensor_out != 0 && place.column == 0 {
            let address = p.tensor_out + u64::from(place.row) * 4;
            // SAFETY: `tensor_out` is room for a parameter a row.
            unsafe { memory::st_global_b32(address, parameter.to_bits()) };
        }
    }
    let amax = S::amax(block);
    if moderate && is_moderate(amax) {
        let scale = R::block::<Moderate<S::Input>>(&tensor, amax);
        // SAFETY: the caller's.
        unsafe { store::<Moderate<S::Input>, S, C, GROUPS>(p, place, scale, block) };
        return;
    }
    if !amax.is_finite() && p.errors != 0 {
        // SAFETY: `errors` is the error word.
        unsafe { report::<S, C, GROUPS>(p, place, block) };
    }
    let scale = R::block::<AnyRange<S::Input>>(&tensor, amax);
    // SAFETY: the caller's.
    unsafe { store::<AnyRange<S::Input>, S, C, GROUPS>(p, place, scale, block) };
}

/// Rounds the elements and stores codes and scale.
///
/// # Safety
/// As [`finish`]; the block exists.
#[inline(always)]
unsafe fn store<V: Convert, S: Source<C>, const C: usize, const GROUPS: usize>(
    p: &QuantizeParams,
    place: &Place,
    scale: BlockScale,
    block: &S::Block,
) {
    let codes: [u32; GROUPS] = scale.group_codes::<V, GROUPS>(|group| S::group(block, group));
    let address = p.codes + place.block * (GROUPS as u64 * 4);
    // SAFETY: the block's codes and scale, which are this lane's.
    unsafe {
        if GROUPS == 2 {
            memory::st_global_v2_b32(address, [codes[0], codes[1]]);
        } else {
            memory::st_global_v4_b32(address, [codes[0], codes[1], codes[2], codes[3]]);
        }
        memory::st_global_b8(place.scale, u16::from(scale.byte));
    }
}

/// Lowers the error word to the block's first element that is not finite.
///
/// # Safety
/// `p.errors` is an error word.
#[inline(always)]
unsafe fn report<S: Source<C>, const C: usize, const GROUPS: usize>(
    p: &QuantizeParams,
    place: &Place,
    block: &S::Block,
) {
    let mut first = 0;
    for group in (0..GROUPS).rev() {
        let values = S::group(block, group);
        for i in (0..8).rev() {
            if !values[i].is_finite() {
                first = group * 8 + i;
            }
        }
    }
    let index = place.block * (GROUPS as u64 * 8) + first as u64;
    // SAFETY: the caller's.
    unsafe { reduce::red_relaxed_gpu_global_min_u64(p.errors, index) };
}

/// Entry points: name, index in [`QUANTIZE`], recipe, source, words of a block,
/// words of its codes.
macro_rules! entries {
    ($($name:ident = $index:literal, $recipe:ty, $source:ident<$input:ident>, $words:literal, $groups:literal;)*) => {
        $(
            #[doc = concat!("[`QUANTIZE`]`[", stringify!($index), "]`.")]
            ///
            /// # Safety
            /// As the module's contract.
            #[kernel(threads = QUANTIZE[$index].threads(), min_blocks = QUANTIZE[$index].min_blocks)]
            pub unsafe fn $name(params: QuantizeParams) {
                const CONFIG: &QuantizeConfig = &QUANTIZE[$index];
                const { assert!(CONFIG.chunks() == $words) };
                const { assert!(CONFIG.silu == <$source<$input, $words, $groups> as Source<$words>>::SILU) };
                const { assert!(CONFIG.input as u32 == <$input as Input>::TYPE as u32) };
                const { assert!(CONFIG.format.block() as usize == <$recipe as Recipe>::Format::BLOCK) };
                const BYTES: u32 = CONFIG.ring_bytes();
                const BEHIND: u32 = CONFIG.stages() - 1;
                // The size is the buffer's number.
                let ring = shared::fixed::<BYTES, BYTES, 16>();
                // SAFETY: the caller's.
                unsafe {
                    quantize::<$recipe, $source<$input, $words, $groups>, $words, $groups, BEHIND>(
                        CONFIG, &params, ring,
                    )
                }
            }
        )*
        crate::assert_names!([$($name),*], QUANTIZE);
    };
}

const TORCHAO: u32 = Nvfp4Recipe::TorchAo as u32;
const TE: u32 = Nvfp4Recipe::TransformerEngine as u32;
const MODELOPT: u32 = Nvfp4Recipe::ModelOpt as u32;
const CT: u32 = Nvfp4Recipe::CompressedTensors as u32;

entries! {
    quantize_nvfp4_torchao_f32 = 0, Nv<TORCHAO>, Plain<F32>, 4, 2;
    quantize_nvfp4_torchao_f16 = 1, Nv<TORCHAO>, Plain<F16>, 2, 2;
    quantize_nvfp4_torchao_bf16 = 2, Nv<TORCHAO>, Plain<Bf16>, 2, 2;
    quantize_nvfp4_te_f32 = 3, Nv<TE>, Plain<F32>, 4, 2;
    quantize_nvfp4_te_f16 = 4, Nv<TE>, Plain<F16>, 2, 2;
    quantize_nvfp4_te_bf16 = 5, Nv<TE>, Plain<Bf16>, 2, 2;
    quantize_nvfp4_modelopt_f32 = 6, Nv<MODELOPT>, Plain<F32>, 4, 2;
    quantize_nvfp4_modelopt_f16 = 7, Nv<MODELOPT>, Plain<F16>, 2, 2;
    quantize_nvfp4_modelopt_bf16 = 8, Nv<MODELOPT>, Plain<Bf16>, 2, 2;
    quantize_nvfp4_ct_f32 = 9, Nv<CT>, Plain<F32>, 4, 2;
    quantize_nvfp4_ct_f16 = 10, Nv<CT>, Plain<F16>, 2, 2;
    quantize_nvfp4_ct_bf16 = 11, Nv<CT>, Plain<Bf16>, 2, 2;
    quantize_mxfp4_f32 = 12, Mx, Plain<F32>, 8, 4;
    quantize_mxfp4_f16 = 13, Mx, Plain<F16>, 4, 4;
    quantize_mxfp4_bf16 = 14, Mx, Plain<Bf16>, 4, 4;
    silu_quantize_nvfp4_f32 = 15, Nv<ANY>, Swiglu<F32>, 4, 2;
    silu_quantize_nvfp4_f16 = 16, Nv<ANY>, Swiglu<F16>, 2, 2;
    silu_quantize_nvfp4_bf16 = 17, Nv<ANY>, Swiglu<Bf16>, 2, 2;
    silu_quantize_mxfp4_f32 = 18, Mx, Swiglu<F32>, 8, 4;
    silu_quantize_mxfp4_f16 = 19, Mx, Swiglu<F16>, 4, 4;
    silu_quantize_mxfp4_bf16 = 20, Mx, Swiglu<Bf16>, 4, 4;
}

const _: () = {
    let mut i = 0;
    while i < QUANTIZE.len() {
        let expected = match QUANTIZE[i].format {
            Format::Nvfp4 if !QUANTIZE[i].silu => Some(i as u32 / 3),
            _ => None,
        };
        match (QUANTIZE[i].recipe, expected) {
            (Some(recipe), Some(code)) => assert!(recipe as u32 == code),
            (None, None) => {}
            _ => panic!("an entry's recipe differs from its configuration's"),
        }
        assert!(matches!(QUANTIZE[i].input, FloatType::F32) == (i % 3 == 0));
        i += 1;
    }
};
