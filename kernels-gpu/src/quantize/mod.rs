//! Quantise to NVFP4 or MXFP4: `input` or `silu(input) * up`, f32, f16 or bf16,
//! [M, K], to codes and block scales.
//!
//! # Contract
//! Parameters: [`QuantizeParams`]. Any M >= 1, K a multiple of the block, M K at most
//! 2^40; grid and threads of the [`QuantizeConfig`]. Reads each element once, or twice in
//! blocks that take the slow path (see below), and nothing past them; writes each code and
//! each scale once, and zeros to all padding of 128x4 scales. Codes and scales are those of
//! [`recipe`](fp4_formats::recipe) in every bit.
//!
//! # Roles
//! Every warp does the same: it takes tasks of 32 blocks ([`place`]) and copies them to shared
//! memory, 16 consecutive bytes per lane ([`source`]). Then each lane quantises one block. The copies
//! of [`QuantizeConfig::stages`] tasks are in flight at any time. The launch determines which tasks
//! a warp takes ([`QuantizeParams::depth`]).
//!
//! # Fast and slow path
//! Nearly all blocks take the fast path: their elements are in registers, and neither their divisions
//! nor their rounding need checks ([`recipe::Recipe::is_moderate`]). All others, those with
//! extreme or non-finite magnitudes, take the slow path ([`store_slowly`]): one loop over
//! groups of eight elements, which are read from global memory again. Adaptive block scaling is a
//! kernel of its own ([`adaptive`]).
//!
//! # Shared memory
//! A ring of [`QuantizeConfig::stages`] stages of [`QuantizeConfig::stage_bytes`] for each warp.
//!
//! # Barriers
//! | barrier | arrives | waits | guards |
//! |---|---|---|---|
//! | copy group and warp, stage full | 32 lanes | 32 lanes | the copies of all lanes are complete |
//! | warp, stage free (persistent CTAs) | 32 lanes | 32 lanes | all lanes have read their blocks |
//!
//! # Dependent launches
//! While earlier kernels are still running, each warp prefetches the words of its first task into
//! L2, where their writes still reach them. It reads the words after these kernels are complete.
//!
//! # Arithmetic
//! The arithmetic is that of [`fp4_formats::recipe`]. `silu(g) = g * rcp(1 + ex2(-g * log2 e))`
//! is computed in f32 with the approximate `rcp` and `ex2`, and its product with `up` is
//! quantised without rounding it to the input's type first. The relative error of the product
//! is below 2^-16 if the product is above 2^-110.

mod adaptive;
pub mod amax;
pub(crate) mod convert;
pub(crate) mod input;
mod place;
pub(crate) mod recipe;
mod source;
pub(crate) mod store;
mod tokens;

#[cfg(gpu_e2m1 = "hardware")]
#[path = "e2m1_hardware.rs"]
mod e2m1;
#[cfg(gpu_e2m1 = "emulated")]
#[path = "e2m1_float.rs"]
mod e2m1;

pub use convert::AnyRange;
use core::hint::cold_path;
use cuda_std::ptx::{cp_async, marker, memory};
use cuda_std::{kernel, shared, thread, warp};
use fp4_formats::quantize::{Format, QUANTIZE, QuantizeConfig, QuantizeParams, ScaleSource};
use fp4_formats::recipe::Nvfp4Recipe;
use fp4_formats::{BlockFormat, FloatType};
pub use input::F32;
use input::{Bf16, F16, Input};
use place::{Cursor, Linear, Place, Tasks, Tiled, Walk};
use recipe::{ANY, Mx, Nv, Recipe};
use source::{Plain, Source, Swiglu};
use store::{store, store_slowly};

use crate::pipeline::{follow_stream, release_stream};

/// The kernel body. `C`: 16-byte words of a block; `GROUPS`: words of its codes;
/// `BEHIND`: stages that may be under way when one is taken; `ring`: shared address of the
/// CTA's stages.
///
/// # Safety
/// The launch satisfies the module's contract.
#[inline(always)]
unsafe fn quantize<R, S, const C: usize, const GROUPS: usize, const BEHIND: u32>(
    config: &QuantizeConfig,
    p: &QuantizeParams,
    ring: u32,
) where
    R: Recipe,
    S: Source<C>,
{
    const { assert!(R::Format::BLOCK == GROUPS * 8) };
    release_stream();
    let blocks = p.k / R::Format::BLOCK as u32;
    // SAFETY: K is at least a block; dividing by it then needs no check.
    unsafe { core::hint::assert_unchecked(blocks > 0) };
    let warp_index = thread::thread_idx_x() / warp::LANES;
    let stage_bytes = config.stage_bytes();
    let first = ring + warp_index * config.stages() * stage_bytes;
    let end = first + config.stages() * stage_bytes;

    let blocked = p.blocked != 0;
    // SAFETY: the contract is the caller's to keep, and the walk is that of `p.blocked`.
    let (tasks, mut task, mut ahead) = unsafe {
        if blocked {
            start::<S, Tiled, C>(config, p, blocks, warp_index, [first, end])
        } else {
            start::<S, Linear, C>(config, p, blocks, warp_index, [first, end])
        }
    };
    let by_row = p.source == ScaleSource::RowAmax as u32;
    // SAFETY: row 0 exists.
    let (mut tensor, parameter) = unsafe { R::tensor(p, 0) };
    if p.tensor_out != 0 && !by_row && thread::block_idx_x() + thread::thread_idx_x() == 0 {
        // SAFETY: `tensor_out` has room for one parameter.
        unsafe { memory::st_global_b32(p.tensor_out, parameter.to_bits()) };
    }

    let mut stage = first;
    while task.task < tasks.end {
        cp_async::cp_async_wait_group::<BEHIND>();
        // SAFETY: all lanes run the same iterations. The stage's copies are complete at the
        // first barrier; all lanes have read their words at the second, without which no copy
        // to the stage follows. The walk is that of `p.blocked`.
        let (block, place) = unsafe {
            warp::sync();
            let block = S::take(&tasks, stage);
            if config.persistent {
                warp::sync();
            }
            let place = if blocked {
                turn::<S, Tiled, C>(config, p, &tasks, [&mut task, &mut ahead], stage)
            } else {
                turn::<S, Linear, C>(config, p, &tasks, [&mut task, &mut ahead], stage)
            };
            (block, place)
        };
        stage += stage_bytes;
        if stage == end {
            stage = first;
        }
        if place.exists {
            // SAFETY: the block exists, and no other lane has it.
            unsafe { finish::<R, S, C, GROUPS>(p, &place, by_row, &mut tensor, &block) };
        } else if blocked {
            // SAFETY: `place.scale` is a padding byte of the scales.
            unsafe { memory::st_global_b8(place.scale, 0) };
        }
    }
}

/// Waits for the kernels before and starts the copies of the warp's first tasks to its stages,
/// which are at shared addresses `first..end`. Returns the tasks, the first task, and the
/// first one whose copies have not been started.
///
/// # Safety
/// The launch satisfies the module's contract, and `W` is the walk of the scales' layout.
#[inline(always)]
unsafe fn start<S: Source<C>, W: Walk, const C: usize>(
    config: &QuantizeConfig,
    p: &QuantizeParams,
    blocks: u32,
    warp_index: u32,
    [first, end]: [u32; 2],
) -> (Tasks<C>, Cursor, Cursor) {
    let (tasks, task) = Tasks::new::<W>(config, p, blocks, warp_index);
    if task.task < tasks.end {
        // SAFETY: the task exists.
        unsafe { S::prefetch::<W>(p, &tasks, &task) };
    }
    follow_stream();
    let (mut ahead, mut stage) = (task, first);
    // The pin keeps the compiler from unrolling the loops.
    let next = |stage: u32| marker::pin(stage + config.stage_bytes());
    while stage != end && ahead.task < tasks.end {
        // SAFETY: the task exists, and no copy to the stage has been started before.
        unsafe { S::issue::<W, true>(p, &tasks, &ahead, stage) };
        cp_async::cp_async_commit_group();
        W::advance(&tasks, &mut ahead);
        stage = next(stage);
    }
    while stage != end {
        // An empty group: the main loop counts groups, whether or not there are tasks.
        cp_async::cp_async_commit_group();
        stage = next(stage);
    }
    (tasks, task, ahead)
}

/// Starts the copies of task `ahead` to `stage`, if there is such a task, and returns the lane's
/// block of `task`. Advances both cursors. If CTAs are not persistent, no warp has more tasks than
/// stages.
///
/// # Safety
/// `p` keeps its contract, and `W` is the walk of its layout. If CTAs are persistent, all lanes
/// have read `stage`.
#[inline(always)]
unsafe fn turn<S: Source<C>, W: Walk, const C: usize>(
    config: &QuantizeConfig,
    p: &QuantizeParams,
    tasks: &Tasks<C>,
    [task, ahead]: [&mut Cursor; 2],
    stage: u32,
) -> Place {
    if config.persistent && ahead.task < tasks.end {
        // SAFETY: the task exists, and all lanes have read the stage.
        unsafe { S::issue::<W, false>(p, tasks, ahead, stage) };
        W::advance(tasks, ahead);
    }
    cp_async::cp_async_commit_group();
    let place = W::place(tasks, task);
    W::advance(tasks, task);
    place
}

/// Quantises a lane's block and stores its codes and scale. `by_row`: each row has its own
/// tensor parameter, and `tensor` becomes that of the block's row.
///
/// # Safety
/// `p` keeps its contract; the block at `place` exists, and no other lane has it.
#[inline(always)]
unsafe fn finish<R: Recipe, S: Source<C>, const C: usize, const GROUPS: usize>(
    p: &QuantizeParams,
    place: &Place,
    by_row: bool,
    tensor: &mut R::Tensor,
    block: &S::Block,
) {
    if by_row {
        cold_path();
        let blocks = u64::from(p.k / R::Format::BLOCK as u32);
        let (row, column) = ((place.block / blocks) as u32, place.block % blocks);
        // SAFETY: the row exists.
        let (of_row, parameter) = unsafe { R::row(p, tensor, row) };
        *tensor = of_row;
        if p.tensor_out != 0 && column == 0 {
            let address = p.tensor_out + u64::from(row) * 4;
            // SAFETY: `tensor_out` has room for one parameter per row.
            unsafe { memory::st_global_b32(address, parameter.to_bits()) };
        }
    }
    let amax = S::amax(block);
    // SAFETY: the block exists, and no other lane stores its codes or its scale.
    unsafe {
        let scale = R::block::<S::Input>(p, tensor, amax);
        if R::is_moderate::<S::Input>(p, tensor, &scale, amax) {
            store::<S, C, GROUPS>(p, place.block, scale, block);
            memory::st_global_b8(place.scale, u16::from(scale.byte));
        } else {
            cold_path();
            let scale = R::any::<S::Input>(p, tensor, scale, amax);
            store_slowly::<S, C, GROUPS>(p, place.block, scale, amax);
            memory::st_global_b8(place.scale, u16::from(scale.byte));
        }
    }
}

/// Entry points: name, index in [`QUANTIZE`], recipe, source, words of a block,
/// words of its codes.
macro_rules! entries {
    ($($name:ident = $index:literal, $recipe:ty, $source:ident<$input:ident>, $words:literal, $groups:literal;)*) => {
        $(
            #[doc = concat!("[`QUANTIZE`]`[", stringify!($index), "]`.")]
            ///
            /// # Safety
            /// The launch satisfies the module's contract.
            #[kernel(threads = QUANTIZE[$index].threads(), min_blocks = QUANTIZE[$index].min_blocks)]
            pub unsafe fn $name(params: QuantizeParams) {
                const CONFIG: &QuantizeConfig = &QUANTIZE[$index];
                const { assert!(CONFIG.chunks() == $words) };
                const { assert!(CONFIG.silu == <$source<$input, $words, $groups> as Source<$words>>::SILU) };
                const { assert!(matches!(CONFIG.input, Some(ty) if ty as u32 == <$input as Input>::TYPE as u32)) };
                const { assert!(CONFIG.format.block() as usize == <$recipe as Recipe>::Format::BLOCK) };
                const BYTES: u32 = CONFIG.ring_bytes();
                const BEHIND: u32 = CONFIG.stages() - 1;
                // The size also serves as the number of the buffer.
                let ring = shared::fixed::<BYTES, BYTES, 128>();
                // SAFETY: the caller guarantees the contract.
                unsafe {
                    quantize::<$recipe, $source<$input, $words, $groups>, $words, $groups, BEHIND>(
                        CONFIG, &params, ring,
                    )
                }
            }
        )*
        crate::assert_names!([$($name,)* quantize_nvfp4_4over6], QUANTIZE);
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
    quantize_silu_nvfp4_f32 = 15, Nv<ANY>, Swiglu<F32>, 4, 2;
    quantize_silu_nvfp4_f16 = 16, Nv<ANY>, Swiglu<F16>, 2, 2;
    quantize_silu_nvfp4_bf16 = 17, Nv<ANY>, Swiglu<Bf16>, 2, 2;
    quantize_silu_mxfp4_f32 = 18, Mx, Swiglu<F32>, 8, 4;
    quantize_silu_mxfp4_f16 = 19, Mx, Swiglu<F16>, 4, 4;
    quantize_silu_mxfp4_bf16 = 20, Mx, Swiglu<Bf16>, 4, 4;
}

/// [`QUANTIZE`]`[21]`.
///
/// # Safety
/// The launch satisfies the module's contract.
#[kernel(threads = QUANTIZE[21].threads(), min_blocks = QUANTIZE[21].min_blocks)]
pub unsafe fn quantize_nvfp4_4over6(params: QuantizeParams) {
    // SAFETY: the caller guarantees the contract.
    unsafe { adaptive::quantize(&QUANTIZE[21], &params) }
}

const _: () = {
    let mut i = 0;
    while i < QUANTIZE.len() {
        let expected = match QUANTIZE[i].format {
            Format::Nvfp4 if !QUANTIZE[i].silu && QUANTIZE[i].input.is_some() => Some(i as u32 / 3),
            _ => None,
        };
        match (QUANTIZE[i].recipe, expected) {
            (Some(recipe), Some(code)) => assert!(recipe as u32 == code),
            (None, None) => {}
            _ => panic!("an entry's recipe differs from its configuration's"),
        }
        if let Some(input) = QUANTIZE[i].input {
            assert!(matches!(input, FloatType::F32) == (i % 3 == 0));
        }
        i += 1;
    }
};
