//! Parameter blocks as bytes, without writing them anew: to write a large block byte by byte takes longer
//! than all else that the library does for a launch.

use fp4_formats::gemm::mixed::Mixed;
use fp4_formats::gemm::sm90::{Sm90GroupedParams, Sm90Params};
use fp4_formats::gemm::sm100::prepare::{PrepareCodes, PrepareGroupedScales, PrepareScales};
use fp4_formats::gemm::sm100::{Sm100GroupedParams, Sm100Params};
use fp4_formats::gemv::GemvParams;
use fp4_formats::moe::{CombineParams, GatherParams, RouteParams};
use fp4_formats::quantize::QuantizeParams;
use fp4_formats::quantize::tokens::TokensParams;

/// A parameter block whose bytes in memory are those of its `to_bytes` on a little-endian machine.
///
/// # Safety
/// It has the C layout, its fields fill it without padding, and all of them are integers and floats.
pub(crate) unsafe trait Block: Copy {}

/// The block as the kernel's `.param` space holds it.
pub(crate) fn bytes<B: Block>(block: &B) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "GPUs are little-endian, as their hosts are") };
    // SAFETY: all of the block's bytes are initialised, as it has no padding, and they are borrowed
    // as long as it is.
    unsafe { std::slice::from_raw_parts((&raw const *block).cast(), size_of::<B>()) }
}

macro_rules! blocks {
    ($($block:ty),*) => {
        $(
            // SAFETY: it has the C layout. The test below, and the assertions of its `to_bytes`, say
            // that its fields, numbers all of them, fill it.
            unsafe impl Block for $block {}
        )*

        #[cfg(test)]
        mod tests {
            use super::*;

            /// Each byte of memory is the byte of the block, so that none is padding.
            #[test]
            fn blocks_are_what_memory_holds() {
                $({
                    let pattern: [u8; size_of::<$block>()] =
                        std::array::from_fn(|at| (at * 37 + at / 256 + 1) as u8);
                    // SAFETY: all fields are numbers, which any bytes are.
                    let block = unsafe { pattern.as_ptr().cast::<$block>().read_unaligned() };
                    assert_eq!(block.to_bytes(), pattern, "{}", stringify!($block));
                    assert_eq!(bytes(&block), pattern, "{}", stringify!($block));
                })*
            }
        }
    };
}

blocks!(
    Sm90Params,
    Sm90GroupedParams,
    Sm100Params,
    Sm100GroupedParams,
    PrepareCodes,
    PrepareScales,
    PrepareGroupedScales,
    Mixed,
    GemvParams,
    QuantizeParams,
    TokensParams,
    RouteParams,
    GatherParams,
    CombineParams
);
