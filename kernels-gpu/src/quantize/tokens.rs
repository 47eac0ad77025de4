//! Activations to e4m3 with a scale for each token, before a product with folded weights.
//!
//! # Contract
//! The parameters are [`TokensParams`]; K is a multiple of 16; one CTA for each token. Each element is
//! read once, or twice beyond the first [`TokensConfig::KEPT`] words of each thread; each code and each
//! scale is written once.
//!
//! The kernel that decodes has [`DecodeTokensParams`], and a thread for each word of 16 codes, which are read and written
//! once.
//!
//! # Roles
//! All threads of a CTA read the token's words, every [`TokensConfig::THREADS`]th each, find its largest
//! magnitude together, and write the codes of the words that they read.
//!
//! # Shared memory
//! | at | what |
//! |---|---|
//! | 0 | the largest magnitude of each warp |
//!
//! # Barriers
//! | barrier | arrives | waits | guards |
//! |---|---|---|---|
//! | 0, maxima full | all threads | all threads | each warp's magnitude is stored |
//!
//! # Dependent launches
//! The next kernel may start at once; it waits before it reads codes. This one waits for the kernels
//! before, which may write the activations.
//!
//! # Arithmetic
//! That of [`fp4_formats::quantize::tokens`].

use super::input::{Bf16, F16, Input, Word};
use crate::floats;
use crate::pipeline::{follow_stream, release_stream};
use cuda_std::ptx::{float, integer, memory};
use cuda_std::{kernel, shared, thread, warp};
use fp4_formats::HalfType;
use fp4_formats::quantize::tokens::{
    DECODED_TOGETHER, DecodeTokensParams, TOKENS, TokensConfig, TokensParams, scale, to_codes,
};

/// Number of the kernels' static buffer, which no other kernel of the family's module has.
const BUFFER: u32 = 2;
/// Elements of a word.
const PER_WORD: u32 = 8;

/// The kernel body.
///
/// # Safety
/// The launch satisfies the module's contract.
#[inline(always)]
unsafe fn quantize<I: Input>(p: &TokensParams) {
    release_stream();
    follow_stream();
    let row = thread::block_idx_x();
    let token = Token {
        words: p.k / PER_WORD,
        input: p.input + u64::from(row) * u64::from(p.k) * u64::from(I::TYPE.bytes()),
        codes: p.codes + u64::from(row) * u64::from(p.k),
    };
    let first = thread::thread_idx_x();
    let mut kept = [[0; 4]; TokensConfig::KEPT];
    for i in 0..TokensConfig::KEPT {
        let word = first + i as u32 * TokensConfig::THREADS;
        if word < token.words {
            // SAFETY: the word exists.
            kept[i] = unsafe { token.load(word) };
        }
    }
    let mut amax = I::amax(&kept);
    let rest = first + TokensConfig::KEPT as u32 * TokensConfig::THREADS;
    let mut word = rest;
    while word < token.words {
        // SAFETY: the word exists.
        amax = float::max_nan_f32(amax, I::amax(&[unsafe { token.load(word) }]));
        word += TokensConfig::THREADS;
    }
    // SAFETY: all threads of the CTA are here.
    let amax = unsafe { largest(amax) };
    let factor = to_codes(amax);
    for i in 0..TokensConfig::KEPT {
        let word = first + i as u32 * TokensConfig::THREADS;
        if word < token.words {
            // SAFETY: the word exists.
            unsafe { token.store::<I>(word, kept[i], factor) };
        }
    }
    let mut word = rest;
    while word < token.words {
        // SAFETY: the word exists.
        unsafe { token.store::<I>(word, token.load(word), factor) };
        word += TokensConfig::THREADS;
    }
    if first == 0 {
        let mut scale = scale(amax);
        // SAFETY: the token's factor and scale.
        unsafe {
            if p.factors != 0 {
                let at = p.factors + u64::from(p.factor_rows.divide(row).1) * 4;
                scale *= f32::from_bits(memory::ld_global_nc_b32(at));
            }
            memory::st_global_b32(p.scales + u64::from(row) * 4, scale.to_bits());
        }
    }
}

/// The place of a token.
#[derive(Clone, Copy)]
struct Token {
    words: u32,
    input: u64,
    codes: u64,
}

impl Token {
    /// Loads a word.
    ///
    /// # Safety
    /// It exists.
    #[inline(always)]
    unsafe fn load(&self, word: u32) -> Word {
        // SAFETY: the caller's; words are aligned.
        unsafe { memory::ld_global_nc_v4_b32(self.input + u64::from(word) * 16) }
    }

    /// Stores the codes of a word.
    ///
    /// # Safety
    /// It exists.
    #[inline(always)]
    unsafe fn store<I: Input>(&self, word: u32, elements: Word, factor: f32) {
        let values = I::group(&[elements], 0).map(|x| x * factor);
        let codes: [u32; 4] = core::array::from_fn(|i| {
            floats::e4m3_of_floats(values[2 * i + 1], values[2 * i]).into()
        });
        let codes = [codes[0] | codes[1] << 16, codes[2] | codes[3] << 16];
        // SAFETY: the caller's; eight codes for eight elements.
        unsafe { memory::st_global_v2_b32(self.codes + u64::from(word * PER_WORD), codes) }
    }
}

/// The largest of all threads' magnitudes; NaN if one is.
///
/// # Safety
/// All threads of the CTA call it, once.
#[inline(always)]
unsafe fn largest(amax: f32) -> f32 {
    let maxima = shared::fixed::<BUFFER, { 4 * TokensConfig::WARPS }, 16>();
    // SAFETY: all threads are here, and every warp has its own element of the buffer.
    unsafe {
        // Bits of magnitudes are ordered as they are, and those of NaN are the largest.
        let found = warp::max_u32(amax.to_bits());
        if warp::lane_id() == 0 {
            memory::st_shared_b32(maxima + thread::thread_idx_x() / warp::LANES * 4, found);
        }
        thread::sync_threads();
        let mut all = 0;
        for four in 0..TokensConfig::WARPS / 4 {
            let maxima = memory::ld_shared_v4_b32(maxima + four * 16);
            for i in 0..4 {
                all = maxima[i].max(all);
            }
        }
        f32::from_bits(all)
    }
}

/// Decodes e4m3 to bf16.
///
/// # Safety
/// The launch satisfies the module's contract.
#[kernel(threads = TokensConfig::THREADS, min_blocks = TokensConfig::MIN_BLOCKS)]
pub unsafe fn quantize_tokens_decode_bf16(params: DecodeTokensParams) {
    release_stream();
    follow_stream();
    let cta = u64::from(thread::block_idx_x()) * u64::from(TokensConfig::THREADS);
    let word = cta + u64::from(thread::thread_idx_x());
    if word >= params.words {
        return;
    }
    // SAFETY: the word exists on both sides; words are aligned.
    unsafe {
        let codes = memory::ld_global_nc_v4_b32(params.codes + word * u64::from(DECODED_TOGETHER));
        let out = params.out + word * u64::from(2 * DECODED_TOGETHER);
        for half in 0..2 {
            let [a, b] = [codes[2 * half], codes[2 * half + 1]];
            let values = [low_pair(a), high_pair(a), low_pair(b), high_pair(b)];
            memory::st_global_v4_b32(out + half as u64 * 16, values.map(bf16_of_e4m3));
        }
    }
}

/// Codes 0 and 1 of four, each in the upper byte of a half.
#[inline(always)]
fn low_pair(codes: u32) -> u32 {
    integer::prmt_b32(codes, 0, 0x1404)
}

/// Codes 2 and 3 of four, each in the upper byte of a half.
#[inline(always)]
fn high_pair(codes: u32) -> u32 {
    integer::prmt_b32(codes, 0, 0x3424)
}

/// Two e4m3 values, each in the upper byte of a half, as bf16.
#[inline(always)]
fn bf16_of_e4m3(codes: u32) -> u32 {
    // Exponent and mantissa at the low end of bf16's: the value times 2^-120, subnormals included.
    let magnitudes = (codes & 0x7f00_7f00) >> 4;
    let values = floats::mul_bf16x2(magnitudes | codes & 0x8000_8000, TWO_120);
    let nan =
        |half: u32| if codes & half & MAGNITUDES == half & MAGNITUDES { half & NANS } else { 0 };
    values | nan(0xffff) | nan(0xffff_0000)
}

/// 2^120 in bf16, twice.
const TWO_120: u32 = ((127 + 120) << 7) * 0x1_0001;
/// The bits of e4m3's magnitudes in the upper bytes of two halves, all of which are set in a NaN.
const MAGNITUDES: u32 = 0x7f00_7f00;
/// bf16's NaN, twice.
const NANS: u32 = 0x7fc0_7fc0;

/// Entry points: name, index in [`TOKENS`], type.
macro_rules! entries {
    ($($name:ident = $index:literal, $input:ident, $half:ident;)*) => {
        $(
            #[doc = concat!("[`TOKENS`]`[", stringify!($index), "]`.")]
            ///
            /// # Safety
            /// The launch satisfies the module's contract.
            #[kernel(threads = TokensConfig::THREADS, min_blocks = TokensConfig::MIN_BLOCKS)]
            pub unsafe fn $name(params: TokensParams) {
                const { assert!(TOKENS[$index].input as u32 == HalfType::$half as u32) };
                // SAFETY: the caller guarantees the contract.
                unsafe { quantize::<$input>(&params) }
            }
        )*
        crate::assert_names!([$($name),*], TOKENS);
    };
}

entries! {
    quantize_tokens_f16 = 0, F16, F16;
    quantize_tokens_bf16 = 1, Bf16, Bf16;
}
