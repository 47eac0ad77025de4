//! Operations on narrow floats that not every target has an instruction for. Elsewhere they take a few
//! others, with the same result.

#[cfg(gpu_e4m3 = "hardware")]
use cuda_std::ptx::convert;
use cuda_std::ptx::half;
use cuda_std::ptx::{float, marker};
#[cfg(gpu_e4m3 = "emulated")]
use fp4_formats::e4m3;
use fp4_formats::gemm::combine::Machine;

/// 2^8 as f16, in both halves.
#[cfg(gpu_e4m3 = "emulated")]
const UNIT: u32 = 0x5c00_5c00;

/// Bytes `first` and `first + 1` of four codes, each in the high byte of a half.
#[cfg(gpu_e4m3 = "emulated")]
#[inline(always)]
fn spread(codes: u32, first: u32) -> u32 {
    // `prmt`: zero, the first byte, zero, the other one.
    cuda_std::ptx::integer::prmt_b32(codes, 0, 0x1404 + 0x1010 * first)
}

/// The values of two e4m3 codes as f16, that of the low byte in the low half. NaN codes give NaN.
#[cfg(gpu_e4m3 = "hardware")]
#[inline(always)]
pub fn halves_of_e4m3(pair: u16) -> u32 {
    convert::cvt_rn_f16x2_e4m3x2(pair)
}

/// The values of two e4m3 codes as f16, that of the low byte in the low half. NaN codes give NaN.
///
/// With exponent and mantissa at the same places of an f16, a code has 2^-8 of its value, subnormals
/// included.
#[cfg(gpu_e4m3 = "emulated")]
#[inline(always)]
pub fn halves_of_e4m3(pair: u16) -> u32 {
    let codes = spread(pair.into(), 0);
    let magnitudes = (codes & 0x7f00_7f00) >> 1;
    // The sum carries to bit 14 where all bits of the magnitude are set.
    let nan = (magnitudes + 0x0080_0080) & 0x4000_4000;
    half::mul_rn_f16x2(magnitudes | codes & 0x8000_8000, UNIT) | ((nan >> 5) * 0x3f)
}

/// The values of bytes `first` and `first + 1` of four e4m3 codes as f16, that of the first in the low half. Codes are
/// positive numbers, as block scales are: a sign or NaN gives an arbitrary number.
#[cfg(gpu_e4m3 = "hardware")]
#[inline(always)]
pub fn halves_of_scales(codes: u32, first: u32) -> u32 {
    convert::cvt_rn_f16x2_e4m3x2((codes >> (8 * first)) as u16)
}

/// The values of bytes `first` and `first + 1` of four e4m3 codes as f16, that of the first in the low half. Codes are
/// positive numbers, as block scales are: a sign or NaN gives an arbitrary number.
#[cfg(gpu_e4m3 = "emulated")]
#[inline(always)]
pub fn halves_of_scales(codes: u32, first: u32) -> u32 {
    half::mul_rn_f16x2(spread(codes, first) >> 1, UNIT)
}

/// Rounds two numbers to e4m3, nearest even; `low` becomes the low byte. Magnitudes above 448 give 448, NaN
/// gives 0x7f.
#[cfg(gpu_e4m3 = "hardware")]
#[inline(always)]
pub fn e4m3_of_floats(high: f32, low: f32) -> u16 {
    convert::cvt_rn_satfinite_e4m3x2_f32(high, low)
}

/// Rounds two numbers to e4m3, nearest even; `low` becomes the low byte. Magnitudes above 448 give 448, NaN
/// gives 0x7f.
#[cfg(gpu_e4m3 = "emulated")]
#[inline(always)]
pub fn e4m3_of_floats(high: f32, low: f32) -> u16 {
    u16::from_le_bytes([e4m3::encode(low), e4m3::encode(high)])
}

/// The products of two pairs of bf16, rounded to nearest even. Subnormals are numbers.
#[cfg(gpu_bf16_mul = "yes")]
#[inline(always)]
pub fn mul_bf16x2(a: u32, b: u32) -> u32 {
    half::mul_rn_bf16x2(a, b)
}

/// The products of two pairs of bf16, rounded to nearest even. Subnormals are numbers.
#[cfg(gpu_bf16_mul = "no")]
#[inline(always)]
pub fn mul_bf16x2(a: u32, b: u32) -> u32 {
    /// -0 in both halves, which leaves a product as it is.
    const NOTHING: u32 = 0x8000_8000;
    half::fma_rn_bf16x2(a, b, NOTHING)
}

/// The GPU's instructions for activations; approximations are within 2^-22 of the result.
pub struct Instructions;

impl Machine for Instructions {
    #[inline(always)]
    fn exp2(x: f32) -> f32 {
        float::ex2_approx_ftz_f32(x)
    }

    #[inline(always)]
    fn reciprocal(x: f32) -> f32 {
        float::rcp_approx_ftz_f32(x)
    }

    #[inline(always)]
    fn minimum(x: f32, y: f32) -> f32 {
        float::min_nan_f32(x, y)
    }

    #[inline(always)]
    fn maximum(x: f32, y: f32) -> f32 {
        float::max_nan_f32(x, y)
    }

    /// One copy of the function's code: values move through the first place.
    #[inline(always)]
    fn each<const N: usize>(mut values: [f32; N], function: impl Fn(f32) -> f32) -> [f32; N] {
        let mut i = 0;
        while i < N as u32 {
            let result = function(values[0]);
            for j in 1..N {
                values[j - 1] = values[j];
            }
            values[N - 1] = result;
            i = marker::pin(i + 1);
        }
        values
    }
}
