//! Block-scaled products: which part of which lane's word has the scales of a row or token.

use cuda_std::ptx::mma::{self, Scales};
use fp4_formats::quantize::Format;

/// A format whose products `mma.sync` scales.
pub trait Blocks {
    /// The format.
    const FORMAT: Format;

    /// Adds the product of 64 columns, number `product` of a stage, of 16 rows by the `eight`th eight of tokens.
    /// The second part of `a` and of `b` is the lane's word of scales.
    ///
    /// # Safety
    /// All threads of the warp reach this same call.
    unsafe fn multiply(
        sums: &mut [f32; 4],
        a: ([u32; 4], u32),
        b: ([u32; 2], u32),
        product: usize,
        eight: usize,
    );
}

/// NVFP4: a word has the four scales of a product.
pub enum Nvfp4 {}

impl Blocks for Nvfp4 {
    const FORMAT: Format = Format::Nvfp4;

    #[inline(always)]
    unsafe fn multiply(
        sums: &mut [f32; 4],
        (a, scales_a): ([u32; 4], u32),
        (b, scales_b): ([u32; 2], u32),
        product: usize,
        eight: usize,
    ) {
        let scales_a = Scales { word: scales_a, byte: 0, thread: product as u16 };
        let lane = (eight % 2 * 2 + product) as u16;
        let scales_b = Scales { word: scales_b, byte: 0, thread: lane };
        // SAFETY: the caller's.
        unsafe { mma::mma_m16n8k64_nvfp4(sums, (a, scales_a), (b, scales_b)) }
    }
}

/// MXFP4: a word has the two scales of a product, and those of the next.
pub enum Mxfp4 {}

impl Blocks for Mxfp4 {
    const FORMAT: Format = Format::Mxfp4;

    #[inline(always)]
    unsafe fn multiply(
        sums: &mut [f32; 4],
        (a, scales_a): ([u32; 4], u32),
        (b, scales_b): ([u32; 2], u32),
        product: usize,
        eight: usize,
    ) {
        let byte = 2 * product as u16;
        let scales_a = Scales { word: scales_a, byte, thread: 0 };
        let scales_b = Scales { word: scales_b, byte, thread: (eight % 4) as u16 };
        // SAFETY: the caller's.
        unsafe { mma::mma_m16n8k64_mxfp4(sums, (a, scales_a), (b, scales_b)) }
    }
}

/// The [`Blocks`] that a table of kernels names so.
macro_rules! blocks {
    (nvfp4) => {
        $crate::gemm::sm120::blocks::Nvfp4
    };
    (mxfp4) => {
        $crate::gemm::sm120::blocks::Mxfp4
    };
}
pub(super) use blocks;
