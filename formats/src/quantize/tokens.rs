//! Activations in e4m3 with a scale for each token: the contract of the kernels that quantise them, and of the one that
//! decodes them for tensor cores that do not multiply them.
//!
//! `scale = max |x| / 448`, `code = e4m3(x * (448 / max |x|))`, to nearest even, each operation rounded
//! to f32. A token of magnitudes below [`LEAST`] is quantised as if that were its largest. A NaN or an
//! infinity makes the token's scale NaN or infinite and at least one of its codes NaN, so that all
//! results of the token are NaN.

use crate::params::blocks;
use crate::{Divisor, HalfType, WARP, e4m3};

/// The largest magnitude of a token counts as no less: 2^-100, whose reciprocal times 448 is an f32.
pub const LEAST: f32 = f32::from_bits((127 - 100) << 23);

/// The factor of a token's elements, of its largest magnitude.
#[inline(always)]
#[must_use]
pub const fn to_codes(amax: f32) -> f32 {
    e4m3::MAX / at_least(amax)
}

/// The scale of a token, of its largest magnitude.
#[inline(always)]
#[must_use]
pub const fn scale(amax: f32) -> f32 {
    at_least(amax) / e4m3::MAX
}

/// NaN stays NaN.
#[inline(always)]
const fn at_least(amax: f32) -> f32 {
    if amax < LEAST { LEAST } else { amax }
}

/// The configuration of one kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokensConfig {
    /// Entry name in the PTX module of either architecture.
    pub name: &'static str,
    /// Type of the input.
    pub input: HalfType,
}

impl TokensConfig {
    /// Warps of a CTA, which quantises one token.
    pub const WARPS: u32 = 8;
    /// Threads of a CTA.
    pub const THREADS: u32 = Self::WARPS * WARP;
    /// CTAs that one SM must hold at the same time; bounds the registers.
    pub const MIN_BLOCKS: u32 = 4;
    /// 16-byte words of a token that a thread keeps in registers; it reads further ones twice.
    pub const KEPT: usize = 8;
}

/// All configurations.
pub const TOKENS: [TokensConfig; 2] = [
    TokensConfig { name: "quantize_tokens_f16", input: HalfType::F16 },
    TokensConfig { name: "quantize_tokens_bf16", input: HalfType::Bf16 },
];

/// The configuration for an input type.
#[must_use]
pub const fn tokens_config(input: HalfType) -> &'static TokensConfig {
    match input {
        HalfType::F16 => &TOKENS[0],
        HalfType::Bf16 => &TOKENS[1],
    }
}

/// Parameter block of the kernels: a CTA for each of `rows` tokens. Pointers are device
/// addresses.
///
/// | field | shape | type |
/// |---|---|---|
/// | `input` | `[rows, K]` | the configuration's; 16-byte aligned |
/// | `factors` | `[factor_rows]` | f32; 0 for none |
/// | `codes` | `[rows, K]` | e4m3; 16-byte aligned |
/// | `scales` | `[rows]` | f32 |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct TokensParams {
    /// The address of the input.
    pub input: u64,
    /// The factors of the tokens' scales: token `m` has factor `m % factor_rows`.
    pub factors: u64,
    /// Codes.
    pub codes: u64,
    /// Scales.
    pub scales: u64,
    /// Columns, a multiple of 16.
    pub k: u32,
    /// Rows that have their own factors. A token's number is below [`Divisor::DIVIDENDS`].
    pub factor_rows: Divisor,
}

/// Entry name of the kernel that decodes to bf16, which holds every e4m3 exactly. Scales stay apart.
pub const DECODE_NAME: &str = "quantize_tokens_decode_bf16";

/// Entry names of all kernels of tokens.
pub fn names() -> impl Iterator<Item = &'static str> {
    TOKENS.iter().map(|config| config.name).chain([DECODE_NAME])
}

/// Codes that a thread of [`DECODE_NAME`] decodes: 16 bytes of them.
pub const DECODED_TOGETHER: u32 = 16;

/// Returns the CTAs that decode `codes` codes, of [`TokensConfig::THREADS`] threads. `None` for more than a launch has.
#[must_use]
pub const fn decode_ctas(codes: u64) -> Option<u32> {
    let ctas = codes.div_ceil((DECODED_TOGETHER * TokensConfig::THREADS) as u64);
    if ctas < Divisor::DIVIDENDS as u64 { Some(ctas as u32) } else { None }
}

/// Parameter block of [`DECODE_NAME`]. Pointers are device addresses.
///
/// | field | shape | type |
/// |---|---|---|
/// | `codes` | `[words, 16]` | e4m3; 16-byte aligned |
/// | `out` | `[words, 16]` | bf16; 16-byte aligned |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DecodeTokensParams {
    /// Codes.
    pub codes: u64,
    /// The decoded codes.
    pub out: u64,
    /// Words of 16 codes.
    pub words: u64,
}

blocks! {
    TokensParams { input, factors, codes, scales, k, factor_rows }
    DecodeTokensParams { codes, out, words }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest element has the code 448, and products of code and scale are within half a code.
    #[test]
    fn codes_and_scales() {
        for amax in [1.0f32, 448.0, 3.3e38, 65504.0, 6e-8, 1e-20, 0.7] {
            assert_eq!(e4m3::encode(amax * to_codes(amax)), e4m3::MAX_CODE, "{amax}");
            let x = amax / 3.0;
            let back = e4m3::decode(e4m3::encode(x * to_codes(amax))) * scale(amax);
            assert!((back - x).abs() <= x / 16.0, "{amax}: {back}");
        }
        assert_eq!(e4m3::encode(0.0 * to_codes(0.0)), 0);
        assert!(scale(0.0) > 0.0 && to_codes(1e-44).is_finite());
        for amax in [f32::NAN, f32::INFINITY] {
            let code = e4m3::encode(amax * to_codes(amax));
            assert!(e4m3::is_nan(code) && !scale(amax).is_finite());
        }
    }
}
