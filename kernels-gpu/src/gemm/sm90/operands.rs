//! The products of decoded weights by `wgmma`.

use cuda_std::ptx::wgmma;

pub use crate::gemm::decoded::{Decoded, Mxfp4Bf16, Nvfp4Bf16, Nvfp4F16, STEPS, Scales, Weights};

/// The product of a warpgroup with `SUMS` sums per thread: 2 `SUMS` tokens.
pub trait Product<const SUMS: usize>: Decoded {
    /// Adds 64 rows by 16 columns times the tile of `b`.
    ///
    /// # Safety
    /// * All threads of the warpgroup reach this same call, after a `wgmma.fence`.
    /// * `b` describes a tile of 16 columns by 2 `SUMS` tokens of a stage that has arrived.
    /// * Nothing accesses `sums`, and no copy overwrites the stage, until the group of this
    ///   product has been waited for.
    unsafe fn add(sums: &mut [f32; SUMS], a: [u32; 4], b: u64);
}

/// Weights whose tiles may be of all widths from 48 to 256 tokens.
macro_rules! widths {
    ($($sums:literal)*) => {
        pub trait Narrow: Decoded $(+ Product<$sums>)* {}
        impl<W: Decoded $(+ Product<$sums>)*> Narrow for W {}
    };
}
widths! { 16 20 24 32 40 48 56 64 80 88 96 104 112 120 128 }

macro_rules! products {
    ($weights:ty: $($sums:literal = $multiply:ident),*) => {
        $(
            impl Product<$sums> for $weights {
                #[inline(always)]
                unsafe fn add(sums: &mut [f32; $sums], a: [u32; 4], b: u64) {
                    // SAFETY: the warpgroup is converged, the tile has arrived, and nothing accesses
                    // the sums or the tile until the product has been waited for.
                    unsafe { wgmma::$multiply(sums, a, b) }
                }
            }
        )*
    };
    ($($weights:ty),*) => {
        $(products! { $weights:
            4 = wgmma_m64n8k16_f32_bf16_bf16,
            8 = wgmma_m64n16k16_f32_bf16_bf16,
            16 = wgmma_m64n32k16_f32_bf16_bf16,
            20 = wgmma_m64n40k16_f32_bf16_bf16,
            24 = wgmma_m64n48k16_f32_bf16_bf16,
            32 = wgmma_m64n64k16_f32_bf16_bf16,
            40 = wgmma_m64n80k16_f32_bf16_bf16,
            48 = wgmma_m64n96k16_f32_bf16_bf16,
            56 = wgmma_m64n112k16_f32_bf16_bf16,
            64 = wgmma_m64n128k16_f32_bf16_bf16,
            80 = wgmma_m64n160k16_f32_bf16_bf16,
            88 = wgmma_m64n176k16_f32_bf16_bf16,
            96 = wgmma_m64n192k16_f32_bf16_bf16,
            104 = wgmma_m64n208k16_f32_bf16_bf16,
            112 = wgmma_m64n224k16_f32_bf16_bf16,
            120 = wgmma_m64n240k16_f32_bf16_bf16,
            128 = wgmma_m64n256k16_f32_bf16_bf16
        })*
    };
}

products! { Nvfp4F16:
    4 = wgmma_m64n8k16_f32_f16_f16,
    8 = wgmma_m64n16k16_f32_f16_f16,
    16 = wgmma_m64n32k16_f32_f16_f16,
    20 = wgmma_m64n40k16_f32_f16_f16,
    24 = wgmma_m64n48k16_f32_f16_f16,
    32 = wgmma_m64n64k16_f32_f16_f16,
    40 = wgmma_m64n80k16_f32_f16_f16,
    48 = wgmma_m64n96k16_f32_f16_f16,
    56 = wgmma_m64n112k16_f32_f16_f16,
    64 = wgmma_m64n128k16_f32_f16_f16,
    80 = wgmma_m64n160k16_f32_f16_f16,
    88 = wgmma_m64n176k16_f32_f16_f16,
    96 = wgmma_m64n192k16_f32_f16_f16,
    104 = wgmma_m64n208k16_f32_f16_f16,
    112 = wgmma_m64n224k16_f32_f16_f16,
    120 = wgmma_m64n240k16_f32_f16_f16,
    128 = wgmma_m64n256k16_f32_f16_f16
}
products! { Nvfp4Bf16, Mxfp4Bf16 }
