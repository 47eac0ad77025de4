//! What is quantised: a matrix, or the gated product of two.

use super::input::{Input, Word};
use super::place::{Loads, Walk};
use core::marker::PhantomData;
use cuda_std::ptx::{cp_async, float, memory};
use cuda_std::warp;
use fp4_formats::quantize::{QuantizeParams, operand_bytes};

/// How a lane gets the elements of its block, `C` 16-byte words of each operand.
pub trait Source<const C: usize> {
    /// Whether it is the gated product.
    const SILU: bool;
    /// Type whose values the elements have.
    type Input: Input;
    /// The lane's block.
    type Block;

    /// Starts the copies of a task to `stage`.
    ///
    /// # Safety
    /// `p` keeps its contract, and the task exists. `stage` names the shared memory
    /// of a stage of this warp, which no lane reads any more.
    unsafe fn issue<W: Walk>(p: &QuantizeParams, loads: &Loads, stage: u32);

    /// Brings what [`issue`](Self::issue) copies to L2.
    ///
    /// # Safety
    /// The task exists.
    unsafe fn prefetch<W: Walk>(p: &QuantizeParams, loads: &Loads);

    /// The lane's block of the task in `stage`.
    ///
    /// # Safety
    /// The copies of all lanes to `stage` have been waited for.
    unsafe fn take(stage: u32) -> Self::Block;

    /// The largest magnitude; NaN if any element is.
    fn amax(block: &Self::Block) -> f32;

    /// Elements `8 group ..`.
    fn group(block: &Self::Block, group: usize) -> [f32; 8];
}

/// A matrix of `I`; a block has `8 GROUPS` elements.
pub struct Plain<I, const C: usize, const GROUPS: usize>(PhantomData<I>);

impl<I: Input, const C: usize, const GROUPS: usize> Source<C> for Plain<I, C, GROUPS> {
    const SILU: bool = false;
    type Input = I;
    type Block = [Word; C];

    #[inline(always)]
    unsafe fn issue<W: Walk>(p: &QuantizeParams, loads: &Loads, stage: u32) {
        // SAFETY: the caller's.
        unsafe { issue::<W, C>(p.input, loads, stage) }
    }

    #[inline(always)]
    unsafe fn prefetch<W: Walk>(p: &QuantizeParams, loads: &Loads) {
        // SAFETY: the caller's.
        unsafe { prefetch::<W, C>(p.input, loads) }
    }

    #[inline(always)]
    unsafe fn take(stage: u32) -> [Word; C] {
        // SAFETY: the caller's.
        unsafe { take(stage) }
    }

    #[inline(always)]
    fn amax(block: &[Word; C]) -> f32 {
        I::amax(block)
    }

    #[inline(always)]
    fn group(block: &[Word; C], group: usize) -> [f32; 8] {
        I::group(block, group)
    }
}

/// `silu(gate) * up` of two matrices of `I`; a block has `8 GROUPS` elements.
pub struct Swiglu<I, const C: usize, const GROUPS: usize>(PhantomData<I>);

impl<I: Input, const C: usize, const GROUPS: usize> Source<C> for Swiglu<I, C, GROUPS> {
    const SILU: bool = true;
    type Input = super::input::F32;
    type Block = [[f32; 8]; GROUPS];

    #[inline(always)]
    unsafe fn issue<W: Walk>(p: &QuantizeParams, loads: &Loads, stage: u32) {
        // SAFETY: the caller's; both operands have the same shape.
        unsafe {
            issue::<W, C>(p.input, loads, stage);
            issue::<W, C>(p.up, loads, stage + const { operand_bytes(C as u32) });
        }
    }

    #[inline(always)]
    unsafe fn prefetch<W: Walk>(p: &QuantizeParams, loads: &Loads) {
        // SAFETY: the caller's; both operands have the same shape.
        unsafe {
            prefetch::<W, C>(p.input, loads);
            prefetch::<W, C>(p.up, loads);
        }
    }

    #[inline(always)]
    unsafe fn take(stage: u32) -> [[f32; 8]; GROUPS] {
        const { assert!(C * I::PER_WORD == GROUPS * 8) };
        // SAFETY: the caller's.
        let (gate, up): ([Word; C], [Word; C]) =
            unsafe { (take(stage), take(stage + const { operand_bytes(C as u32) })) };
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
                amax = float::max_nan_f32(amax, block[group][i].abs());
            }
        }
        amax
    }

    #[inline(always)]
    fn group(block: &[[f32; 8]; GROUPS], group: usize) -> [f32; 8] {
        block[group]
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

/// Place in a stage of the warp's word `word`: eight lanes that store consecutive
/// words, and eight that load words `C` apart, meet in no bank.
#[inline(always)]
const fn place(word: u32) -> u32 {
    (word ^ (word / 8 % 8)) * 16
}

/// Starts the copies of the lane's part of an operand: words that are consecutive
/// over the lanes.
///
/// # Safety
/// As [`Source::issue`]; `operand` is a matrix of the task's shape.
#[inline(always)]
unsafe fn issue<W: Walk, const C: usize>(operand: u64, loads: &Loads, stage: u32) {
    for i in 0..C {
        let word = i as u32 * warp::LANES + warp::lane_id();
        // SAFETY: a word of the matrix, whose base is 16-byte aligned, and of the stage.
        unsafe {
            cp_async::cp_async_cg_shared_global_16(
                stage + place(word),
                operand + W::word::<C>(loads, i),
            );
        }
    }
}

/// Brings the words of [`issue`] to L2.
///
/// # Safety
/// As [`Source::prefetch`].
#[inline(always)]
unsafe fn prefetch<W: Walk, const C: usize>(operand: u64, loads: &Loads) {
    for i in 0..C {
        // SAFETY: a word of the matrix.
        unsafe { memory::prefetch_global_l2(operand + W::word::<C>(loads, i)) };
    }
}

/// The words of the lane's block.
///
/// # Safety
/// As [`Source::take`].
#[inline(always)]
unsafe fn take<const C: usize>(stage: u32) -> [Word; C] {
    let mut block = [[0; 4]; C];
    for i in 0..C {
        let word = warp::lane_id() * C as u32 + i as u32;
        // SAFETY: the caller vouches for the stage.
        block[i] = unsafe { memory::ld_shared_v4_b32(stage + place(word)) };
    }
    block
}
