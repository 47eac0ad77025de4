//! Codes and scales to the A fragments of 16-bit products, which are the same for `mma.sync` and `wgmma`.
//!
//! A thread holds the codes of two rows, `g` and `g + 8`, by 64 columns: one
//! [word](fp4_formats::gemm::fragments::word) for each product of 16 columns. The products' scale is
//! `Scheme::unit_log2`, whose tests show that nothing is rounded.

use cuda_std::ptx::{half, integer, memory as words, mma};
use fp4_formats::HalfType;
use fp4_formats::gemm::fragments::Scheme;
use fp4_formats::gemm::fragments::repack::{BLOCK_COLUMNS, PRODUCT_K};
use fp4_formats::gemm::fragments::word::Multipliers;

use crate::floats;

/// Products that a thread's 16 bytes of codes are for.
pub const STEPS: usize = (BLOCK_COLUMNS / PRODUCT_K) as usize;

/// Weights as a kernel takes them.
pub trait Weights: Sized {
    /// The scheme.
    const SCHEME: Scheme;
}

/// The scales of a thread's two rows by 64 columns, as loaded.
pub trait Scales: Copy {
    /// No scales.
    const NONE: Self;

    /// Loads the scales of the thread's rows.
    ///
    /// # Safety
    /// `address` is the shared address of the first of them in a chunk that has arrived.
    unsafe fn load(address: u32) -> Self;

    /// Ties scales to a place; see `marker::pin`.
    fn pin(self) -> Self;
}

/// Four blocks of both rows, `g` in the low byte of each half.
impl Scales for [u32; 2] {
    const NONE: Self = [0; 2];

    #[inline(always)]
    unsafe fn load(address: u32) -> Self {
        // SAFETY: eight bytes, aligned to their size.
        unsafe { words::ld_shared_v2_b32(address) }
    }

    #[inline(always)]
    fn pin(self) -> Self {
        self.map(cuda_std::ptx::marker::pin)
    }
}

/// Two blocks of both rows, `g` in the low byte of each half.
impl Scales for u32 {
    const NONE: Self = 0;

    #[inline(always)]
    unsafe fn load(address: u32) -> Self {
        // SAFETY: four bytes, aligned to their size.
        unsafe { words::ld_shared_b32(address) }
    }

    #[inline(always)]
    fn pin(self) -> Self {
        cuda_std::ptx::marker::pin(self)
    }
}

/// The decoding of a format's weights to 16-bit operands.
pub trait Decoded: Weights {
    /// The scales of a thread's rows.
    type Scales: Scales;

    /// The type of operands.
    const HALF: HalfType = match Self::SCHEME.operand.half() {
        Some(half) => half,
        None => panic!("operands of 16 bits"),
    };

    /// The fragment of 16 columns, number `step` of the 64.
    fn fragment(word: u32, scales: Self::Scales, step: usize, by: Multipliers) -> [u32; 4];

    /// Adds a warp's 16 rows by 16 columns times eight tokens. The fragments of `mma` and
    /// `wgmma` are the same.
    ///
    /// # Safety
    /// All threads of the warp reach this same call.
    unsafe fn multiply_mma_sync(sums: &mut [f32; 4], a: [u32; 4], b: [u32; 2]);
}

/// The decoder of a scheme with 16-bit operands.
macro_rules! decoder {
    (nvfp4_f16) => {
        $crate::gemm::decoded::Nvfp4F16
    };
    (nvfp4_bf16) => {
        $crate::gemm::decoded::Nvfp4Bf16
    };
    (mxfp4_bf16) => {
        $crate::gemm::decoded::Mxfp4Bf16
    };
}
pub(super) use decoder;

/// NVFP4 as f16.
pub struct Nvfp4F16;
/// NVFP4 as bf16.
pub struct Nvfp4Bf16;
/// MXFP4 as bf16.
pub struct Mxfp4Bf16;

impl Weights for Nvfp4F16 {
    const SCHEME: Scheme = Scheme::NVFP4_F16;
}

impl Decoded for Nvfp4F16 {
    type Scales = [u32; 2];

    #[inline(always)]
    fn fragment(word: u32, scales: Self::Scales, step: usize, by: Multipliers) -> [u32; 4] {
        let scales = floats::halves_of_scales(scales[step / 2], step as u32 % 2 * 2);
        scale_f16(HalfType::F16.decode(word, by), scales)
    }

    #[inline(always)]
    unsafe fn multiply_mma_sync(sums: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        // SAFETY: all threads of the warp are here.
        unsafe { mma::mma_m16n8k16_f32_f16_f16(sums, a, b) }
    }
}

impl Weights for Nvfp4Bf16 {
    const SCHEME: Scheme = Scheme::NVFP4_BF16;
}

impl Decoded for Nvfp4Bf16 {
    type Scales = [u32; 2];

    #[inline(always)]
    fn fragment(word: u32, scales: Self::Scales, step: usize, by: Multipliers) -> [u32; 4] {
        // Exponent and mantissa of e4m3 at the low end of bf16's exponent: the scale's value
        // times 2^-120, subnormals included. Two products bring it to 2^119.
        let spread = if step.is_multiple_of(2) { 0x4140 } else { 0x4342 };
        let scales = integer::prmt_b32(scales[step / 2], 0, spread) << 4;
        let scales = floats::mul_bf16x2(scales, pair_of(BF16_2_120));
        let scales = floats::mul_bf16x2(scales, pair_of(BF16_2_119));
        scale_bf16(HalfType::Bf16.decode(word, by), scales)
    }

    #[inline(always)]
    unsafe fn multiply_mma_sync(sums: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        // SAFETY: all threads of the warp are here.
        unsafe { mma::mma_m16n8k16_f32_bf16_bf16(sums, a, b) }
    }
}

impl Weights for Mxfp4Bf16 {
    const SCHEME: Scheme = Scheme::MXFP4_BF16;
}

impl Decoded for Mxfp4Bf16 {
    type Scales = u32;

    #[inline(always)]
    fn fragment(word: u32, scales: Self::Scales, step: usize, by: Multipliers) -> [u32; 4] {
        let pair = scales >> (16 * (step / 2));
        let both = ue8m0_bf16(pair & 0xff) | ue8m0_bf16(pair >> 8 & 0xff) << 16;
        // The code's 2^-126 first: the scale alone could not undo it.
        let codes = HalfType::Bf16
            .decode(word, by)
            .map(|codes| floats::mul_bf16x2(codes, pair_of(BF16_2_126)));
        scale_bf16(codes, floats::mul_bf16x2(both, pair_of(BF16_EIGHTH)))
    }

    #[inline(always)]
    unsafe fn multiply_mma_sync(sums: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        // SAFETY: all threads of the warp are here.
        unsafe { mma::mma_m16n8k16_f32_bf16_bf16(sums, a, b) }
    }
}

/// bf16 bits of powers of two.
const BF16_2_119: u32 = (127 + 119) << 7;
const BF16_2_120: u32 = (127 + 120) << 7;
const BF16_2_126: u32 = (127 + 126) << 7;
const BF16_EIGHTH: u32 = (127 - 3) << 7;

/// The same 16 bits in both halves.
const fn pair_of(bits: u32) -> u32 {
    bits | bits << 16
}

/// A ue8m0 scale as bf16 bits: its exponent, except that 0 is the subnormal 2^-127 and 255
/// is NaN, both of which have the mantissa's top bit set.
#[inline(always)]
fn ue8m0_bf16(byte: u32) -> u32 {
    let special = byte == 0 || byte == 0xff;
    byte << 7 | if special { 0x40 } else { 0 }
}

/// The scales of rows `g` and `g + 8`, each in both halves.
#[inline(always)]
fn by_row(scales: u32) -> [u32; 2] {
    half::mov_b32_unpack(scales).map(|scale| half::mov_b32_pack([scale; 2]))
}

/// Rows `g` (pairs 0, 2) times the low scale, rows `g + 8` (1, 3) times the high one.
#[inline(always)]
fn scale_f16([a, b, c, d]: [u32; 4], scales: u32) -> [u32; 4] {
    let [low, high] = by_row(scales);
    [
        half::mul_rn_f16x2(a, low),
        half::mul_rn_f16x2(b, high),
        half::mul_rn_f16x2(c, low),
        half::mul_rn_f16x2(d, high),
    ]
}

/// Scales as [`scale_f16`] does.
#[inline(always)]
fn scale_bf16([a, b, c, d]: [u32; 4], scales: u32) -> [u32; 4] {
    let [low, high] = by_row(scales);
    [
        floats::mul_bf16x2(a, low),
        floats::mul_bf16x2(b, high),
        floats::mul_bf16x2(c, low),
        floats::mul_bf16x2(d, high),
    ]
}
