//! Results of a product that is refused on the device.

use cuda_std::ptx::reduce;
use fp4_formats::gemm::{Problem, Sink};

use super::{blocks, direct, is_blocks, largest};

/// Makes all elements of a result NaN, of one in NVFP4 or MXFP4 by its scales, and the largest
/// magnitude, if it is asked for. Row `ctas[0]` and every `ctas[1]`-th after it are this CTA's; of their
/// columns, or blocks, `threads[0]` and every `threads[1]`-th after it are this thread's.
///
/// # Safety
/// `sizes` are the result's, `n` is a multiple of a block if it is NVFP4 or MXFP4; the pointers of
/// `sink` are as its documentation says.
#[inline(always)]
pub unsafe fn fill(sink: &Sink, sizes: &Problem, ctas: [u32; 2], threads: [u32; 2]) {
    if largest::is_wanted(sink) && ctas[0] == 0 && threads[0] == 0 {
        // SAFETY: the word of the launch's largest magnitude.
        unsafe { reduce::red_relaxed_gpu_global_max_u32(sink.magnitude, f32::NAN.to_bits()) };
    }
    let is_blocks = is_blocks(sink);
    let columns = if is_blocks { blocks::count(sink, sizes.n) } else { sizes.n };
    for matrix in 0..sizes.l {
        let mut row = ctas[0];
        while row < sizes.m {
            let mut column = threads[0];
            while column < columns {
                let place = [row, column];
                // SAFETY: the element, or the block, exists.
                unsafe {
                    if is_blocks {
                        blocks::store_nan(sink, sizes, matrix, place);
                    } else {
                        direct::store_element(sink, sizes, matrix, place, f32::NAN);
                    }
                }
                column += threads[1];
            }
            row += ctas[1];
        }
    }
}
