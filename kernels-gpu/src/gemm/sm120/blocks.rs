//! Block-scaled products: which part of which lane's word has the scales of a row or token.

use cuda_std::ptx::mma::{self, Scales};
use fp4_formats::quantize::Format;

use super::codes::{Codes, E2m1, E4m3};

/// Formats whose products `mma.sync` scales.
pub trait Blocks {
    /// The format of the weights.
    const FORMAT: Format;
    /// The codes of tokens, and those of weights beside them.
    type Codes: Codes;

    /// Adds product number `product` of a stage, of 16 rows by the `eight`th eight of tokens.
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
    type Codes = E2m1;

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
    type Codes = E2m1;

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

/// MXFP4 by e4m3: a word has the scales of a row for all four products, and those of tokens are 1.
pub enum Mxfp4E4m3 {}

impl Blocks for Mxfp4E4m3 {
    const FORMAT: Format = Format::Mxfp4;
    type Codes = E4m3;

    #[inline(always)]
    unsafe fn multiply(
        sums: &mut [f32; 4],
        (a, scales_a): ([u32; 4], u32),
        (b, scales_b): ([u32; 2], u32),
        product: usize,
        _: usize,
    ) {
        let scales_a = Scales { word: scales_a, byte: product as u16, thread: 0 };
        let scales_b = Scales { word: scales_b, byte: 0, thread: 0 };
        // SAFETY: the caller's.
        unsafe { mma::mma_m16n8k32_e2m1_e4m3(sums, (a, scales_a), (b, scales_b)) }
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
    (mxfp4_e4m3) => {
        $crate::gemm::sm120::blocks::Mxfp4E4m3
    };
}
pub(super) use blocks;
