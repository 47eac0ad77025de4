//! The input: a matrix, or the gated product of two matrices.

use super::input::{Input, Word};
use super::place::{Cursor, Tasks, Walk};
use core::marker::PhantomData;
use cuda_std::ptx::{cp_async, float, marker, memory};
use cuda_std::warp;
use fp4_formats::quantize::{QuantizeParams, operand_bytes};

/// The source of a lane's elements of its block, `C` 16-byte words of each operand.
pub trait Source<const C: usize> {
    /// Whether it is the gated product.
    const SILU: bool;
    /// Type whose values the elements have.
    type Input: Input;
    /// The lane's block.
    type Block;

    /// Starts the copies of a task to `stage`. `ROLLED`: in a loop that the compiler does not
    /// unroll.
    ///
    /// # Safety
    /// `p` keeps its contract, and the task exists. `stage` names the shared memory
    /// of a stage of this warp, which no lane reads any more.
    unsafe fn issue<W: Walk, const ROLLED: bool>(
        p: &QuantizeParams,
        tasks: &Tasks<C>,
        task: &Cursor,
        stage: u32,
    );

    /// Prefetches into L2 what [`issue`](Self::issue) copies.
    ///
    /// # Safety
    /// The task exists.
    unsafe fn prefetch<W: Walk>(p: &QuantizeParams, tasks: &Tasks<C>, task: &Cursor);

    /// The lane's block of the task in `stage`.
    ///
    /// # Safety
    /// The copies of all lanes to `stage` have been waited for.
    unsafe fn take(tasks: &Tasks<C>, stage: u32) -> Self::Block;

    /// The largest magnitude; NaN if any element is.
    fn amax(block: &Self::Block) -> f32;

    /// Elements `8 group ..`.
    fn group(block: &Self::Block, group: usize) -> [f32; 8];

    /// Elements `8 group .. 8 group + 8` of the matrix, from global memory.
    ///
    /// # Safety
    /// `p` keeps its contract, and the elements exist.
    unsafe fn load(p: &QuantizeParams, group: u64) -> [f32; 8];
}

/// A matrix of `I`; a block has `8 GROUPS` elements.
pub struct Plain<I, const C: usize, const GROUPS: usize>(PhantomData<I>);

impl<I: Input, const C: usize, const GROUPS: usize> Source<C> for Plain<I, C, GROUPS> {
    const SILU: bool = false;
    type Input = I;
    type Block = [Word; C];

    #[inline(always)]
    unsafe fn issue<W: Walk, const ROLLED: bool>(
        p: &QuantizeParams,
        tasks: &Tasks<C>,
        task: &Cursor,
        stage: u32,
    ) {
        // SAFETY: the caller guarantees task and stage; the input has the task's shape.
        unsafe { issue::<W, C, 1, ROLLED>([p.input], tasks, task, stage) };
    }

    #[inline(always)]
    unsafe fn prefetch<W: Walk>(p: &QuantizeParams, tasks: &Tasks<C>, task: &Cursor) {
        // SAFETY: the caller guarantees task and stage; the input has the task's shape.
        unsafe { prefetch::<W, C, 1>([p.input], tasks, task) };
    }

    #[inline(always)]
    unsafe fn take(tasks: &Tasks<C>, stage: u32) -> [Word; C] {
        // SAFETY: the caller guarantees that the copies to the stage are complete.
        unsafe { take(tasks.lane, stage) }
    }

    #[inline(always)]
    fn amax(block: &[Word; C]) -> f32 {
        I::amax(block)
    }

    #[inline(always)]
    fn group(block: &[Word; C], group: usize) -> [f32; 8] {
        I::group(block, group)
    }

    #[inline(always)]
    unsafe fn load(p: &QuantizeParams, group: u64) -> [f32; 8] {
        // SAFETY: the caller guarantees that the elements exist.
        unsafe { load::<I>(p.input, group) }
    }
}

/// `silu(gate) * up` of two matrices of `I`; a block has `8 GROUPS` elements.
pub struct Swiglu<I, const C: usize, const GROUPS: usize>(PhantomData<I>);

impl<I: Input, const C: usize, const GROUPS: usize> Source<C> for Swiglu<I, C, GROUPS> {
    const SILU: bool = true;
    type Input = super::input::F32;
    type Block = [[f32; 8]; GROUPS];

    #[inline(always)]
    unsafe fn issue<W: Walk, const ROLLED: bool>(
        p: &QuantizeParams,
        tasks: &Tasks<C>,
        task: &Cursor,
        stage: u32,
    ) {
        // SAFETY: the caller guarantees task and stage; both operands have the task's shape.
        unsafe { issue::<W, C, 2, ROLLED>([p.input, p.up], tasks, task, stage) };
    }

    #[inline(always)]
    unsafe fn prefetch<W: Walk>(p: &QuantizeParams, tasks: &Tasks<C>, task: &Cursor) {
        // SAFETY: the caller guarantees task and stage; both operands have the task's shape.
        unsafe { prefetch::<W, C, 2>([p.input, p.up], tasks, task) };
    }

    #[inline(always)]
    unsafe fn take(tasks: &Tasks<C>, stage: u32) -> [[f32; 8]; GROUPS] {
        const { assert!(C * I::PER_WORD == GROUPS * 8) };
        // SAFETY: the caller guarantees that the copies to the stage are complete.
        let (gate, up): ([Word; C], [Word; C]) = unsafe {
            let up = stage + const { operand_bytes(C as u32) };
            (take(tasks.lane, stage), take(tasks.lane, up))
        };
        let mut block = [[0.0; 8]; GROUPS];
        for group in 0..GROUPS {
            block[group] = swiglu(I::group(&gate, group), I::group(&up, group));
        }
        block
    }

    #[inline(always)]
    fn amax(block: &[[f32; 8]; GROUPS]) -> f32 {
        let mut amax = 0.0;
        for group in 0..GROUPS {
            for i in 0..8 {
                amax = float::max_nan_f32(amax, float::abs_f32(block[group][i]));
            }
        }
        amax
    }

    #[inline(always)]
    fn group(block: &[[f32; 8]; GROUPS], group: usize) -> [f32; 8] {
        block[group]
    }

    #[inline(always)]
    unsafe fn load(p: &QuantizeParams, group: u64) -> [f32; 8] {
        // SAFETY: the caller guarantees that the elements exist; both operands have the same shape.
        unsafe { swiglu(load::<I>(p.input, group), load::<I>(p.up, group)) }
    }
}

/// `silu(gate) * up`, see the arithmetic in [`super`].
#[inline(always)]
pub fn swiglu(gate: [f32; 8], up: [f32; 8]) -> [f32; 8] {
    let mut product = [0.0; 8];
    for i in 0..8 {
        let decay = float::ex2_approx_ftz_f32(gate[i] * -core::f32::consts::LOG2_E);
        product[i] = gate[i] * float::rcp_approx_ftz_f32(1.0 + decay) * up[i];
    }
    product
}

/// Elements `8 group .. 8 group + 8` of a matrix.
///
/// # Safety
/// The same as [`Source::load`].
#[inline(always)]
pub unsafe fn load<I: Input>(operand: u64, group: u64) -> [f32; 8] {
    let address = operand + group * const { 8 * I::TYPE.bytes() as u64 };
    // SAFETY: elements of the matrix, whose base is 16-byte aligned.
    unsafe {
        let low = memory::ld_global_nc_v4_b32(address);
        let high =
            if I::PER_WORD == 8 { [0; 4] } else { memory::ld_global_nc_v4_b32(address + 16) };
        I::group(&[low, high], 0)
    }
}

/// Calls `f` with the index of each of a lane's `C` words. `ROLLED`: in a loop that the
/// compiler does not unroll.
#[inline(always)]
fn each_word<const C: usize, const ROLLED: bool>(mut f: impl FnMut(u32)) {
    let mut i = 0;
    while i < C as u32 {
        f(i);
        i = if ROLLED { marker::pin(i + 1) } else { i + 1 };
    }
}

/// Starts the copies of the lane's words of each operand.
///
/// Word `w` of a stage is at byte `16 (w ^ (w / 8 % 8))`: neither eight lanes that store
/// consecutive words nor eight lanes that load words `C` apart have a bank conflict.
///
/// # Safety
/// The same as [`Source::issue`]; operands are matrices of the task's shape.
#[inline(always)]
unsafe fn issue<W: Walk, const C: usize, const OPERANDS: usize, const ROLLED: bool>(
    operands: [u64; OPERANDS],
    tasks: &Tasks<C>,
    task: &Cursor,
    stage: u32,
) {
    let loads = W::loads(tasks, task);
    let start = operands.map(|operand| operand + loads.start);
    each_word::<C, ROLLED>(|i| {
        // The place of word `32 i + lane`, written so that the part that depends on the lane
        // has only two values.
        let in_row = tasks.lane ^ (tasks.lane / 8) ^ (i % 2 * 4);
        let to = stage + in_row * 16 + i * (warp::LANES * 16);
        let word = W::word(tasks, &loads, i);
        for n in 0..OPERANDS {
            let to = to + n as u32 * const { operand_bytes(C as u32) };
            // SAFETY: `start[n] + word` is a word of the matrix, whose base is 16-byte
            // aligned, and `to` is a word of the stage.
            unsafe { cp_async::cp_async_cg_shared_global_16(to, start[n] + word) };
        }
    });
}

/// Prefetches the words of [`issue`] into L2.
///
/// # Safety
/// The same as [`Source::prefetch`]; operands are matrices of the task's shape.
#[inline(always)]
unsafe fn prefetch<W: Walk, const C: usize, const OPERANDS: usize>(
    operands: [u64; OPERANDS],
    tasks: &Tasks<C>,
    task: &Cursor,
) {
    let loads = W::loads(tasks, task);
    let start = operands.map(|operand| operand + loads.start);
    each_word::<C, true>(|i| {
        let word = W::word(tasks, &loads, i);
        for n in 0..OPERANDS {
            // SAFETY: `start[n] + word` is a word of the matrix.
            unsafe { memory::prefetch_global_l2(start[n] + word) };
        }
    });
}

/// The words of the lane's block.
///
/// # Safety
/// The same as [`Source::take`].
#[inline(always)]
unsafe fn take<const C: usize>(lane: u32, stage: u32) -> [Word; C] {
    const { assert!(C.is_power_of_two() && C <= 8) };
    // The place of word `C lane + i`, see `issue`; stages are aligned to 128 bytes.
    let word = lane * C as u32;
    let first = stage + (word ^ (word / 8 % 8)) * 16;
    let mut block = [[0; 4]; C];
    for i in 0..C {
        // SAFETY: the caller guarantees that the copies to the stage are complete.
        block[i] = unsafe { memory::ld_shared_v4_b32(first ^ (i as u32 * 16)) };
    }
    block
}
