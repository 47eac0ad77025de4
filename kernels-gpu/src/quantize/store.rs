//! Codes of a block to memory: rounded from registers, or for blocks of any magnitude from the input
//! once more.

use cuda_std::ptx::{marker, memory, reduce};
use fp4_formats::quantize::QuantizeParams;
use fp4_formats::recipe::{BlockScale, Convert};

use super::convert::{AnyRange, Moderate};
use super::source::Source;

/// The fast path: rounds the elements of block `index` of the matrix and stores the codes.
///
/// # Safety
/// `p` keeps its contract; the block exists, and no other lane stores its codes.
#[inline(always)]
pub unsafe fn store<S: Source<C>, const C: usize, const GROUPS: usize>(
    p: &QuantizeParams,
    index: u64,
    scale: BlockScale,
    block: &S::Block,
) {
    let address = p.codes + index * (GROUPS as u64 * 4);
    let codes: [u32; GROUPS] =
        scale.group_codes::<Moderate<S::Input>, GROUPS>(|group| S::group(block, group));
    // SAFETY: the codes of an existing block, aligned to their size.
    unsafe {
        if GROUPS == 2 {
            memory::st_global_v2_b32(address, [codes[0], codes[1]]);
        } else {
            memory::st_global_v4_b32(address, [codes[0], codes[1], codes[2], codes[3]]);
        }
    }
}

/// The slow path: as [`store`], for blocks of any magnitude. Reads the elements again, eight
/// per iteration, and lowers the error word to the first one that is not finite.
///
/// # Safety
/// The same as [`store`].
#[inline(always)]
pub unsafe fn store_slowly<S: Source<C>, const C: usize, const GROUPS: usize>(
    p: &QuantizeParams,
    index: u64,
    scale: BlockScale,
    amax: f32,
) {
    let report = !amax.is_finite() && p.errors != 0;
    let mut group = index * GROUPS as u64;
    let mut left = GROUPS as u32;
    loop {
        // SAFETY: elements and codes of an existing block; `errors` is the error word.
        unsafe {
            let values = S::load(p, group);
            let [prepared] = scale.prepared::<AnyRange<S::Input>, 1>(|_| values);
            memory::st_global_b32(p.codes + group * 4, AnyRange::<S::Input>::round(prepared));
            if report && let Some(first) = first_not_finite(values) {
                let index = group * 8 + u64::from(first);
                reduce::red_relaxed_gpu_global_min_u64(p.errors, index);
            }
        }
        // The pin keeps the compiler from unrolling the loop.
        left = marker::pin(left - 1);
        if left == 0 {
            break;
        }
        group += 1;
    }
}

/// The index of the first value that is not finite.
#[inline(always)]
pub fn first_not_finite(values: [f32; 8]) -> Option<u32> {
    let mut first = None;
    for i in (0..8).rev() {
        if !values[i].is_finite() {
            first = Some(i as u32);
        }
    }
    first
}
